"""What every kind of data source has to offer: the one interface behind `open_dataset`.

In:  nothing
Out: the types that `embedded` and `folder` fill in, and that choosing, checking and loading work on
A source knows neither limits nor seeds nor models. A new kind of source is one more file that returns a Listing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from PIL import Image

from modelhound.records import ItemSkipped

__all__ = ["Listing", "Reader", "printable"]


class Reader(Protocol):
    """Reads items by position. It must pickle: loader processes get a copy.

    What cannot be read is an UnreadableImageError (see `images`); nothing else is raised on account of bad data.
    """

    @property
    def in_memory(self) -> bool:
        """Whether reading costs next to nothing, so that processes to share the work would not pay."""

    def select(self, positions: Sequence[int]) -> Self:
        """A reader of these items only, renumbered from 0."""

    def stamp(self, position: int) -> str:
        """A text that changes when the item's content does; part of the data set's fingerprint."""

    def check(self, position: int) -> None:
        """Raise if the item cannot be read. As cheap as possible, but every byte is looked at."""

    def read(self, position: int) -> Image.Image:
        """The item as an upright 8-bit RGB image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything a source holds, sorted by class and name, before anything is chosen or read."""

    class_names: tuple[str, ...]
    labels: tuple[int, ...]
    item_names: tuple[str, ...]
    reader: Reader
    skipped: tuple[ItemSkipped, ...] = ()  # what a person may have meant as data, but is not


def printable(name: str) -> str:
    """A file name that can be shown and stored: bytes that are not UTF-8 become question marks."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
