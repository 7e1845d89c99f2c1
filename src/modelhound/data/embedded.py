"""The two small data sets that come with the package: `digits` and `fashion`.

In:  one of the two names
Out: a Listing whose images are already in memory
Nothing here downloads anything or imports scikit-learn. `zoo/make_data.py` made the files; their origin and licences are
in `embedded/README.md`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.source import Listing
from modelhound.errors import DataError

__all__ = ["EMBEDDED", "list_embedded"]

EMBEDDED = ("digits", "fashion")


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

    def check(self, position: int) -> None:
        """Bytes that came out of the package whole cannot be unreadable."""

    def read(self, position: int) -> Image.Image:
        return Image.fromarray(self.images[position]).convert("RGB")


def list_embedded(name: str) -> Listing:
    """All items of one of the EMBEDDED data sets, in the order of its file."""
    path = resources.files("modelhound.data").joinpath("embedded", f"{name}.npz")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            images, labels, class_names = arrays["images"], arrays["labels"], arrays["class_names"]
    except Exception as error:  # missing, cut off, not a zip file: all mean that the installation is broken
        raise DataError(
            f"cannot read {name!r}: expected the data set that comes with modelhound, but {error}; install modelhound again"
        ) from error
    return Listing(
        class_names=tuple(str(class_name) for class_name in class_names),
        labels=tuple(int(label) for label in labels),
        item_names=tuple(f"{name}/{number}" for number in range(len(images))),
        reader=ArrayReader(images),
    )
