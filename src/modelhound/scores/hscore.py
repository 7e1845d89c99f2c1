"""hscore: how much of the variation of the features is variation between classes?

Intuition. Good features differ a lot from class to class and little within a class. Measure variation in units of the
features' own covariance, so that neither scale nor correlation counts, and add up what the class means alone explain. Each
direction of the features gives at most 1, and num_classes means span at most num_classes - 1 directions, so the value lies
between 0 and num_classes - 1.

Formula.   H = tr( cov(f)^+  cov(E[f|y]) )

With F = U S V' this is the squared length of the one-hot targets, each class scaled to length 1, within the span of U; the
pseudo-inverse drops what `Algebra.spectrum` drops (eigenvalues below 1e-10 of the largest).

A known weakness, kept because this is the published score: with as many independent features as items U spans everything
and every model gets num_classes - 1.

Bao et al., "An Information-Theoretic Approach to Transferability in Task Transfer Learning", ICIP 2019.
"""

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["score_by_hscore"]


def score_by_hscore(algebra: Algebra, *, seed: int) -> Score:
    """The H-score; it judges all items together."""
    explained = algebra.targets_in_left.square().sum(0)  # a class without items has 0 here
    return Score(float((explained / algebra.counts.clamp_min(1)).sum()), None)
