"""Facts worth remembering between runs.

In:  a key and a fact, as plain as JSON
Out: the fact, in this process and in later ones
Nothing here knows what a fact means. Losing the file costs time only.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from modelhound.store.lines import NOT_WHAT_WE_WROTE

__all__ = ["Memo", "cache_folder"]


class Memo:
    """A file of facts that are slow to find out and never change, one JSON line each. Losing it costs time only.

    Several processes may use it at once: a line is written in one go, and one that was cut off is passed over.
    """

    def __init__(self, name: str) -> None:
        self.path = cache_folder() / f"{name}.jsonl"
        self._facts: dict[str, Any] | None = None

    def recall(self, key: str, find_out: Callable[[], Any]) -> Any:
        """The fact under this key: remembered, or found out now and remembered. It must be plain, as JSON is."""
        if self.look_up(key) is None:
            self.note(key, find_out())
        return self.look_up(key)

    def look_up(self, key: str) -> Any:
        """The fact under this key; None where there is none."""
        if self._facts is None:
            self._facts = self._load()
        return self._facts.get(key)

    def note(self, key: str, fact: Any) -> None:
        """Remember a fact, in place of what was known under this key."""
        if self.look_up(key) != fact:
            assert self._facts is not None
            self._facts[key] = fact
            self._append(key, fact)

    def _load(self) -> dict[str, Any]:
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError:
            return {}
        facts: dict[str, Any] = {}
        for line in lines:
            with contextlib.suppress(*NOT_WHAT_WE_WROTE):
                facts.update(_decode_fact(line))
        return facts

    def _append(self, key: str, value: Any) -> None:
        """A disk that cannot be written to is not worth an error here."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                # the break first: the last line may be half a line
                file.write(b"\n" + msgspec.json.encode({key: value}))


_decode_fact = msgspec.json.Decoder(dict[str, Any]).decode


def cache_folder() -> Path:
    """Where modelhound remembers things between runs: $MODELHOUND_CACHE, else the system's cache folder."""
    own = os.environ.get("MODELHOUND_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modelhound"
