"""Decode every item of a data set and write its pixels down, so that loading is copying from then on.

In:  a Dataset of images, the Variants wanted, an output folder
Out: a folder that `prepared` reads; killed anywhere and started again, it ends with the same bytes
Nothing here knows a model. Each image is decoded once for all variants; a shard counts only under its final name, which it
gets when its last byte is on the disk.
"""

import contextlib
import os
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import filelock
import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.dataset import Dataset
from modelhound.data.preprocessing import Variant, make_cut
from modelhound.data.source import printable
from modelhound.data.sources.prepared import (
    CHECKSUMS,
    PREPARED,
    PREPARING,
    TARGETS,
    Manifest,
    StoredVariant,
    list_prepared,
    read_manifest,
)
from modelhound.errors import DataError, RequestError, RunBusyError
from modelhound.meter import count_cores
from modelhound.records import Progress, Watch
from modelhound.store import explain_write_errors

__all__ = ["check_folder", "find_finished", "prepare_items"]

_TASK = "preparing items"
_SHARD_BYTES = 1 << 28
_WRITE_BYTES = 1 << 23  # written one item at a time, files were a tenth slower to read later
_LOCK = "lock"
_MAX_THREADS = 16
_AHEAD_PER_THREAD = 4
_UNFINISHED = ".part"

