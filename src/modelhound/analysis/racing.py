"""Which models of a race can be dropped, on what evidence.

In:  scores per item of all models still in the race, on the items of the rungs so far, and what they gained by the last half
Out: for each model its chance of being among the best `top` in the end, and who is dropped at a stated risk
Nothing here runs a model. All models answered the same items, so items are resampled for all at once (a paired bootstrap).

Three things are foreseen from a rung, and benchmarks/races.py checks what comes of them:
- Models gain differently from more items, and near-copies may even come in the opposite order at first. Gains shrink by about
  half each time that items double, so that all that is still to come differs between models about as much as the last doubling
  did, which is looked at. That better models gain more is no reason to keep worse ones, and is taken out.
- Models that lie no further apart than the choice of items and such gains explain are mostly alike: scores are drawn towards
  their mean, all the more the less they differ beyond that (a normal prior, fitted to the models at hand). Of few models it is
  hardly known how differently they gain; here it is taken for as much as it may well be.
- Which items there were: resampling, widened a little.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.ranking import resample_means

__all__ = [
    "CLOSE",
    "Evidence",
    "Verdict",
    "close_race",
    "judge_rung",
    "rung_sizes",
    "spread_of_gains",
    "worthwhile_rungs",
]

CLOSE = 0.003
"""Two models whose mean scores differ by less may owe their order to half-precision arithmetic."""

_MOST_CLOSE = 3
_WIDENING = 1.2
_LEAST_TRUST = 0.1  # in differences between models that something else could explain
_BLIND_WIDENING = 1.5  # where nobody knows what models gained
_DOUBT = 1.0  # standard errors: now and then nothing is seen of how differently some dozen models gain
_LEAST_GAINS = 20
_LEAST_ITEMS = 100
_LEAST_PER_GROUP = 5  # with fewer of a class, leave-one-out says little
_GROWTH = 2

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """How a model stands after a rung, by the decisive scorer; of all models the same items."""

    item_scores: Floats
    item_gains: Floats
    """By how much the scores of one half of the items are higher than those of a scorer that knew that half only; empty where
    that cannot be told."""
    other_score: float
    """The mean score of the other half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a rung says of one model."""

    model: str
    score: float
    chance: float
    """Of being among the best `top` in the end."""
    stays: bool


def rung_sizes(num_items: int, num_groups: int) -> tuple[int, ...]:
    """How many items have been used at the end of each rung; the last is all of them."""
    size = max(_LEAST_ITEMS, _LEAST_PER_GROUP * num_groups)
    sizes = []
    while size * _GROWTH <= num_items:
        sizes.append(size)
        size *= _GROWTH
    return (*sizes, num_items)


def worthwhile_rungs(sizes: Sequence[int], *, spared_seconds_per_item: float, judge_seconds: float) -> tuple[int, ...]:
    """The rungs that pay: one is left out if judging it takes longer than what it can be hoped to spare.

    A rung may drop half of the models, which then do without the items up to the next one: `spared_seconds_per_item`.
    """
    kept = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if spared_seconds_per_item * (kept[0] - size) > judge_seconds:
            kept.insert(0, size)
    return tuple(kept)


def close_race(item_scores: Mapping[str, Floats]) -> tuple[str, ...]:
    """The best models, if rounding may decide between them: some come `CLOSE` behind the first, and are told from it.

    Models that the items cannot tell apart share a rank, which a little rounding does not change.
    """
    ordered = sorted(item_scores, key=lambda model: -float(item_scores[model].mean()))[:_MOST_CLOSE]
    close = []
    for model in ordered[1:]:
        gaps = item_scores[ordered[0]] - item_scores[model]
        mean, error = float(gaps.mean()), float(gaps.std()) / len(gaps) ** 0.5
        if 1.96 * error < mean < CLOSE:
            close.append(model)
    return (ordered[0], *close) if close else ()


def judge_rung(evidence: Mapping[str, Evidence], *, top: int, risk: float, seed: int) -> tuple[Verdict, ...]:
    """One Verdict per model. Never fewer than `top` stay."""
    models = tuple(evidence)
    item_scores = np.stack([each.item_scores for each in evidence.values()])
    scores = item_scores.mean(axis=1)
    if len(models) <= top:
        return tuple(
            Verdict(model=model, score=float(score), chance=1.0, stays=True)
            for model, score in zip(models, scores, strict=True)
        )
    in_the_end = _foresee(tuple(evidence.values()), item_scores, seed)
    # the place of each model in each resample; equal scores count for both
    threshold = np.sort(in_the_end, axis=0)[-top]
    chances = (in_the_end >= threshold).mean(axis=1)
    best = set(np.argsort(-scores, kind="stable")[:top].tolist())
    return tuple(
        Verdict(
            model=model,
            score=float(scores[place]),
            chance=float(chances[place]),
            stays=bool(chances[place] >= risk or place in best),
        )
        for place, model in enumerate(models)
    )


def _foresee(evidence: Sequence[Evidence], item_scores: Floats, seed: int) -> Floats:
    """Scores that the models [rows] may have in the end, as many times as items are resampled [columns]."""
    scores: Floats = item_scores.mean(axis=1)
    variance, by_chance = float(scores.var(ddof=1)), variance_by_chance(item_scores)
    item_gains = np.stack([each.item_gains for each in evidence])
    is_blind = item_gains.shape[1] < _LEAST_GAINS
    other_scores = np.array([each.other_score for each in evidence])
    spread = doubted = 0.0
    if not is_blind:
        spread = spread_of_gains(item_gains, other_scores)
        doubted = spread_of_gains(item_gains, other_scores, errors=_DOUBT)
    believed: Floats = scores.mean() + _trust(variance, by_chance + doubted**2) * (scores - scores.mean())
    deviations: Floats = math.sqrt(_trust(variance, by_chance)) * (
        resample_means(item_scores, seed=seed) - scores[:, None]
    )
    if is_blind:
        return believed[:, None] + _BLIND_WIDENING * deviations
    own: Floats = np.random.default_rng(seed).normal(0.0, spread, size=deviations.shape)
    return believed[:, None] + _WIDENING * deviations + own


def _trust(variance: float, explained: float) -> float:
    """Of differences between models as much as nothing else explains."""
    return max(_LEAST_TRUST, 1 - explained / variance) if variance else 1.0


def spread_of_gains(item_gains: Floats, scores: Floats, *, errors: float = 0.0) -> float:
    """How differently models [rows] gain on these items [columns], beyond what better ones by `scores` gain more, and beyond
    what the choice of items makes of it: a standard deviation. The scores must be of other items, or chance counts twice.

    It is taken for larger by so many standard errors of what these models show of it: of few models that is next to nothing.
    """
    gains = item_gains.mean(axis=1)
    variance = float(scores.var(ddof=1))
    slope = max(0.0, float(np.cov(scores, gains)[0, 1]) / variance) if variance else 0.0
    left = float((gains - slope * scores).var(ddof=1)) * (1 + errors * math.sqrt(2 / (len(gains) - 1)))
    return math.sqrt(max(0.0, left - variance_by_chance(item_gains)))


def variance_by_chance(items: Floats) -> float:
    """By how much the means of rows vary because the columns are some of many, what columns do to all rows alike left out."""
    own: Floats = items - items.mean(axis=1, keepdims=True)
    return float(own.var(axis=0, ddof=1).mean()) / len(items[0])
