"""From scores per item to a ranking that says how sure it is.

In:  one record per model, all measured on the same items
Out: models best first, an interval for each, shared ranks where the items cannot tell models apart, and the control

All models answered the same items, so the items are resampled once and every model is averaged over the same resample
(a paired bootstrap): what makes an item hard for all cancels out of a difference. Models share a rank when the interval
of their difference from the best of their group holds zero. Nothing here knows what a model is.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from modelhound.analysis.trials import beats_guessing
from modelhound.records import ModelDropped, ModelMeasured, RankedModel, Ranking, unpack_items

__all__ = ["Floats", "rank_agreement", "rank_models", "resample_means", "share_interval"]

_NUM_RESAMPLES = 2000
_RESAMPLE_CHUNK_ITEMS = 500_000  # weights held at once: 4 MB, which stay in the cache, and new memory is slow
_MANY_ITEMS = 2000
_CHANCES = np.cumsum([math.exp(-1) / math.factorial(count) for count in range(12)])
_POISSON = np.searchsorted(_CHANCES, (np.arange(2**16) + 0.5) / 2**16).astype(np.float64)
"""What a random 16-bit number stands for: a Poisson variable with mean 1."""

Floats = NDArray[np.float64]


def rank_models(
    measured: Sequence[ModelMeasured],
    *,
    rests_on: Sequence[str],
    seed: int,
    metric: str = "accuracy",
    confidence: float = 0.95,
    dropped: Sequence[ModelDropped] = (),
    guess: Floats | None = None,
) -> Ranking:
    """Rank by the mean of the `rests_on` scorers' per-item scores, which is the `metric`; `guess` has those of one who guesses.

    Models that were dropped from the race count in the control only, behind all others: without them, a list ordered by size
    would be compared with winners alone.
    """
    if not measured:
        return Ranking(
            rests_on=tuple(rests_on),
            metric=metric,
            confidence=confidence,
            num_items=0,
            models=(),
            by_size=(),
            size_agreement=None,
        )
    item_scores = np.stack([_mean_item_scores(record, rests_on) for record in measured])
    tested = ~np.isnan(item_scores).any(axis=0)
    item_scores = item_scores[:, tested]
    scores = item_scores.mean(axis=1)
    resampled = resample_means(item_scores, seed=seed)
    # Equal scores keep the order of names, so that a repeated run prints the same list.
    order = sorted(range(len(measured)), key=lambda index: (-scores[index], measured[index].model))
    ranks = _shared_ranks(resampled[order], confidence)
    everybody: list[ModelMeasured | ModelDropped] = [*measured, *dropped]
    by_size = sorted(everybody, key=lambda record: (-record.num_parameters, record.model))
    size_ranks = {record.model: rank for rank, record in enumerate(by_size, start=1)}
    rows = [
        _row(
            measured[index],
            rank=rank,
            score=float(scores[index]),
            interval=_score_interval(item_scores[index], resampled[index], confidence),
            tied=ranks.count(rank) > 1,
            size_rank=size_ranks[measured[index].model],
        )
        for rank, index in zip(ranks, order, strict=True)
    ]
    guessed = None if guess is None else guess[tested]
    return Ranking(
        rests_on=tuple(rests_on),
        metric=metric,
        confidence=confidence,
        guess=None if guessed is None else float(guessed.mean()),
        is_guess_beaten=guessed is None or beats_guessing(item_scores[order[0]], guessed, num_tries=len(everybody)),
        num_items=int(tested.sum()),
        models=tuple(rows),
        by_size=tuple(record.model for record in by_size),
        # over everybody, unlike `certainty.scorer_agreement`: scores of models that left the race are not of all items
        size_agreement=rank_agreement(
            [*scores.tolist(), *(scores.min() - 2 + record.score for record in dropped)],
            [float(record.num_parameters) for record in everybody],
        ),
    )


def _row(
    record: ModelMeasured, *, rank: int, score: float, interval: tuple[float, float], tied: bool, size_rank: int
) -> RankedModel:
    return RankedModel(
        rank=rank,
        model=record.model,
        score=score,
        interval=interval,
        scores=record.scores,
        num_parameters=record.num_parameters,
        seconds=record.wall_seconds,
        tied=tied,
        size_rank=size_rank,
    )


def rank_agreement(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float | None:
    """Kendall's tau-b: 1 the same order, 0 no relation, -1 the reverse; None where fewer than two values differ."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(stats.kendalltau(first, second).statistic)


def _mean_item_scores(record: ModelMeasured, rests_on: Sequence[str]) -> Floats:
    columns = [unpack_items(record.item_scores[scorer]).astype(np.float64) for scorer in rests_on]
    return np.asarray(np.mean(columns, axis=0))


def resample_means(item_scores: Floats, *, seed: int) -> Floats:
    """Mean score of every model (row) over each of many resamples of the items (column)."""
    num_models, num_items = item_scores.shape
    generator = np.random.default_rng(seed)
    means = np.empty((num_models, _NUM_RESAMPLES))
    step = max(1, _RESAMPLE_CHUNK_ITEMS // num_items)
    draw = _draw_independently if num_items >= _MANY_ITEMS else _draw_together
    for start in range(0, _NUM_RESAMPLES, step):
        weights = draw(generator, min(step, _NUM_RESAMPLES - start), num_items)
        means[:, start : start + len(weights)] = (item_scores @ weights.T) / weights.sum(axis=1)
    return means


def _draw_together(generator: np.random.Generator, count: int, num_items: int) -> Floats:
    """How often each item is drawn in each of `count` resamples that are as long as the list of items."""
    # counting drawn places gives multinomial weights ten times as fast as asking for them
    drawn = generator.integers(0, num_items, size=(count, num_items), dtype=np.int32)
    drawn += np.arange(count, dtype=np.int32)[:, None] * num_items
    return np.bincount(drawn.ravel(), minlength=count * num_items).reshape(count, num_items).astype(np.float64)


def _draw_independently(generator: np.random.Generator, count: int, num_items: int) -> Floats:
    """The same for many items, of which each is drawn by itself: as often as a Poisson variable with mean 1 says.

    Only the lengths of the resamples differ then, and a mean is over its own.
    """
    return _POISSON[generator.integers(0, len(_POISSON), size=(count, num_items), dtype=np.uint16)]


def _shared_ranks(resampled: Floats, confidence: float) -> list[int]:
    """Ranks for rows sorted best first: a row takes its group leader's rank unless it is clearly worse."""
    ranks: list[int] = []
    leader = 0
    for position in range(len(resampled)):
        low, high = _interval(resampled[leader] - resampled[position], confidence)
        if not low <= 0 <= high:
            leader = position
        ranks.append(leader + 1)
    return ranks


def _score_interval(item_scores: Floats, samples: Floats, confidence: float) -> tuple[float, float]:
    """The bootstrap's interval; where all items are right or all wrong, resampling them tells nothing and counting does."""
    num_right = float(item_scores.sum())
    if num_right in (0.0, float(len(item_scores))):
        return share_interval(int(num_right), len(item_scores), confidence=confidence)
    return _interval(samples, confidence)


def share_interval(num_right: int, num_items: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Of a share that was counted once: exact, after Clopper and Pearson, without any assumption but chance."""
    exact = stats.binomtest(num_right, num_items).proportion_ci(confidence, method="exact")
    return float(exact.low), float(exact.high)


def _interval(samples: Floats, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low, high = np.quantile(samples, (tail, 1 - tail))
    return float(low), float(high)
