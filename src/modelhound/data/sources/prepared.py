"""Items that `hound prepare` has decoded, resized and cropped: a folder of plain bytes that any item can be copied from.

In:  the path of such a folder
Out: a Listing whose reader copies pixels out of mapped files instead of decoding
Nothing here decodes or writes (see `preparing`). It owns the file names:

    OUT/prepared.json             what is in here; written last, so that it stands for a whole folder
    OUT/preparing.json            the same, while `hound prepare` has not finished
    OUT/targets.npy               the labels
    OUT/VARIANT/shard-00000.bin   items one after the other, height x width x 3 bytes each
    OUT/VARIANT/checksums.npy     CRC-32 of every item

A model whose resize and crop are those of a variant gets exactly the pixels that it would get from the original images. Any
other model gets the images of the largest variant, through its own transform: close to the originals, but not the same.
"""

import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.preprocessing import Preprocessing, Variant
from modelhound.data.source import DataRequest, Listing, UnreadableItemError, printable
from modelhound.data.sources.table_files import local_path
from modelhound.errors import DataError, system_reason
from modelhound.records import ItemSkipped
from modelhound.settings import Task

__all__ = [
    "CHECKSUMS",
    "PREPARED",
    "PREPARING",
    "TARGETS",
    "Manifest",
    "PreparedReader",
    "PreparedSource",
    "StoredVariant",
    "checksum_targets",
    "list_prepared",
    "load_checksums",
    "read_manifest",
]

PREPARED, PREPARING, TARGETS, CHECKSUMS = "prepared.json", "preparing.json", "targets.npy", "checksums.npy"

_AGAIN = "start the same `hound prepare` again"
_ANEW = "delete the folder and start `hound prepare` again"
_NUM_CHANNELS = 3

_Count = Annotated[int, msgspec.Meta(ge=1)]


class StoredVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant, and how many of its items lie in one file."""

    variant: Variant
    items_per_shard: _Count

    def num_shards(self, num_items: int) -> int:
        return -(-num_items // self.items_per_shard)

    def shard_bytes(self, shard: int, num_items: int) -> int:
        """How long the file must be; the last one may be shorter than the others."""
        return min(self.items_per_shard, num_items - shard * self.items_per_shard) * self.variant.item_bytes

    def path(self, folder: str, shard: int) -> str:
        return f"{folder}/{self.variant.name}/shard-{shard:05}.bin"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a prepared folder says of itself."""

    format: Literal["modelhound prepared items, 1"] = "modelhound prepared items, 1"
    data: str
    """Where the items came from, as it was given."""

    glance: str
    """A fingerprint of the original items that needs no decoding; see `dataset.glance`."""

    source_fingerprint: str
    task: Task
    class_names: tuple[str, ...]
    variants: Annotated[tuple[StoredVariant, ...], msgspec.Meta(min_length=1)]
    skipped: tuple[ItemSkipped, ...]
    item_names: tuple[str, ...]
    targets_crc32: int | None = None
    """Of the labels; None in folders of older versions, as is the next."""

    crc32: int | None = None
    """Of all the rest of this."""

    def encode(self) -> bytes:
        """As the file that `read_manifest` reads."""
        return msgspec.json.encode(msgspec.structs.replace(self, crc32=self._checksum()))

    def is_sound(self) -> bool:
        """Whether it says what it said when it was written."""
        return self.crc32 in (None, self._checksum())

    def holds_items_of(self, other: "Manifest") -> bool:
        """Whether both are of the same items, in whatever variants."""
        # the fingerprint knows the labels
        apart: dict[str, Any] = {"variants": (), "targets_crc32": None, "crc32": None}
        return msgspec.structs.replace(self, **apart) == msgspec.structs.replace(other, **apart)

    def _checksum(self) -> int:
        return zlib.crc32(msgspec.json.encode(msgspec.structs.replace(self, crc32=None)))


