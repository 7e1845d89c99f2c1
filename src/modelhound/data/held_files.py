"""Files that were read once and will be wanted once more.

In:  the bytes of files, by name
Out: each of them at most once
Nothing here reads a file. On some machines opening a file takes longer than decoding it, and a search first looks at every item
and then decodes it: what it has looked at stays here in between, as far as a limit reaches.
"""

import threading

__all__ = ["HeldFiles"]


class HeldFiles:
    """Empty, and stays so, unless made with a limit. A copy for another process is empty too."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self._room_bytes = limit_bytes
        self._files: dict[str, bytes] = {}
        self._alone = threading.Lock()

    def __reduce__(self) -> tuple[type["HeldFiles"], tuple[()]]:
        return HeldFiles, ()

    def put(self, name: str, data: bytes) -> None:
        """Hold the file if there is room."""
        with self._alone:
            if len(data) <= self._room_bytes and name not in self._files:
                self._room_bytes -= len(data)
                self._files[name] = data

    def take(self, name: str) -> bytes | None:
        """The file, which is not held any more then; None if it is not here."""
        with self._alone:
            data = self._files.pop(name, None)
            if data is not None:
                self._room_bytes += len(data)
            return data
