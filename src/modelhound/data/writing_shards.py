"""Decode items and write their pixels down in shards, each image decoded once for all variants.

In:  a Dataset of images, the manifest of the folder they go to, the shards that are missing
Out: these shards, each under its final name only when its last byte is on the disk; the checksums of every item
Nothing here decides what is missing, or knows a model.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.dataset import Dataset
from modelhound.data.in_order import work_in_order
from modelhound.data.preprocessing import Variant, make_cut
from modelhound.data.source import printable
from modelhound.data.sources.prepared import CHECKSUMS, Manifest, StoredVariant, load_checksums
from modelhound.errors import DataError
from modelhound.meter import count_cores
from modelhound.records import Progress, Watch
from modelhound.store import explain_write_errors

__all__ = ["explained", "remove_unfinished", "unfinished", "write_shards", "write_whole"]

_TASK = "preparing items"
_WRITE_BYTES = 1 << 23  # written one item at a time, files were a tenth slower to read later
_MAX_THREADS = 16
_AHEAD_PER_THREAD = 4
_UNFINISHED = ".part"

_Pixels = npt.NDArray[np.uint8]


def write_shards(
    dataset: Dataset,
    folder: Path,
    manifest: Manifest,
    missing: Mapping[Variant, frozenset[int]],
    *,
    vouched: Set[Variant],
    watch: Watch,
) -> None:
    """The missing shards of every variant, and the checksums of all.

    The bytes that lie there already of variants that are `vouched` for have checksums, which stay.
    """
    checksums = _Checksums(folder, len(dataset), vouched)
    _write_missing(dataset, folder, manifest, missing, checksums, watch)
    for stored in manifest.variants:
        checksums.write(stored, missing[stored.variant])


class _Checksums:
    """CRC-32 of every item of every variant: of written items at once, of those that lay there from what lies there."""

    def __init__(self, folder: Path, num_items: int, vouched: Set[Variant]) -> None:
        self._folder, self._num_items, self._vouched = folder, num_items, vouched
        self._found: dict[Variant, npt.NDArray[np.uint32]] = {}

    def add(self, variant: Variant, position: int, pixels: _Pixels) -> None:
        if variant not in self._found:
            self._found[variant] = np.zeros(self._num_items, np.uint32)
        self._found[variant][position] = zlib.crc32(pixels.data)

    def write(self, stored: StoredVariant, rewritten: frozenset[int]) -> None:
        values = self._found.get(stored.variant, np.zeros(self._num_items, np.uint32))
        # A finished folder knows what its bytes were; those of a stopped start are vouched for by their names alone.
        earlier = None
        if stored.variant in self._vouched:
            with contextlib.suppress(DataError):  # damaged: they are made again
                earlier = load_checksums(self._folder, stored, self._num_items)
        for shard in set(range(stored.num_shards(self._num_items))) - rewritten:
            start = shard * stored.items_per_shard
            end = min(start + stored.items_per_shard, self._num_items)
            if earlier is not None:
                values[start:end] = earlier[start:end]
                continue
            with Path(stored.path(str(self._folder), shard)).open("rb") as file:
                for position in range(start, end):
                    values[position] = zlib.crc32(file.read(stored.variant.item_bytes))
        path = self._folder / stored.variant.name / CHECKSUMS
        write_whole(path, lambda file: np.save(file, values, allow_pickle=False))


def _write_missing(
    dataset: Dataset,
    folder: Path,
    manifest: Manifest,
    missing: Mapping[Variant, frozenset[int]],
    checksums: _Checksums,
    watch: Watch,
) -> None:
    def wanted(position: int) -> list[StoredVariant]:
        return [each for each in manifest.variants if position // each.items_per_shard in missing[each.variant]]

    def make(position: int) -> list[tuple[StoredVariant, _Pixels]]:
        image = dataset.read(position)
        assert isinstance(image, Image.Image)  # texts were refused before
        return [(stored, _pixels(image, cuts[stored.variant], manifest, position)) for stored in wanted(position)]

    todo = [position for position in range(len(dataset)) if wanted(position)]
    cuts = {stored.variant: make_cut(stored.variant) for stored in manifest.variants} if todo else {}
    watch(Progress(task=_TASK, done=0, total=len(todo)))
    step = max(1, len(todo) // 100)
    with contextlib.ExitStack() as stack:
        writers: dict[Variant, _ShardWriter] = {}
        # Threads suffice: decoding and resizing let go of Python's lock while they work.
        threads = min(_MAX_THREADS, count_cores() + 1)
        made_in_order = work_in_order(make, todo, threads=threads, ahead=threads * _AHEAD_PER_THREAD, name="prepare")
        for done, (position, made) in enumerate(zip(todo, made_in_order, strict=True), start=1):
            for stored, pixels in made:
                if stored.variant not in writers:
                    writers[stored.variant] = stack.enter_context(_ShardWriter(folder, stored, len(dataset)))
                writers[stored.variant].add(position, pixels)
                checksums.add(stored.variant, position, pixels)
            if done % step == 0 or done == len(todo):
                watch(Progress(task=_TASK, done=done, total=len(todo)))


def _pixels(image: Image.Image, cut: Callable[[Image.Image], Any], manifest: Manifest, position: int) -> _Pixels:
    try:
        return np.asarray(cut(image))
    except Exception as error:
        raise DataError(
            f"cannot prepare {manifest.item_names[position]!r}: expected an image, but {type(error).__name__}: {error}"
        ) from error


class _ShardWriter:
    """Writes the items of one variant, which come in order, into shards; each is renamed when it is whole."""

    def __init__(self, folder: Path, stored: StoredVariant, num_items: int) -> None:
        self._folder, self._stored, self._num_items = folder, stored, num_items
        self._file: IO[bytes] | None = None
        self._path = folder

    def __enter__(self) -> "_ShardWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        """What is unfinished goes, so that a full disk gets its space back."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()  # tries once more to write what it holds
            with contextlib.suppress(OSError):
                unfinished(self._path).unlink()

    def add(self, position: int, pixels: _Pixels) -> None:
        shard, row = divmod(position, self._stored.items_per_shard)
        with explained(self._folder, "write"):
            if row == 0:
                self._path = Path(self._stored.path(str(self._folder), shard))
                self._file = unfinished(self._path).open("wb", buffering=_WRITE_BYTES)
            assert self._file is not None  # a shard that is missing is written from its first item
            self._file.write(pixels.data)
            if row == self._stored.items_per_shard - 1 or position == self._num_items - 1:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._file = None
                unfinished(self._path).replace(self._path)


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """A file that is there with all that `write` puts into it, or not at all."""
    with explained(path, "write"):
        with unfinished(path).open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished(path).replace(path)


def unfinished(path: Path) -> Path:
    """The name of a file until it is whole: always the same, so that the next start finds what a killed one left."""
    return path.with_name(f".{path.name}{_UNFINISHED}")


def remove_unfinished(folder: Path) -> None:
    """What a killed start left there."""
    for leftover in folder.glob(f".*{_UNFINISHED}"):
        leftover.unlink()


def explained(path: Path, do: str) -> AbstractContextManager[None]:
    """What the system refuses meanwhile, in plain words."""
    return explain_write_errors(
        Path(printable(str(path))),
        doing=do,
        refused="make it writable or choose another folder",
        kept="whole shards are kept",
    )