_Pixels = npt.NDArray[np.uint8]


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else, before anything is read or written."""
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RequestError(
            f"cannot prepare into {printable(str(folder))!r}: expected a new, empty or prepared folder, but {reason}"
        ) from error
    if names - {_LOCK, _unfinished(Path(PREPARING)).name} and not names & {PREPARED, PREPARING}:
        raise RequestError(
            f"cannot prepare into {printable(str(folder))!r}: expected a new, empty or prepared folder, but it holds other "
            "files; choose another folder"
        )


def find_finished(folder: Path, glance: str, variants: Sequence[Variant]) -> Manifest | None:
    """What is in the folder, if all that is asked for lies there already; no item is read to find out."""
    manifest = read_manifest(folder / PREPARED)
    if manifest is None or manifest.glance != glance or (folder / PREPARING).exists():
        return None
    try:
        list_prepared(folder, manifest)
    except DataError:
        return None  # something is missing: to be made again
    return manifest if {stored.variant for stored in manifest.variants}.issuperset(variants) else None


def prepare_items(
    dataset: Dataset,
    folder: Path,
    variants: Sequence[Variant],
    *,
    glance: str,
    watch: Watch,
    shard_bytes: int = _SHARD_BYTES,
) -> Manifest:
    """Write what is missing. Variants that lie in the folder already stay; other items than theirs are refused."""
    check_folder(folder)
    _check_room(folder, _plan(dataset, folder, variants, glance, shard_bytes))
    with _locked(folder):
        manifest = _plan(dataset, folder, variants, glance, shard_bytes)  # by now another process may have been at it
        missing = {each.variant: _missing_shards(folder, each, len(dataset)) for each in manifest.variants}
        finished = read_manifest(folder / PREPARED)
        _write_whole(folder / PREPARING, lambda file: file.write(msgspec.json.encode(manifest)))
        _write_whole(folder / TARGETS, lambda file: np.save(file, dataset.targets, allow_pickle=False))
        for stored in manifest.variants:
            with _explained(folder, "make a folder in"):
                (folder / stored.variant.name).mkdir(exist_ok=True)
                for leftover in (folder / stored.variant.name).glob(f".*{_UNFINISHED}"):
                    leftover.unlink()
        known = {stored.variant for stored in finished.variants} if finished is not None else set()
        checksums = _Checksums(folder, len(dataset), known)
        _write_shards(dataset, folder, manifest, missing, checksums, watch)
        for stored in manifest.variants:
            checksums.write(stored, missing[stored.variant])
        _write_whole(folder / PREPARED, lambda file: file.write(msgspec.json.encode(manifest)))
        (folder / PREPARING).unlink()
    return manifest


def _plan(dataset: Dataset, folder: Path, variants: Sequence[Variant], glance: str, shard_bytes: int) -> Manifest:
    """The folder as it shall be. How many items share a shard is kept for variants that are there already."""
    earlier = read_manifest(folder / PREPARING) or read_manifest(folder / PREPARED)
    per_shard = {stored.variant: stored.items_per_shard for stored in earlier.variants} if earlier else {}
    for variant in variants:
        per_shard.setdefault(variant, max(1, shard_bytes // variant.item_bytes))
    manifest = Manifest(
        data=dataset.name if earlier is None else earlier.data,  # the same items may be reached by another path
        glance=glance,
        source_fingerprint=dataset.fingerprint,
        task=dataset.task,
        class_names=dataset.class_names,
        variants=tuple(
            StoredVariant(variant=variant, items_per_shard=per_shard[variant])
            for variant in sorted(per_shard, key=lambda each: each.name)
        ),
        skipped=dataset.skipped if earlier is None else earlier.skipped,  # a folder inside of the data would add itself
        item_names=dataset.item_names,
    )
    if earlier is not None and msgspec.structs.replace(earlier, variants=manifest.variants) != manifest:
        raise RequestError(
            f"cannot prepare {dataset.name!r} into {printable(str(folder))!r}: expected the items it was begun with, those of "
            f"{earlier.data!r}, but they are others or have changed since; choose another folder, or delete this one"
        )
    return manifest


def _missing_shards(folder: Path, stored: StoredVariant, num_items: int) -> frozenset[int]:
    def is_whole(shard: int) -> bool:
        try:
            return Path(stored.path(str(folder), shard)).stat().st_size == stored.shard_bytes(shard, num_items)
        except OSError:
            return False

    return frozenset(shard for shard in range(stored.num_shards(num_items)) if not is_whole(shard))


def _check_room(folder: Path, manifest: Manifest) -> None:
    num_items = len(manifest.item_names)
    needed = sum(
        stored.shard_bytes(shard, num_items)
        for stored in manifest.variants
        for shard in _missing_shards(folder, stored, num_items)
    )
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise RequestError(
            f"cannot prepare {num_items} items of {manifest.data!r} into {printable(str(folder))!r}: expected "
            f"{_gigabytes(needed)} of free space, but there are {_gigabytes(free)}; free some, use --limit, a smaller --size "
            "or fewer --models"
        )


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB ({num_bytes} bytes)"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _explained(folder, "make"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise RunBusyError(
                f"cannot prepare into {printable(str(folder))!r}: another process is writing it, wait for it to end"
            ) from None
    try:
        yield
    finally:
        lock.release()


class _Checksums:
    """CRC-32 of every item of every variant: of written items at once, of those that lay there from what lies there."""

    def __init__(self, folder: Path, num_items: int, known: set[Variant]) -> None:
        self._folder, self._num_items, self._known = folder, num_items, known
        self._found: dict[Variant, npt.NDArray[np.uint32]] = {}

    def add(self, variant: Variant, position: int, pixels: _Pixels) -> None:
        if variant not in self._found:
            self._found[variant] = np.zeros(self._num_items, np.uint32)
        self._found[variant][position] = zlib.crc32(pixels.data)

    def write(self, stored: StoredVariant, rewritten: frozenset[int]) -> None:
        path = self._folder / stored.variant.name / CHECKSUMS
        values = self._found.get(stored.variant, np.zeros(self._num_items, np.uint32))
        # A finished folder knows what its bytes were; those of a stopped start are vouched for by their names alone.
        earlier = _load_if_whole(path, self._num_items) if stored.variant in self._known else None
        for shard in set(range(stored.num_shards(self._num_items))) - rewritten:
            start = shard * stored.items_per_shard
            end = min(start + stored.items_per_shard, self._num_items)
            if earlier is not None:
                values[start:end] = earlier[start:end]
                continue
            with Path(stored.path(str(self._folder), shard)).open("rb") as file:
                for position in range(start, end):
                    values[position] = zlib.crc32(file.read(stored.variant.item_bytes))
        _write_whole(path, lambda file: np.save(file, values, allow_pickle=False))


def _load_if_whole(path: Path, num_items: int) -> npt.NDArray[np.uint32] | None:
    try:
        loaded: npt.NDArray[np.uint32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return loaded if loaded.shape == (num_items,) and loaded.dtype == np.uint32 else None


def _write_shards(
    dataset: Dataset,
    folder: Path,
    manifest: Manifest,
    missing: dict[Variant, frozenset[int]],
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
        for done, (position, made) in enumerate(_in_order(make, todo), start=1):
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


def _in_order(
    make: Callable[[int], list[tuple[StoredVariant, _Pixels]]], positions: Sequence[int]
) -> Iterator[tuple[int, list[tuple[StoredVariant, _Pixels]]]]:
    """What `make` makes of each position, in order, by threads that are never far ahead of the one who takes it.

    Threads suffice: decoding and resizing let go of Python's lock while they work.
    """
    num_threads = min(_MAX_THREADS, count_cores() + 1)
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="prepare")
    waiting: deque[tuple[int, Future[list[tuple[StoredVariant, _Pixels]]]]] = deque()
    try:
        for position in positions:
            waiting.append((position, pool.submit(make, position)))
            if len(waiting) >= num_threads * _AHEAD_PER_THREAD:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # interrupted: the queue is dropped


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
                _unfinished(self._path).unlink()

    def add(self, position: int, pixels: _Pixels) -> None:
        shard, row = divmod(position, self._stored.items_per_shard)
        with _explained(self._folder, "write"):
            if row == 0:
                self._path = Path(self._stored.path(str(self._folder), shard))
                self._file = _unfinished(self._path).open("wb", buffering=_WRITE_BYTES)
            assert self._file is not None  # a shard that is missing is written from its first item
            self._file.write(pixels.data)
            if row == self._stored.items_per_shard - 1 or position == self._num_items - 1:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._file = None
                _unfinished(self._path).replace(self._path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}{_UNFINISHED}")


def _write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    with _explained(path, "write"):
        with _unfinished(path).open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        _unfinished(path).replace(path)


def _explained(path: Path, do: str) -> AbstractContextManager[None]:
    return explain_write_errors(
        Path(printable(str(path))),
        doing=do,
        refused="make it writable or choose another folder",
        kept="whole shards are kept",
    )
