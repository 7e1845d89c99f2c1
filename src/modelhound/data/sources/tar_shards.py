"""Tar files in the layout of WebDataset: the files of a sample stand together and share a name up to the first dot.

In:  `shard-000.tar`, a folder of such files, or a pattern such as `shards/train-{000..003}.tar`
Out: a Listing of images, or of texts where no sample has an image
A sample is an image (.jpg, .png, …) or a text (.txt), with its label in .cls (a number or a name), in .json (under label, cls
or class) or, beside an image, in .txt. Names of classes come from `classes.txt` beside the shards, else labels name themselves.
Nothing here unpacks anything: an item is read from its place in the shard.
"""

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from modelhound.data.images import check_image, decode_image
from modelhound.data.source import DataRequest, Item, Listing, Modality, UnreadableItemError, printable
from modelhound.data.sources.table_files import local_path, readable
from modelhound.data.sources.tar_index import Member, index_shard, sample_key, shown
from modelhound.errors import DataError, system_reason
from modelhound.records import ItemSkipped

__all__ = ["TarReader", "TarSource"]

_TAR, _COMPRESSED = ".tar", (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm")
_JSON_KEYS = ("label", "cls", "class")
_CLASSES = "classes.txt"
_SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval")
_DEFAULT_SPLIT = "train"
_MAX_SHARDS = 1_000_000
_NUM_SHOWN = 5

_Label = int | str


@dataclass(frozen=True, slots=True, eq=False)
class TarReader:
    """Items at known places in tar files: rows of shard, offset and size."""

    shards: tuple[str, ...]
    places: npt.NDArray[np.int64]
    modality: Modality

    @property
    def in_memory(self) -> bool:
        return False

    def select(self, positions: Sequence[int]) -> Self:
        return type(self)(self.shards, self.places[np.asarray(positions, dtype=np.int64)], self.modality)

    def stamp(self, position: int) -> str:
        shard, offset, num_bytes = self.places[position].tolist()
        try:
            changed_at = os.stat(self.shards[shard]).st_mtime_ns  # noqa: PTH116 - a Path for every item would cost more
        except OSError as error:
            raise UnreadableItemError(system_reason(error)) from error
        return f"{Path(self.shards[shard]).name} {offset} {num_bytes} {changed_at}"

    def check(self, position: int) -> str:
        data = self.read_bytes(position)
        if self.modality == "image":
            return check_image(data)
        if not _as_text(data).strip():
            raise UnreadableItemError("the text is empty")
        return hashlib.sha256(data).hexdigest()

    def read(self, position: int) -> Item:
        data = self.read_bytes(position)
        return decode_image(data) if self.modality == "image" else (_as_text(data),)

    def read_bytes(self, position: int) -> bytes:
        """The file itself, for whoever decodes many at once."""
        return _read_place(self.shards, self.places[position])


class TarSource:
    """Shards in the order of their names, samples in the order of their first files."""

    form = "a tar file, or a folder or pattern of tar files"
    options = frozenset({"split"})

    def claims(self, reference: str) -> bool:
        if reference.lower().endswith((_TAR, *_COMPRESSED)):
            return True
        folders, tars = _entries(local_path(reference))
        if tars:
            return not folders  # beside folders, it is somebody's archive of them
        return any(_entries(local_path(reference) / name)[1] for name in folders if name.lower() in _SPLITS)

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        shards = _find_shards(reference, request.split)
        samples: list[_Sample] = []
        skipped: list[ItemSkipped] = []
        common = os.path.commonpath([shard.parent for shard in shards])
        for number, shard in enumerate(shards):
            name = shown(os.path.relpath(shard, common))
            index = index_shard(shard)
            if index.num_special:
                skipped.append(ItemSkipped(item=name, reason=f"{index.num_special} links or special files in it"))
            samples += _group(number, name, index.members)
        if not samples:
            raise DataError(f"cannot use {reference!r}: expected samples, but there is no file in it; check the path")
        return _label_samples(reference, shards, samples, skipped)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The files of one sample by their suffix."""

    shard: int
    name: str
    files: Mapping[str, Member]

    def find(self, suffixes: Sequence[str]) -> Member | None:
        """The file with one of the suffixes; `jpg` is preferred to `mask.jpg`."""
        exact = next((self.files[suffix] for suffix in suffixes if suffix in self.files), None)
        return exact or next((file for name, file in self.files.items() if name.rpartition(".")[2] in suffixes), None)


def _find_shards(reference: str, split: str | None) -> list[Path]:
    """Paths of the shards; where names or folders tell splits apart, those of one split only."""
    path = local_path(reference)
    folders, tars = _entries(path)
    with readable(reference, TarSource.form):
        is_folder, is_file = path.is_dir(), path.is_file()
    if is_file:  # braces may be part of its name
        shards = [path]
    elif not is_folder:
        shards = [Path(each) for each in _expand_braces(reference, str(path))]
    else:
        parts = {name: path / name for name in folders if not tars and _entries(path / name)[1]}
        if parts:
            path = parts[_choose_split(reference, parts, split)]
            split, tars = None, _entries(path)[1]
        shards = [path / name for name in sorted(tars)]
    shards = [shard.absolute() for shard in shards]
    by_split: dict[str, list[Path]] = {}
    for shard in shards:
        by_split.setdefault(_split_of(shard.name), []).append(shard)
    if split is None and (len(by_split) == 1 or not is_folder):
        return shards  # a pattern says which shards are meant
    return by_split[_choose_split(reference, by_split, split)]


def _split_of(name: str) -> str:
    """The word that shard names of WebDataset begin with; empty where it is not the name of a split."""
    word = re.split(r"[-_.\d]", name.lower(), maxsplit=1)[0]
    return word if word in _SPLITS else ""


def _choose_split(reference: str, parts: Mapping[str, object], split: str | None) -> str:
    wanted = split or _DEFAULT_SPLIT
    if wanted not in parts:
        there = (
            ", ".join(repr(shown(name)) for name in sorted(parts)[:_NUM_SHOWN] if name) or "none that names tell apart"
        )
        raise DataError(
            f"cannot use split {wanted!r} of {reference!r}: expected one of its splits, {there}; choose one by --split"
        )
    return wanted


def _expand_braces(reference: str, pattern: str) -> Iterator[str]:
    """Every path that a pattern such as a-{000..012}.tar or {a,b}.tar means."""
    pieces = re.split(r"\{([^{}]*)\}", pattern)
    choices = [[piece] if place % 2 == 0 else _expand_one(reference, piece) for place, piece in enumerate(pieces)]
    if np.prod([float(len(each)) for each in choices]) > _MAX_SHARDS:
        raise DataError(f"cannot use {reference!r}: expected at most {_MAX_SHARDS} shards, shorten the range")
    return ("".join(parts) for parts in itertools.product(*choices))


def _expand_one(reference: str, inside: str) -> list[str]:
    ends = re.fullmatch(r"(\d{1,12})\.\.(\d{1,12})", inside)
    if ends is None:
        if "," in inside:
            return inside.split(",")
        raise DataError(
            f"cannot use pattern {reference!r}: expected a range such as {{000..012}} or a list such as {{a,b}} between braces"
        )
    first, last = int(ends[1]), int(ends[2])
    if not first <= last < first + _MAX_SHARDS:
        raise DataError(
            f"cannot use pattern {reference!r}: expected a range that rises by less than {_MAX_SHARDS}, write the smaller "
            "number first"
        )
    width = len(ends[1]) if ends[1].startswith("0") or len(ends[1]) == len(ends[2]) else 0
    return [f"{number:0{width}}" for number in range(first, last + 1)]


def _group(shard: int, shard_name: str, members: Sequence[Member]) -> list[_Sample]:
    """Samples in the order of their first files. Of two files of one name the later counts, as when tar unpacks them."""
    groups: dict[str, dict[str, Member]] = {}
    for member in members:
        key = sample_key(member.name)
        suffix = member.name[len(key) + 1 :].lower()
        if suffix and not key.rpartition("/")[2].startswith("__"):  # __meta__ and the like describe the shard
            groups.setdefault(key, {})[suffix] = member
    return [_Sample(shard, f"{shard_name}/{shown(key)}", files) for key, files in groups.items()]


def _label_samples(
    reference: str, shards: Sequence[Path], samples: Sequence[_Sample], skipped: list[ItemSkipped]
) -> Listing:
    modality: Modality = "image" if any(sample.find(_IMAGES) for sample in samples) else "text"
    paths = tuple(str(shard) for shard in shards)
    kept: list[tuple[_Sample, Member, _Label]] = []
    for sample in samples:
        item = sample.find(_IMAGES if modality == "image" else ("txt",))
        label = None if item is None else _read_label(paths, sample, modality)
        if item is None:
            skipped.append(ItemSkipped(item=sample.name, reason=f"there is no {modality} in it"))
        elif label is None:
            skipped.append(ItemSkipped(item=sample.name, reason="it has no label"))
        else:
            kept.append((sample, item, label))
    if not kept:
        raise DataError(
            f"cannot use {reference!r}: expected samples with an image or a .txt file and a label in .cls or .json, but of "
            f"{len(samples)} none has them, such as {samples[0].name!r} with {', '.join(sorted(samples[0].files))[:200]!r}"
        )
    class_names, targets = _name_classes(reference, shards[0].parent / _CLASSES, kept)
    places = np.array([(sample.shard, item.offset, item.num_bytes) for sample, item, _ in kept], dtype=np.int64)
    return Listing(
        class_names=class_names,
        targets=targets,
        item_names=tuple(sample.name for sample, _, _ in kept),
        reader=TarReader(paths, places, modality),
        modality=modality,
        skipped=tuple(skipped),
    )


def _read_label(shards: Sequence[str], sample: _Sample, modality: Modality) -> _Label | None:
    """A number, a name, or None where there is no label, or one that is neither."""
    for suffix in ("cls", "json", "txt") if modality == "image" else ("cls", "json"):
        file = sample.files.get(suffix)
        if file is None:
            continue
        try:
            text = _as_text(_read_place(shards, (sample.shard, file.offset, file.num_bytes))).strip()
            given = msgspec.json.decode(text) if suffix == "json" else text
        except (UnreadableItemError, msgspec.DecodeError, RecursionError):
            continue
        if isinstance(given, dict):
            given = next((given[key] for key in _JSON_KEYS if given.get(key) is not None), None)
        label = _as_label(given)
        if label is not None:
            return label
    return None


def _as_label(given: object) -> _Label | None:
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, str):
        return int(given) if re.fullmatch(r"\d{1,9}", given) else given or None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _name_classes(
    reference: str, classes_file: Path, kept: Sequence[tuple[_Sample, Member, _Label]]
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Names of the classes that occur, and the place of each item's class among them."""
    named = _read_classes(classes_file)
    if named is not None:
        of_label: dict[_Label, str] = {name: name for name in named} | dict(enumerate(named))
        lost = next(((sample.name, label) for sample, _, label in kept if label not in of_label), None)
        if lost is not None:
            raise DataError(
                f"cannot use {reference!r}: expected labels that {_CLASSES} beside it names, 0 to {len(named) - 1}, but "
                f"{lost[0]!r} has {lost[1]!r}; correct {_CLASSES} or remove it"
            )
        labels = [of_label[label] for _, _, label in kept]
        occurring = set(labels)
        names = [name for name in named if name in occurring]
    else:
        numbers = all(isinstance(label, int) for _, _, label in kept)
        labels = [str(label) for _, _, label in kept]
        names = sorted(set(labels), key=(lambda text: (int(text), text)) if numbers else None)
    if len(names) < 2:
        raise DataError(
            f"cannot use {reference!r}: expected two or more classes, but {names[0]!r} is the only one; add shards with others"
        )
    place = {name: number for number, name in enumerate(names)}
    return tuple(names), np.array([place[label] for label in labels], dtype=np.int64)


def _read_classes(path: Path) -> list[str] | None:
    try:
        names = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read {printable(str(path))!r}: expected one class a line in UTF-8, but {error}"
        ) from error
    names = names[: max((place + 1 for place, name in enumerate(names) if name), default=0)]
    if len(set(names)) < len(names):
        raise DataError(f"cannot use {printable(str(path))!r}: expected a different name on every line, change it")
    return names


def _read_place(shards: Sequence[str], place: "npt.NDArray[np.int64] | tuple[int, int, int]") -> bytes:
    shard, offset, num_bytes = (int(value) for value in place)
    try:
        file = os.open(shards[shard], os.O_RDONLY)
        try:
            data = os.pread(file, num_bytes, offset)
        finally:
            os.close(file)
    except OSError as error:
        raise UnreadableItemError(system_reason(error)) from error
    if len(data) != num_bytes:
        raise UnreadableItemError("the shard has become shorter")
    return data


def _as_text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableItemError("it is not text in UTF-8") from error


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the visible folders and of the tar files in `folder`; none of a folder that cannot be listed."""
    folders, tars = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.name.lower().endswith((_TAR, *_COMPRESSED)):
                    tars.append(entry.name)
                elif entry.is_dir():
                    folders.append(entry.name)
    except (OSError, ValueError):
        return [], []
    return folders, tars
