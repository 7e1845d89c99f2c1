"""The small data sets that come with the package: `digits` and `fashion` are images, `sms` are texts.

In:  one of the names
Out: a Listing whose items are already in memory
Nothing here downloads anything or imports scikit-learn. `zoo/make_data.py` made the files; their origin and licences are
in `data/embedded/README.md`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.source import DataRequest, Listing
from modelhound.data.sources.texts import TextReader
from modelhound.errors import DataError

__all__ = ["EMBEDDED", "EmbeddedSource"]

EMBEDDED = ("digits", "fashion", "sms")


@dataclass(frozen=True, slots=True, eq=False)
class ArrayReader:
    """Greyscale images as one uint8 array of shape (items, height, width)."""

    images: npt.NDArray[np.uint8]

    @property
    def in_memory(self) -> bool:
        return True

    def select(self, positions: Sequence[int]) -> Self:
        return type(self)(self.images[np.asarray(positions, dtype=np.int64)])

    def stamp(self, position: int) -> str:
        return hashlib.sha256(self.images[position].tobytes()).hexdigest()

    def check(self, position: int) -> str:
        """Bytes that came out of the package whole cannot be unreadable."""
        return self.stamp(position)

    def read(self, position: int) -> Image.Image:
        return Image.fromarray(self.images[position]).convert("RGB")


class EmbeddedSource:
    """The EMBEDDED data sets, items in the order of their files."""

    form = " or ".join(EMBEDDED)
    options: frozenset[str] = frozenset()

    def claims(self, reference: str) -> bool:
        return reference in EMBEDDED

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        return _list_texts(reference) if reference == "sms" else _list_images(reference)


def _list_images(name: str) -> Listing:
    with _whole(name), _file(name, "npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        images, labels, class_names = arrays["images"], arrays["labels"], arrays["class_names"]
    return Listing(
        class_names=tuple(str(class_name) for class_name in class_names),
        targets=labels.astype(np.int64),
        item_names=tuple(f"{name}/{number}" for number in range(len(images))),
        reader=ArrayReader(images),
    )


def _list_texts(name: str) -> Listing:
    with _whole(name):
        lines = _file(name, "tsv").read_text(encoding="utf-8").splitlines()
        labels, texts = zip(*(line.split("\t") for line in lines), strict=True)
    class_names = tuple(sorted(set(labels)))
    return Listing(
        class_names=class_names,
        targets=np.array([class_names.index(label) for label in labels], dtype=np.int64),
        item_names=tuple(f"{name}/{number}" for number in range(len(texts))),
        reader=TextReader(tuple((text,) for text in texts)),
        modality="text",
    )


def _file(name: str, suffix: str) -> Traversable:
    return resources.files("modelhound.data").joinpath("embedded", f"{name}.{suffix}")


@contextmanager
def _whole(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # missing, cut off, not a zip file: all mean that the installation is broken
        raise DataError(
            f"cannot read {name!r}: expected the data set that comes with modelhound, but {error}; install modelhound again"
        ) from error
