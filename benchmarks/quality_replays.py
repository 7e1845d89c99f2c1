"""Ways to find the best candidate that take training, replayed from records by the very code that runs finals.

In:  the records of one target, a budget, the laws of other targets
Out: a number for each candidate, the larger the better, and what finding them cost
Nothing here trains or judges. Longer training is recorded at the best of three rates; where a race has chosen another of them,
what is recorded stands in for it. Where a stage is not recorded of a target, races end before it as if their budget did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from modelhound.analysis.finals import FinalsRace, num_starting
from modelhound.analysis.foretelling import Law
from modelhound.analysis.trials import CYCLES, FULL_EPOCHS, HIGH_NOTCHES, USUAL_NOTCHES, Outcome, Trial, trial_epochs
from modelhound.settings import MOST_FINALISTS
from quality_records import Floats, Records

__all__ = ["Replayed", "Way", "halve", "replay_finals", "turn_folds"]

Way = tuple[Floats, float]
"""A number per candidate, and its cost as a share of fine-tuning all."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a race would have said."""

    way: Way
    chance: float
    """Of its first to be the best, in its own words."""
    is_certain: bool


def replay_finals(records: Records, first: Floats, budget: float, laws: Sequence[Law]) -> Replayed:
    """Finals after a feature race by `first`, as `--finals auto`; those that took no part stand behind, in its order."""
    by_features = [records.names[place] for place in np.argsort(-first, kind="stable")]
    seconds = _epoch_seconds(records)
    fitting = num_starting([seconds[name] for name in by_features], budget * _full_seconds(records))
    race = _make_race(records, by_features[: min(MOST_FINALISTS, fitting)], budget, laws)
    while (trials := race.next_trials()) and all(_is_recorded(records, trial) for trial in trials):
        for trial in trials:
            known = _recorded(records, trial)
            # what it cost is counted in epochs, so that a crowded GPU does not count
            cost = trial_epochs(trial) * seconds[trial.model]
            race.tell(
                trial,
                None if known is None else Outcome(item_scores=known.item_scores, loss=known.loss, seconds=cost),
            )
    standings = race.standings()
    ordered = [row.model for row in standings]
    ordered += [name for name in by_features if name not in ordered]
    way = _places(records, ordered), race.spent_seconds / _full_seconds(records)
    return Replayed(way, standings[0].chance, race.ended == "certain")


def turn_folds(records: Records, first: int) -> Records:
    """As if another third of the items had been the first to be tested: how much of an answer was the luck of that third.

    Other rates than each candidate's best are recorded on the first third only; elsewhere the best stands in for them.
    """
    places = {first: 0, 0: first}
    outcomes = {
        replace(trial, fold=places.get(trial.fold, trial.fold)): outcome
        for trial, outcome in records.outcomes.items()
        if first == 0 or trial.notch == records.notches.get(trial.model)
    }
    folds = [places.get(fold, fold) for fold in records.about["folds"]]
    return replace(records, outcomes=outcomes, about={**records.about, "folds": folds})


def _is_recorded(records: Records, trial: Trial) -> bool:
    return trial in records.outcomes or replace(trial, notch=records.notches[trial.model]) in records.outcomes


def _recorded(records: Records, trial: Trial) -> Outcome | None:
    if trial not in records.outcomes:
        trial = replace(trial, notch=records.notches[trial.model])
    return records.outcomes.get(trial)


def _make_race(records: Records, chosen: Sequence[str], budget: float, laws: Sequence[Law]) -> FinalsRace:
    labels, folds = np.array(records.about["labels"]), np.array(records.about["folds"])
    return FinalsRace(
        list(chosen),
        feature_scores=dict(zip(records.names, records.scores["ridge"].tolist(), strict=True)),
        epoch_seconds=_epoch_seconds(records),
        budget_seconds=budget * _full_seconds(records),
        folds=folds,
        guess=(labels == np.bincount(labels).argmax()).astype(np.float64),
        first_notches=HIGH_NOTCHES if records.about["modality"] == "image" else USUAL_NOTCHES,
        laws=laws,
    )


def halve(records: Records) -> Way:
    """Plain successive halving: all candidates, one rate, one fold; the better half goes on to the next stage."""
    seconds = _epoch_seconds(records)
    alive, behind, cost = list(records.names), list[str](), 0.0
    for stage in range(len(CYCLES)):
        trials = [Trial(model=name, notch=records.notches[name], fold=0, stage=stage) for name in alive]
        if not all(_is_recorded(records, trial) for trial in trials):
            break
        cost += sum(trial_epochs(trial) * seconds[trial.model] for trial in trials)
        outcomes = {trial.model: records.outcomes.get(trial) for trial in trials}
        found = {name: 0.0 if own is None else float(own.item_scores.mean()) for name, own in outcomes.items()}
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
