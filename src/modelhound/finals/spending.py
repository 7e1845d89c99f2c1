"""What finals may spend, what they have spent, and when they must be over.

In:  the budget that was asked for, what fine-tuning everybody was foretold to take, every trial that was run
Out: what a trial costs in the eyes of the race; the end of time; totals for the answer
Nothing here knows who races.

A budget in seconds is kept by the clock: all that a person waits for counts, also finding out what an epoch takes and trials
that were given up. A share is kept in epochs: a trial counts with what it was foretold to take, since a busy machine would take
as much longer for fine-tuning everybody. So being slowed down on the way changes nothing of the race.
"""

import math
from collections.abc import Mapping

from modelhound.analysis.trials import FULL_EPOCHS, Trial, trial_epochs
from modelhound.finals.job import FinalsJob, trial_of
from modelhound.meter import seconds_now
from modelhound.records import FinalsCosts, TrialDone

__all__ = ["Spending"]

_PROBING_SHARE = 0.25  # of a budget in seconds, that finding out what epochs take may last
_PROBE_SHARE = 0.03  # of it, that is enough for one of them
_LEAST_SECONDS = 10.0  # of a budget in seconds, in which a step of something might be seen


class Spending:
    """Of one race, from before it is known what an epoch takes."""

    def __init__(self, job: FinalsJob) -> None:
        self._share, self._seconds = job.settings.parsed_finals_budget()
        self._num_candidates = job.num_candidates
        self._began = seconds_now()
        self._epoch_seconds: Mapping[str, float] = {}
        self._trials: list[TrialDone] = []
        costs = [record for record in job.known if isinstance(record, FinalsCosts)]
        self._probing = math.fsum(record.probing_seconds for record in costs)
        self._given_up = math.fsum(record.given_up_seconds for record in costs)
        earlier = [record for record in job.known if isinstance(record, TrialDone)]
        self._earlier = math.fsum((self._probing, self._given_up, *map(_waited, earlier)))

    def is_worth_probing(self, epoch_seconds: float) -> bool:
        """One whose epochs seem to take so long: always where a share counts, and while there is time to race it."""
        if self._seconds is None:
            return True
        elapsed = seconds_now() - self._began
        is_early = self._probing + elapsed < _PROBING_SHARE * self._seconds
        left = self._seconds - self._earlier - elapsed
        return is_early and trial_epochs(Trial(model="", notch=0, fold=0, stage=0)) * epoch_seconds < left

    def end_of_probe(self) -> float | None:
        """Of one that begins now, by the clock of `meter`; None where it does not matter."""
        return None if self._seconds is None else seconds_now() + _PROBE_SHARE * max(_LEAST_SECONDS, self._seconds)

    @property
    def end(self) -> float | None:
        """By the clock of `meter`; None where it does not matter."""
        return None if self._seconds is None else self._began + self._seconds - self._earlier

    def know(self, epoch_seconds: Mapping[str, float], *, probing_seconds: float) -> None:
        """What an epoch of each finalist was foretold to take, and how long it took to find out."""
        self._epoch_seconds = epoch_seconds
        self._probing += probing_seconds

    def budget(self) -> float:
        """Of the race, in what its trials cost.

        What was given up counts by the clock alone, or a race that is begun again would take another course.
        """
        return self._share * self._foretold() if self._seconds is None else self._seconds - self._probing

    def needed(self, cost: float) -> float:
        """A budget, in seconds, of which so much is left for the race."""
        return cost if self._seconds is None else cost + self._probing

    def cost(self, record: TrialDone) -> float:
        """Of a trial, in the eyes of the race."""
        return self._foretold_of(record) if self._seconds is None else _waited(record)

    def count(self, record: TrialDone) -> None:
        """A trial of the race, run now or by an earlier start."""
        self._trials.append(record)

    def give_up(self, seconds: float) -> FinalsCosts:
        """So long a trial was run that came to nothing; what to write down of it."""
        self._given_up += seconds
        return FinalsCosts(epoch_seconds={}, given_up_seconds=seconds)

    def of(self, model: str) -> float:
        """Seconds that the trials of a finalist took."""
        return math.fsum(_waited(record) for record in self._trials if record.model == model)

    @property
    def spent_seconds(self) -> float:
        """In the eyes of the budget."""
        probing = 0.0 if self._seconds is None else self._probing
        return math.fsum((probing, self._given_up, *map(_waited, self._trials)))

    @property
    def full_seconds(self) -> float:
        """That fine-tuning every candidate would take, by what the trials took."""
        foretold = math.fsum(map(self._foretold_of, self._trials))
        return self._foretold() * (math.fsum(map(_waited, self._trials)) / foretold if foretold else 1.0)

    @property
    def budget_seconds(self) -> float:
        return self._share * self.full_seconds if self._seconds is None else self._seconds

    def _foretold(self) -> float:
        """For every candidate; those that are no finalists as for the mean of those that are."""
        known = list(self._epoch_seconds.values())
        others = max(0, self._num_candidates - len(known))
        return FULL_EPOCHS * (sum(known) + others * sum(known) / max(1, len(known)))

    def _foretold_of(self, record: TrialDone) -> float:
        return trial_epochs(trial_of(record)) * self._epoch_seconds.get(record.model, 0.0)


def _waited(record: TrialDone) -> float:
    """Runs of earlier versions have not written it down: several at once took together what the longest took."""
    return record.waited_seconds or record.seconds / record.at_once