@dataclass(frozen=True, slots=True, eq=False)
class PreparedReader:
    """Items by their place in the shards. Shards are mapped when first used, once in every process."""

    folder: str
    variants: tuple[StoredVariant, ...]
    num_stored: int
    places: npt.NDArray[np.int64]
    checksums: npt.NDArray[np.uint32]
    """[variants, stored items]"""

    @property
    def in_memory(self) -> bool:
        return False

    def select(self, positions: Sequence[int]) -> Self:
        places = self.places[np.asarray(positions, dtype=np.int64)]
        return type(self)(self.folder, self.variants, self.num_stored, places, self.checksums)

    def stamp(self, position: int) -> str:
        return " ".join(f"{zlib.crc32(self._item(stored, position).data):08x}" for stored in self.variants)

    def check(self, position: int) -> str:
        for stored, expected in zip(self.variants, self.checksums[:, self.places[position]].tolist(), strict=True):
            if zlib.crc32(self._item(stored, position).data) != expected:
                path = stored.path(self.folder, int(self.places[position]) // stored.items_per_shard)
                raise UnreadableItemError(
                    f"its bytes in {printable(path)!r} are not those that were prepared; {_AGAIN}"
                )
        digest = hashlib.sha256()
        for stored in self.variants:
            digest.update(stored.variant.name.encode())
            digest.update(self._item(stored, position).reshape(-1).data)
        return digest.hexdigest()

    def read(self, position: int) -> Image.Image:
        """The item as the largest variant shows it."""
        largest = max(self.variants, key=lambda stored: stored.variant.item_bytes)
        return Image.fromarray(self._item(largest, position))

    def holds(self, preprocessing: Preprocessing) -> bool:
        """Whether `read_pixels` can serve it."""
        return self._find(preprocessing) is not None

    def read_pixels(self, positions: Sequence[int], preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
        """Items resized and cropped as `preprocessing` says, [items, height, width, 3], copied from the map."""
        stored = self._find(preprocessing)
        if stored is None:
            raise ValueError(f"cannot read {Variant.of(preprocessing).name}: it is not among the variants")
        chosen = slice(positions.start, positions.stop) if _is_slice(positions) else np.asarray(positions, np.int64)
        shards, rows = np.divmod(self.places[chosen], stored.items_per_shard)
        maps = {shard: self._shard(stored, shard) for shard in set(shards.tolist())}
        if len(maps) == 1:
            (only,) = maps.values()
            first, last = int(rows[0]), int(rows[-1])
            in_a_row = last - first + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all())
            pixels = only[first : last + 1].copy() if in_a_row else only[rows]
        else:
            pixels = _gather(maps, shards.tolist(), rows.tolist(), stored.variant.item_bytes)
        return pixels.reshape(-1, *stored.variant.input_size, _NUM_CHANNELS)

    def _find(self, preprocessing: Preprocessing) -> StoredVariant | None:
        wanted = Variant.of(preprocessing)
        return next((stored for stored in self.variants if stored.variant == wanted), None)

    def _item(self, stored: StoredVariant, position: int) -> npt.NDArray[np.uint8]:
        shard, row = divmod(int(self.places[position]), stored.items_per_shard)
        item: npt.NDArray[np.uint8] = self._shard(stored, shard)[row]
        return item.reshape(*stored.variant.input_size, _NUM_CHANNELS)

    def _shard(self, stored: StoredVariant, shard: int) -> npt.NDArray[np.uint8]:
        """All items of a shard, one a row."""
        path = stored.path(self.folder, shard)
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path for every item would cost more
            # To touch a map beyond the end of its file kills the process, so the length is asked for every time.
            if status.st_size != stored.shard_bytes(shard, self.num_stored):
                raise UnreadableItemError(f"{printable(path)!r} has another length than it was given; {_AGAIN}")
            return _map_shard(path, status.st_mtime_ns, status.st_ino, stored.variant.item_bytes)
        except OSError as error:
            reason = system_reason(error)
            raise UnreadableItemError(f"{printable(path)!r} cannot be opened: {reason}; {_AGAIN}") from error


class PreparedSource:
    """Folders made by `hound prepare`."""

    form = "a folder made by `hound prepare`"
    options: frozenset[str] = frozenset()

    def claims(self, reference: str) -> bool:
        try:
            return any((local_path(reference) / name).is_file() for name in (PREPARED, PREPARING))
        except (OSError, ValueError):  # no permission, too long a path, a zero byte: others will say so
            return False

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        folder = local_path(reference).absolute()
        manifest = read_manifest(folder / PREPARED)
        if manifest is None:
            raise DataError(
                f"cannot use {reference!r}: expected a finished preparation, this one was stopped; {_AGAIN}"
            )
        return list_prepared(folder, manifest)


def list_prepared(folder: Path, manifest: Manifest) -> Listing:
    """The items of the folder, all of whose files have been found to be of the right length."""
    num_items = len(manifest.item_names)
    for stored in manifest.variants:
        _check_shards(folder, stored, num_items)
    checksums = np.stack([load_checksums(folder, stored, num_items) for stored in manifest.variants])
    targets = _load(folder / TARGETS)
    if manifest.targets_crc32 not in (None, checksum_targets(targets)):
        raise _damaged(folder / TARGETS, "it holds other labels than were written")
    try:
        listing = Listing(
            class_names=manifest.class_names,
            targets=targets,
            item_names=manifest.item_names,
            reader=PreparedReader(str(folder), manifest.variants, num_items, np.arange(num_items), checksums),
            task=manifest.task,
            skipped=manifest.skipped,
        )
        # whole numbers by now, which can be compared with others
        if manifest.task == "classification" and not np.isin(targets, np.arange(len(manifest.class_names))).all():
            raise ValueError("a target is none of the classes")
        return listing
    except ValueError as error:
        raise _damaged(folder / TARGETS, str(error)) from error


def read_manifest(path: Path) -> Manifest | None:
    """What the file says; None where there is none."""
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error), _ANEW) from error
    if not manifest.is_sound():
        raise _damaged(path, "it says something else than it said when it was written", _ANEW)
    return manifest


