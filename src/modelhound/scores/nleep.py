"""nleep: how well do clusters of the features, found without labels, predict the labels?

Intuition. `leep` asks how well a network's old classes predict the new ones, which needs its old classifier. Features alone
do as well: let them fall into clusters by themselves, and see whether clusters and labels go together. Features that sort
items by what matters here do so without being told.

Formula. The features are reduced to the fewest principal components that hold 80 % of their variance (32 at most). A mixture of
Gaussians, 5 per class (at most one for every 4 items, and 500), is fitted to them by expectation maximisation, and the
components' posterior probabilities are the clusters:  value = LEEP(P(component | item), labels).

Every component has a variance of its own for each direction, plus 1e-3 of the mean variance, so that none can shrink onto one
item. Public code fits full covariances in as many directions as 80 % takes, which needs more items per component than most data
sets have, and some of it leaves out the logarithm, which can order models otherwise.

We start by k-means++: each centre is an item drawn with a probability in proportion to its squared distance from the centres so
far, and items belong to the nearest. Items are drawn by the seed, but in order of their distance from the mean, so shuffled
items give the same value. It stops when a step brings less than 1e-3 in mean log likelihood, or after 50 steps.

Li et al., "Ranking Neural Checkpoints", CVPR 2021; Arthur and Vassilvitskii, "k-means++: The Advantages of Careful Seeding",
SODA 2007; Dempster et al., "Maximum Likelihood from Incomplete Data via the EM Algorithm", JRSS B 1977.
"""

import math
from dataclasses import dataclass

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score
from modelhound.scores.leep import leep

__all__ = ["LEAST_VARIANCE", "MOST_STEPS", "TOLERANCE", "Mixture", "fit_mixture", "reduce", "score_by_nleep", "start"]

_KEPT_VARIANCE = 0.8
_MOST_DIRECTIONS = 32
_COMPONENTS_PER_CLASS = 5
_ITEMS_PER_COMPONENT = 4
_MOST_COMPONENTS = 500  # there is a number for each item and component, three times over
_COINCIDE = 1e-12  # of the mean squared length: centres nearer than this to all items leave nothing to draw
LEAST_VARIANCE = 1e-3
TOLERANCE = 1e-3
MOST_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Gaussians with a variance for each direction."""

    shares: torch.Tensor  # [num_components]
    means: torch.Tensor  # [num_components, num_directions]
    variances: torch.Tensor  # [num_components, num_directions]

    def log_joint(self, points: torch.Tensor) -> torch.Tensor:
        """log of share times density, [num_items, num_components]."""
        precisions = 1 / self.variances
        constants = self.shares.log() - (self.means.square() * precisions + self.variances.log()).sum(1) / 2
        constants -= points.shape[1] / 2 * math.log(2 * math.pi)
        linear = torch.addmm(constants, points, (self.means * precisions).T)
        return linear.addmm_(points.square(), precisions.T, alpha=-0.5)


def score_by_nleep(algebra: Algebra, *, seed: int) -> Score:
    """LEEP of the labels by a mixture fitted to the features; it judges all items together."""
    points = reduce(algebra)
    num_present = int((algebra.counts > 0).sum())
    affordable = max(2, algebra.num_items // _ITEMS_PER_COMPONENT)
    num_components = min(_COMPONENTS_PER_CLASS * num_present, affordable, _MOST_COMPONENTS)
    if points.shape[1] == 0:  # features that do not vary are one cluster
        return Score(leep(points.new_ones(len(points), 1), algebra.labels), None)
    mixture = fit_mixture(points, start(points, num_components, seed=seed))
    return Score(leep(mixture.log_joint(points).softmax(1), algebra.labels), None)


def reduce(algebra: Algebra) -> torch.Tensor:
    """The principal components a mixture is fitted to, [num_items, num_directions]."""
    values = algebra.spectrum.values
    if len(values) == 0:
        return algebra.main_components
    held = values.cumsum(0) / values.sum()
    # a hair less, so that rounding cannot decide for features whose directions hold just this much
    num_directions = 1 + int((held < _KEPT_VARIANCE - 1e-9).sum())
    return algebra.main_components[:, : min(num_directions, _MOST_DIRECTIONS)]


def start(points: torch.Tensor, num_components: int, *, seed: int) -> torch.Tensor:
    """k-means++: the component each item begins with, one-hot, [num_items, num_components or fewer]."""
    lengths = points.square().sum(1)
    by_length = points[lengths.argsort()]
    # on the CPU, so that every device draws the same
    draws = torch.rand(num_components, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chances = torch.ones_like(lengths)
    nearest = torch.full_like(lengths, torch.inf)  # squared distance to the nearest centre
    centres: list[torch.Tensor] = []
    far = []  # whether some items are still far from all centres; looked at once, since to look is to wait for a device
    for drawn in torch.split(draws.to(points.device), 1):
        far.append(nearest.mean() > _COINCIDE * lengths.mean())
        sums = chances.cumsum(0)
        index = torch.searchsorted(sums, drawn * sums[-1], right=True).clamp_max(len(points) - 1)
        centres.append(by_length[index])
        nearest = torch.minimum(nearest, (by_length - centres[-1]).square().sum(1))
        chances = nearest
    centres = centres[: int(torch.stack(far).sum())]  # distances only shrink
    stacked = torch.cat(centres)
    distances = torch.addmm(stacked.square().sum(1), points, stacked.T, alpha=-2)
    return torch.nn.functional.one_hot(distances.argmin(1), len(centres)).double()


def fit_mixture(points: torch.Tensor, responsibilities: torch.Tensor) -> Mixture:
    """Expectation maximisation, from the responsibilities of components for items."""
    least = LEAST_VARIANCE * float(points.square().mean())  # points have mean 0
    squares = points.square()
    mixture = _maximise(points, squares, responsibilities, least)
    likelihood = -math.inf
    for _ in range(MOST_STEPS):
        joint = mixture.log_joint(points)
        totals = joint.logsumexp(1, keepdim=True)
        mixture = _maximise(points, squares, joint.sub_(totals).exp_(), least)
        before, likelihood = likelihood, float(totals.mean())
        if abs(likelihood - before) < TOLERANCE:
            break
    return mixture


def _maximise(points: torch.Tensor, squares: torch.Tensor, responsibilities: torch.Tensor, least: float) -> Mixture:
    """The mixture under which items are likeliest if components are responsible for them as given."""
    sums = responsibilities.sum(0) + 10 * torch.finfo(torch.float64).eps  # a component may lose all its items
    means = responsibilities.T @ points / sums[:, None]
    variances = (responsibilities.T @ squares / sums[:, None] - means.square()).clamp_min(0) + least
    return Mixture(shares=sums / sums.sum(), means=means, variances=variances)
