"""transrate: how much shorter can the features be written down once the labels are known?

Intuition. Imagine writing down all feature vectors to a fixed precision. Features that spread widely take many bits. Now write
them class by class instead: if each class is compact, that takes far fewer. The bits saved are the information that features
and labels share; the value is large if the whole is rich and each class is simple.

Formula. With F the centred features scaled to a mean squared length of 1, F_c its rows of class c (not centred again) and
the precision e = 1e-4,

    R(F) = 1/2 log det( I + F'F / (n e) ),     value = R(F) - sum over classes of  (n_c / n) R(F_c),

in nats. Classes count by their share n_c / n; public code takes the plain mean of all R(F_c), which is the same where classes
are equally large. The scaling, too, is not in that code: without it the score changes with the unit of the features, and those
of two networks would not compare. R(F) follows from the shared spectrum; each R(F_c) takes one Cholesky factor of the smaller
of F_c'F_c and F_cF_c'.

Known weaknesses, kept because this is the published score:
  - classes are not centred, so two classes of equal size, which lie opposite each other, look as spread out as the whole, and
    their separation counts for nothing;
  - a class with fewer items than features is simple because it is small, so noise, which fills every direction, scores high.

Huang et al., "Frustratingly Easy Transferability Estimation", ICML 2022.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["score_by_transrate"]

_PRECISION = 1e-4


def score_by_transrate(algebra: Algebra, *, seed: int) -> Score:
    """The coding rate that knowing the labels saves; it judges all items together."""
    values = algebra.spectrum.values
    if len(values) == 0:
        return Score(0.0, None)
    unit = _PRECISION * float(values.sum()) / algebra.num_items  # the precision, in units of the features as they are
    whole = float(torch.log1p(values / (algebra.num_items * unit)).sum()) / 2
    counts = algebra.counts.tolist()
    parts = torch.zeros_like(values[0])  # on the device: to ask for each class is to wait for each
    for label, product in algebra.class_products():
        count = counts[label]
        coded = product.div_(count * unit)
        coded.diagonal().add_(1)
        rate = torch.linalg.cholesky(coded).diagonal().log().sum()  # half of the log determinant
        parts += count / algebra.num_items * rate
    return Score(whole - float(parts), None)