def checksum_targets(targets: npt.NDArray[Any]) -> int:
    """CRC-32 of the labels."""
    return zlib.crc32(targets.tobytes())


def _check_shards(folder: Path, stored: StoredVariant, num_items: int) -> None:
    for shard in range(stored.num_shards(num_items)):
        path, expected = Path(stored.path(str(folder), shard)), stored.shard_bytes(shard, num_items)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise _damaged(path, system_reason(error)) from error
        if found != expected:
            raise _damaged(path, f"it has {found} bytes and not {expected}")


def load_checksums(folder: Path, stored: StoredVariant, num_items: int) -> npt.NDArray[np.uint32]:
    """CRC-32 of every item of a variant."""
    path = folder / stored.variant.name / CHECKSUMS
    checksums = _load(path)
    if checksums.shape != (num_items,) or checksums.dtype != np.uint32:
        raise _damaged(path, f"it does not hold {num_items} checksums")
    return checksums


def _load(path: Path) -> npt.NDArray[Any]:
    try:
        with path.open("rb") as file:  # which numpy leaves open if it is an archive of arrays
            loaded: object = np.load(file, allow_pickle=False)
    except Exception as error:  # the head of such a file is parsed as Python, and may claim any size
        raise _damaged(path, str(error)) from error
    if not isinstance(loaded, np.ndarray):
        raise _damaged(path, "it is an archive of arrays")
    return loaded


def _damaged(path: Path, reason: str, advice: str = _AGAIN) -> DataError:
    return DataError(
        f"cannot use {printable(str(path))!r}: expected a file as `hound prepare` made it, but {reason}; {advice}"
    )


def _gather(
    maps: Mapping[int, npt.NDArray[np.uint8]], shards: Sequence[int], rows: Sequence[int], item_bytes: int
) -> npt.NDArray[np.uint8]:
    """Items out of several shards. Through memoryviews: numpy's own assignment of a row took a quarter longer."""
    pixels = np.empty(len(rows) * item_bytes, np.uint8)
    target, sources = pixels.data, {shard: each.reshape(-1).data for shard, each in maps.items()}
    place = 0
    for shard, row in zip(shards, rows, strict=True):
        target[place : place + item_bytes] = sources[shard][row * item_bytes : (row + 1) * item_bytes]
        place += item_bytes
    return pixels


def _is_slice(positions: Sequence[int]) -> TypeGuard[range]:
    return isinstance(positions, range) and positions.step == 1 and positions.start >= 0


@lru_cache(maxsize=4096)
def _map_shard(path: str, changed_at: int, inode: int, item_bytes: int) -> npt.NDArray[np.uint8]:
    """The file as an array; time and inode are part of the key so that a file made anew is mapped anew."""
    return np.memmap(path, np.uint8, mode="r").reshape(-1, item_bytes).view(np.ndarray)
