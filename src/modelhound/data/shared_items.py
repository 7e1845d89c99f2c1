"""Items decoded once for many processes: pixels in memory that all processes of a machine look at.

In:  a Dataset of images and the forms that models want
Out: the same Dataset with a reader that holds the pixels, in arrays that a pickler may hand on without a copy
Nothing here knows how the arrays travel. A model gets exactly the pixels that it would get from the files: they are those of
`decode`, on the host. Forms that are not pixels alone, such as a user's own transform, are made from the files themselves.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.dataset import Dataset
from modelhound.data.decode.decoded import decode
from modelhound.data.loading import InputForm
from modelhound.data.preprocessing import Preprocessing
from modelhound.data.source import Reader, UnreadableItemError
from modelhound.data.sources.image_bytes import BytesReader
from modelhound.data.sources.prepared import PreparedReader, StoredVariant
from modelhound.records import Watch, silent

__all__ = ["SharedItems", "carry_files", "share_items"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SharedItems(PreparedReader):
    """As items prepared on disk, but in memory."""

    pixels: tuple[npt.NDArray[np.uint8], ...]
    """By variant: one item a row."""
    original: Reader
    """For whoever wants an item in another form."""

    def select(self, positions: Sequence[int]) -> Self:
        return dataclasses.replace(self, places=self.places[np.asarray(positions, dtype=np.int64)])

    def stamp(self, position: int) -> str:
        return self.original.stamp(int(self.places[position]))

    def check(self, position: int) -> str:
        return self.original.check(int(self.places[position]))

    def read(self, position: int) -> Image.Image:
        image = self.original.read(int(self.places[position]))
        assert isinstance(image, Image.Image)  # texts have no pixels to share
        return image

    def _shard(self, stored: StoredVariant, shard: int) -> npt.NDArray[np.uint8]:
        return self.pixels[self.variants.index(stored)]


def share_items(dataset: Dataset, forms: Sequence[InputForm], *, watch: Watch = silent) -> Dataset:
    """The data set with the pixels of all its items in these forms; texts and forms of other kinds stay as they are."""
    wanted = [form for form in forms if isinstance(form, Preprocessing)]
    if dataset.modality != "image" or not wanted:
        return carry_files(dataset)
    everything = range(len(dataset))
    made = decode(dataset, everything, wanted, device="cpu", watch=watch)
    stored = tuple(StoredVariant(variant=variant, items_per_shard=len(dataset)) for variant in made.pixels)
    others = any(not isinstance(form, Preprocessing) for form in forms)
    reader = SharedItems(
        folder="",
        variants=stored,
        num_stored=len(dataset),
        places=np.arange(len(dataset)),
        checksums=np.zeros((len(stored), 0), np.uint32),
        pixels=tuple(made.pixels[each.variant].numpy().reshape(len(dataset), -1) for each in stored),
        original=carry_files(dataset).reader if others else dataset.reader,
    )
    return dataclasses.replace(dataset, reader=reader)


def carry_files(dataset: Dataset) -> Dataset:
    """The data set with the files of its items in memory, for machines that do not have them; what is there already stays."""
    read_bytes = getattr(dataset.reader, "read_bytes", None)
    if read_bytes is None or dataset.modality != "image":
        return dataset
    files = []
    for position in range(len(dataset)):
        try:
            files.append(read_bytes(position))
        except UnreadableItemError:
            files.append(b"")  # it was there a moment ago; whoever decodes it will say that it is gone
    return dataclasses.replace(dataset, reader=BytesReader(tuple(files)))
