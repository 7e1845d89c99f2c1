"""CIFAR-10 and CIFAR-100 as they come: the binary version and the python version.

In:  the path of a folder such as cifar-100-binary or cifar-10-batches-py, known by the files in it
Out: a Listing of one split (train unless asked otherwise); all images are in memory or mapped into it
CIFAR-100 has two labels per image: the 100 fine ones are used, `--columns label=coarse` takes the 20 coarse ones. Both versions
give the same items under the same names, and so the same fingerprint.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.source import DataRequest, Listing, printable
from modelhound.data.sources.cifar_pickle import load_plain_pickle
from modelhound.data.sources.table_files import local_path
from modelhound.errors import DataError, system_reason

__all__ = ["CifarReader", "CifarSource"]

_SIDE = 32
_IMAGE_BYTES = 3 * _SIDE * _SIDE  # a plane of red, then green, then blue

_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class CifarReader:
    """Images as rows of bytes in one or more arrays; `places` are pairs of array and row."""

    arrays: tuple[_Bytes, ...]
    places: npt.NDArray[np.int64]

    @property
    def in_memory(self) -> bool:
        return True

    def select(self, positions: Sequence[int]) -> Self:
        return type(self)(self.arrays, self.places[np.asarray(positions, dtype=np.int64)])

    def stamp(self, position: int) -> str:
        return hashlib.sha256(self._row(position).tobytes()).hexdigest()

    def check(self, position: int) -> str:
        """Any bytes are an image, and their number was checked when they were listed."""
        return self.stamp(position)

    def read(self, position: int) -> Image.Image:
        planes = self._row(position).reshape(3, _SIDE, _SIDE)
        return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))

    def _row(self, position: int) -> _Bytes:
        array, row = self.places[position]
        found: _Bytes = self.arrays[array][row]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How one version of one of the two data sets is stored."""

    name: str
    marks: tuple[str, ...]
    """Files by which a folder is recognised."""

    splits: dict[str, tuple[str, ...]]
    class_files: dict[str, str]
    """Kind of label -> the text file with the names, or the key of the pickle `meta`."""

    meta: str | None = None
    """The pickle of names; None in a binary version."""

    label_keys: dict[str, str]
    """Kind of label -> key in the pickle, or the number of the byte before the image."""


_TEN_TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))

_LAYOUTS = (
    _Layout(
        name="CIFAR-100 (binary version)",
        marks=("train.bin", "fine_label_names.txt"),
        splits={"train": ("train.bin",), "test": ("test.bin",)},
        class_files={"fine": "fine_label_names.txt", "coarse": "coarse_label_names.txt"},
        label_keys={"coarse": "0", "fine": "1"},
    ),
    _Layout(
        name="CIFAR-10 (binary version)",
        marks=("data_batch_1.bin", "batches.meta.txt"),
        splits={"train": tuple(f"{name}.bin" for name in _TEN_TRAINING), "test": ("test_batch.bin",)},
        class_files={"fine": "batches.meta.txt"},
        label_keys={"fine": "0"},
    ),
    _Layout(
        name="CIFAR-100 (python version)",
        marks=("train", "meta"),
        splits={"train": ("train",), "test": ("test",)},
        class_files={"fine": "fine_label_names", "coarse": "coarse_label_names"},
        meta="meta",
        label_keys={"fine": "fine_labels", "coarse": "coarse_labels"},
    ),
    _Layout(
        name="CIFAR-10 (python version)",
        marks=("data_batch_1", "batches.meta"),
        splits={"train": _TEN_TRAINING, "test": ("test_batch",)},
        class_files={"fine": "label_names"},
        meta="batches.meta",
        label_keys={"fine": "labels"},
    ),
)


