"""Finals: the best of a feature race once more, by short fine-tuning.

In:  a FinalsJob: the finalists, best first, the data set, what an earlier start has found out
Out: a FinalsAnswer; a TrialDone for every short training, told as soon as it is there; a Failure for whoever cannot go on
Nothing here decides whom to train next (see `analysis.finals`) or how (see `trials`).
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from modelhound.analysis.finals import FinalsRace, Standing, num_starting
from modelhound.analysis.foretelling import CONFIDENCE, foretell
from modelhound.analysis.trials import (
    CYCLES,
    FULL_EPOCHS,
    HIGH_NOTCHES,
    RATE_FACTOR,
    USUAL_NOTCHES,
    Outcome,
    Trial,
    beats_guessing,
)
from modelhound.data import Dataset
from modelhound.errors import BudgetError
from modelhound.finals.held_items import HeldItems
from modelhound.finals.items import finals_folds, guess_scores
from modelhound.finals.trial_pool import TrialPool
from modelhound.finals.trials import Classroom, TrialRequest, TrialResult
from modelhound.meter import count_cores
from modelhound.records import (
    Failure,
    Finalist,
    FinalsAnswer,
    FinalsCosts,
    ModelMeasured,
    Progress,
    TrialDone,
    Watch,
    silent,
    unpack_items,
)
from modelhound.settings import METRICS, MOST_FINALISTS, RecipeSettings, SearchSettings
from modelhound.training.checkpoints import name_checkpoint
from modelhound.training.recipe import choose_rate

__all__ = ["FinalsJob", "hold_finals"]

_MOST_PROCESSES = 4
_WORTH_PROCESSES_SECONDS = 30.0  # of a rung: starting a process on a GPU takes some ten
_CERTAINTY = 0.95
_TIED = 0.05
_FEW_ITEMS = (
    1000  # of 150 to 500, higher rates than the usual were best for every network (benchmarks/results/quality*)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalsJob:
    """What to race, and whom to tell."""

    finalists: Sequence[ModelMeasured]
    """Best first."""
    scorer: str
    """The one that made them finalists."""
    num_candidates: int
    """How many models were searched: what fine-tuning all of them would take is the measure of the budget."""
    dataset: Dataset
    settings: SearchSettings
    device: str
    folder: Path
    """Of the run; checkpoints lie below."""
    known: Sequence[TrialDone | FinalsCosts]
    """What earlier starts have found out."""
    tell: Callable[[TrialDone | FinalsCosts | Failure], None]
    watch: Watch = silent


def hold_finals(job: FinalsJob) -> FinalsAnswer:
    """Race them to the end, or to the end of the budget; a BudgetError says that it does not last for one rung."""
    return _Finals(job).hold()


class _Finals:
    """One race, from what it will cost to its answer."""

    def __init__(self, job: FinalsJob) -> None:
        self._job = job
        self._folds = finals_folds(job.dataset, seed=job.settings.seed)
        self._room = Classroom(job.dataset, self._folds, HeldItems(job.dataset, job.device))
        self._stamps = {each.model: each.stamp for each in job.finalists}
        self._usual_rate = choose_rate(RecipeSettings(), job.dataset.modality)
        self._errors: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def hold(self) -> FinalsAnswer:
        costs = self._find_costs()
        models = [model for model in self._stamps if model in costs]
        mean = sum(costs.values()) / max(1, len(costs))
        all_seconds = FULL_EPOCHS * (sum(costs.values()) + mean * max(0, self._job.num_candidates - len(costs)))
        budget = self._budget_seconds(all_seconds)
        race = self._make_race(self._choose(models, costs, budget), costs, budget)
        for record in self._job.known:
            if isinstance(record, TrialDone) and record.stamp == self._stamps.get(record.model):
                self._take(race, record)
        with TrialPool(self._room, num_processes=self._choose_processes(race)) as pool:
            while trials := race.next_trials():
                self._forget(race)  # not earlier: while others of a rung run, they save what is to be forgotten
                self._run(race, pool, trials)
        self._forget(race)
        for model in self._lost(race):
            error = self._errors.get(model, "none of the learning rates tried came to an end")
            self._job.tell(Failure(model=model, phase="finals", error=error))
        return self._conclude(race, budget, all_seconds)

    def _lost(self, race: FinalsRace) -> list[str]:
        """Those that could not begin and those that could not go on."""
        racing = {row.model: row.state for row in race.standings()}
        return [
            model
            for model in self._stamps
            if racing.get(model) == "failed" or (model not in racing and model in self._errors)
        ]

    def _find_costs(self) -> dict[str, float]:
        """Seconds of an epoch over all items, by a few steps of each finalist; one that cannot learn is a Failure."""
        earlier: dict[str, float] = {}
        for record in self._job.known:
            if isinstance(record, FinalsCosts):
                earlier |= record.epoch_seconds
        known = {model: earlier[model] for model in self._stamps if model in earlier}
        todo = [model for model in self._stamps if model not in known]

        def done(place: int, result: TrialResult) -> None:
            self._job.watch(Progress(task="finals: costs", done=place + 1, total=len(todo), detail=todo[place]))
            if result.error:
                self._errors[todo[place]] = result.error
            else:
                known[todo[place]] = result.seconds * len(self._job.dataset)

        with TrialPool(self._room) as pool:
            pool.run([self._request(Trial(model=model, notch=0, fold=0, stage=0), probe=True) for model in todo], done)
        if todo and known:
            self._job.tell(FinalsCosts(epoch_seconds=known))
        return known

    def _budget_seconds(self, all_seconds: float) -> float:
        share, seconds = self._job.settings.parsed_finals_budget()
        return seconds if seconds is not None else share * all_seconds

    def _choose(self, models: list[str], costs: Mapping[str, float], budget: float) -> list[str]:
        """As many as were asked for; auto takes as many as half of the budget lets be tried once."""
        asked = self._job.settings.num_finalists()
        if asked is None:
            asked = min(MOST_FINALISTS, num_starting([costs[model] for model in models], budget))
        chosen = models[:asked]
        needed = self._make_race(chosen, costs, budget).rung_seconds(0)
        if chosen and needed > budget:
            raise BudgetError(
                f"cannot hold finals of {len(chosen)} models in {budget:.3g} s: expected a budget for one rung at least, about "
                f"{needed:.3g} s; use --finals-budget {-(-needed // 1):.0f}s or fewer --finals"
            )
        return chosen

    def _make_race(self, models: Sequence[str], costs: Mapping[str, float], budget: float) -> FinalsRace:
        guess = guess_scores(self._job.dataset)
        tells = any(
            beats_guessing(
                np.nan_to_num(scores).astype(np.float64),
                np.where(np.isnan(scores), 0, guess),
                num_tries=self._job.num_candidates,
            )
            for scores in (unpack_items(each.item_scores[self._job.scorer]) for each in self._job.finalists)
        )
        return FinalsRace(
            models,
            feature_scores={each.model: each.scores[self._job.scorer] for each in self._job.finalists},
            epoch_seconds=costs,
            budget_seconds=budget,
            folds=self._folds,
            guess=guess,
            features_tell=tells,
            first_notches=HIGH_NOTCHES if self._are_few_images() else USUAL_NOTCHES,
            certainty=_CERTAINTY,
            seed=self._job.settings.seed,
        )

    def _are_few_images(self) -> bool:
        dataset = self._job.dataset
        return dataset.modality == "image" and len(dataset) <= _FEW_ITEMS

    def _choose_processes(self, race: FinalsRace) -> int:
        """Several at once where one network leaves most of a GPU idle and the work is worth starting processes for."""
        if not self._job.device.startswith("cuda") or race.rung_seconds(0) < _WORTH_PROCESSES_SECONDS:
            return 0
        return max(2, min(_MOST_PROCESSES, count_cores() // 2))

    def _run(self, race: FinalsRace, pool: TrialPool, trials: Sequence[Trial]) -> None:
        count = 0

        def done(place: int, result: TrialResult) -> None:
            nonlocal count
            count += 1
            trial = trials[place]
            detail = f"{trial.model}, {_epochs(trial.stage)} epochs"
            self._job.watch(Progress(task="finals", done=count, total=len(trials), detail=detail))
            record = self._record(trial, result, at_once=max(1, min(pool.num_processes, len(trials))))
            self._job.tell(record)
            self._take(race, record)

        self._job.watch(Progress(task="finals", done=0, total=len(trials), detail=f"{_epochs(trials[0].stage)} epochs"))
        pool.run([self._request(trial) for trial in trials], done)

    def _request(self, trial: Trial, *, probe: bool = False) -> TrialRequest:
        settings = self._job.settings
        return TrialRequest(
            model=trial.model,
            stamp=self._stamps[trial.model],
            model_settings=settings.model_settings(),
            rate=self._rate(trial.notch),
            fold=trial.fold,
            cycles=CYCLES[: trial.stage + 1],
            device=self._job.device,
            seed=settings.seed,
            precision=settings.precision,
            folder=None if probe else str(self._folder(trial.model) / f"rate{trial.notch:+d}-fold{trial.fold}"),
            probe=probe,
        )

    def _rate(self, notch: int) -> float:
        return self._usual_rate * RATE_FACTOR**notch

    def _folder(self, model: str) -> Path:
        kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model)
        return self._job.folder / "finals" / kept.strip("-.")

    def _record(self, trial: Trial, result: TrialResult, *, at_once: int) -> TrialDone:
        return TrialDone(
            model=trial.model,
            stamp=self._stamps[trial.model],
            notch=trial.notch,
            rate=self._rate(trial.notch),
            fold=trial.fold,
            stage=trial.stage,
            epochs=_epochs(trial.stage),
            num_steps=result.num_steps,
            item_scores=result.item_scores,
            loss=result.loss,
            seconds=result.seconds,
            at_once=at_once,
            error=result.error,
        )

    def _take(self, race: FinalsRace, record: TrialDone) -> None:
        """Into the race, whether it was run now or by an earlier start."""
        trial = Trial(model=record.model, notch=record.notch, fold=record.fold, stage=record.stage)
        outcome = None
        if not record.error:
            scores = unpack_items(record.item_scores).astype(np.float64)
            # several at once slow each other down: together they take what the longest takes
            seconds = record.seconds / record.at_once
            outcome = Outcome(item_scores=scores, loss=record.loss, seconds=seconds)
            self._seconds[record.model] = self._seconds.get(record.model, 0.0) + seconds
        race.tell(trial, outcome)
        if record.error:
            self._errors[record.model] = record.error

    def _forget(self, race: FinalsRace) -> None:
        """Checkpoints of those that do not go on, and of rates that were not chosen.

        Whoever the budget left behind may go on with a larger one: what took no more than the first stage is soon made again.
        """
        for row in race.standings():
            folder = self._folder(row.model)
            if row.state in ("dropped", "failed") or (row.state == "left behind" and row.stage == 0):
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for other in folder.glob("rate*-fold0"):
                if other.name != f"rate{row.notch:+d}-fold0":
                    shutil.rmtree(other, ignore_errors=True)

    def _conclude(self, race: FinalsRace, budget: float, all_seconds: float) -> FinalsAnswer:
        standings = race.standings()
        leader = next((row for row in standings if row.state != "failed" and row.num_folds), None)
        racing = {row.model for row in standings}
        ended = race.ended or "failed"
        if leader is None:
            verdict = "failed"
        elif ended == "noise" or race.is_noise():
            verdict, ended = "cannot tell", "noise"
        else:
            verdict = "won" if ended == "certain" or leader.chance >= _CERTAINTY else "tied"
        rows = [self._finalist(place, row, leader, verdict) for place, row in enumerate(standings, start=1)]
        rows += [_failed(len(rows) + 1, model) for model in self._lost(race) if model not in racing]
        winner = leader.model if leader is not None and verdict in ("won", "tied") else None
        checkpoint = self._winners_checkpoint(leader) if winner and leader is not None else None
        return FinalsAnswer(
            verdict=verdict,  # type: ignore[arg-type]
            ended=ended,
            winner=winner,
            finalists=tuple(rows),
            metric=METRICS[self._job.dataset.task],
            confidence=CONFIDENCE,
            full_epochs=FULL_EPOCHS,
            budget_seconds=budget,
            spent_seconds=race.spent_seconds,
            full_seconds=all_seconds,
            checkpoint=None if checkpoint is None else str(checkpoint.relative_to(self._job.folder)),
            read_back=None if checkpoint is None else name_checkpoint(checkpoint, str(winner), self._job.settings.arch),
        )

    def _finalist(self, place: int, row: Standing, leader: Standing | None, verdict: str) -> Finalist:
        is_tied = verdict in ("tied", "cannot tell") and row.state == "in" and row.chance >= _TIED
        features = {each.model: each.scores[self._job.scorer] for each in self._job.finalists}
        foretold = (
            foretell(
                row.item_scores,
                features[row.model],
                row.level,
                stage=row.stage,
                seed=self._job.settings.seed,
            )
            if row.level is not None and verdict != "cannot tell" and row.state != "failed"
            else None
        )
        return Finalist(
            place=1 if is_tied else place,
            model=row.model,
            state=row.state,
            score=row.score if row.num_folds else None,
            num_items=len(row.item_scores),
            epochs=_epochs(row.stage) if row.num_folds else 0,
            rate=self._rate(row.notch) if row.num_folds else None,
            chance=row.chance,
            predicted=None if foretold is None else foretold.score,
            interval=None if foretold is None else foretold.interval,
            seconds=self._seconds.get(row.model, 0.0),
        )

    def _winners_checkpoint(self, leader: Standing) -> Path | None:
        """The newest of the first fold."""
        folder = self._folder(leader.model) / f"rate{leader.notch:+d}-fold0"
        return max(folder.glob("epoch-*"), default=None)


def _epochs(stage: int) -> int:
    return sum(CYCLES[: stage + 1])


def _failed(place: int, model: str) -> Finalist:
    return Finalist(
        place=place,
        model=model,
        state="failed",
        score=None,
        num_items=0,
        epochs=0,
        rate=None,
        chance=0.0,
        predicted=None,
        interval=None,
        seconds=0.0,
    )
