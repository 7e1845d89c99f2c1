"""How sure a ranking's winner is, and what the other scorers and the control say of it.

In:  a Ranking and the records it was made from
Out: the winner's chance of being the best, what choosing it can cost, its lead; how well scorers agree; who is not beaten
Everything is read from the same paired resampling as the ranking's intervals. Nothing here knows what a model is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from modelhound.analysis.ranking import Floats, rank_agreement, resample_means, share_interval
from modelhound.records import ModelMeasured, ModelTrained, RankedModel, Ranking, unpack_items

__all__ = [
    "Agreement",
    "Certainty",
    "best_run",
    "judge_winner",
    "pareto_front",
    "scorer_agreement",
    "test_interval",
]

_MOST_RIVALS = 100  # of many models, the others cannot have been the best in any resample
_SIZE = "size alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """How sure it is that the first of a ranking is the best, and what is lost if it is not."""

    chance_best: float
    """Share of resamples in which no other model is better; equals share."""
    most_lost: float
    """The best score is higher than the winner's by no more than this, at the ranking's confidence."""
    next_model: str | None
    """The first that is clearly worse; None where there is none."""
    lead: float
    """Over `next_model`."""
    lead_interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How alike two scorers order the models."""

    first: str
    second: str
    kendall_tau: float | None
    """1 the same order, 0 no relation, -1 the reverse; None where one of them tells no two models apart."""
    num_models: int


def judge_winner(ranking: Ranking, measured: Sequence[ModelMeasured], *, seed: int = 0) -> Certainty | None:
    """None where there is no winner."""
    if not ranking.models:
        return None
    records = {record.model: record for record in measured}
    worse = next((row for row in ranking.models if row.rank > 1), None)
    rivals = list(ranking.models[:_MOST_RIVALS])
    if worse is not None and worse not in rivals:
        rivals.append(worse)
    resampled = _resample([records[row.model] for row in rivals], ranking.rests_on, seed)
    best = resampled.max(axis=0)
    is_best = resampled >= best - 1e-12
    lead, lead_interval = 0.0, (0.0, 0.0)
    tail = (1 - ranking.confidence) / 2
    if worse is not None:
        low, high = np.quantile(resampled[0] - resampled[rivals.index(worse)], (tail, 1 - tail))
        lead, lead_interval = ranking.models[0].score - worse.score, (float(low), float(high))
    return Certainty(
        chance_best=float((is_best[0] / is_best.sum(axis=0)).mean()),
        most_lost=float(np.quantile(best - resampled[0], ranking.confidence)),
        next_model=worse.model if worse else None,
        lead=lead,
        lead_interval=lead_interval,
    )


def scorer_agreement(models: Sequence[RankedModel]) -> tuple[Agreement, ...]:
    """Every scorer with every scorer and with size, over the models that have both scores: those measured to the end.

    So it is not the control of the ranking, which is over those that left the race, too.
    """
    values: dict[str, dict[str, float]] = {}
    for row in models:
        for scorer, score in row.scores.items():
            values.setdefault(scorer, {})[row.model] = score
    values[_SIZE] = {row.model: float(row.num_parameters) for row in models}
    found = []
    for first, theirs in values.items():
        for second, others in values.items():
            both = [model for model in theirs if model in others]
            tau = rank_agreement([theirs[model] for model in both], [others[model] for model in both])
            found.append(Agreement(first=first, second=second, kendall_tau=tau, num_models=len(both)))
    return tuple(found)


def pareto_front(costs: Sequence[float], values: Sequence[float]) -> tuple[int, ...]:
    """Places of the points that no other beats in both: less or equal cost with more value. Cheapest first."""
    order = sorted(range(len(costs)), key=lambda place: (costs[place], -values[place]))
    front: list[int] = []
    for place in order:
        if not front or values[place] > values[front[-1]]:
            front.append(place)
    return tuple(front)


def _resample(records: Sequence[ModelMeasured], rests_on: Sequence[str], seed: int) -> Floats:
    scores = np.stack(
        [
            np.mean([unpack_items(record.item_scores[scorer]).astype(np.float64) for scorer in rests_on], axis=0)
            for record in records
        ]
    )
    return resample_means(scores[:, ~np.isnan(scores).any(axis=0)], seed=seed)


def best_run(trained: Iterable[ModelTrained]) -> ModelTrained:
    """The run with the highest score; of those that are equally good the fastest."""
    return max(trained, key=lambda each: (each.score, -each.wall_seconds))


def test_interval(trained: ModelTrained) -> tuple[float, float] | None:
    """Of the score of a fine-tuned network; None where it is no share of its test items, of which no single ones are kept."""
    if trained.metric != "accuracy" or not trained.num_test_items:
        return None
    return share_interval(round(trained.score * trained.num_test_items), trained.num_test_items)
