"""What is believed of runs that were not made, and which run to make next.

In:  what every run is expected to take, and the seconds of those that were made
Out: a belief over all runs at once, versions of the table drawn from it, the next run worth making
Nothing here runs anything or knows what the expectation rests on.

Logarithms of times are taken as a Gaussian process around the expectation. Neighbouring batch sizes and numbers of workers are
wrong in similar ways, and nearly additively: log time is almost a function of the batch plus one of the workers. A model
differs from all others by a factor, and a little by itself. How wrong the expectation is as a whole is learnt from the runs.

What disturbs a machine lasts longer than a run: runs that follow each other are too slow together, so that two pairs which meet
one after the other are told apart better than by runs minutes away. How much of the noise is of this sort is learnt too.

The next run is the one that makes the choice of a pair most certain, per second that it takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from modelhound.analysis.pairs import Pair, PairTimes, find_unrest, scatter

__all__ = ["Belief", "Doubt", "Drift", "believe", "choose_next"]

_NUM_VERSIONS = 400
_NO_WORKERS = 1 / 8  # far below one: nothing overlaps and nothing is forked, so it is wrong in ways of its own
_JITTER = 1e-8
_OVERHEAD_SECONDS = 0.02  # of any run, however short
_LEAST_RUNS_TO_RESCALE, _LARGEST_RESCALING = 4, 9.0
_LEAST_RUNS_TO_TELL_DRIFT = 8
_USUAL_DRIFT = (0.5, 6.0)
_DRIFTS = ((0.0, 6.0), (0.3, 6.0), _USUAL_DRIFT, (0.7, 3.0), (0.7, 10.0), (0.85, 6.0), (0.85, 20.0))
# Shares of a run's variance that it has in common with the next, and the seconds after which that has faded; two grids of 220
# runs on a shared host showed 0.5 and 0.75, fading within 3 to 8 seconds.

Floats = NDArray[np.float64]
Runs = Mapping[tuple[int, int], Sequence[float]]
"""(place of the model, place of the pair) -> seconds of each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """How far times may be from what is expected, as shares (0.1 is 10 %), and over how many doublings they are alike."""

    of_model: float
    """A factor of one model alone, which no choice of a pair depends on."""
    of_batch: float
    of_workers: float
    of_both: float
    """What is not the sum of the two."""
    of_pair: float
    """What no neighbour shares."""
    of_model_and_pair: float
    of_model_along: float
    """What one model alone shows along either axis: some suffer from workers beside them, others do not notice."""
    of_step: float
    """What one model shows at one batch size with any number of workers: its step was measured on a bad day."""
    of_guess: float
    """What one model shows at a batch size beyond those that its steps were measured at: it may outgrow a cache."""
    of_load: float
    """What all models show at one batch size or number of workers and no neighbour does: so was loading."""
    along_batch: float = 1.5
    along_workers: float = 1.8


