"""A folder that holds one folder of images per class.

In:  the path of a folder
Out: a Listing, sorted by class and then by name, or a DataError that says what is wrong with the folder
Nothing here opens an image before it is asked to, and nothing here knows about limits.
"""

import contextlib
import difflib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image

from modelhound.data.held_files import HeldFiles
from modelhound.data.images import IMAGE_SUFFIXES, check_image, decode_image
from modelhound.data.known_files import FileTrace
from modelhound.data.source import DataRequest, Listing, Reader, UnreadableItemError, printable
from modelhound.data.sources.embedded import EMBEDDED
from modelhound.data.sources.links import leads_out, open_inside
from modelhound.errors import DataError, system_reason
from modelhound.records import ItemSkipped

__all__ = ["FileReader", "FolderSource"]

_KINDS = "jpg, jpeg, png, webp, bmp, tif, tiff or gif"
_LAYOUT = "a folder that holds one folder of images per class"
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}

_NUM_SHOWN = 5

_FolderId = tuple[int, int]  # device and inode: the same for every path that leads to a folder


@dataclass(frozen=True, slots=True)
class FileReader:
    """Image files below `root`, by their relative paths; absolute ones stay what they are."""

    root: str
    paths: tuple[str, ...]
    held: HeldFiles = field(default_factory=HeldFiles, compare=False, repr=False)
    """Files that were read to be checked and will be wanted once more."""
    follow_links: bool = False
    """Whether links may lead out of `root`; absolute paths were written down by somebody and are no links."""

    @property
    def in_memory(self) -> bool:
        return False

    def select(self, positions: Sequence[int]) -> Self:
        return replace(self, paths=tuple(self.paths[position] for position in positions))

    def holding(self, limit_bytes: int) -> Self:
        """The same reader, which keeps what it has checked until it is read, as far as the limit reaches."""
        return replace(self, held=HeldFiles(limit_bytes))

    def traces(self, positions: Sequence[int]) -> list[FileTrace | None]:
        """What the system tells of these files; None for a link, which is to be looked at, and for what is no file."""
        fenced: dict[str, bool] = {}  # folders that may be read, asked once for all the files in them
        return [self._trace(self.paths[position], fenced) for position in positions]

    def _trace(self, path: str, fenced: dict[str, bool]) -> FileTrace | None:
        folder = path[: path.rfind("/") + 1]
        if folder not in fenced:
            fenced[folder] = self.follow_links or not leads_out(self.root, folder.rstrip("/"))
        try:
            status = os.lstat(f"{self.root}/{path}" if path[:1] != "/" else path)
        except (OSError, ValueError):  # looking at it will say why
            return None
        if not fenced[folder] or not stat.S_ISREG(status.st_mode):
            return None
        return FileTrace(f"{status.st_dev} {status.st_ino}", status.st_size, status.st_mtime_ns)

    def stamp(self, position: int) -> str:
        try:
            status = os.stat(self._path(position))  # noqa: PTH116 - a Path for every item would cost as much as the call
        except OSError as error:
            raise UnreadableItemError(system_reason(error)) from error
        return f"{status.st_size} {status.st_mtime_ns}"

    def check(self, position: int) -> str:
        return self.look(position)[1]

    def look(self, position: int) -> tuple[str, str]:
        """Its stamp before it was read, and its digest: with one question to the system less than asking for both."""
        status, data = self._open_file(position)
        digest = check_image(data)
        self.held.put(self.paths[position], data)
        return f"{status.st_size} {status.st_mtime_ns}", digest

    def read(self, position: int) -> Image.Image:
        return decode_image(self._read_file(position))

    def read_bytes(self, position: int) -> bytes:
        """The file as it lies there, for decoders that are faster than Pillow."""
        held = self.held.take(self.paths[position])
        return self._read_file(position) if held is None else held

    def _path(self, position: int) -> str:
        return os.path.join(self.root, self.paths[position])  # noqa: PTH118 - as above

    def _read_file(self, position: int) -> bytes:
        return self._open_file(position)[1]

    def _open_file(self, position: int) -> tuple[os.stat_result, bytes]:
        try:
            handle = open_inside(self.root, self.paths[position], follow_links=self.follow_links)
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    raise UnreadableItemError("it is not a regular file")
                data = os.read(handle, status.st_size)
                if len(data) == status.st_size:
                    return status, data
                with open(handle, "rb", buffering=0, closefd=False) as file:  # too large for one call, or it shrank
                    return status, data + file.readall()
            finally:
                os.close(handle)
        except OSError as error:
            raise UnreadableItemError(system_reason(error)) from error


