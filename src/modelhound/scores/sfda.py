"""sfda: how probable are the labels under a discriminant analysis that makes its own task harder?

Intuition. Look at the features through the directions in which class means differ most for their spread within classes, and
read off how probable each item's own class is. Fine-tuning, though, will change the features, and mostly those of items that
are hard to place. So take a second look: move every item towards the mean of the other classes, by as much as the first look
was unsure of it, and judge the moved items. The value is a mean log probability, at most 0.

Formula. With W the covariance within classes and s = tr(W) / d, d the number of features or, if that is less, of items - 1,

    W' = (1 - a) W + a s I,     a = exp(-5 g / tr W),     g the largest eigenvalue of W,
    P(c | x) = softmax over c of  x'W'^-1 m_c - m_c'W'^-1 m_c / 2 + log(n_c / n),     m_c the mean of class c.

This is Fisher's discriminant: its num_classes - 1 directions U with U'W'U = I give UU'm_c = W'^-1 m_c, so no directions need be
computed. Then x becomes  p x + (1 - p) o  with p = P(own class | x) and o the mean of the other classes (ConfMix), W and the
means are taken anew with the same a, and value = mean over items of log P(own class | moved x).

Measuring g in units of tr W is ours, and d where items are fewer than features: the published exp(-5 g) changes with the unit
of the features. Public code also softens p by a second softmax before mixing, takes o as the mean of the other classes' means
(the same where classes are equally large), and averages probabilities; we mix by p itself and average logarithms, as in `leep`.

W comes from the shared scatter matrix. The moved items need a second one, as each is moved by an amount of its own; either
takes a Cholesky factor and no eigendecomposition. g is found by power iteration, from the sum of items times their squared
lengths, which is the same for any order of items and any rotation.

Shao et al., "Not All Models Are Equal: Predicting Model Transferability in a Self-challenging Fisher Space", ECCV 2022.
"""

import math
from dataclasses import dataclass

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score
from modelhound.scores.products import add_square, mirror

__all__ = ["find_shrinkage", "score_by_sfda"]

_STEEPNESS = 5.0
_ROUNDS = 50  # of power iteration; what is left of its error changes the shrinkage by less than a percent
_LEAST_WITHIN = 1e-6  # of the variance over all items: classes without any spread would be infinitely far apart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Discriminant:
    """Log probabilities of classes, up to a constant, as linear functions of an item."""

    weights: torch.Tensor  # [num_columns, num_classes]
    intercepts: torch.Tensor  # [num_classes]

    def log_probabilities(self, items: torch.Tensor) -> torch.Tensor:
        """[num_items, num_classes]"""
        return torch.addmm(self.intercepts, items, self.weights).log_softmax(1)


def score_by_sfda(algebra: Algebra, *, seed: int) -> Score:
    """The mean log probability of the labels after ConfMix; it judges all items together."""
    sums, counts = algebra.compact_class_sums, algebra.counts
    within = _within(algebra.compact_scatter, sums, counts)
    shrinkage = find_shrinkage(algebra, within)
    num_directions = min(algebra.num_features, algebra.num_items - 1)
    first = _discriminate(within, sums, counts, shrinkage, num_directions)
    others = -sums / (counts.sum() - counts)[:, None]  # items add up to 0, so the others add up to minus these
    scatter, moved_sums = torch.zeros_like(within), torch.zeros_like(sums)
    trust = torch.empty(algebra.num_items, 1, dtype=torch.float64, device=within.device)
    for rows, items in algebra.compact_blocks():
        labels = algebra.labels[rows, None]
        trust[rows] = first.log_probabilities(items).gather(1, labels).exp()
        moved = torch.lerp(others[labels[:, 0]], items, trust[rows])
        add_square(scatter, moved)
        algebra.add_products(moved_sums, rows, moved)
    within = _within(mirror(scatter), moved_sums, counts)
    second = _discriminate(within, moved_sums, counts, shrinkage, num_directions)
    total = torch.zeros_like(trust[0, 0])
    for rows, items in algebra.compact_blocks():
        labels = algebra.labels[rows, None]
        moved = torch.lerp(others[labels[:, 0]], items, trust[rows])
        total += second.log_probabilities(moved).gather(1, labels).sum()
    return Score(float(total) / algebra.num_items, None)


def find_shrinkage(algebra: Algebra, within: torch.Tensor) -> float:
    """How far to move `within` towards a multiple of the identity: exp(-5) if one direction holds all, 1 if none does."""
    energy = float(within.diagonal().sum())
    direction = torch.zeros(len(within), dtype=torch.float64, device=within.device)
    for rows, items in algebra.compact_blocks():
        direction += items.T @ algebra.squared_lengths[rows]
    length = direction.norm()
    for _ in range(_ROUNDS):  # of a direction of length 0 nothing is left, however often it is tried
        direction = within @ (direction / length.clamp_min(torch.finfo(torch.float64).tiny))
        length = direction.norm()
    # no eigenvalue is more than their sum, but of classes without any spread only rounding is left, where one may seem so
    return math.exp(-_STEEPNESS * min(1.0, float(length) / energy)) if energy > 0 else 1.0


def _within(scatter: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The scatter within classes, from that around 0 and the class sums."""
    rooted = sums / counts.clamp_min(1).sqrt()[:, None]
    return torch.addmm(scatter, rooted.T, rooted, alpha=-1)


def _discriminate(
    within: torch.Tensor, sums: torch.Tensor, counts: torch.Tensor, shrinkage: float, num_directions: int
) -> _Discriminant:
    """Fisher's discriminant from the scatter within classes, shrunk."""
    num_items = float(counts.sum())
    means = sums / counts.clamp_min(1)[:, None]
    between = float((means.square().sum(1) * counts).sum())
    energy = float(within.diagonal().sum())
    least = max(energy, _LEAST_WITHIN * between) or 1.0  # 1: nothing varies, and any number will do
    shrunk = within * ((1 - shrinkage) / num_items)
    shrunk.diagonal().add_(shrinkage * least / (num_items * num_directions))
    weights = torch.cholesky_solve(means.T, torch.linalg.cholesky(shrunk))
    # a class without items has a share of 0 and so is never expected
    intercepts = (counts / num_items).log() - (means.T * weights).sum(0) / 2
    return _Discriminant(weights=weights, intercepts=intercepts)
