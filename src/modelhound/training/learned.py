"""From which items a checkpoint has learned, so that nobody takes what it remembers for what it can tell.

In:  a data set that is learned from; later a model of `hound train` or of finals, and items it is to be judged on
Out: a sketch that is kept beside the weights; which share of the items the model knows already, in a sentence
Items are known by their digests, so that order, names and folders make no difference; those that were prepared meanwhile are
others. What was trained elsewhere, or was taken out of its folder, says nothing.
"""

import hashlib
import heapq
from collections.abc import Sequence
from pathlib import Path

import msgspec

from modelhound.data import Dataset
from modelhound.settings import ModelSettings

__all__ = ["ItemSketch", "learned_by", "sketch_items", "tell_learned", "tell_shared"]

_TRAINED = "trained.json"
# of all items those whose digests come first: a sample that is the same in every data set they are in
_MOST_KEPT = 1024
_LEAST_SHARE = 0.005


class ItemSketch(msgspec.Struct, frozen=True, kw_only=True):
    """Enough of a set of items to tell later how much of another set is in it."""

    num_items: int
    first: tuple[str, ...]


class _Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What this module reads of the file that describes a checkpoint."""

    learned: tuple[ItemSketch, ...] = ()


def sketch_items(digests: Sequence[str]) -> ItemSketch:
    """Of the items with these digests."""
    return ItemSketch(num_items=len(digests), first=tuple(heapq.nsmallest(_MOST_KEPT, _marks(digests))))


def learned_by(model: str, settings: ModelSettings) -> tuple[ItemSketch, ...]:
    """What the weights of `model`, written source:name, have learned from so far; nothing where that is not known."""
    source, _, name = model.partition(":")
    if source != "file" or settings.weights == "random":
        return ()
    try:
        path = Path(name).expanduser()
        content = ((path if path.is_dir() else path.parent) / _TRAINED).read_bytes()
        return msgspec.json.decode(content, type=_Beside).learned
    except (OSError, RuntimeError, ValueError):  # no such file, somebody else's, or one of an earlier version
        return ()


def tell_learned(learned: Sequence[ItemSketch], items: Dataset) -> str:
    """What to know of a score on these items; empty where none of them was learned from, as far as is known."""
    share = _share(learned, items.digests)
    if share < _LEAST_SHARE:
        return ""
    return (
        f"it has learned from about {share:.0%} of these very items before, as its checkpoint says: its score is how well it "
        "remembers them, and says little of others"
    )


def tell_shared(items: Dataset, test: Dataset) -> str:
    """What to know of a score on test items that are training items too; empty where hardly any are."""
    learned = set(items.digests)
    num_shared = sum(digest in learned for digest in test.digests)
    if num_shared <= _LEAST_SHARE * len(test):
        return ""
    return (
        f"{num_shared} of {len(test)} test items are among the training items too, to the last byte: of these the score is how "
        "well it remembers them"
    )


def _share(learned: Sequence[ItemSketch], digests: Sequence[str]) -> float:
    """Of the items with these digests: the sketches hold a known part of what was learned from."""
    if not learned or not digests:
        return 0.0
    marks = set(_marks(digests))
    known = [len(marks.intersection(each.first)) * each.num_items / max(1, len(each.first)) for each in learned]
    return min(1.0, max(known) / len(marks))


def _marks(digests: Sequence[str]) -> list[str]:
    return [hashlib.sha256(digest.encode()).hexdigest()[:16] for digest in digests]
