"""The store as others see it: read rows, write rows, stay within a limit, and say why when keeping ends.

In:  what made the rows, the stamps of items, rows
Out: rows, and which items they are of
Nothing here knows how a key lies on the disk, that is `key`'s.
"""

import contextlib
import errno
import functools
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelhound.errors import StoreError
from modelhound.feature_store.key import DTYPES, ENTRY_BYTES, Digests, Key, pick_rows
from modelhound.feature_store.sharing import hold, list_keys, list_live, make_mark, remove_key, remove_mark
from modelhound.store import cache_folder, is_disk_full

__all__ = ["DEFAULT_LIMIT_BYTES", "FeatureStore", "Found"]

DEFAULT_LIMIT_BYTES = 20_000_000_000

_FORMAT = 1
_LOCK, _LIVE = "lock", "live"
_WORTH_REMEMBERING = 100
_PARCEL, _LENGTH_BYTES = "parcel", 8
_MOST_KEYS_IN_MEMORY = 256  # of 10 000 items each this is 80 MB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """`rows[k]` belongs to the item at `positions[k]` of those asked for; `missing` are the positions of all others."""

    rows: npt.NDArray[Any]
    positions: npt.NDArray[np.int64]
    missing: npt.NDArray[np.int64]


class FeatureStore:
    """Feature rows in a folder that any number of processes and threads may use at once.

    Where keeping fails, `trouble` says why and nothing more is written; reading goes on. `num_damaged` counts what was found
    damaged and dropped. Keys used longest ago make room for new ones, never those that a living process has used: a store
    whose limit is smaller than what is in use at once ends keeping instead of dropping what the next start would need.
    """

    def __init__(self, folder: Path | None = None, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = (cache_folder() / "features" if folder is None else folder) / f"v{_FORMAT}"
        self.limit_bytes = limit_bytes
        self.trouble: str | None = None
        self.num_damaged = 0
        self._alone = threading.RLock()
        self._keys: dict[str, Key] = {}
        self._used: set[str] = set()
        self._mark: tuple[int, Path] | None = None
        self._unmark: Callable[[], object] = lambda: None
        self._room_bytes = -1  # what may be written before sizes are looked at again

    def read(self, made_by: str, items: Sequence[str]) -> Found:
        """The rows that are here and whole. They are the caller's own to change: the store never sees it."""
        digests = _digest_items(items)
        rows, is_here = np.empty((0, 0), DTYPES[0]), np.zeros(len(digests), bool)
        with self._alone:
            key = self._key(made_by)
            with contextlib.suppress(OSError):  # what cannot be read is not here
                if key.exists():
                    with contextlib.suppress(OSError):  # where nothing can be written, others' rows can be read
                        self._begin_use(key)
                    key.refresh()
                    rows, is_here = key.take(digests)
            self.num_damaged += key.count_damaged()
        return Found(rows=rows, positions=np.flatnonzero(is_here), missing=np.flatnonzero(~is_here))

    def holds(self, made_by: str, items: Sequence[str]) -> bool:
        """Whether there is a row of each of these items; one may still turn out to be damaged."""
        with self._alone, contextlib.suppress(OSError):
            key = self._key(made_by)
            if key.exists():
                key.refresh()
                return bool(key.holds(_digest_items(items)).all())
        return False

    def write(self, made_by: str, items: Sequence[str], rows: npt.NDArray[Any]) -> int:
        """Keep the rows of those items that are not here yet; how many these were. All rows of one `made_by` are alike."""
        _check_rows(rows, len(items))
        with self._alone:
            if self.trouble is not None or not len(items):
                return 0
            key = self._key(made_by)
            try:
                self._begin_use(key)
                with hold(key.folder / _LOCK, alone=True):
                    key.refresh()
                    key.begin(rows.shape[1], rows.dtype)
                    digests = _digest_items(items)
                    _, firsts = np.unique(digests[:, 0], return_index=True)
                    new = np.sort(firsts[~key.holds(digests[firsts])])
                    self._make_room(len(new) * (key.row_bytes + ENTRY_BYTES))
                    key.append(digests[new], pick_rows(rows, new))
            except OSError as error:
                self._stop(error)
                return 0
            finally:
                self.num_damaged += key.count_damaged()
            return len(new)

    def read_parcel(self, made_by: str) -> bytes | None:
        """What `write_parcel` was given under this name, if it is here and whole."""
        found = self.read(made_by, [_PARCEL])
        content = found.rows.tobytes()
        length = int.from_bytes(content[:_LENGTH_BYTES], "little")
        return content[_LENGTH_BYTES : _LENGTH_BYTES + length] if len(found.positions) else None

    def write_parcel(self, made_by: str, content: bytes) -> None:
        """Keep anything else that can be made again: some bytes under a name of their own."""
        whole = len(content).to_bytes(_LENGTH_BYTES, "little") + content + bytes(len(content) % 2)
        self.write(made_by, [_PARCEL], np.frombuffer(whole, np.uint16)[None])

    def size_bytes(self) -> int:
        """What all keys together take."""
        return sum(key.size_bytes for key in list_keys(self.folder))

    def forget(self, made_by: str | None = None) -> int:
        """Remove one key, or all; how many bytes that freed. What another living process uses stays."""
        if not self.folder.is_dir():
            return 0
        wanted = None if made_by is None else _name_key(made_by)
        try:
            with self._alone, hold(self.folder / _LOCK, alone=True):
                others = list_live(self.folder / _LIVE, but=None if self._mark is None else self._mark[1])
                found = [key for key in list_keys(self.folder) if wanted in (None, key.name) and key.name not in others]
                for key in found:
                    self._keys.pop(key.name, None)
                    self._used.discard(key.name)
                    remove_key(key)
        except OSError as error:
            raise StoreError(
                f"cannot remove features from {str(self.folder)!r}: {error.strerror or error}; make it writable"
            ) from error
        return sum(key.size_bytes for key in found)

    def close(self) -> None:
        """Let others remove what this process used; the end of the process does so too."""
        with self._alone:
            self._unmark()
            self._mark = None
            self._used.clear()

    def _key(self, made_by: str) -> Key:
        name = _name_key(made_by)
        key = self._keys.pop(name, None) or Key(self.folder / name)
        self._keys[name] = key  # now the last: the first is the one used longest ago
        if len(self._keys) > _MOST_KEYS_IN_MEMORY:
            del self._keys[next(iter(self._keys))]
        return key

    def _begin_use(self, key: Key) -> None:
        """Tell the other processes that this one uses the key, and when."""
        name = key.folder.name
        if name not in self._used or not key.folder.is_dir():
            (self.folder / _LIVE).mkdir(parents=True, exist_ok=True)
            with hold(self.folder / _LOCK):
                if self._mark is None:
                    self._mark = make_mark(self.folder / _LIVE)
                    self._unmark = weakref.finalize(self, remove_mark, *self._mark, os.getpid())
                os.write(self._mark[0], f"{name}\n".encode())
                key.folder.mkdir(exist_ok=True)
            self._used.add(name)
        os.utime(key.folder)

    def _make_room(self, needed_bytes: int) -> None:
        """Remove keys used longest ago if it takes that. Looks now and then only, so others may add a little meanwhile."""
        self._room_bytes -= needed_bytes
        if self._room_bytes >= 0:
            return
        slack = self.limit_bytes // 20
        with hold(self.folder / _LOCK, alone=True):
            keys = list_keys(self.folder)
            total = sum(key.size_bytes for key in keys) + needed_bytes
            if total > self.limit_bytes:
                live = list_live(self.folder / _LIVE)
                for key in sorted(keys, key=lambda key: key.used_at):
                    if total > self.limit_bytes - slack and key.name not in live:
                        remove_key(key)
                        total -= key.size_bytes
        if total > self.limit_bytes:
            reason = f"its limit of {self.limit_bytes} bytes is reached and running processes use what it holds"
            raise OSError(errno.EDQUOT, reason)
        self._room_bytes = min(slack, self.limit_bytes - total)

    def _stop(self, error: OSError) -> None:
        advice = (
            "free some space or allow more"
            if is_disk_full(error)
            else "make it writable or set another MODELHOUND_CACHE"
        )
        self.trouble = (
            f"cannot keep features in {str(self.folder)!r}: {error.strerror or error}; {advice}. "
            "Results are the same, the next search takes longer"
        )


def _check_rows(rows: npt.NDArray[Any], num_items: int) -> None:
    if rows.ndim != 2 or len(rows) != num_items or not rows.shape[1] or rows.dtype not in DTYPES:
        raise StoreError(
            f"cannot keep {rows.dtype} rows of shape {rows.shape} for {num_items} items: expected one row for each item, "
            f"of {', '.join(map(str, DTYPES))}, view bfloat16 as uint16"
        )


def _name_key(made_by: str) -> str:
    return hashlib.blake2b(made_by.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _digest_items(items: Sequence[str]) -> Digests:
    """The models of a search are asked for the same items one after another; batches are not worth remembering."""
    return _remember_digests(tuple(items)) if len(items) >= _WORTH_REMEMBERING else _digest(items)


def _digest(items: Sequence[str]) -> Digests:
    """16 bytes for each item; a path may hold bytes that are no text, which Python hands on as surrogates."""
    digests = [hashlib.blake2b(item.encode("utf-8", "surrogatepass"), digest_size=16).digest() for item in items]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


_remember_digests = functools.lru_cache(maxsize=4)(_digest)
