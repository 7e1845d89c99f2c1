"""centroid: how many items lie nearest to the mean of their own class?

Intuition. The simplest classifier there is: remember one point per class, its mean, and give an item the class of the nearest
one. It can only do well if each class is one compact cloud, so it says how tidy the features are before anything is learned.
The value is an accuracy, on items that did not take part in their own class mean.

Formula. Distance is Euclidean, not cosine: it needs nothing but the class means that other scorers share, it does not depend on
where the origin lies, and leaving an item out is a factor. With n_c items in class c and mean m_c, item x of class c has the
squared distance

    |x - m_k|^2 to every other class k,     (n_c / (n_c - 1))^2 |x - m_c|^2 to its own, whose mean is taken without x.

Distances that differ by rounding only are a tie, which goes to the lower class number. The item of a class of one has no class
mean to go to and is never right.

Mensink et al., "Distance-Based Image Classification: Generalizing to New Classes at Near-Zero Cost", TPAMI 2013; Tibshirani et
al., "Diagnosis of multiple cancer types by shrunken centroids of gene expression", PNAS 2002.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["score_by_centroid"]

_TIE = 1e-12  # of the mean squared length of the centred features; distances are computed to about 1e-15 of it


def score_by_centroid(algebra: Algebra, *, seed: int) -> Score:
    """Leave-one-out accuracy of the nearest class mean."""
    counts = algebra.counts
    means = algebra.target_sums / counts.clamp_min(1)[:, None]
    mean_lengths = means.square().sum(1)
    growth = torch.where(counts >= 2, (counts / (counts - 1)).square(), torch.inf)
    tie = _TIE * algebra.squared_lengths.mean()
    hits = torch.empty(algebra.num_items, dtype=torch.bool, device=means.device)
    for rows, centred in algebra.centred_blocks():
        labels = algebra.labels[rows]
        distances = torch.addmm(mean_lengths, centred, means.T, alpha=-2)
        distances += algebra.squared_lengths[rows, None]
        distances[:, counts == 0] = torch.inf
        own = distances.gather(1, labels[:, None]).clamp_min(
            torch.finfo(torch.float64).tiny
        )  # times inf, 0 would be NaN
        distances.scatter_(1, labels[:, None], own * growth[labels, None])
        level = distances <= distances.min(dim=1, keepdim=True).values + tie
        hits[rows] = level.to(torch.uint8).argmax(dim=1) == labels
    return Score.from_items(hits)
