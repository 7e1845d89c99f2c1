"""One batch size and number of workers for all models: which pair, how sure, and at what cost to each model.

In:  for every model and every pair the time of one run, with many equally plausible versions of the same table
Out: how often a pair is among a model's best, the regret of every pair, the pair to recommend, the best one of each model
Nothing here knows how a time was measured. A version of the table is a resample of the measured runs (`resample_times`) or a
draw from what is believed of runs that were not made (`surface`); everything uncertain is counted over versions.

The regret of a pair for a model is how much longer it takes than the pair that is best for this model; 0.02 is 2 %. A pair
that fails with one model is no pair for all. A model that fails with every pair is not asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelhound.records import PairRegret, TopCount

__all__ = [
    "TOLERANCE",
    "Pair",
    "PairTimes",
    "count_top",
    "find_unrest",
    "order_pairs",
    "rate_pairs",
    "resample_times",
    "scatter",
]

_NUM_TOP = 3
TOLERANCE = 0.02
"""Within so much of the best, a pair is good enough."""

_NUM_VERSIONS = 1000
_USUAL_UNREST, _USUAL_WEIGHT = (
    0.02**2 / 2,
    2.0,
)  # 2 % in half a second, before anything was repeated; worth so many repeats
_LARGEST_SCATTER = 0.5
_DIGITS = 9  # what differs beyond is what rounding added: equal pairs stay equal in runs of another length
_TAIL = 0.025

Floats = NDArray[np.float64]
Pair = tuple[int, int]
"""Batch size and number of workers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTimes:
    """Seconds of one run for every model (row) and pair (column)."""

    models: tuple[str, ...]
    pairs: tuple[Pair, ...]
    seconds: Floats
    """[models, pairs]; NaN where it fails."""
    versions: Floats
    """[versions, models, pairs]; NaN in the same places."""
    is_measured: NDArray[np.bool_]
    """[models, pairs]; false where the time is composed or believed."""

    def regrets(self) -> Floats:
        """[models, pairs]: relative to the best pair of each model."""
        return np.asarray(self.seconds / np.nanmin(self.seconds, axis=1, keepdims=True) - 1)

    def mean_regrets(self) -> Floats:
        """[pairs]: the mean over models; infinite where the pair fails with one."""
        regrets = self.regrets()
        return np.where(np.isnan(regrets).any(axis=0), np.inf, np.nan_to_num(regrets).mean(axis=0))

    def mean_regret_versions(self) -> Floats:
        """[versions, pairs]: the mean over models in every version; infinite where the pair fails with a model."""
        found = (self.versions / np.nanmin(self.versions, axis=2, keepdims=True) - 1).mean(axis=1)
        return np.where(np.isnan(found), np.inf, found)


def order_pairs(costs: Floats, pairs: Sequence[Pair]) -> list[int]:
    """Places of the pairs, the best first, by the one rule for whatever names a best pair.

    The smallest cost; of equal ones that with fewer workers, then with the smaller batch; pairs that fail (NaN, inf) last.
    """
    known = np.where(np.isnan(costs), np.inf, costs)
    return sorted(range(len(pairs)), key=lambda place: (round(float(known[place]), _DIGITS), pairs[place][::-1]))


def count_top(times: PairTimes, num_top: int = _NUM_TOP) -> tuple[TopCount, ...]:
    """How often each pair is among the best `num_top` of a model, most often first; pairs that never are stay out."""
    counts: dict[Pair, int] = {}
    for row in times.seconds:
        working = [place for place in order_pairs(row, times.pairs) if not np.isnan(row[place])]
        for place in working[:num_top]:
            counts[times.pairs[place]] = counts.get(times.pairs[place], 0) + 1
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple(TopCount(batch=batch, workers=workers, count=count) for (batch, workers), count in ordered)


