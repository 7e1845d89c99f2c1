"""Ways to find the best candidate that take training, replayed from records by the very code that runs finals.

In:  the records of one target, a budget, the laws of other targets
Out: a number for each candidate, the larger the better, and what finding them cost
Nothing here trains or judges.
"""

from collections.abc import Sequence

import numpy as np

from modelhound.analysis.finals import (
    CYCLES,
    FULL_EPOCHS,
    FinalsRace,
    Outcome,
    Trial,
    trial_epochs,
)
from modelhound.analysis.foretelling import Law, expected_left, log_fall
from modelhound.settings import MOST_FINALISTS
from quality_records import Floats, Records, first_notches

__all__ = ["Way", "go_deep", "halve", "replay_finals"]

Way = tuple[Floats, float]
"""A number per candidate, and its cost as a share of fine-tuning all."""


def replay_finals(records: Records, first: Floats, budget: float, laws: Sequence[Law]) -> Way:
    """Finals after a feature race by `first`, as `--finals auto`; those that took no part stand behind, in its order."""
    by_features = [records.names[place] for place in np.argsort(-first, kind="stable")]
    num_finalists = min(MOST_FINALISTS, len(by_features))
    while num_finalists > 2 and _seconds_to_test_all(records, by_features[:num_finalists], budget, laws) > budget:
        num_finalists -= 1
    race = _make_race(records, by_features[:num_finalists], budget, laws)
    while trials := race.next_trials():
        for trial in trials:
            known = records.outcomes.get(trial)
            # what it cost is counted in epochs, so that a crowded GPU does not count
            cost = trial_epochs(trial.stage) * _epoch_seconds(records)[trial.model]
            race.tell(
                trial,
                None if known is None else Outcome(item_scores=known.item_scores, loss=known.loss, seconds=cost),
            )
    ordered = [row.model for row in race.standings()]
    ordered += [name for name in by_features if name not in ordered]
    return _places(records, ordered), race.spent_seconds / _full_seconds(records)


def go_deep(records: Records, first: Floats, budget: float, laws: Sequence[Law]) -> Way:
    """Instead of rungs: two rates, then one fold through all stages, of as many as the budget lasts for; two at least."""
    by_features = [records.names[place] for place in np.argsort(-first, kind="stable")]
    seconds, last = _epoch_seconds(records), len(CYCLES) - 1
    epochs = trial_epochs(0) + sum(trial_epochs(stage) for stage in range(last + 1))
    chosen, spent, left, falls = list[str](), 0.0, dict[str, tuple[Floats, Floats]](), []
    for name in by_features:
        if len(chosen) >= 2 and spent + epochs * seconds[name] > budget * _full_seconds(records):
            break
        spent += epochs * seconds[name]
        chosen.append(name)
        now, before = _fold(records, name, last), _fold(records, name, last - 1)
        if now is not None and before is not None:
            left[name] = now, before
            falls.append(log_fall(float(now.mean()), float(before.mean()), len(now)))
    ridge = dict(zip(records.names, records.scores["ridge"].tolist(), strict=True))
    expected = {
        name: float(
            expected_left(
                now.mean(),
                np.array(ridge[name]),
                before=before.mean(),
                fall=float(np.mean(falls)),
                stage=last,
                num_items=len(now),
                laws=laws,
            )
        )
        for name, (now, before) in left.items()
    }
    ordered = sorted(chosen, key=lambda name: expected.get(name, 0.0))
    ordered += [name for name in by_features if name not in ordered]
    return _places(records, ordered), spent / _full_seconds(records)


def _fold(records: Records, name: str, stage: int) -> Floats | None:
    """The scores of the first fold at the rate that finals choose."""
    outcome = records.outcomes.get(Trial(model=name, notch=records.notches[name], fold=0, stage=stage))
    return None if outcome is None else outcome.item_scores


def _seconds_to_test_all(records: Records, chosen: Sequence[str], budget: float, laws: Sequence[Law]) -> float:
    """As a share of fine-tuning all."""
    race = _make_race(records, chosen, budget, laws)
    return sum(race.rung_seconds(rung) for rung in range(3)) / _full_seconds(records)


def _make_race(records: Records, chosen: Sequence[str], budget: float, laws: Sequence[Law]) -> FinalsRace:
    labels, folds = np.array(records.about["labels"]), np.array(records.about["folds"])
    return FinalsRace(
        list(chosen),
        feature_scores=dict(zip(records.names, records.scores["ridge"].tolist(), strict=True)),
        epoch_seconds=_epoch_seconds(records),
        budget_seconds=budget * _full_seconds(records),
        folds=folds,
        guess=(labels == np.bincount(labels).argmax()).astype(np.float64),
        first_notches=first_notches(records.about["modality"]),
        laws=laws,
    )


def halve(records: Records) -> Way:
    """Plain successive halving: all candidates, one rate, one fold; the better half goes on to the next stage."""
    seconds = _epoch_seconds(records)
    alive, behind, cost = list(records.names), list[str](), 0.0
    for stage in range(len(CYCLES)):
        cost += sum(trial_epochs(stage) * seconds[name] for name in alive)
        scores = {name: _fold(records, name, stage) for name in alive}
        found = {name: 0.0 if own is None else float(own.mean()) for name, own in scores.items()}
        alive.sort(key=lambda name, found=found: -found[name])  # type: ignore[misc]
        kept = max(1, len(alive) // 2) if stage + 1 < len(CYCLES) else len(alive)
        behind = alive[kept:] + behind
        alive = alive[:kept]
    return _places(records, alive + behind), cost / _full_seconds(records)


def _epoch_seconds(records: Records) -> dict[str, float]:
    return dict(zip(records.names, records.epoch_seconds.tolist(), strict=True))


def _full_seconds(records: Records) -> float:
    return float(records.epoch_seconds.sum()) * FULL_EPOCHS


def _places(records: Records, ordered: Sequence[str]) -> Floats:
    place = {name: number for number, name in enumerate(ordered)}
    return np.array([-float(place[name]) for name in records.names])
