"""Open a data set: find its items, take as many as asked for, and make sure that they can be read.

In:  a data reference: digits, fashion, or the path of a folder of class folders
Out: a Dataset of two or more classes with two or more readable items each, or a DataError
Nothing here knows how items are stored (see `embedded`, `folder`) or what a model wants (see `preprocessing`).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from modelhound.data.checking import Finding, check_items
from modelhound.data.choosing import choose_balanced
from modelhound.data.embedded import EMBEDDED, list_embedded
from modelhound.data.folder import list_folder
from modelhound.data.images import UnreadableImageError
from modelhound.data.source import Listing, Reader
from modelhound.errors import DataError
from modelhound.records import ItemSkipped, Watch, silent

__all__ = ["Dataset", "open_dataset"]

_MIN_PER_CLASS = 2  # a leave-one-out score needs a second item to judge the first by
_MAX_BAD_PERCENT = 5
_NUM_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Labelled images in a fixed order. It pickles, so that loader processes can have it."""

    name: str
    """The reference as given."""

    class_names: tuple[str, ...]

    labels: tuple[int, ...]
    """One per item: its place in class_names."""

    item_names: tuple[str, ...]
    """One per item: the path below the folder, or the likes of digits/17."""

    skipped: tuple[ItemSkipped, ...]
    """What takes no part because it cannot be read or belongs to no class."""

    fingerprint: str
    """Changes with names, labels and contents (of files: size and time); a stored run may be continued only if equal."""

    reader: Reader = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def read_image(self, index: int) -> Image.Image:
        """Item `index` as an upright 8-bit RGB image."""
        try:
            return self.reader.read(index)
        except UnreadableImageError as error:
            raise DataError(
                f"cannot read {self.item_names[index]!r} of {self.name!r}: expected the image that was there when the data "
                f"set was checked, but {error}; restore it, or start again to leave it out"
            ) from error


def open_dataset(reference: str, *, limit: int | None = None, seed: int = 0, watch: Watch = silent) -> Dataset:
    """The data set `reference`, or `limit` of its items, evenly from all classes and drawn by `seed`."""
    listing = list_embedded(reference) if reference in EMBEDDED else list_folder(reference)
    chosen = _choose(reference, listing, limit, seed)
    reader = listing.reader.select(chosen)
    findings = check_items(reader, len(chosen), watch)
    bad = _list_bad(listing, chosen, findings)
    if limit is not None and _too_many(len(bad), len(chosen)):
        # A few of a small sample say little: the rule is about the data set.
        everything = check_items(listing.reader, len(listing.labels), watch)
        bad_in_all = _list_bad(listing, range(len(listing.labels)), everything)
        _check_not_too_many(reference, bad_in_all, len(listing.labels))
    else:
        _check_not_too_many(reference, bad, len(chosen))
    good = [place for place, finding in enumerate(findings) if finding.problem is None]
    labels = tuple(listing.labels[chosen[place]] for place in good)
    names = tuple(listing.item_names[chosen[place]] for place in good)
    _check_enough_left(reference, listing.class_names, labels, bad)
    return Dataset(
        name=reference,
        class_names=listing.class_names,
        labels=labels,
        item_names=names,
        skipped=listing.skipped + bad,
        fingerprint=_fingerprint(listing.class_names, names, labels, (findings[place].stamp for place in good)),
        reader=reader.select(good),
    )


def _choose(reference: str, listing: Listing, limit: int | None, seed: int) -> list[int]:
    if limit is None:
        return list(range(len(listing.labels)))
    num_classes = len(listing.class_names)
    least = _MIN_PER_CLASS * num_classes
    if limit < least:
        raise DataError(
            f"cannot take {limit} items of {reference!r}: expected a limit of at least {least}, which is {_MIN_PER_CLASS} "
            f"of each of its {num_classes} classes; use --limit {least} or more"
        )
    positions: list[int] = choose_balanced(np.asarray(listing.labels, dtype=np.int64), limit=limit, seed=seed).tolist()
    return positions


def _list_bad(listing: Listing, positions: Sequence[int], findings: Sequence[Finding]) -> tuple[ItemSkipped, ...]:
    return tuple(
        ItemSkipped(item=listing.item_names[position], reason=finding.problem)
        for position, finding in zip(positions, findings, strict=True)
        if finding.problem is not None
    )


def _too_many(num_bad: int, total: int) -> bool:
    return num_bad * 100 > total * _MAX_BAD_PERCENT


def _check_not_too_many(reference: str, bad: tuple[ItemSkipped, ...], total: int) -> None:
    if _too_many(len(bad), total):
        raise DataError(
            f"cannot use {reference!r}: expected at most {_MAX_BAD_PERCENT} % unreadable images, but {len(bad)} of {total} "
            f"are: {_list_some(bad)}; repair or remove them"
        )


def _check_enough_left(
    reference: str, class_names: tuple[str, ...], labels: tuple[int, ...], bad: tuple[ItemSkipped, ...]
) -> None:
    counts = Counter(labels)
    short = [name for label, name in enumerate(class_names) if counts[label] < _MIN_PER_CLASS]
    if short:
        shown = ", ".join(map(repr, short[:_NUM_SHOWN])) + (" and others" if len(short) > _NUM_SHOWN else "")
        raise DataError(
            f"cannot use {reference!r}: expected at least {_MIN_PER_CLASS} readable images in every class, but there are "
            f"fewer in {shown}, where some cannot be read: {_list_some(bad)}; repair or replace them"
        )


def _list_some(bad: tuple[ItemSkipped, ...]) -> str:
    shown = ", ".join(f"{item.item!r} ({item.reason})" for item in bad[:_NUM_SHOWN])
    return shown + (", …" if len(bad) > _NUM_SHOWN else "")


def _fingerprint(
    class_names: tuple[str, ...], names: tuple[str, ...], labels: tuple[int, ...], stamps: Iterable[str]
) -> str:
    digest = hashlib.sha256("\0".join(class_names).encode())
    for name, label, stamp in zip(names, labels, stamps, strict=True):
        digest.update(f"\0\0{name}\0{label}\0{stamp}".encode())  # no name holds a zero byte, so nothing is ambiguous
    return digest.hexdigest()
