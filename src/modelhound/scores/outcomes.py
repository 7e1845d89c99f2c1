"""How well was one item predicted? The same measure for every scorer that judges item by item.

In:  predictions for items that were not learned from, and the truth
Out: one number per item, whose mean is the value of the scorer
Nothing here knows how predictions were made.

classification   1 if the own class is predicted with the largest number, else 0: the mean is the accuracy.
multilabel       For each label that the item has: of the labels predicted at least as high, the share that it has; the mean of
                 these. 1 if all its labels come before all others, and for an item with no label or with all of them. The
                 mean over items is the label-ranking average precision. Equal predictions take the worst place among them.
regression       1 - (error)^2 / (variance of the targets): 1 if exact, 0 on average for predicting the mean, without a lower
                 limit. The mean is R^2, here of items that were left out.

Tsoumakas et al., "Mining Multi-label Data", Data Mining and Knowledge Discovery Handbook 2010 (label ranking).
"""

import torch

from modelhound.scores.algebra import Algebra

__all__ = ["judge_items", "rank_labels"]


def judge_items(algebra: Algebra, items: slice | torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """The outcome of some items, [len(predicted)], float64; `predicted` is [some items, num_targets]."""
    if algebra.task == "classification":
        return (predicted.argmax(1) == algebra.labels[items]).double()
    truth = algebra.targets_of(items)
    if algebra.task == "multilabel":
        return rank_labels(truth, predicted)
    return 1 - (truth - predicted).square().squeeze(1) * (algebra.num_items / algebra.target_energies)


def rank_labels(truth: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """The average precision of the labels of each item, ranked by prediction."""
    num_labels = truth.shape[1]
    ordered, order = predicted.sort(dim=1, descending=True, stable=True)
    found = truth.gather(1, order).cumsum(1)  # how many of the item's labels are among the first
    # the last place of those with an equal prediction: where, seen from the other end, the value changes
    ends = torch.ones_like(ordered, dtype=torch.bool)
    ends[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    places = torch.arange(num_labels, device=ordered.device).expand_as(ordered)
    last = torch.where(ends, places, num_labels).flip(1).cummin(1).values.flip(1)
    precision = found.gather(1, last) / (last + 1)
    num_own = truth.sum(1)
    mean = (precision * truth.gather(1, order)).sum(1) / num_own.clamp_min(1)
    return torch.where((num_own == 0) | (num_own == num_labels), 1.0, mean)
