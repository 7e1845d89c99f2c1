"""Bring a folder of prepared items to what is asked for: what lies there whole stays, the rest is made (`writing_shards`).

In:  a Dataset of images, the Variants wanted, an output folder
Out: a folder that `prepared` reads; killed anywhere or damaged, and started again, it ends with the same bytes
Nothing here knows a model or decodes an image.
"""

import contextlib
import shutil
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import numpy as np
import numpy.typing as npt

from modelhound.data.dataset import Dataset
from modelhound.data.preprocessing import Variant
from modelhound.data.source import printable
from modelhound.data.sources.prepared import (
    PREPARED,
    PREPARING,
    TARGETS,
    Manifest,
    StoredVariant,
    checksum_targets,
    list_prepared,
    load_checksums,
    read_manifest,
)
from modelhound.data.writing_shards import explained, remove_unfinished, unfinished, write_shards, write_whole
from modelhound.errors import DataError, RequestError, RunBusyError
from modelhound.meter import count_cores
from modelhound.records import Progress, Watch

__all__ = ["check_folder", "find_damaged", "find_finished", "prepare_items"]

_SHARD_BYTES = 1 << 28
_LOCK = "lock"
_MAX_THREADS = 8


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
    if names - {_LOCK, unfinished(Path(PREPARING)).name} and not names & {PREPARED, PREPARING}:
        raise RequestError(
            f"cannot prepare into {printable(str(folder))!r}: expected a new, empty or prepared folder, but it holds other "
            "files; choose another folder"
        )


def find_finished(folder: Path, glance: str, variants: Sequence[Variant]) -> Manifest | None:
    """What is in the folder, if all that is asked for lies there already, by names and lengths; no item is read to find out."""
    manifest = read_manifest(folder / PREPARED)
    if manifest is None or manifest.glance != glance or (folder / PREPARING).exists():
        return None
    try:
        list_prepared(folder, manifest)
    except DataError:
        return None  # something is missing: to be made again
    return manifest if {stored.variant for stored in manifest.variants}.issuperset(variants) else None


def find_damaged(folder: Path, *, watch: Watch) -> tuple[Path, ...]:
    """Shards of a finished folder that hold other bytes than were written; shards that are gone or shorter are not listed."""
    manifest = read_manifest(folder / PREPARED)
    if manifest is None:
        return ()  # the bytes of a stopped start are vouched for by their names alone
    num_items = len(manifest.item_names)
    shards = []
    for stored in manifest.variants:
        with contextlib.suppress(DataError):  # checksums that are gone are made again from what lies there
            checksums = load_checksums(folder, stored, num_items)
            there = set(range(stored.num_shards(num_items))) - _missing_shards(folder, stored, num_items)
            shards += [(stored, shard, checksums) for shard in sorted(there)]
    damaged = []
    pool = ThreadPoolExecutor(min(_MAX_THREADS, count_cores()), thread_name_prefix="check")
    try:
        verdicts = pool.map(lambda each: _is_damaged(folder, *each), shards)
        for done, ((stored, shard, _), is_damaged) in enumerate(zip(shards, verdicts, strict=True), start=1):
            watch(Progress(task="checking prepared items", done=done, total=len(shards)))
            damaged += [Path(stored.path(str(folder), shard))] if is_damaged else []
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # does nothing unless interrupted: then the queue is dropped
    return tuple(damaged)


def _is_damaged(folder: Path, stored: StoredVariant, shard: int, checksums: npt.NDArray[np.uint32]) -> bool:
    start = shard * stored.items_per_shard
    try:
        with Path(stored.path(str(folder), shard)).open("rb") as file:
            return any(
                zlib.crc32(file.read(stored.variant.item_bytes)) != expected
                for expected in checksums[start : start + stored.items_per_shard].tolist()
            )
    except OSError:  # a sector that cannot be read any more
        return True


def prepare_items(
    dataset: Dataset,
    folder: Path,
    variants: Sequence[Variant],
    *,
    glance: str,
    watch: Watch,
    damaged: Collection[Path] = (),
    shard_bytes: int = _SHARD_BYTES,
) -> Manifest:
    """Write what is missing, and `damaged` shards anew.

    Variants that lie in the folder already stay; other items than theirs are refused.
    """
    check_folder(folder)
    _check_room(folder, _plan(dataset, folder, variants, glance, shard_bytes), damaged)
    with _locked(folder):
        manifest = _plan(dataset, folder, variants, glance, shard_bytes)  # by now another process may have been at it
        missing = {each.variant: _missing_shards(folder, each, len(dataset), damaged) for each in manifest.variants}
        finished = read_manifest(folder / PREPARED)
        write_whole(folder / PREPARING, lambda file: file.write(manifest.encode()))
        write_whole(folder / TARGETS, lambda file: np.save(file, dataset.targets, allow_pickle=False))
        for stored in manifest.variants:
            with explained(folder, "make a folder in"):
                (folder / stored.variant.name).mkdir(exist_ok=True)
                remove_unfinished(folder / stored.variant.name)
        vouched = {stored.variant for stored in finished.variants} if finished is not None else set()
        write_shards(dataset, folder, manifest, missing, vouched=vouched, watch=watch)
        write_whole(folder / PREPARED, lambda file: file.write(manifest.encode()))
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
        targets_crc32=checksum_targets(dataset.targets),
    )
    if earlier is not None and not earlier.holds_items_of(manifest):
        raise RequestError(
            f"cannot prepare {dataset.name!r} into {printable(str(folder))!r}: expected the items it was begun with, those of "
            f"{earlier.data!r}, but they are others or have changed since; choose another folder, or delete this one"
        )
    return manifest


def _missing_shards(
    folder: Path, stored: StoredVariant, num_items: int, damaged: Collection[Path] = ()
) -> frozenset[int]:
    def is_whole(shard: int) -> bool:
        path = Path(stored.path(str(folder), shard))
        try:
            return path not in damaged and path.stat().st_size == stored.shard_bytes(shard, num_items)
        except OSError:
            return False

    return frozenset(shard for shard in range(stored.num_shards(num_items)) if not is_whole(shard))


def _check_room(folder: Path, manifest: Manifest, damaged: Collection[Path]) -> None:
    num_items = len(manifest.item_names)
    needed = sum(
        stored.shard_bytes(shard, num_items)
        for stored in manifest.variants
        for shard in _missing_shards(folder, stored, num_items, damaged)
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
    with explained(folder, "make"):
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
