"""Food-101 as it comes: images/CLASS/ID.jpg, with lists of what belongs to training and test in meta/.

In:  the path of the folder that holds images/ and meta/
Out: a Listing of one split, in the order of its list
Nothing here opens an image: one that is missing shows when it is read, as in any folder.
"""

from pathlib import Path, PurePosixPath

import msgspec
import numpy as np

from modelhound.data.source import DataRequest, Listing, printable
from modelhound.data.sources.folder import FileReader
from modelhound.data.sources.table_files import local_path
from modelhound.errors import DataError, system_reason

__all__ = ["Food101Source"]

_SPLITS = ("train", "test")
_LISTS = (".txt", ".json")


class Food101Source:
    """images/ and meta/ side by side, with meta/train.txt or meta/train.json."""

    form = "Food-101's own layout"
    options = frozenset({"split"})

    def claims(self, reference: str) -> bool:
        root = local_path(reference)
        try:
            return (root / "images").is_dir() and any((root / "meta" / f"train{end}").is_file() for end in _LISTS)
        except (OSError, ValueError):  # no permission, too long a path, a zero byte: others will say so
            return False

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        split = request.split or _SPLITS[0]
        if split not in _SPLITS:
            raise DataError(
                f"cannot use {request.part_text(split)} of {reference!r}: expected one of {', '.join(_SPLITS)}"
            )
        root = local_path(reference)
        entries = _read_list(root / "meta", split)
        names = _read_classes(root / "meta" / "classes.txt", entries)
        place = {name: number for number, name in enumerate(names)}
        lost = next((entry for entry in entries if _class_of(entry) not in place), None)
        if lost is not None:
            raise DataError(
                f"cannot use {reference!r}: expected entries CLASS/ID of a class in meta/classes.txt, but meta/{split} has "
                f"{lost!r}; correct either list"
            )
        paths = tuple(f"{entry}.jpg" for entry in entries)
        return Listing(
            class_names=tuple(map(printable, names)),
            targets=np.array([place[_class_of(entry)] for entry in entries], dtype=np.int64),
            item_names=tuple(map(printable, paths)),
            reader=FileReader(str((root / "images").absolute()), paths, follow_links=request.follow_links),
        )


def _read_list(folder: Path, split: str) -> list[str]:
    """The entries of one split, such as apple_pie/1005649, each once."""
    path = next((folder / f"{split}{end}" for end in _LISTS if (folder / f"{split}{end}").is_file()), None)
    if path is None:
        raise DataError(
            f"cannot find split {split!r}: expected {split}.txt or {split}.json in {printable(str(folder))!r}, copy it there"
        )
    if path.suffix == ".json":
        entries = [entry for of_class in _decode(path, dict[str, list[str]]).values() for entry in of_class]
    else:
        entries = _lines(path)
    for entry in entries:
        parts = PurePosixPath(entry).parts
        if len(parts) != 2 or ".." in parts or parts[0] == "/" or "\0" in entry:
            raise DataError(
                f"cannot use {printable(str(path))!r}: expected entries such as apple_pie/1005649, but there is {entry!r}; "
                "fetch the list again"
            )
    if not entries:
        raise DataError(f"cannot use {printable(str(path))!r}: expected entries such as apple_pie/1005649, it is empty")
    return list(dict.fromkeys(entries))


def _read_classes(path: Path, entries: list[str]) -> list[str]:
    """Classes in the order of classes.txt, less those without an entry; without that file, sorted."""
    occurring = {_class_of(entry) for entry in entries}
    if not path.is_file():
        return sorted(occurring)
    return [name for name in dict.fromkeys(_lines(path)) if name in occurring]


def _class_of(entry: str) -> str:
    return entry.partition("/")[0]


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


def _decode(path: Path, kind: type[dict[str, list[str]]]) -> dict[str, list[str]]:
    try:
        return msgspec.json.decode(_text(path), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(
            f"cannot read {printable(str(path))!r}: expected a list of entries for every class, but {error}; fetch it again"
        ) from error


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {printable(str(path))!r}: expected text in UTF-8, fetch it again") from error
    except OSError as error:
        reason = system_reason(error)
        raise DataError(f"cannot read {printable(str(path))!r}: expected a list, but {reason}; check it") from error
