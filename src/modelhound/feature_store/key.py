"""One key of the store: rows of one kind in one file, and an index of them in another.

In:  digests of items, rows
Out: the rows of those items that are here and whole
Nothing here knows what an item is, which key this is, or who else uses it.

Both files only grow, rows first, so that an entry that is seen has its row; a place once given is never given again, so that
rows read earlier stay as they are. A tail that was cut off is left where it is, and its checks fail. Nothing is flushed to the
disk: what a power cut takes fails its checks too, and costs time only.

A row is checked when a process first reads it. CRC-32 is then most of the work, a third of a second for a gigabyte. Sums
in numpy would be several times as fast, but two flipped sign bits cancel out in them.
"""

import contextlib
import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from modelhound.errors import StoreError

__all__ = ["DTYPES", "ENTRY_BYTES", "Digests", "Key", "pick_rows"]

DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))
"""What a row may be of; the header of an index holds the place in this list."""
ENTRY_BYTES = 32  # divides a page, so that no entry lies across two

Digests = npt.NDArray[np.uint64]
"""[num_items, 2]"""
_Rows = npt.NDArray[Any]
_Numbers = npt.NDArray[np.int64]

_INDEX = "index"
_HEADER = struct.Struct("<8s8s16sII20xI")  # magic, generation, key, width, dtype, CRC-32 of all before
_MAGIC = b"hound\x00f\x01"
# An entry is 8 words of 4 bytes: digest (4), row number (2), CRC-32 of the row, check of the words before.
_NUM_WORDS, _NUM_CHECKED = 8, 7
_WEIGHTS = np.frombuffer(hashlib.blake2b(b"entries of a feature index").digest(), "<u8")
_UNSEEN, _WHOLE, _DAMAGED = 0, 1, 2


class _Run(NamedTuple):
    """Entries in order of `low`, the first half of their digests; of entries for one item the newest is last."""

    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]
    numbers: _Numbers
    checksums: npt.NDArray[np.uint32]


