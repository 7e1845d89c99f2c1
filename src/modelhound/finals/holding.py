"""Finals: the best of a feature race once more, by short fine-tuning.

In:  a FinalsJob: the finalists, best first, the data set, what an earlier start has found out
Out: a FinalsAnswer; a TrialDone for every short training, told as soon as it is there; a Failure for whoever cannot go on
Nothing here decides whom to train next (see `analysis.finals`), how (see `trials`) or for how long (see `spending`).
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from modelhound.analysis.finals import FinalsRace, num_starting
from modelhound.analysis.trials import HIGH_NOTCHES, USUAL_NOTCHES, Outcome, Trial, beats_guessing
from modelhound.errors import BudgetError
from modelhound.finals.answering import CERTAINTY, answer_finals
from modelhound.finals.held_items import HeldItems
from modelhound.finals.items import finals_folds
from modelhound.finals.job import FinalsJob, num_epochs, trial_of
from modelhound.finals.spending import Spending
from modelhound.finals.trial_pool import TrialPool
from modelhound.finals.trials import Classroom, TrialResult
from modelhound.meter import count_cores, seconds_now
from modelhound.records import Failure, FinalsAnswer, FinalsCosts, Progress, TrialDone, unpack_items
from modelhound.scores.guessing import guess_scores
from modelhound.settings import MOST_FINALISTS

__all__ = ["hold_finals"]

_MOST_PROCESSES = 4
_WORTH_PROCESSES_SECONDS = 30.0  # of a rung: starting a process on a GPU takes some ten
# Of 150 to 500, higher rates than the usual were best for every network (benchmarks/results/quality*).
_FEW_ITEMS = 1000


def hold_finals(job: FinalsJob) -> FinalsAnswer:
    """Race them to the end, or to the end of the budget; a BudgetError says that it does not last for one rung."""
    return _Finals(job).hold()


class _Finals:
    """One race, from what it will cost to its answer."""

    def __init__(self, job: FinalsJob) -> None:
        self._job = job
        self._spending = Spending(job)
        self._folds = finals_folds(job.dataset, seed=job.settings.seed)
        self._room = Classroom(job.dataset, self._folds, HeldItems(job.dataset, job.device))
        self._errors: dict[str, str] = {}
        self._epoch_seconds: Mapping[str, float] = {}

    def hold(self) -> FinalsAnswer:
        self._epoch_seconds = self._find_costs()
        race = self._make_race(self._choose())
        earlier = self._earlier_trials()
        with TrialPool(self._room, num_processes=self._choose_processes(race)) as pool:
            while trials := race.next_trials():
                if known := [earlier[trial] for trial in trials if trial in earlier]:
                    for record in known:
                        self._take(race, record)
                    continue
                self._forget(race)  # not earlier: while others of a rung run, they save what is to be forgotten
                self._run(race, pool, trials)
        self._forget(race)
        if race.ended == "budget" and sum(row.num_folds > 0 for row in race.standings()) < 2:
            raise self._too_small(race)
        lost = self._lost(race)
        for model in lost:
            error = self._errors.get(model, "none of the learning rates tried came to an end")
            self._job.tell(Failure(model=model, phase="finals", error=error))
        return answer_finals(race, self._job, self._spending, lost=lost)

    def _find_costs(self) -> dict[str, float]:
        """Seconds of an epoch over all items, by a few steps of each finalist; one that cannot learn is a Failure.

        Of a budget in seconds, none are lost on those that it will not last for.
        """
        earlier: dict[str, float] = {}
        for record in self._job.known:
            if isinstance(record, FinalsCosts):
                earlier |= record.epoch_seconds
        known = {model: earlier[model] for model in self._job.stamps if model in earlier}
        todo = [model for model in self._job.stamps if model not in known]

        def done(model: str, _: int, result: TrialResult) -> None:
            if result.error:
                self._errors[model] = result.error
            else:
                known[model] = result.seconds * len(self._job.dataset)

        began = seconds_now()
        with TrialPool(self._room) as pool:
            for place, model in enumerate(todo, start=1):
                if len(known) >= 2 and not self._spending.is_worth_probing(self._guess_cost(model, known)):
                    continue
                request = self._job.request(Trial(model=model, notch=0, fold=0, stage=0), probe=True)
                pool.run([request], partial(done, model), until=self._spending.end_of_probe())
                self._job.watch(Progress(task="finals: costs", done=place, total=len(todo), detail=model))
        has_learned = any(model in known or model in self._errors for model in todo)
        probing_seconds = seconds_now() - began if has_learned else 0.0
        if has_learned and known:
            self._job.tell(FinalsCosts(epoch_seconds=known, probing_seconds=probing_seconds))
        others = {model: self._guess_cost(model, known) for model in todo if model not in known}
        self._spending.know(known | others, probing_seconds=probing_seconds)
        return known

    def _guess_cost(self, model: str, known: Mapping[str, float]) -> float:
        """Of one that was not tried, by how long its features took beside those of others."""
        took = {each.model: each.wall_seconds for each in self._job.finalists}
        ratios = [seconds / took[other] for other, seconds in known.items() if took[other] > 0]
        if not ratios or took[model] <= 0:
            return float(np.median(list(known.values()))) if known else 0.0
        return float(np.median(ratios)) * took[model]

    def _choose(self) -> list[str]:
        """As many as were asked for; auto takes as many as half of the budget lets be tried once."""
        models = [model for model in self._job.stamps if model in self._epoch_seconds]
        budget, asked = self._spending.budget(), self._job.settings.num_finalists()
        if asked is None:
            asked = min(MOST_FINALISTS, num_starting([self._epoch_seconds[model] for model in models], budget))
        race = self._make_race(models[:asked])
        if models and race.rung_seconds(0) > budget:
            raise self._too_small(race)
        return models[:asked]

    def _too_small(self, race: FinalsRace) -> BudgetError:
        needed, allowed = self._spending.needed(race.rung_seconds(0)), self._spending.budget_seconds
        if race.ended is not None:  # it seemed to last at first
            needed = max(needed, 2 * allowed)
        return BudgetError(
            f"cannot hold finals of {len(race.standings())} models in {allowed:.3g} s: expected a budget for one rung at "
            f"least, about {needed:.3g} s; use --finals-budget {-(-needed // 1):.0f}s or fewer --finals"
        )

    def _make_race(self, models: Sequence[str]) -> FinalsRace:
        job, guess = self._job, guess_scores(self._job.dataset.targets, self._job.dataset.task)
        tells = any(
            beats_guessing(
                np.nan_to_num(scores).astype(np.float64),
                np.where(np.isnan(scores), 0, guess),
                num_tries=job.num_candidates,
            )
            for scores in (unpack_items(each.item_scores[job.scorer]) for each in job.finalists)
        )
        return FinalsRace(
            models,
            feature_scores={each.model: each.scores[job.scorer] for each in job.finalists},
            epoch_seconds=self._epoch_seconds,
            budget_seconds=self._spending.budget(),
            folds=self._folds,
            guess=guess,
            features_tell=tells,
            first_notches=HIGH_NOTCHES if self._are_few_images() else USUAL_NOTCHES,
            certainty=CERTAINTY,
            seed=job.settings.seed,
        )

    def _are_few_images(self) -> bool:
        dataset = self._job.dataset
        return dataset.modality == "image" and len(dataset) <= _FEW_ITEMS

    def _earlier_trials(self) -> dict[Trial, TrialDone]:
        """Told to the race when it asks for them, and no others: one that was without memory took another course."""
        stamps = self._job.stamps
        return {
            trial_of(record): record
            for record in self._job.known
            if isinstance(record, TrialDone) and record.stamp == stamps.get(record.model) and not record.try_again
        }

    def _choose_processes(self, race: FinalsRace) -> int:
        """Several at once where one network leaves most of a GPU idle and the work is worth starting processes for."""
        if not self._job.device.startswith("cuda") or race.rung_seconds(0) < _WORTH_PROCESSES_SECONDS:
            return 0
        return max(2, min(_MOST_PROCESSES, count_cores() // 2))

    def _run(self, race: FinalsRace, pool: TrialPool, trials: Sequence[Trial]) -> None:
        """A rung, or what there is time for."""
        job, count, ended = self._job, 0, seconds_now()
        at_once = max(1, min(pool.num_processes, len(trials)))
        is_time_up = False

        def done(place: int, result: TrialResult) -> None:
            nonlocal count, ended, is_time_up
            trial, waited, ended = trials[place], seconds_now() - ended, seconds_now()
            if result.is_given_up:
                is_time_up = True
                job.tell(self._spending.give_up(waited))
                return
            count += 1
            detail = f"{trial.model}, {num_epochs(trial.stage)} epochs"
            job.watch(Progress(task="finals", done=count, total=len(trials), detail=detail))
            record = job.record(trial, result, waited_seconds=waited, at_once=at_once)
            job.tell(record)
            self._take(race, record)

        requests = [job.request(trial, expected_seconds=self._expected_seconds(trial)) for trial in trials]
        job.watch(Progress(task="finals", done=0, total=len(trials), detail=f"{num_epochs(trials[0].stage)} epochs"))
        pool.run(requests, done, until=self._spending.end)
        if is_time_up:
            race.stop()

    def _expected_seconds(self, trial: Trial) -> float:
        return num_epochs(trial.stage) * self._epoch_seconds.get(trial.model, 0.0)

    def _take(self, race: FinalsRace, record: TrialDone) -> None:
        """Into the race, whether it was run now or by an earlier start."""
        self._spending.count(record)
        outcome = None
        if record.error:
            self._errors[record.model] = record.error
        else:
            scores = unpack_items(record.item_scores).astype(np.float64)
            outcome = Outcome(item_scores=scores, loss=record.loss, seconds=self._spending.cost(record))
        race.tell(trial_of(record), outcome)

    def _forget(self, race: FinalsRace) -> None:
        """Checkpoints of those that do not go on, and of rates that were not chosen.

        Whoever the budget left behind may go on with a larger one: what took no more than the first stage is soon made again.
        """
        for row in race.standings():
            folder = self._job.checkpoints(row.model)
            if row.state in ("dropped", "failed") or (row.state == "left behind" and row.stage == 0):
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for other in folder.glob("rate*-fold0"):
                if other.name != f"rate{row.notch:+d}-fold0":
                    shutil.rmtree(other, ignore_errors=True)

    def _lost(self, race: FinalsRace) -> list[str]:
        """Those that could not begin and those that could not go on."""
        racing = {row.model: row.state for row in race.standings()}
        return [
            model
            for model in self._job.stamps
            if racing.get(model) == "failed" or (model not in racing and model in self._errors)
        ]
