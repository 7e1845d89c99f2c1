"""Files that an earlier run has looked at and nobody has written to since.

In:  for each file a trace (where it lies on the disk, its size and the time of its last change), or None where it has none
Out: for each file the digest of its content, or None where it must be looked at
Nothing here opens a file. To look at ten thousand small files takes a second, to ask the system for their traces a
twentieth of it. A trace is trusted as `make` and `rsync` trust it; a file that was written to a moment ago gets none, since
the clock of some disks would not show another change right afterwards.
"""

import datetime
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from modelhound.feature_store import FeatureStore
from modelhound.meter import utc_now

__all__ = ["FileTrace", "KnownFiles"]

_MADE_BY = "sha256 of files that hold a readable image, 1"
_DIGEST_BYTES = 32
_SETTLED_SECONDS = 3


class FileTrace(NamedTuple):
    """What the system tells of a file without opening it."""

    place: str
    """Device and number: the same under every name the file has."""
    size_bytes: int
    changed_ns: int

    @property
    def stamp(self) -> str:
        return f"{self.size_bytes} {self.changed_ns}"


class KnownFiles:
    """Digests by trace, kept in the cache; where that cannot be read or written, no file is known."""

    def __init__(self) -> None:
        self._store = FeatureStore()

    def recall(self, traces: Sequence[FileTrace | None]) -> list[str | None]:
        """The digest of each file."""
        digests: list[str | None] = [None] * len(traces)
        asked = [place for place, trace in enumerate(traces) if trace is not None]
        found = self._store.read(_MADE_BY, [_name(traces[place]) for place in asked])
        if found.rows.shape[1] * found.rows.itemsize == _DIGEST_BYTES:
            for place, row in zip(found.positions.tolist(), found.rows, strict=True):
                digests[asked[place]] = row.tobytes().hex()
        return digests

    def note(self, traces: Sequence[FileTrace], digests: Sequence[str]) -> None:
        """Remember what these files hold, but for those that may still be written to."""
        latest_ns = (datetime.datetime.fromisoformat(utc_now()).timestamp() - _SETTLED_SECONDS) * 1e9
        settled = [place for place, trace in enumerate(traces) if trace.changed_ns < latest_ns]
        if settled:
            content = b"".join(bytes.fromhex(digests[place]) for place in settled)
            rows = np.frombuffer(content, np.uint16).reshape(len(settled), -1)
            self._store.write(_MADE_BY, [_name(traces[place]) for place in settled], rows)

    def close(self) -> None:
        self._store.close()


def _name(trace: FileTrace | None) -> str:
    assert trace is not None
    return f"{trace.place} {trace.stamp}"