_COMPOSED = Doubt(
    of_model=0.3,
    of_batch=0.07,
    of_workers=0.10,
    of_both=0.05,
    of_pair=0.02,
    of_model_and_pair=0.045,
    of_model_along=0.12,
    of_step=0.05,
    of_guess=0.2,
    of_load=0.03,
    along_workers=1.5,
)
"""Where loading and computing were measured apart and put together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """What is believed of the machine as it is now, in standard deviations of a run: how it would disturb the next."""

    share: float
    """Of a run's variance; the rest is of that run alone."""
    variance: float
    """Of what is not known of it."""
    with_cells: Floats
    """[cells]: covariance with the log seconds of each, since a slow run is either."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """Of log seconds of every model (row) and pair (column)."""

    models: tuple[str, ...]
    pairs: tuple[Pair, ...]
    mean: Floats
    """[models, pairs]; NaN where a run fails."""
    covariance: Floats
    """[cells, cells], row by row; only of cells that do not fail."""
    noise: Floats
    """[cells]: relative standard deviation of one run."""
    is_measured: NDArray[np.bool_]
    drift: Drift

    def times(self, *, seed: int) -> PairTimes:
        """The table that is most likely, and versions of it."""
        generator = np.random.default_rng(seed)
        works = ~np.isnan(self.mean)
        size = len(self.covariance)
        root = np.linalg.cholesky(self.covariance + _JITTER * np.eye(size))
        versions = np.full((_NUM_VERSIONS, *self.mean.shape), np.nan)
        versions[:, works] = np.exp(self.mean[works] + generator.standard_normal((_NUM_VERSIONS, size)) @ root.T)
        return PairTimes(
            models=self.models,
            pairs=self.pairs,
            seconds=np.exp(self.mean),
            versions=versions,
            is_measured=self.is_measured,
        )


def believe(
    models: Sequence[str],
    pairs: Sequence[Pair],
    expected: Floats,
    runs: Runs,
    *,
    when: Runs | None = None,
    guessed: NDArray[np.bool_] | None = None,
    doubt: Doubt = _COMPOSED,
    noise: float | None = None,
    unrest: float | None = None,
) -> Belief:
    """What follows from the expectation (seconds, [models, pairs], NaN where a run fails) and from the runs made so far.

    One run scatters by `noise`, where that is known; else by what repeated runs and the machine's `unrest` before them say.
    `when` has the time of each run; without it, each is disturbed by itself. `guessed` ([models, pairs]) says where the
    expectation goes beyond what was measured of a model.
    """
    works = ~np.isnan(expected)
    if noise is None:
        noises = scatter(find_unrest(runs.values(), usual=unrest), expected[works])
    else:
        noises = np.full(int(works.sum()), noise)
    cells = [(int(row), int(column)) for row, column in np.argwhere(works)]
    prior = _prior(cells, pairs, doubt, guessed)
    places = {cell: place for place, cell in enumerate(cells)}
    seen = [(cell, number) for cell in runs if cell in places for number in range(len(runs[cell]))]
    is_measured = np.zeros(expected.shape, np.bool_)
    mean = np.log(expected)
    drift = Drift(share=0.0, variance=0.0, with_cells=np.zeros(len(cells)))
    if seen:
        at = np.array([places[cell] for cell, _ in seen])
        surprise = np.array([np.log(runs[cell][number]) - mean[cell] for cell, number in seen])
        surprise, shift = surprise - surprise.mean(), surprise.mean()  # all too slow alike says nothing of pairs
        times = None if when is None else np.array([when[cell][number] for cell, number in seen])
        share, fading = (0.0, 1.0) if times is None else _tell_drift(prior[np.ix_(at, at)], noises[at], times, surprise)
        chance = _chance(noises[at], times, share, fading)
        prior *= _rescaling(prior[np.ix_(at, at)], chance, surprise)
        factor = linalg.cho_factor(prior[np.ix_(at, at)] + chance)
        gain = linalg.cho_solve(factor, prior[at]).T
        mean[works] += shift + gain @ surprise
        if times is not None:
            now = share * noises[at] * np.exp(-(times.max() - times) / fading)
            drift = Drift(
                share=share,
                variance=max(0.0, share - float(now @ linalg.cho_solve(factor, now))),
                with_cells=-(gain @ now),
            )
        prior = prior - gain @ prior[at]
        is_measured[tuple(np.array([cell for cell, _ in seen]).T)] = True
    return Belief(
        models=tuple(models),
        pairs=tuple(pairs),
        mean=mean,
        covariance=(prior + prior.T) / 2,
        noise=noises,
        is_measured=is_measured,
        drift=drift,
    )


def choose_next(belief: Belief) -> tuple[int, int]:
    """The places of the model and the pair to run next.

    Every pair that may be better than the one that looks best is a loss to be expected from stopping now. The next run is the
    one that takes most off the sum of these losses for its seconds, by making the differences between pairs more certain (the
    expected opportunity cost of Chick and Inoue, Operations Research 2001, with the correlations of a Gaussian process).
    """
    works = ~np.isnan(belief.mean)
    cells = [(int(row), int(column)) for row, column in np.argwhere(works)]
    usable = np.flatnonzero(works.all(axis=0))
    columns = np.array([column for _, column in cells])
    averaging = (usable[:, None] == columns) / len(belief.models)
    means = averaging @ belief.mean[works]
    against = averaging - averaging[means.argmin()]  # [usable pairs, cells]: a pair less the best one
    known, noise, drift = against @ belief.covariance, belief.noise, belief.drift
    before = np.maximum((known * against).sum(axis=1), 0.0)
    # what a run shows is its cell, the machine as it is now, and chance
    moved = known + np.outer(against @ drift.with_cells, noise)
    shown = belief.covariance.diagonal() + 2 * noise * drift.with_cells + noise**2 * (drift.variance + 1 - drift.share)
    after = np.maximum(
        before[:, None] - moved**2 / shown, 0.0
    )  # variance of each difference once a cell is known better
    behind = means - means.min()
    gain = (_loss(behind, before)[:, None] - _loss(behind[:, None], after)).sum(axis=0)
    return cells[int((gain / (np.exp(belief.mean[works]) + _OVERHEAD_SECONDS)).argmax())]


def _loss(behind: Floats, variance: Floats) -> Floats:
    """What is lost on average by not taking a pair that is believed to be so far behind the best."""
    deviation = np.sqrt(variance) + _JITTER
    ratio = behind / deviation
    return np.asarray(deviation * (np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi) - ratio * special.ndtr(-ratio)))


def _prior(
    cells: Sequence[tuple[int, int]], pairs: Sequence[Pair], doubt: Doubt, guessed: NDArray[np.bool_] | None
) -> Floats:
    """Covariance of the cells before any run; where it is `guessed` ([models, pairs]), with more doubt."""
    prior = _covariance(cells, pairs, doubt)
    if guessed is None:
        return prior
    rows = np.array([row for row, _ in cells])
    batches = np.array([pairs[column][0] for _, column in cells])
    beyond = np.array([guessed[cell] for cell in cells])
    alike = (rows[:, None] == rows) & (batches[:, None] == batches)
    return np.asarray(prior + doubt.of_guess**2 * alike * np.outer(beyond, beyond))


def _covariance(cells: Sequence[tuple[int, int]], pairs: Sequence[Pair], doubt: Doubt) -> Floats:
    rows, columns = (np.array([cell[axis] for cell in cells]) for axis in (0, 1))
    batch = np.log2([pairs[column][0] for column in columns])
    workers = np.log2([max(pairs[column][1], _NO_WORKERS) for column in columns])
    near_batch, near_workers = _near(batch, doubt.along_batch), _near(workers, doubt.along_workers)
    same_batch, same_workers = batch[:, None] == batch, workers[:, None] == workers
    same_model, same_pair = rows[:, None] == rows, columns[:, None] == columns
    near = near_batch * near_workers
    return np.asarray(
        doubt.of_model**2 * same_model
        + doubt.of_batch**2 * near_batch
        + doubt.of_workers**2 * near_workers
        + doubt.of_both**2 * near
        + doubt.of_pair**2 * same_pair
        + doubt.of_model_and_pair**2 * (same_model & same_pair)
        + doubt.of_model_along**2 * same_model * (near_batch + near_workers) / 2
        + doubt.of_step**2 * (same_model & same_batch)
        + doubt.of_load**2 * (same_batch * 1.0 + same_workers),
        dtype=np.float64,
    )


def _near(place: Floats, scale: float) -> Floats:
    return np.asarray(np.exp(-0.5 * ((place[:, None] - place) / scale) ** 2))


def _chance(noise: Floats, times: Floats | None, share: float, fading: float) -> Floats:
    """Covariance of what disturbed the runs."""
    alone = np.diag(noise**2 * (1 - share))
    if times is None or share == 0.0:
        return alone
    return np.asarray(alone + share * np.outer(noise, noise) * np.exp(-np.abs(times[:, None] - times) / fading))


def _tell_drift(prior: Floats, noise: Floats, times: Floats, surprise: Floats) -> tuple[float, float]:
    """Share and fading of disturbances under which the surprises are most likely; what is usual, as long as there are few."""
    if len(surprise) < _LEAST_RUNS_TO_TELL_DRIFT:
        return _USUAL_DRIFT

    def likelihood(drift: tuple[float, float]) -> float:
        factor = linalg.cho_factor(prior + _chance(noise, times, *drift))
        return float(-surprise @ linalg.cho_solve(factor, surprise) / 2 - np.log(factor[0].diagonal()).sum())

    return max(_DRIFTS, key=likelihood)


def _rescaling(prior: Floats, chance: Floats, surprise: Floats) -> float:
    """How much larger the surprises are, squared, than was to be expected; small ones are taken for luck."""
    if len(surprise) < _LEAST_RUNS_TO_RESCALE:
        return 1.0
    factor = linalg.cho_factor(prior + chance)
    ratio = float(surprise @ linalg.cho_solve(factor, surprise)) / len(surprise)
    return min(max(ratio, 1.0), _LARGEST_RESCALING)