class FolderSource:
    """The last to be asked: whatever no other source claims is taken for a folder's path."""

    form = _LAYOUT
    options = frozenset({"split"})

    def claims(self, reference: str) -> bool:
        return True

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        """All images below the class folders of the folder `reference`."""
        root = Path(os.path.expanduser(reference))  # noqa: PTH111 - Path.expanduser raises where no such user exists
        part = root if request.split is None else _enter_split(reference, root, request.split, request)
        listing = _list_folder(reference, part)
        return replace(listing, reader=_fence(listing.reader, root, part, follow_links=request.follow_links))


def _fence(reader: Reader, root: Path, part: Path, *, follow_links: bool) -> Reader:
    """What lies below `part` is read by its path below `root`: a part may be a link out of it, too."""
    assert isinstance(reader, FileReader)
    prefix = "" if part == root else f"{part.name}/"
    paths = tuple(prefix + path for path in reader.paths) if prefix else reader.paths
    return FileReader(str(root.absolute()), paths, follow_links=follow_links)


def _enter_split(reference: str, root: Path, split: str, request: DataRequest) -> Path:
    with _readable(reference, root):
        _folder_id(reference, root)
        folders, _ = _split_entries(root)
    if split not in folders:
        raise DataError(
            f"cannot use {request.part_text(split)} of {reference!r}: expected one of its folders, "
            f"{', '.join(map(repr, sorted(map(printable, folders))[:_NUM_SHOWN])) or 'of which there are none'}"
        )
    return root / split


def _list_folder(reference: str, root: Path) -> Listing:
    with _readable(reference, root):
        root_id = _folder_id(reference, root)
        folders, stray = _split_entries(root)
        found = {name: sorted(_find_images(root, name, {root_id})) for name in sorted(folders)}
    classes = {name: paths for name, paths in found.items() if paths}
    if not classes:
        raise DataError(_nothing_found(reference, root, bool(stray), bool(folders)))
    _check_classes(reference, root, classes)
    paths = tuple(path for paths in classes.values() for path in paths)
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in classes.values()])
    left_out = [(name, "it lies outside of the class folders") for name in sorted(stray)]
    left_out += [(name + "/", f"the folder holds no {_KINDS} file") for name, paths in found.items() if not paths]
    return Listing(
        class_names=tuple(printable(name) for name in classes),
        targets=labels,
        item_names=tuple(printable(path) for path in paths),
        reader=FileReader(str(root.absolute()), paths),
        skipped=tuple(ItemSkipped(item=printable(name), reason=reason) for name, reason in left_out),
    )


@contextlib.contextmanager
def _readable(reference: str, root: Path) -> Iterator[None]:
    """Turn whatever the file system refuses into a DataError."""
    try:
        yield
    except PermissionError as error:
        raise DataError(
            f"cannot read {_named(reference, root, error)}: expected permission to list it, but there is none; "
            "change its permissions or start as a user who may read it"
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot read {_named(reference, root, error)}: expected {_LAYOUT}, but {system_reason(error)}; check the path"
        ) from error


