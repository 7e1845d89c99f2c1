"""Open a data set: find its items, take as many as asked for, and make sure that they can be read.

In:  a data reference: the name of an embedded set, or the path of a file or folder of a known form
Out: a Dataset that a ranking of models can rest on, or a DataError
Nothing here knows how items are stored (see SOURCES, one file each) or what a model wants (see `preprocessing`, `tokenising`).
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from modelhound.data.checking import Finding, check_items, remember_unreadable
from modelhound.data.choosing import choose_balanced, strata
from modelhound.data.source import DataRequest, DataSource, Item, Listing, Modality, Reader, UnreadableItemError
from modelhound.data.sources.cifar import CifarSource
from modelhound.data.sources.csv_table import CsvSource
from modelhound.data.sources.embedded import EmbeddedSource
from modelhound.data.sources.folder import FileReader, FolderSource
from modelhound.data.sources.food101 import Food101Source
from modelhound.data.sources.hub_datasets import HubDatasetSource
from modelhound.data.sources.jsonl_table import JsonSource
from modelhound.data.sources.parquet_table import ParquetSource
from modelhound.data.sources.prepared import PreparedSource
from modelhound.data.sources.tar_shards import TarSource
from modelhound.errors import BrokenItemError, DataError, is_out_of_memory
from modelhound.records import ItemSkipped, Watch, silent
from modelhound.settings import DataSettings, Task

__all__ = ["SOURCES", "Dataset", "check_there", "glance", "open_asked", "open_dataset"]

SOURCES: tuple[DataSource, ...] = (
    EmbeddedSource(),
    PreparedSource(),
    CifarSource(),
    Food101Source(),
    TarSource(),
    CsvSource(),
    JsonSource(),
    ParquetSource(),
    HubDatasetSource(),
    FolderSource(),
)
"""Asked in this order; the first that claims a reference lists it."""

_MIN_PER_CLASS = 2  # a leave-one-out score needs a second item to judge the first by
_MIN_NUMBERS = 4
_MAX_BAD_PERCENT = 5
_NUM_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Items and what is to be told of them, in a fixed order. It pickles, so that loader processes can have it."""

    name: str
    """The reference as given."""

    task: Task

    modality: Modality

    class_names: tuple[str, ...]
    """Of the classes or labels; of a regression, the name of what is measured."""

    targets: npt.NDArray[Any] = field(compare=False, repr=False)
    """As in a Listing; the fingerprint stands for them in comparisons."""

    item_names: tuple[str, ...]
    """One per item: the path below the folder, or the likes of digits/17."""

    skipped: tuple[ItemSkipped, ...]
    """What takes no part because it cannot be read or has no label."""

    fingerprint: str
    """Changes with names, targets and contents (of files: size and time); a stored run may be continued only if equal."""

    digests: tuple[str, ...] = field(repr=False)
    """One per item: of what it holds, whatever it is called and wherever it lies."""

    reader: Reader = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.item_names)

    def select(self, positions: Sequence[int]) -> "Dataset":
        """Only these items, in this order."""
        return replace(
            self,
            targets=self.targets[np.asarray(positions, dtype=np.int64)],
            item_names=tuple(self.item_names[position] for position in positions),
            digests=tuple(self.digests[position] for position in positions),
            fingerprint=hashlib.sha256(f"{self.fingerprint} {list(positions)}".encode()).hexdigest(),
            reader=self.reader.select(positions),
        )

    def read(self, index: int) -> Item:
        """Item `index`: an upright 8-bit RGB image, or a tuple of one or two texts."""
        try:
            return self.reader.read(index)
        except UnreadableItemError as error:
            with contextlib.suppress(UnreadableItemError):  # it has changed since, and the next look will see that
                if not _may_pass(error):
                    remember_unreadable(self.reader.check(index), str(error))
            raise BrokenItemError(
                f"cannot read {self.item_names[index]!r} of {self.name!r}: expected the {self.modality} that was there when "
                f"the data set was checked, but {error}; restore it, or start again to leave it out"
            ) from error


def _may_pass(error: UnreadableItemError) -> bool:
    """Whether it says nothing of the item: a disk that stumbled, too many open files, no memory left. What decoders raise over
    broken data may be OSErrors too, but without a number of the system's."""
    cause = error.__cause__
    return cause is not None and (getattr(cause, "errno", None) is not None or is_out_of_memory(cause))


