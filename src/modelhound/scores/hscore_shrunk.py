"""hscore_shrunk: the H-score with a covariance that can be trusted.

Intuition. The H-score divides by the covariance of the features. With few items for many features that covariance is mostly
chance: its small eigenvalues are far too small, and dividing by them turns noise into score. The cure is to move every
eigenvalue towards their mean, the more the fewer items there are; how much follows from the data in closed form.

Formula. With the covariance C = F'F/n of d features and its mean eigenvalue m = tr(C)/d,

    H = (1 - a) tr( ((1 - a) C + a m I)^-1  cov(E[f|y]) ),     a = min(1, b / |C - m I|^2),
    b = (1/n^2) sum over items x of  |xx' - C|^2  =  (1/n) (mean of |x|^4  -  |C|^2),     |.| the Frobenius norm,

where a is the shrinkage of Ledoit and Wolf. In the basis of the shared spectrum C is diagonal, so nothing is inverted. Where
all eigenvalues are equal there is nothing to shrink and a = 0. Unlike `hscore` this tells wide features apart.

Both covariances are divided by n. Public code divides the one of the class means by n - 1 and the other by n, and so gives
n / (n - 1) times this, the same for every model of one data set.

Ibrahim et al., "Newer is not always better: Rethinking transferability metrics, their peculiarities, stability and
performance", ECML PKDD 2022; Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", Journal
of Multivariate Analysis 2004.
"""

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["find_shrinkage", "score_by_hscore_shrunk"]


def score_by_hscore_shrunk(algebra: Algebra, *, seed: int) -> Score:
    """The H-score of the shrunk covariance; it judges all items together."""
    variances = algebra.spectrum.values / algebra.num_items
    shrinkage = find_shrinkage(algebra)
    shrunk = (1 - shrinkage) * variances + shrinkage * variances.sum() / algebra.num_features
    explained = (algebra.targets_in_left.square() / algebra.counts.clamp_min(1)).sum(1)  # of each direction, at most 1
    return Score(float(((1 - shrinkage) * variances / shrunk * explained).sum()), None)


def find_shrinkage(algebra: Algebra) -> float:
    """How far to move the covariance towards a multiple of the identity: 0 not at all, 1 all the way."""
    variances = algebra.spectrum.values / algebra.num_items
    mean = variances.sum() / algebra.num_features
    num_dropped = algebra.num_features - len(variances)  # eigenvalues of 0, which are as far from the mean as any
    spread = float((variances - mean).square().sum() + num_dropped * mean.square())
    fourth = algebra.squared_lengths.square().mean()
    chance = float(fourth - variances.square().sum()) / algebra.num_items
    return min(max(chance, 0.0), spread) / spread if spread > 0 else 0.0
