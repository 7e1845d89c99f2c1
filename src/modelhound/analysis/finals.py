"""Whom of the finalists to train next, and when it is known who wins: a race by short fine-tuning.

In:  the finalists, what an epoch of each costs, which fold each item belongs to, and the outcome of every trial
Out: the trials to run next; in the end a Standing of every finalist and why the race ended
Nothing here trains or reads a clock: outcomes tell what they cost, and what later rungs will cost is foretold by that. The same
outcomes always lead to the same next trials, so that a race goes on after a kill.

    rung 0   one fold, one learning rate             who learns at all
    rung 1   the same at another rate                each one's rate is chosen
    rung 2   trained on for longer
    rung 3   and for longer still                    who is ahead
    rung 4…  the other folds, as long                until every item has been tested, somebody is certain to win, or the
                                                     budget is spent

A trial goes on where the stage before it left off and ends with a rate of zero, so that its score is that of a finished short
training. After each rung it is foretold what full fine-tuning would reach (see `foretelling`). The tested items are resampled
for all finalists at once, and each strays from what is foretold as far as networks do: that gives each one's chance to be the
best, and those with next to none are dropped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.foretelling import LAWS, Law, Level, expected_left, find_level
from modelhound.analysis.ranking import resample_means
from modelhound.analysis.trial_book import NUM_RUNGS, TrialBook, num_folds_tested, stage_reached
from modelhound.analysis.trials import NUM_FOLDS, USUAL_NOTCHES, Outcome, Trial, beats_guessing, trial_epochs

__all__ = ["Ended", "FinalsRace", "Standing", "num_starting"]

_FIRST_SHARE = 0.5  # of the budget, that trying everybody once may take
_SECOND_SHARE = 0.4  # of what is left then, for the second rate and the longer training that follows it
_LEAST_SECOND = 5  # that try them whatever their share, where the budget lasts for it
_TRUSTED = 0.5  # of what the further training of some says of the data set, for those that were left behind
_ROUNDING = 1e-9  # that a budget may be passed by

Floats = NDArray[np.float64]
Ended = Literal["certain", "budget", "finished", "noise", "failed"]
State = Literal["in", "dropped", "left behind", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the race says of one finalist."""

    model: str
    state: State
    """in: to the end of the race; left behind: the budget was kept for better ones."""
    notch: int
    stage: int
    num_folds: int
    item_scores: Floats
    """Of the items tested, of one or of all folds."""
    level: Level | None
    """Where all finalists that came to this stage stand; None where nothing is known."""
    expected: float
    """The score that is foretold of full fine-tuning."""
    chance: float
    """Of being the best of all finalists."""

    @property
    def score(self) -> float:
        return float(self.item_scores.mean()) if len(self.item_scores) else float("nan")


def num_starting(epoch_seconds: Sequence[float], budget_seconds: float) -> int:
    """How many may start, the first of them first: half of the budget is for trying all of them once. Two at least."""
    needed = np.cumsum(epoch_seconds) * trial_epochs(Trial(model="", notch=0, fold=0, stage=0))
    return max(2, int((needed <= _FIRST_SHARE * budget_seconds).sum()))


