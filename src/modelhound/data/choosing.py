"""Which items a limit takes: the same number of every class, as far as the classes reach.

In:  the targets of all items, a limit and a seed
Out: positions, sorted
Nothing here knows what an item is. The choice depends on the targets, the limit and the seed only, and a smaller limit
takes a subset of what a larger one takes. Where there is not one class per item, something else is kept even: see `strata`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from modelhound.settings import Task

__all__ = ["choose_balanced", "strata"]

_NUM_QUANTILES = 10


def strata(targets: npt.NDArray[Any], task: Task) -> npt.NDArray[np.int64]:
    """A group for each item, of which a choice shall take equally many.

    Its class; of several labels the rarest, so that rare ones are not lost; of a number the tenth of the range of ranks.
    """
    if task == "classification":
        return targets
    if task == "multilabel":
        num_labels = targets.shape[1]
        by_rarity = np.argsort(targets.sum(0), kind="stable")
        first = targets[:, by_rarity].argmax(1)
        return np.asarray(np.where(targets.any(1), by_rarity[first], num_labels))
    ranks = np.argsort(np.argsort(targets, kind="stable"), kind="stable")
    return ranks * min(_NUM_QUANTILES, len(targets)) // max(1, len(targets))


def choose_balanced(labels: npt.NDArray[np.int64], *, limit: int, seed: int) -> npt.NDArray[np.int64]:
    """`limit` positions in `labels`, drawn evenly from all classes 0, 1, …"""
    if limit >= len(labels):
        return np.arange(len(labels))
    generator = np.random.default_rng(seed)
    counts = np.bincount(labels)
    quotas = _fill_evenly(counts, limit, generator.permutation(len(counts)))
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    chosen = [generator.permutation(members)[:quota] for members, quota in zip(by_class, quotas, strict=True)]
    return np.sort(np.concatenate(chosen))


def _fill_evenly(counts: npt.NDArray[np.int64], total: int, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Share `total` like water poured into vessels: what does not fit into a small class rises in the others.

    What cannot be divided goes, one each, to the classes that come first in `order`.
    """
    quotas = np.zeros_like(counts)
    while (left := total - int(quotas.sum())) > 0:
        room = order[counts[order] > quotas[order]]
        share, rest = divmod(left, len(room))
        if share == 0:
            quotas[room[:rest]] += 1
        else:
            quotas[room] = np.minimum(counts[room], quotas[room] + share)
    return quotas
