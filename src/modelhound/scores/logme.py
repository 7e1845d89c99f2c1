"""logme: how probable are the labels, given the features, before any linear model is fitted?

Intuition. A fitted model can always be made to look good. Instead take every linear model at once, weighted by how plausible
it is a priori, and ask how probable that whole family makes the labels. Two numbers, the spread of plausible weights (1/alpha)
and the noise of the labels (1/beta), are set to what makes the labels most probable. Useless features get a low value
because they spread their bets; so do features that fit only with extreme weights.

Formula. For each class the target column y is taken as y = F w + noise, w ~ N(0, 1/alpha), noise ~ N(0, 1/beta), so that

    y ~ N(0, I/beta + FF'/alpha),     value = mean over classes of  max over alpha, beta of  log p(y) / n.

With several labels per item the mean is over labels, without those that all items have or none; numbers are one column, taken
as they are, so that the value moves with their unit, by as much for every model.
A known weakness, kept because this is the published score: without an intercept, numbers far from 0 are told mostly by
whichever feature comes nearest to being constant.

F and y are NOT centred and there is no intercept, as in the paper. Only t = alpha/beta has to be searched for: given t the best
beta is n / (|y - Fm|^2 + t |m|^2) with m = (F'F + tI)^-1 F'y. The papers repeat an assignment that leaves t alone at the
optimum, often a hundred times. We look at a grid of t, then at ever finer ones around the best, all t and classes of a grid at
once: on a GPU, where each operation costs its launch, that is twenty times as fast, and it ends at the same place. The first
grid goes by the scale of the features, which then does not matter, and t stays within 1e-10 to 1e10 of that scale: labels that
are an exact linear function of the features would be infinitely probable without noise.

The shared decomposition is of the centred features. F'F differs from it by n mean mean', a matrix of rank one, so inverses and
determinants follow by the formula of Sherman and Morrison; `_Evidence` does that, arranged so that nothing cancels.

You et al., "LogME: Practical Assessment of Pre-trained Models for Transfer Learning", ICML 2021; "Ranking and Tuning
Pre-trained Models: A New Paradigm for Exploiting Model Hubs", JMLR 2022.
"""

import math

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["score_by_logme"]

_COARSE = tuple(range(-6, 7, 2))  # of the first grid: log10 of t, relative to the mean eigenvalue
_LIMIT = 10.0  # of log10 of t, likewise, above and below
_FINER = 8  # times from grid to grid
_NUM_FINER = 5  # to 1e-4 of t; the evidence is flat at its maximum, so its own error is the square of this
_BLOCK_VALUES = 2**20  # columns times directions times t looked at together, so that many classes need no more memory
_NEGLIGIBLE = 1e-12  # of the mean's energy: less than this outside the features' span is rounding


class _Evidence:
    """The targets' evidence as a function of t, for some columns of Y at once."""

    def __init__(self, algebra: Algebra, columns: torch.Tensor) -> None:
        mean_energy = algebra.mean.square().sum()
        outside = mean_energy - algebra.mean_in_right.square().sum()
        self._num_items = algebra.num_items
        # [directions, t, columns] from here on
        self._values = algebra.spectrum.values[:, None, None]
        self._roots = self._values.sqrt()
        self._targets = algebra.targets_in_left[:, None, columns]
        self._target_means = algebra.target_means[columns]
        # what of a centred target no linear model can reach; nothing, where the features span everything
        reachable = len(self._values) == algebra.num_items - 1
        unreached = algebra.target_energies[columns] - self._targets.square().sum((0, 1))
        self._unreached = torch.zeros_like(unreached) if reachable else unreached.clamp_min(0)
        self._mean = algebra.mean_in_right[:, None, None]
        self._mean_outside = torch.where(outside > _NEGLIGIBLE * mean_energy, outside, torch.zeros_like(outside)).sqrt()
        scale = self._values.mean() if len(self._values) else algebra.num_items * mean_energy
        self._scale = float(scale) or 1.0

    def at(self, ratio: torch.Tensor) -> torch.Tensor:
        """log p(y) / n at the best beta, for each t = `ratio` [t, columns] of each column."""
        n, values, mean = self._num_items, self._values, self._mean
        inverse = 1 / (values + ratio)
        whole = 1 + n * (mean.square() * inverse).sum(0) + n * self._mean_outside.square() / ratio
        pull = n * (self._target_means - (mean * self._roots * self._targets * inverse).sum(0)) / whole
        weights = (self._roots * self._targets + pull * mean) * inverse
        weight_energy = weights.square().sum(0) + (pull * self._mean_outside / ratio).square()
        residual = ((ratio * self._targets - pull * self._roots * mean) * inverse).square().sum(0)
        residual = residual + pull.square() / n + self._unreached
        beta = n / (residual + ratio * weight_energy)
        determinant = torch.log1p(values / ratio).sum(0) + whole.log()
        return (beta.log() - math.log(2 * math.pi) - 1 - determinant / n) / 2

    def maximise(self) -> torch.Tensor:
        """The largest evidence of each column."""
        places = self._target_means.new_tensor(_COARSE)[:, None].expand(-1, len(self._target_means))
        steps = torch.arange(-_FINER, _FINER + 1, device=places.device, dtype=places.dtype)[:, None]
        width = float(_COARSE[1] - _COARSE[0])
        best, most = self._best_of(places)
        for _ in range(_NUM_FINER):
            width /= _FINER
            best, finer = self._best_of((best + width * steps).clamp(-_LIMIT, _LIMIT))
            most = torch.maximum(most, finer)
        return most

    def _best_of(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best of these places of each column, and the evidence there."""
        evidence = self.at(self._scale * 10**places)
        found = evidence.max(0)
        return places.gather(0, found.indices[None])[0], found.values


def score_by_logme(algebra: Algebra, *, seed: int) -> Score:
    """The log of the maximum evidence per item, averaged over the columns of targets; it judges all items together."""
    if algebra.task == "classification":
        columns = algebra.counts.nonzero().squeeze(1)
    else:
        columns = algebra.target_energies.nonzero().squeeze(1)
    step = max(1, _BLOCK_VALUES // max(1, (2 * _FINER + 1) * len(algebra.spectrum.values)))
    best = [_Evidence(algebra, some).maximise() for some in torch.split(columns, step)]
    return Score(float(torch.cat(best).mean()), None)