class FinalsRace:
    """The state of a race: feed it outcomes by `tell` or `lose`, and ask for `next_trials` until there are none."""

    def __init__(
        self,
        models: Sequence[str],
        *,
        feature_scores: Mapping[str, float],
        epoch_seconds: Mapping[str, float],
        budget_seconds: float,
        folds: NDArray[np.int64],
        guess: Floats,
        features_tell: bool = True,
        first_notches: tuple[int, int] = USUAL_NOTCHES,
        risk: float = 0.02,
        certainty: float = 0.95,
        seed: int = 0,
        laws: Sequence[Law] = LAWS,
    ) -> None:
        """`guess` holds, item by item, the score of one who knows frequencies only; `features_tell` says whether the features
        of some finalist beat that."""
        self._feature_scores, self._laws = feature_scores, laws
        self._epoch_seconds, self._budget_seconds = epoch_seconds, budget_seconds
        self._positions = [np.flatnonzero(folds == fold) for fold in range(NUM_FOLDS)]
        self._guess, self._features_tell = guess, features_tell
        self._book = TrialBook(first_notches)
        self._risk, self._certainty, self._seed = risk, certainty, seed
        self._levels: dict[tuple[int, int], Level] = {}
        self._states: dict[str, State] = dict.fromkeys(models, "in")
        self._chances: dict[str, float] = dict.fromkeys(models, 1 / max(1, len(models)))
        self._rung = 0
        self._spent_by_rungs = 0.0  # after a kill, trials of later rungs may be known already
        self._foretold_by_rungs = 0.0  # that they would cost
        self._has_begun = False
        self.ended: Ended | None = None

    @property
    def spent_seconds(self) -> float:
        """By all trials so far."""
        return math.fsum(each.seconds for each in self._book.outcomes.values() if each is not None)

    def rung_seconds(self, rung: int, models: Sequence[str] | None = None) -> float:
        """What a rung would cost, by how much longer than foretold the rungs before it took."""
        pace = self._spent_by_rungs / self._foretold_by_rungs if self._foretold_by_rungs else 1.0
        trials = [
            trial for model in (self._alive() if models is None else models) for trial in self._trials(rung, model)
        ]
        return pace * sum(map(self._foretold_seconds, trials))

    def tell(self, trial: Trial, outcome: Outcome | None) -> None:
        """What came of a trial; None where it diverged or did not fit into memory."""
        self._book.outcomes[trial] = outcome
        self._levels.clear()

    def lose(self, model: str) -> None:
        """A finalist that cannot go on, whatever the rate."""
        self._states[model] = "failed"

    def stop(self) -> None:
        """The budget is spent in the middle of a rung: whoever has not run its trials is left behind, and the race is over."""
        late = [model for model in self._alive() if not self._book.has_run(self._trials(self._rung, model))]
        if len(late) < len(self._alive()):  # where nobody was in time, all stand where they stood
            for model in late:
                self._states[model] = "left behind"
            self._finish_rung()
        self.ended = self.ended or "budget"

    def next_trials(self) -> tuple[Trial, ...]:
        """What to run now, in any order, though the likeliest stand first; nothing when the race is over."""
        while self.ended is None:
            if not self._has_begun:
                self._begin_rung()
                continue
            likely = sorted(self._alive(), key=lambda model: -self._chances[model])
            wanted = [trial for model in likely for trial in self._trials(self._rung, model)]
            missing = tuple(trial for trial in wanted if trial not in self._book.outcomes)
            if missing:
                return missing
            self._finish_rung()
        return ()

    def standings(self) -> tuple[Standing, ...]:
        """Every finalist, best first: those that came furthest, then by what is foretold of them."""
        rows = [self._standing(model) for model in self._states]
        order = {"in": 0, "left behind": 1, "dropped": 1, "failed": 2}
        return tuple(
            sorted(rows, key=lambda row: (order[row.state], -row.stage, -row.num_folds, -row.expected, row.model))
        )

    def _alive(self) -> list[str]:
        return [model for model, state in self._states.items() if state == "in"]

    def _trials(self, rung: int, model: str) -> list[Trial]:
        return self._book.trials_of(rung, model, at_rung=self._rung)

    def _foretold_seconds(self, trial: Trial) -> float:
        return trial_epochs(trial) * self._epoch_seconds[trial.model]

    def _begin_rung(self) -> None:
        alive = self._alive()
        if not alive:
            self.ended = "failed"
        elif self._rung == NUM_RUNGS:
            self.ended = "finished"
        else:
            self._leave_behind(alive)
        if self.ended is None:
            self._has_begun = True

    def _leave_behind(self, alive: list[str]) -> None:
        """Go on with as many as the budget lasts for, the likeliest first; with one alone there is no race."""
        left = self._budget_seconds - self._spent_by_rungs
        expected = {row.model: row.expected for row in self.standings()}
        likely = sorted(alive, key=lambda model: (-self._chances[model], -expected[model]))
        fitting = self._num_fitting(likely, left)
        if self._rung == 1 and fitting >= 2:  # something is put by for those that lead then
            fitting = max(min(_LEAST_SECOND, fitting), self._num_fitting(likely, _SECOND_SHARE * left))
        if fitting == len(alive):
            return
        if fitting < 2 or self._rung == 0:
            self.ended = "budget"
            return
        for model in likely[fitting:]:
            self._states[model] = "left behind"

    def _num_fitting(self, likely: list[str], left_seconds: float) -> int:
        """Whoever tries a second rate shall go on with the better one, so that the next rung must fit too."""
        rungs = (1, 2) if self._rung == 1 else (self._rung,)
        needed = np.cumsum([sum(self.rung_seconds(rung, [model]) for rung in rungs) for model in likely])
        return int((needed <= left_seconds * (1 + _ROUNDING)).sum())

    def _finish_rung(self) -> None:
        ran = {
            trial: outcome
            for model in self._alive()
            for trial in self._trials(self._rung, model)
            if (outcome := self._book.outcomes.get(trial)) is not None
        }
        self._spent_by_rungs += sum(outcome.seconds for outcome in ran.values())
        self._foretold_by_rungs += sum(map(self._foretold_seconds, ran))
        self._has_begun = False
        self._rung += 1
        for model in self._alive():
            standing = self._standing(model)
            if (standing.stage, standing.num_folds) != (stage_reached(self._rung), num_folds_tested(self._rung)):
                self.lose(model)  # a trial of it came to nothing
        alive = self._alive()
        if alive:
            self._judge(alive)

    def _judge(self, alive: list[str]) -> None:
        rows = [self._standing(model) for model in alive]
        scores = np.stack([row.item_scores for row in rows])
        chances = self._winning_chances(scores, rows)
        gone = sum(self._chances[model] for model, state in self._states.items() if state in ("left behind", "dropped"))
        for model, chance in zip(alive, chances, strict=True):
            self._chances[model] = float(chance) * (1 - gone)
        best = int(np.argmax([row.expected for row in rows]))
        if self._rung < 3:
            return  # rates are still being chosen: too early to drop anybody or to end
        for place, model in enumerate(alive):
            if chances[place] < self._risk and place != best:
                self._states[model] = "dropped"
        survivors = self._alive()
        if self._rung == NUM_RUNGS and self.is_noise():
            self.ended = "noise"
        elif self._chances[alive[best]] >= self._certainty:
            self.ended = "certain"
        elif len(survivors) == 1:  # ahead of those whom the budget left behind, or of nobody
            self.ended = "budget" if "left behind" in self._states.values() else "finished"

    def is_noise(self) -> bool:
        """Whether neither features nor anybody that is still in the race tell more than guessing would."""
        if self._features_tell:
            return False
        rows = [row for row in self.standings() if row.state == "in" and row.num_folds]
        return not any(
            beats_guessing(row.item_scores, self._guess_of(row.num_folds), num_tries=3 * len(self._states))
            for row in rows
        )

    def _winning_chances(self, scores: Floats, rows: Sequence[Standing]) -> Floats:
        """In how many of many resamples each of them would have the least left to learn."""
        stage, level = rows[0].stage, rows[0].level
        assert level is not None  # all of them have come to this stage
        features = np.array([[self._feature_scores[row.model]] for row in rows])
        left = expected_left(
            resample_means(scores, seed=self._seed),
            features,
            level,
            stage=stage,
            num_items=scores.shape[1],
            laws=self._laws,
        )
        left += self._laws[stage].within * np.random.default_rng([self._seed, stage]).standard_normal(left.shape)
        is_best = left <= left.min(axis=0)
        return np.asarray((is_best / is_best.sum(axis=0)).mean(axis=1))

    def _guess_of(self, num_folds: int) -> Floats:
        """Of the items tested by now, fold after fold."""
        return np.concatenate([self._guess[positions] for positions in self._positions[:num_folds]])

    def _standing(self, model: str) -> Standing:
        """The furthest that it has come by this rung; after a kill more may be known."""
        stage, found = self._book.reached(model, at_rung=self._rung)
        scores = np.concatenate([each.item_scores for each in found]) if found else np.empty(0)
        level = None
        if found:
            key = (self._rung, stage)
            level = self._levels[key] = self._levels.get(key) or self._level(stage)
        return Standing(
            model=model,
            state=self._states[model],
            notch=self._book.chosen_notch(model, at_rung=self._rung),
            stage=stage,
            num_folds=len(found),
            item_scores=scores,
            level=level,
            expected=-math.inf if level is None else 1 - math.exp(self._expected_left(model, scores, level, stage)),
            chance=self._chances[model] if self._states[model] != "failed" else 0.0,
        )

    def _level(self, stage: int) -> Level:
        """Of all that came to this stage, on the first fold; where some went on, moved by what that says of the data set."""
        level, further = self._level_alone(stage), stage_reached(self._rung)
        went_on = {model: each for model in self._states if (each := self._first_fold(model, further)) is not None}
        if further == stage or not went_on:
            return level
        level_further = self._level_alone(further)
        gaps = []
        for model, outcome in went_on.items():
            earlier = self._first_fold(model, stage)
            if earlier is not None:
                found = self._expected_left(model, outcome.item_scores, level_further, further)
                gaps.append(found - self._expected_left(model, earlier.item_scores, level, stage))
        return replace(level, shift=_TRUSTED * float(np.mean(gaps)) if gaps else 0.0)

    def _level_alone(self, stage: int) -> Level:
        now, before, features = [], [], []
        for model in self._states:
            reached, earlier = (self._first_fold(model, each) for each in (stage, max(0, stage - 1)))
            if reached and earlier:
                now.append(reached.score)
                before.append(earlier.score)
                features.append(self._feature_scores[model])
        num_items = len(self._positions[0])
        scores, earlier_scores = np.array(now), np.array(before) if stage else None
        return find_level(scores, np.array(features), earlier_scores, num_items=num_items)

    def _first_fold(self, model: str, stage: int) -> Outcome | None:
        return self._book.first_fold(model, stage, at_rung=self._rung)

    def _expected_left(self, model: str, scores: Floats, level: Level, stage: int) -> float:
        """The logarithm of what full fine-tuning will leave to learn."""
        return float(
            expected_left(
                np.array(scores.mean()),
                np.array(self._feature_scores[model]),
                level,
                stage=stage,
                num_items=len(scores),
                laws=self._laws,
            )
        )