def _folder_id(reference: str, root: Path) -> _FolderId:
    """The identity of the folder; that there is none is the most frequent mistake, so the answer suggests names."""
    try:
        status = root.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a path with a zero byte
        close = _close_names(reference, root)
        advice = f"did you mean {' or '.join(close)}?" if close else "check how it is written"
        raise DataError(
            f"cannot open data {reference!r}: expected {', '.join(EMBEDDED)} or the path of a folder or file, but there is no "
            f"such path; {advice}"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise DataError(
            f"cannot open data {reference!r}: expected {_LAYOUT}, but it is a file; unpack it or give the folder around it"
        )
    return status.st_dev, status.st_ino


def _close_names(reference: str, root: Path) -> list[str]:
    """Names like the last part of the path among the folders beside it and the embedded data sets."""
    try:
        beside = [path for path in root.parent.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except (OSError, ValueError):
        beside = []
    known = {path.name.lower(): str(path) for path in beside} | {name: name for name in EMBEDDED}
    close = difflib.get_close_matches((root.name or reference).lower(), known, n=3)
    return [repr(printable(known[name])) for name in close]


def _split_entries(folder: Path) -> tuple[list[str], list[str]]:
    """The names of the folders and of the image files in `folder`, less what is hidden or not data."""
    folders, images = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if _is_folder(entry):
                folders.append(entry.name)
            elif entry.name.lower().endswith(IMAGE_SUFFIXES) and (entry.is_symlink() or entry.is_file()):
                images.append(entry.name)  # a broken link too: somebody meant it as data, so reading it shall say so
    return folders, images


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _find_images(root: Path, name: str, seen: set[_FolderId]) -> Iterator[str]:
    """Paths below `root` of the images in its folder `name`. `seen` ends loops of links: no folder counts twice in a class."""
    waiting = [name]  # folders may lie deeper in each other than functions can call themselves
    while waiting:
        below = waiting.pop()
        status = (root / below).stat()
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        folders, images = _split_entries(root / below)
        yield from (f"{below}/{image}" for image in images)
        waiting += [f"{below}/{folder}" for folder in sorted(folders, reverse=True)]


def _nothing_found(reference: str, root: Path, stray: bool, folders: bool) -> str:
    start = f"cannot use folder {reference!r}: expected {_LAYOUT}, "
    if stray:
        advice = "move them into one folder per class"
        if _is_class_folder(root):
            advice = f"if it is one class of several, give the folder around it, {printable(_around(root))!r}"
        return start + f"but the images lie directly in it; {advice}"
    if folders:
        return start + f"but its folders hold no {_KINDS} file; check the path or convert the images"
    return start + "but there is no folder with images in it; check the path"


def _is_class_folder(root: Path) -> bool:
    """Whether there is another folder of images beside it: somebody went one folder too deep."""
    around = root.absolute().parent
    with contextlib.suppress(OSError):  # what may not be looked at suggests nothing
        return any(
            _split_entries(around / name)[1] for name in _split_entries(around)[0] if name != root.absolute().name
        )
    return False


def _around(root: Path) -> str:
    """The folder that holds this one, written as this one was."""
    return str(root.parent) if root.name else str(root / "..")


def _check_classes(reference: str, root: Path, classes: dict[str, list[str]]) -> None:
    nested = [name for name, paths in classes.items() if all(path.count("/") > 1 for path in paths)]
    if len(classes) == 1:
        (name,) = classes
        advice = (
            f"give {str(root / name)!r} if the classes lie in there" if nested else "add a folder for another class"
        )
        raise DataError(
            f"cannot use folder {reference!r}: expected two or more classes, but {name!r} is the only one; {advice}"
        )
    if len(nested) == len(classes) and {name.lower() for name in classes} <= _SPLITS:
        raise DataError(
            f"cannot use folder {reference!r}: expected {_LAYOUT}, but {', '.join(map(repr, classes))} are splits of a "
            f"data set; choose one by --split, such as --split {next(iter(classes))}"
        )
    single = [name for name, paths in classes.items() if len(paths) == 1]
    if single:
        shown = ", ".join(map(repr, single[:5])) + (f" and {len(single) - 5} more" if len(single) > 5 else "")
        raise DataError(
            f"cannot use folder {reference!r}: expected at least two images in every class, but there is only one in "
            f"{shown}; add images or remove the folder"
        )


def _named(reference: str, root: Path, error: OSError) -> str:
    where = str(error.filename) if error.filename is not None else str(root)
    return f"folder {reference!r}" if where == str(root) else f"{where!r} in folder {reference!r}"