def check_there(reference: str) -> None:
    """A DataError where it names a file or folder that does not exist: a slip to be told before anything slow is loaded."""
    source = _source_of(reference)
    is_path = isinstance(source, FolderSource | CsvSource | JsonSource | ParquetSource)
    if is_path and not os.path.lexists(os.path.expanduser(reference)):  # noqa: PTH111 - as the sources do
        source.list_items(reference, DataRequest())


def open_asked(
    settings: DataSettings, *, split_option: str = "--split", hold_bytes: int = 0, watch: Watch = silent
) -> Dataset:
    """The data set that `settings` name, as `open_dataset` opens it; `split_option` is what named the part, for messages."""
    return open_dataset(
        settings.data,
        columns=settings.roles(),
        task=settings.asked_task(),
        split=settings.split,
        split_option=split_option,
        limit=settings.limit,
        seed=settings.seed,
        follow_links=settings.follow_links,
        hold_bytes=hold_bytes,
        watch=watch,
    )


def open_dataset(
    reference: str,
    *,
    columns: Mapping[str, str] | None = None,
    task: Task | None = None,
    split: str | None = None,
    split_option: str = "--split",
    limit: int | None = None,
    seed: int = 0,
    follow_links: bool = False,
    hold_bytes: int = 0,
    watch: Watch = silent,
) -> Dataset:
    """The data set `reference`, or `limit` of its items, evenly from all classes and drawn by `seed`.

    Items that are links out of the data folder cannot be read unless `follow_links` allows it. Files that were looked at stay
    in memory until they are decoded, `hold_bytes` of them at most.
    """
    request = DataRequest(
        columns=columns or {}, task=task, split=split, split_option=split_option, follow_links=follow_links
    )
    listing = _list(reference, request)
    chosen = _choose(reference, listing, limit, seed)
    reader = listing.reader.select(chosen)
    if hold_bytes and isinstance(reader, FileReader):
        reader = reader.holding(hold_bytes)
    findings = check_items(reader, len(chosen), watch)
    bad = _list_bad(listing, chosen, findings)
    if limit is not None and _too_many(len(bad), len(chosen)):
        # A few of a small sample say little: the rule is about the data set.
        everything = check_items(listing.reader, len(listing.item_names), watch)
        bad_in_all = _list_bad(listing, range(len(listing.item_names)), everything)
        _check_not_too_many(reference, listing, bad_in_all, len(listing.item_names))
    else:
        _check_not_too_many(reference, listing, bad, len(chosen))
    good = [place for place, finding in enumerate(findings) if finding.problem is None]
    targets = listing.targets[np.asarray(chosen, dtype=np.int64)[good]]
    names = tuple(listing.item_names[chosen[place]] for place in good)
    _check_enough_left(reference, listing, targets, bad)
    return Dataset(
        name=reference,
        task=listing.task,
        modality=listing.modality,
        class_names=listing.class_names,
        targets=targets,
        item_names=names,
        skipped=listing.skipped + bad,
        digests=tuple(findings[place].digest for place in good),
        fingerprint=_fingerprint(listing, names, targets, (findings[place].stamp for place in good)),
        reader=reader.select(good),
    )


def glance(settings: DataSettings) -> str:
    """A fingerprint of what `open_asked` would open, found by names and stamps alone: no item is decoded."""
    request = DataRequest(
        columns=settings.roles(), task=settings.asked_task(), split=settings.split, follow_links=settings.follow_links
    )
    listing = _list(settings.data, request)
    chosen = _choose(settings.data, listing, settings.limit, settings.seed)
    reader = listing.reader.select(chosen)
    names = tuple(listing.item_names[position] for position in chosen)
    stamps = (_stamp_or_problem(reader, place) for place in range(len(chosen)))
    return _fingerprint(listing, names, listing.targets[chosen], stamps)


def _stamp_or_problem(reader: Reader, position: int) -> str:
    try:
        return reader.stamp(position)
    except UnreadableItemError as error:
        return str(error)


def _source_of(reference: str) -> DataSource:
    return next(each for each in SOURCES if each.claims(reference))