def rate_pairs(times: PairTimes) -> tuple[PairRegret, ...]:
    """All pairs in the order of their mean regret, the one to recommend first, those that fail with some model last."""
    regrets, means, versions = times.regrets(), times.mean_regrets(), times.mean_regret_versions()
    order = order_pairs(means, times.pairs)
    best = order[0]
    best_of_version = versions.min(axis=1)
    rows = []
    for place in order:
        batch, workers = times.pairs[place]
        if not np.isfinite(means[place]):
            rows.append(_failed(times, place))
            continue
        worst = int(np.argmax(regrets[:, place]))
        low, high = np.quantile(versions[:, place], (_TAIL, 1 - _TAIL))
        rows.append(
            PairRegret(
                batch=batch,
                workers=workers,
                mean=float(means[place]),
                median=float(np.median(regrets[:, place])),
                worst=float(regrets[worst, place]),
                worst_model=times.models[worst],
                interval=(float(low), float(high)),
                chance_within=float((versions[:, place] - best_of_version <= TOLERANCE).mean()),
                as_good=bool(np.quantile(versions[:, place] - versions[:, best], _TAIL) <= 0),
                num_measured=int(times.is_measured[:, place].sum()),
            )
        )
    return tuple(rows)


def _failed(times: PairTimes, place: int) -> PairRegret:
    batch, workers = times.pairs[place]
    failing = [model for model, value in zip(times.models, times.seconds[:, place], strict=True) if np.isnan(value)]
    return PairRegret(
        batch=batch,
        workers=workers,
        mean=None,
        median=None,
        worst=None,
        worst_model=failing[0],
        interval=None,
        chance_within=None,
        as_good=False,
        num_measured=int(times.is_measured[:, place].sum()),
    )


def find_unrest(repeats: Iterable[Sequence[float]], *, usual: float | None = None) -> float:
    """How restless the machine is: the variance of a time as a share of it, times its seconds.

    What disturbs a run comes by chance while it lasts, so that short runs scatter more, as 1 / sqrt(seconds). Found from
    seconds of the same, whatever that was, several times over; `usual` is what was found before.
    """
    total, weight = _USUAL_WEIGHT * (_USUAL_UNREST if usual is None else usual), _USUAL_WEIGHT
    for seconds in repeats:
        if len(seconds) > 1:
            logs = np.log(np.asarray(seconds))
            total += float(((logs - logs.mean()) ** 2).sum() * np.exp(logs.mean()))
            weight += len(logs) - 1
    return total / weight


def scatter(unrest: float, seconds: Floats) -> Floats:
    """Relative standard deviation of a run that takes so many seconds."""
    return np.minimum(np.sqrt(unrest / seconds), _LARGEST_SCATTER)


def resample_times(
    models: Sequence[str],
    pairs: Sequence[Pair],
    runs: Mapping[tuple[int, int], Sequence[float]],
    *,
    seed: int,
    usual: float | None = None,
) -> PairTimes:
    """A table of measured runs, `(model, pair) -> seconds of each run` by their places, and its versions.

    Few runs are repeated often enough to be resampled one by one. So what runs scatter by is pooled over all of the table, and
    a version is the table with every mean moved by chance, the less the more runs it has (a parametric bootstrap). `usual` is
    what was known of the machine's unrest before.
    """
    shape = (len(models), len(pairs))
    logs, counts = np.full(shape, np.nan), np.ones(shape)
    for cell, seconds in runs.items():
        logs[cell], counts[cell] = np.log(np.asarray(seconds)).mean(), len(seconds)
    deviation = scatter(find_unrest(runs.values(), usual=usual), np.exp(logs)) / np.sqrt(counts)
    deviations = deviation * np.random.default_rng(seed).standard_normal((_NUM_VERSIONS, *shape))
    return PairTimes(
        models=tuple(models),
        pairs=tuple(pairs),
        seconds=np.exp(logs),
        versions=np.exp(logs + deviations),
        is_measured=~np.isnan(logs),
    )
