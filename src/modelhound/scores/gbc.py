"""gbc: how much do the clouds of two classes overlap, summed over all pairs of classes?

Intuition. Describe each class by a Gaussian cloud. Two clouds that lie apart can be told apart; two that overlap cannot,
however clever the classifier. The Bhattacharyya coefficient is 1 for clouds that coincide and 0 for clouds that do not touch.
The value is minus the sum over all pairs, so it lies between -num_classes (num_classes - 1) and 0.

Formula. In the first 64 principal components, with mean m and variance v per class and direction,

    D(a, b) = sum over directions of  (m_a - m_b)^2 / (4 (v_a + v_b))  +  1/2 log( (v_a + v_b) / (2 sqrt(v_a v_b)) ),
    value = - sum over ordered pairs of classes a != b of  exp(-D(a, b)).

Covariances are diagonal, as full ones would need more items per class than there are; public code offers these and spherical
ones. To each variance 1e-3 of the mean variance within classes is added (or 1e-6 of that over all items, if larger), so that a
class of one item is a small cloud and not a point; public code takes 1e-4 for the least variance, in whatever unit the features
have.

Pandy et al., "Transferability Estimation using Bhattacharyya Class Separability", CVPR 2022.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["score_by_gbc"]

_LEAST_WITHIN = 1e-3
_LEAST_TOTAL = 1e-6
_BLOCK_VALUES = 4 * 2**20  # pairs times directions looked at together, so that many classes need no more memory


def score_by_gbc(algebra: Algebra, *, seed: int) -> Score:
    """Minus the overlap of all pairs of classes; it judges all items together."""
    points = algebra.main_components
    present = algebra.counts > 0
    counts = algebra.counts[:, None].clamp_min(1)
    num_present = int(present.sum())
    if points.shape[1] == 0:  # features that do not vary: all clouds coincide
        return Score(-float(num_present * (num_present - 1)), None)
    means = _sum_classes(algebra, points) / counts
    deviations = (points - means[algebra.labels]).square()
    least = max(_LEAST_WITHIN * float(deviations.mean()), _LEAST_TOTAL * float(points.square().mean()))
    variances = _sum_classes(algebra, deviations) / counts + least
    return Score(-_sum_overlaps(means[present], variances[present]), None)


def _sum_classes(algebra: Algebra, values: torch.Tensor) -> torch.Tensor:
    """The sum over the items of each class, [num_classes, num_directions]."""
    total = values.new_zeros(algebra.num_classes, values.shape[1])
    algebra.add_products(total, slice(None), values)
    return total


def _sum_overlaps(means: torch.Tensor, variances: torch.Tensor) -> float:
    """The Bhattacharyya coefficients of all ordered pairs of different classes, added up."""
    num_classes, num_directions = means.shape
    halved_logs = variances.log().sum(1) / 4
    total = 0.0
    step = max(1, _BLOCK_VALUES // (num_classes * num_directions))
    for rows in torch.split(torch.arange(num_classes, device=means.device), step):
        both = variances[rows, None] + variances
        distances = ((means[rows, None] - means).square() / both).sum(2) / 4
        distances += (both / 2).log_().sum(2) / 2 - halved_logs[rows, None] - halved_logs
        overlaps = distances.neg_().exp_()
        overlaps[torch.arange(len(rows), device=rows.device), rows] = 0.0
        total += float(overlaps.sum())
    return total
