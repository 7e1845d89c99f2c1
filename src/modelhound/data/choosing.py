"""Which items a limit takes: the same number of every class, as far as the classes reach.

In:  the label of every item, a limit and a seed
Out: positions, sorted
Nothing here knows what an item is. The choice depends on the labels, the limit and the seed only, and a smaller limit
takes a subset of what a larger one takes.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["choose_balanced"]


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
