"""The trials of a race: what came of them so far, and which of them a rung asks for.

In:  the outcome of every trial
Out: the trials of a rung; the rate that suits a finalist; how far one has come
Nothing here judges anybody or knows a budget. A race after a kill may know trials of later rungs: whoever asks says which rung
the race is at, and gets what was known by then.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from modelhound.analysis.trials import CYCLES, NUM_FOLDS, Outcome, Trial

__all__ = ["NUM_RUNGS", "TrialBook", "num_folds_tested", "stage_reached"]

_ONE_FOLD = 1 + len(CYCLES)  # rungs on the first fold alone
NUM_RUNGS = _ONE_FOLD + NUM_FOLDS - 1
_NOT_YET = object()


def stage_reached(num_rungs: int) -> int:
    """By so many rungs."""
    return min(max(0, num_rungs - 2), len(CYCLES) - 1)


def num_folds_tested(num_rungs: int) -> int:
    """By so many rungs."""
    return max(1, num_rungs - _ONE_FOLD + 1)


@dataclass(frozen=True, slots=True)
class TrialBook:
    """Outcomes by trial; None where a trial came to nothing."""

    first_notches: tuple[int, int]
    outcomes: dict[Trial, Outcome | None] = field(default_factory=dict)

    def trials_of(self, rung: int, model: str, *, at_rung: int) -> list[Trial]:
        """What the rung asks of a finalist."""
        if rung < 2:
            started = self._started(model)
            more = [trial for trial in self._at_notches(model)[:2] if trial not in started]
            return started if rung == 0 else more
        notch = self.chosen_notch(model, at_rung=at_rung)
        if rung < _ONE_FOLD:
            return [Trial(model=model, notch=notch, fold=0, stage=rung - 1)]
        return [Trial(model=model, notch=notch, fold=rung - _ONE_FOLD + 1, stage=len(CYCLES) - 1)]

    def has_run(self, trials: Iterable[Trial]) -> bool:
        """All of them, whatever came of them."""
        return all(trial in self.outcomes for trial in trials)

    def chosen_notch(self, model: str, *, at_rung: int) -> int:
        """By score, then by loss, of the rates tried by this rung; the lowest where nothing is known."""
        tried = self._started(model) if at_rung < 2 else self._at_notches(model)
        good = [(trial, each) for trial in tried if (each := self.outcomes.get(trial)) is not None]
        if not good:
            return min(trial.notch for trial in tried)
        return max(good, key=lambda pair: (pair[1].score, -pair[1].loss, -pair[0].notch))[0].notch

    def reached(self, model: str, *, at_rung: int) -> tuple[int, list[Outcome]]:
        """The furthest stage that a finalist has come to, and its outcomes there, fold after fold."""
        notch = self.chosen_notch(model, at_rung=at_rung)
        stages = range(stage_reached(at_rung) + 1)
        known = [each for stage in stages if (each := self.first_fold(model, stage, at_rung=at_rung)) is not None]
        stage, found = max(0, len(known) - 1), known[-1:]
        if found and stage == len(CYCLES) - 1:
            found += self._other_folds(model, notch, num_folds_tested(at_rung))
        return stage, found

    def first_fold(self, model: str, stage: int, *, at_rung: int) -> Outcome | None:
        """Of a stage at the chosen rate."""
        notch = self.chosen_notch(model, at_rung=at_rung)
        return self.outcomes.get(Trial(model=model, notch=notch, fold=0, stage=stage))

    def _at_notches(self, model: str) -> list[Trial]:
        """Two rates, and a lower one for those that both of them are too high for."""
        notches = (*self.first_notches, min(self.first_notches) - 1)
        return [Trial(model=model, notch=notch, fold=0, stage=0) for notch in notches]

    def _started(self, model: str) -> list[Trial]:
        """The first rate; where that came to nothing, the next."""
        started = []
        for trial in self._at_notches(model):
            started.append(trial)
            if self.outcomes.get(trial, _NOT_YET) is not None:
                break
        return started

    def _other_folds(self, model: str, notch: int, num_folds: int) -> list[Outcome]:
        """At the last stage; none where one of them is missing."""
        last = len(CYCLES) - 1
        trials = [Trial(model=model, notch=notch, fold=fold, stage=last) for fold in range(1, num_folds)]
        known = [each for trial in trials if (each := self.outcomes.get(trial)) is not None]
        return known if len(known) == len(trials) else []
