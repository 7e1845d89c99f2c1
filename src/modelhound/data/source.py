"""What every kind of data source has to offer: the one interface behind `open_dataset`.

In:  nothing
Out: the types that each kind of source fills in, and that choosing, checking and loading work on
A source knows neither limits nor seeds nor models. A new kind of source is one more file with a class that follows
`DataSource`, and one more line in `dataset.SOURCES`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.records import ItemSkipped
from modelhound.settings import Task

__all__ = ["DataRequest", "DataSource", "Item", "Listing", "Modality", "Reader", "UnreadableItemError", "printable"]

Modality = Literal["image", "text"]

Item = Image.Image | tuple[str, ...]
"""An upright 8-bit RGB image, or one text, or a pair of texts."""


class UnreadableItemError(ValueError):
    """One item cannot be read; the message is the reason, without a name."""


class Reader(Protocol):
    """Reads items by position. It must pickle: loader processes get a copy.

    What cannot be read is an UnreadableItemError; nothing else is raised on account of bad data.
    """

    @property
    def in_memory(self) -> bool:
        """Whether reading costs next to nothing, so that processes to share the work would not pay."""

    def select(self, positions: Sequence[int]) -> Self:
        """A reader of these items only, renumbered from 0."""

    def stamp(self, position: int) -> str:
        """A text that changes when the item's content does; part of the data set's fingerprint."""

    def check(self, position: int) -> str:
        """Raise if the item cannot be read. As cheap as possible, but every byte is looked at: what comes back is a digest
        of them, the same wherever the item lies and whatever it is called."""

    def read(self, position: int) -> Item:
        """The item itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """What was asked of a source beside its reference; None and empty where it is to find out by itself."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Role (text, pair, image, label) -> the column that plays it."""

    task: Task | None = None
    split: str | None = None
    split_option: str = "--split"
    """Which option named the part; empty where none did, and it is the one that is usual beside `hound train --test`."""
    follow_links: bool = False
    """Whether links may lead out of the data folder."""

    def given(self) -> set[str]:
        """The names of the options that were asked for."""
        return {name for name in ("columns", "task", "split") if getattr(self, name)}

    def part_text(self, part: str) -> str:
        """A part in the words of whoever asked for it: a message names no option that nobody gave."""
        if self.split is None:
            return f"part {part!r}"
        return (
            f"{self.split_option} {part!r}"
            if self.split_option
            else f"part {part!r} to train on (--split names another)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Everything a source holds, in a fixed order, before anything is chosen or read."""

    class_names: tuple[str, ...]
    """Names of the classes or labels; of a regression, the name of what is measured."""

    targets: npt.NDArray[Any]
    """By task: classification int64 [items], places in class_names; multilabel bool [items, labels]; regression float64
    [items]."""

    item_names: tuple[str, ...]
    reader: Reader
    task: Task = "classification"
    modality: Modality = "image"
    skipped: tuple[ItemSkipped, ...] = ()  # what a person may have meant as data, but is not

    def __post_init__(self) -> None:
        # ValueError and not a HoundError: only a mistake in a source can bring us here.
        num_items, num_classes = len(self.item_names), len(self.class_names)
        shape, kind = {
            "classification": ((num_items,), np.int64),
            "multilabel": ((num_items, num_classes), np.bool_),
            "regression": ((num_items,), np.float64),
        }[self.task]
        if self.targets.shape != shape or self.targets.dtype != kind:
            given = f"{self.targets.shape} {self.targets.dtype}"
            raise ValueError(f"cannot use {self.task} targets of {given}: expected {shape} {np.dtype(kind)}")


class DataSource(Protocol):
    """One kind of data set."""

    @property
    def form(self) -> str:
        """What it looks like, for messages: "a CSV file"."""

    @property
    def options(self) -> frozenset[str]:
        """Which parts of a DataRequest it can serve: columns, task, split."""

    def claims(self, reference: str) -> bool:
        """Whether the reference is of this kind. Looks at names and at the entries of a folder, never into a file."""

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        """All items, or a DataError that says what is wrong. Nothing is decoded yet."""


def printable(name: str) -> str:
    """A file name that can be shown and stored: bytes that are not UTF-8 become question marks."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