class Key:
    """The files in `folder`, and the index as far as this process has read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._num_damaged = 0
        self._start_anew(b"", 0, DTYPES[0])

    def _start_anew(self, generation: bytes, width: int, dtype: np.dtype[Any]) -> None:
        self.generation, self.width, self.dtype = generation, width, dtype
        self._seen_bytes = _HEADER.size
        self._runs: list[_Run] = []
        self._states = np.zeros(0, np.uint8)  # of each row number
        self._num_given = 0

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def _index_path(self) -> Path:
        return self.folder / _INDEX

    @property
    def _rows_path(self) -> Path:
        return self.folder / f"rows-{self.generation.hex()}"

    def exists(self) -> bool:
        return self._index_path.exists()

    def count_damaged(self) -> int:
        """How much damage was found since this was last asked."""
        count, self._num_damaged = self._num_damaged, 0
        return count

    def refresh(self) -> None:
        """Read what was added to the index, or all of it if it is not the one from before; a broken one is empty."""
        added = b""
        with contextlib.ExitStack() as stack:
            handle = stack.enter_context(_opened(self._index_path, os.O_RDONLY)) if self.exists() else None
            header = None if handle is None else self._parse_header(os.pread(handle, _HEADER.size, 0))
            if handle is None or header is None:
                self._num_damaged += handle is not None
                return self._start_anew(b"", 0, DTYPES[0])
            size = os.fstat(handle).st_size
            if header[0] != self.generation or size < self._seen_bytes:
                self._start_anew(*header)
            added = os.pread(handle, (size - self._seen_bytes) // ENTRY_BYTES * ENTRY_BYTES, self._seen_bytes)
        entries = np.frombuffer(added, "<u4", len(added) // ENTRY_BYTES * _NUM_WORDS).reshape(-1, _NUM_WORDS)
        self._seen_bytes += entries.nbytes
        is_whole = _check(entries) == entries[:, _NUM_CHECKED]
        self._num_damaged += int(len(entries) - is_whole.sum())
        return self._take_in(entries[is_whole])

    def _parse_header(self, header: bytes) -> tuple[bytes, int, np.dtype[Any]] | None:
        if len(header) != _HEADER.size:
            return None
        magic, generation, key, width, dtype, checksum = _HEADER.unpack(header)
        if (magic, key.hex(), checksum) != (_MAGIC, self.folder.name, zlib.crc32(header[:-4])):
            return None
        return generation, width, DTYPES[dtype]

    def _take_in(self, entries: npt.NDArray[np.uint32]) -> None:
        if not len(entries):
            return
        words = entries.view("<u8")
        self._runs.append(_sort_run(words[:, 0], words[:, 1], words[:, 2].astype(np.int64), entries[:, 6]))
        # Each run is at least twice as long as the next: adding stays cheap however small the pieces, and so does looking up.
        while len(self._runs) > 1 and len(self._runs[-2].low) < 2 * len(self._runs[-1].low):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(
                _sort_run(
                    np.concatenate([older.low, newer.low]),
                    np.concatenate([older.high, newer.high]),
                    np.concatenate([older.numbers, newer.numbers]),
                    np.concatenate([older.checksums, newer.checksums]),
                )
            )
        self._num_given = max(self._num_given, int(words[:, 2].max()) + 1)
        if self._num_given > len(self._states):
            unseen = np.zeros(max(self._num_given, 2 * len(self._states)) - len(self._states), np.uint8)
            self._states = np.concatenate([self._states, unseen])

    def holds(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Of which items there is a row that is not known to be damaged."""
        return self._look_up(digests)[0] >= 0

    def _look_up(self, digests: Digests) -> tuple[_Numbers, npt.NDArray[np.uint32]]:
        """Row number and checksum for each digest; the number is -1 where there is no row or a damaged one."""
        numbers, checksums = np.full(len(digests), -1, np.int64), np.zeros(len(digests), np.uint32)
        for run in self._runs:  # from old to new: the newest entry counts
            places = np.searchsorted(run.low, digests[:, 0], side="right") - 1
            is_here = (places >= 0) & (run.low[places] == digests[:, 0]) & (run.high[places] == digests[:, 1])
            numbers[is_here], checksums[is_here] = run.numbers[places[is_here]], run.checksums[places[is_here]]
        if self._runs:
            numbers[(numbers >= 0) & (self._states[numbers] == _DAMAGED)] = -1
        return numbers, checksums

    def take(self, digests: Digests) -> tuple[_Rows, npt.NDArray[np.bool_]]:
        """The rows that are here and whole, and for which of the digests that is so."""
        numbers, checksums = self._look_up(digests)
        is_here = numbers >= 0
        mapped = self._map(int(numbers.max(initial=-1)) + 1)
        self._drop(numbers[numbers >= len(mapped)])
        is_here &= numbers < len(mapped)
        numbers, checksums = numbers[is_here], checksums[is_here]
        rows = pick_rows(mapped, numbers)
        unseen = np.flatnonzero(self._states[numbers] == _UNSEEN)
        is_damaged = np.zeros(len(rows), bool)
        is_damaged[unseen] = _checksums(pick_rows(rows, unseen)) != checksums[unseen]
        self._states[numbers[unseen]] = _WHOLE
        if is_damaged.any():
            self._drop(numbers[is_damaged])
            is_here[is_here] = ~is_damaged
            rows = rows[~is_damaged]
        return rows, is_here

    def _map(self, num_rows: int) -> _Rows:
        """The first rows of the file as memory, fewer if the file is shorter. To change them changes a copy."""
        if num_rows and self._rows_path.exists():
            with _opened(self._rows_path, os.O_RDONLY) as handle:
                num_rows = min(num_rows, os.fstat(handle).st_size // self.row_bytes)
                if num_rows:
                    memory = mmap.mmap(handle, num_rows * self.row_bytes, access=mmap.ACCESS_COPY)
                    return np.frombuffer(memory, self.dtype).reshape(num_rows, self.width)
        return np.empty((0, self.width), self.dtype)

    def _drop(self, numbers: _Numbers) -> None:
        self._states[numbers] = _DAMAGED
        self._num_damaged += len(np.unique(numbers))

    def begin(self, width: int, dtype: np.dtype[Any]) -> None:
        """Make sure that there is an index, for rows like these. Only the holder of the key's lock may."""
        if self.generation:
            if (self.width, self.dtype) != (width, dtype):
                raise StoreError(
                    f"cannot keep rows of {width} x {dtype} beside rows of {self.width} x {self.dtype}: expected rows of one "
                    "kind under one name, put what differs into `made_by`"
                )
            return
        for left in self.folder.glob("rows-*"):  # whoever has these open goes on with them
            left.unlink()
        generation = os.urandom(8)
        key = bytes.fromhex(self.folder.name)
        header = _HEADER.pack(_MAGIC, generation, key, width, DTYPES.index(dtype), 0)[:-4]
        # a reader must not take an index without its header for broken
        unfinished = self._index_path.with_name(f".{_INDEX}")
        with _opened(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
            _write_at(handle, header + zlib.crc32(header).to_bytes(4, "little"), 0)
        unfinished.replace(self._index_path)
        self._start_anew(generation, width, dtype)

    def append(self, digests: Digests, rows: _Rows) -> None:
        """Add rows, then their entries. Only the holder of the key's lock may, after `refresh`."""
        if not len(rows):
            return
        rows = np.ascontiguousarray(rows)
        with _opened(self._rows_path, os.O_WRONLY | os.O_CREAT) as handle:
            size = os.fstat(handle).st_size
            first = max(-(-size // self.row_bytes), self._num_given)
            try:
                _write_at(handle, rows.view(np.uint8).reshape(-1).data, first * self.row_bytes)
            except OSError:
                os.ftruncate(handle, size)  # no entry points there, so nobody reads there
                raise
        entries = np.empty((len(rows), _NUM_WORDS), "<u4")
        entries[:, :4] = np.ascontiguousarray(digests).view("<u4")
        entries[:, 4:6] = np.arange(first, first + len(rows), dtype="<u8")[:, None].view("<u4")
        entries[:, 6] = _checksums(rows)
        entries[:, _NUM_CHECKED] = _check(entries)
        with _opened(self._index_path, os.O_WRONLY) as handle:
            end = -(-os.fstat(handle).st_size // ENTRY_BYTES) * ENTRY_BYTES
            _write_at(handle, entries.view(np.uint8).reshape(-1).data, end)


def pick_rows(rows: _Rows, numbers: _Numbers) -> _Rows:
    """The rows of these numbers: a view where they follow one another, else a copy."""
    if not len(numbers):
        return rows[:0]
    first = int(numbers[0])
    if np.array_equal(numbers, np.arange(first, first + len(numbers))):
        return rows[first : first + len(numbers)]
    return np.take(rows, numbers, axis=0)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


def _check(entries: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The upper half of a weighted sum of the words before the check; of words that are all 0 it is not 0."""
    sums: npt.NDArray[np.uint64] = (
        entries[:, :_NUM_CHECKED].astype(np.uint64) @ _WEIGHTS[:_NUM_CHECKED] + _WEIGHTS[_NUM_CHECKED]
    )
    return (sums >> np.uint64(32)).astype(np.uint32)


def _sort_run(
    low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64], numbers: _Numbers, checksums: npt.NDArray[np.uint32]
) -> _Run:
    order = np.argsort(low, kind="stable")
    return _Run(low=low[order], high=high[order], numbers=numbers[order], checksums=checksums[order])


def _checksums(rows: _Rows) -> npt.NDArray[np.uint32]:
    return np.fromiter(map(zlib.crc32, rows), np.uint32, len(rows))


def _write_at(handle: int, content: bytes | memoryview, start: int) -> None:
    """All of the content, or an error: a disk that fills up takes a part first."""
    left = memoryview(content)
    while left:
        num_written = os.pwrite(handle, left, start)
        left, start = left[num_written:], start + num_written