def _list(reference: str, request: DataRequest) -> Listing:
    source = _source_of(reference)
    unfit = request.given() - source.options
    if unfit:
        name = min(unfit)
        others = "; ".join(each.form for each in SOURCES if name in each.options)
        taken = "" if reference in source.form else f", which is taken for {source.form}"
        given = f"--{name}"  # columns are many
        if name == "task":
            given += f" {request.task}"
        elif name == "split":
            given = f"{request.split_option} {request.split}" if request.split_option else "--test"
        raise DataError(
            f"cannot use {given} with {reference!r}{taken}: expected data of one of these forms, or leave it out: {others}"
        )
    return source.list_items(reference, request)


def _choose(reference: str, listing: Listing, limit: int | None, seed: int) -> list[int]:
    if limit is None:
        return list(range(len(listing.item_names)))
    groups = strata(listing.targets, listing.task)
    if listing.task == "classification":
        num_classes = len(listing.class_names)
        least = _MIN_PER_CLASS * num_classes
        if limit < least:
            raise DataError(
                f"cannot take {limit} items of {reference!r}: expected a limit of at least {least}, which is {_MIN_PER_CLASS} "
                f"of each of its {num_classes} classes; use --limit {least} or more"
            )
    positions: list[int] = choose_balanced(groups, limit=limit, seed=seed).tolist()
    return positions


def _list_bad(listing: Listing, positions: Sequence[int], findings: Sequence[Finding]) -> tuple[ItemSkipped, ...]:
    return tuple(
        ItemSkipped(item=listing.item_names[position], reason=finding.problem)
        for position, finding in zip(positions, findings, strict=True)
        if finding.problem is not None
    )


def _too_many(num_bad: int, total: int) -> bool:
    return num_bad * 100 > total * _MAX_BAD_PERCENT


def _check_not_too_many(reference: str, listing: Listing, bad: tuple[ItemSkipped, ...], total: int) -> None:
    if _too_many(len(bad), total):
        raise DataError(
            f"cannot use {reference!r}: expected at most {_MAX_BAD_PERCENT}% unreadable {listing.modality}s, but {len(bad)} "
            f"of {total} are: {_list_some(bad)}; repair or remove them"
        )


def _check_enough_left(
    reference: str, listing: Listing, targets: npt.NDArray[Any], bad: tuple[ItemSkipped, ...]
) -> None:
    because = f", where some cannot be read: {_list_some(bad)}; repair or replace them" if bad else "; add more"
    if listing.task == "classification":
        counts = np.bincount(targets, minlength=len(listing.class_names))
        short = [name for name, count in zip(listing.class_names, counts, strict=True) if count < _MIN_PER_CLASS]
        if short:
            shown = ", ".join(map(repr, short[:_NUM_SHOWN])) + (" and others" if len(short) > _NUM_SHOWN else "")
            raise DataError(
                f"cannot use {reference!r}: expected at least {_MIN_PER_CLASS} readable {listing.modality}s in every class, "
                f"but there are fewer in {shown}{because}"
            )
    elif listing.task == "multilabel":
        if not (targets.any(0) & ~targets.all(0)).any():
            raise DataError(
                f"cannot use {reference!r}: expected a label that some items have and others have not, but there is none"
                + because
            )
    elif len(targets) < _MIN_NUMBERS or np.ptp(targets) == 0:
        raise DataError(
            f"cannot use {reference!r}: expected {_MIN_NUMBERS} or more items whose numbers differ, but there are "
            f"{len(targets)} with {len(np.unique(targets))} different numbers{because}"
        )


def _list_some(bad: tuple[ItemSkipped, ...]) -> str:
    shown = ", ".join(f"{item.item!r} ({item.reason})" for item in bad[:_NUM_SHOWN])
    return shown + (", …" if len(bad) > _NUM_SHOWN else "")


def _fingerprint(listing: Listing, names: tuple[str, ...], targets: npt.NDArray[Any], stamps: Iterable[str]) -> str:
    digest = hashlib.sha256("\0".join((listing.task, *listing.class_names)).encode("utf-8", "surrogatepass"))
    digest.update(np.ascontiguousarray(targets).tobytes())
    for name, stamp in zip(names, stamps, strict=True):
        digest.update(f"\0\0{name}\0{stamp}".encode("utf-8", "surrogatepass"))  # no name holds a zero byte
    return digest.hexdigest()