class CifarSource:
    """All four layouts."""

    form = "CIFAR's own layout"
    options = frozenset({"split", "columns"})

    def claims(self, reference: str) -> bool:
        return _recognise(local_path(reference)) is not None

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        root = local_path(reference)
        layout = _recognise(root)
        assert layout is not None  # it was claimed
        split = request.split or "train"
        if split not in layout.splits:
            raise DataError(
                f"cannot use {request.part_text(split)} of {reference!r}: expected one of {', '.join(layout.splits)}"
            )
        kind = _kind_of_label(reference, layout, request)
        class_names = _read_names(root, layout, kind)
        read: Callable[[Path, _Layout, str], tuple[_Bytes, npt.NDArray[np.int64]]]
        read = _read_binary if layout.meta is None else _read_pickle
        parts = [read(root / name, layout, kind) for name in layout.splits[split]]
        targets = np.concatenate([labels for _, labels in parts])
        if targets.size and not 0 <= int(targets.min()) <= int(targets.max()) < len(class_names):
            raise DataError(
                f"cannot use {reference!r}: expected labels from 0 to {len(class_names) - 1}, but one is "
                f"{max(int(targets.max()), -int(targets.min()))}; fetch {layout.name} again"
            )
        places = [(part, row) for part, (images, _) in enumerate(parts) for row in range(len(images))]
        return Listing(
            class_names=class_names,
            targets=targets,
            item_names=tuple(f"{split}/{number}" for number in range(len(places))),
            reader=CifarReader(
                tuple(images for images, _ in parts), np.array(places, dtype=np.int64).reshape(len(places), 2)
            ),
        )


def _recognise(root: Path) -> _Layout | None:
    try:
        return next((each for each in _LAYOUTS if all((root / name).is_file() for name in each.marks)), None)
    except (OSError, ValueError):  # no permission, too long a path, a zero byte: others will say so
        return None


def _kind_of_label(reference: str, layout: _Layout, request: DataRequest) -> str:
    other = set(request.columns) - {"label"}
    kind = request.columns.get("label", "fine")
    if other or kind not in layout.class_files:
        given = ",".join(f"{role}={column}" for role, column in request.columns.items())
        raise DataError(
            f"cannot use --columns {given!r} of {reference!r}: expected label={' or label='.join(layout.class_files)}"
        )
    return kind


def _read_names(root: Path, layout: _Layout, kind: str) -> tuple[str, ...]:
    if layout.meta is not None:
        path, names = root / layout.meta, load_plain_pickle(root / layout.meta).get(layout.class_files[kind])
    else:
        path = root / layout.class_files[kind]
        names = [line.strip() for line in _read_bytes(path).decode("utf-8", "replace").splitlines() if line.strip()]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < 2:
        raise DataError(
            f"cannot use {printable(str(path))!r}: expected the names of the classes, fetch {layout.name} again"
        )
    return tuple(names)


def _read_binary(path: Path, layout: _Layout, kind: str) -> tuple[_Bytes, npt.NDArray[np.int64]]:
    """Images mapped into memory, and labels: every record is its labels, one byte each, and then the image."""
    record_bytes = len(layout.label_keys) + _IMAGE_BYTES
    try:
        num_bytes = path.stat().st_size
        if num_bytes == 0 or num_bytes % record_bytes:
            raise DataError(
                f"cannot use {printable(str(path))!r}: expected a multiple of {record_bytes} bytes, but it has {num_bytes}: "
                f"it is cut off or not of {layout.name}; fetch it again"
            )
        records = np.memmap(path, np.uint8, mode="r").reshape(-1, record_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error
    return records[:, len(layout.label_keys) :], records[:, int(layout.label_keys[kind])].astype(np.int64)


def _read_pickle(path: Path, layout: _Layout, kind: str) -> tuple[_Bytes, npt.NDArray[np.int64]]:
    if not path.is_file():
        raise DataError(
            f"cannot read {printable(str(path))!r}: expected a file of {layout.name}, there is none; fetch it again"
        )
    content: dict[str, Any] = load_plain_pickle(path)
    images, labels = content.get("data"), content.get(layout.label_keys[kind])
    fits = (
        isinstance(images, np.ndarray)
        and images.shape[1:] == (_IMAGE_BYTES,)
        and isinstance(labels, list)
        and len(labels) == len(images)
        and all(type(label) is int for label in labels)
    )
    if not fits or not isinstance(images, np.ndarray):
        raise DataError(
            f"cannot use {printable(str(path))!r}: expected images of {_IMAGE_BYTES} bytes and a label for each, fetch "
            f"{layout.name} again"
        )
    return images, np.array(labels, dtype=np.int64)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> DataError:
    reason = system_reason(error)
    return DataError(f"cannot read {printable(str(path))!r}: expected a file of CIFAR, but {reason}; fetch it again")
