"""Whom of the finalists to train next, and when it is known who wins: a race by short fine-tuning.

In:  the finalists, what an epoch of each costs, which fold each item belongs to, and the outcome of every trial
Out: the trials to run next; in the end a Standing of every finalist and why the race ended
Nothing here trains. The same outcomes always lead to the same next trials, so that a race goes on after a kill.

    rung 0   one fold, two learning rates             who learns at all
    rung 1   a third rate, above or below the better  each finalist's rate is chosen; none above the highest
    rung 2   the other folds at that rate             every item has been tested once
    rung 3…  all folds, trained on for longer         until somebody is certain to win, or the budget is spent

A trial goes on where the stage before it left off and ends with a rate of zero, so that its score is that of a finished short
training. After each rung it is foretold what full fine-tuning would reach (see `foretelling`). The tested items are resampled
for all finalists at once, and each strays from what is foretold as far as networks do: that gives each one's chance to be the
best, and those with next to none are dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from modelhound.analysis.foretelling import LAWS, Law, expected_left, log_fall
from modelhound.analysis.ranking import resample_means

__all__ = [
    "CYCLES",
    "FULL_EPOCHS",
    "HIGH_NOTCHES",
    "NUM_FOLDS",
    "RATE_FACTOR",
    "USUAL_NOTCHES",
    "FinalsRace",
    "Outcome",
    "Standing",
    "Trial",
    "beats_guessing",
    "draw_folds",
    "trial_epochs",
]

NUM_FOLDS = 3
"""A trial learns from two thirds of the items and is tested on the others."""

CYCLES = (2, 4, 8)
"""Epochs of each stage; a stage goes on from the one before."""

FULL_EPOCHS = 20
"""What is meant by full fine-tuning."""

RATE_FACTOR = 3.0
"""From one learning rate that is tried to the next."""

USUAL_NOTCHES, HIGH_NOTCHES = (0, 1), (1, 2)
"""The rates that a race begins with; the higher ones on few images, which small steps never get far with."""

_HIGHEST_NOTCH = 2
_FALSE_ALARM = 0.01  # chance to call noise something to learn from

Floats = NDArray[np.float64]
Ended = Literal["certain", "budget", "finished", "noise", "failed"]
State = Literal["in", "dropped", "left behind", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One short fine-tuning."""

    model: str
    notch: int
    """The learning rate is the usual one times RATE_FACTOR to this power."""
    fold: int
    """The items to test on; all others are learned from."""
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trial."""

    item_scores: Floats
    """One for each item of the fold, in the data set's order."""
    loss: float
    """Mean over the items of the fold."""
    seconds: float


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
    before: Floats | None
    """The same after the stage before, where there is one."""
    fall: float | None
    """How far what is left to learn fell since then, on average over all finalists that came so far."""
    expected: float
    """The score that is foretold of full fine-tuning."""
    chance: float
    """Of being the best of all finalists."""

    @property
    def score(self) -> float:
        return float(self.item_scores.mean()) if len(self.item_scores) else float("nan")


def draw_folds(groups: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """A fold for each item; the items of a group are spread evenly."""
    order = np.random.default_rng(seed).permutation(len(groups))
    by_group = order[np.argsort(groups[order], kind="stable")]
    folds = np.empty(len(groups), dtype=np.int64)
    folds[by_group] = np.arange(len(groups)) % NUM_FOLDS
    return folds


def trial_epochs(stage: int) -> float:
    """What a trial costs, in epochs over all items."""
    return CYCLES[stage] * (1 - 1 / NUM_FOLDS)


def beats_guessing(item_scores: Floats, guess: Floats, *, num_tries: int) -> bool:
    """Whether the best of `num_tries` attempts tells more of the items than one who knows the classes' frequencies alone."""
    gains = item_scores - guess
    error = float(gains.std()) / len(gains) ** 0.5
    if error == 0:
        return bool(gains.mean() > 0)
    return bool(gains.mean() / error > stats.norm.isf(_FALSE_ALARM / max(1, num_tries)))


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
        self._first_notches = first_notches
        self._risk, self._certainty, self._seed = risk, certainty, seed
        self._outcomes: dict[Trial, Outcome | None] = {}
        self._states: dict[str, State] = dict.fromkeys(models, "in")
        self._chances: dict[str, float] = dict.fromkeys(models, 1 / max(1, len(models)))
        self._rung = 0
        self._has_begun = False
        self.ended: Ended | None = None

    @property
    def spent_seconds(self) -> float:
        """By all trials so far."""
        return sum(each.seconds for each in self._outcomes.values() if each is not None)

    def rung_seconds(self, rung: int, models: Sequence[str] | None = None) -> float:
        """What a rung would cost."""
        chosen = self._alive() if models is None else models
        return sum(
            trial_epochs(trial.stage) * self._epoch_seconds[trial.model]
            for model in chosen
            for trial in self._trials_of(rung, model)
        )

    def tell(self, trial: Trial, outcome: Outcome | None) -> None:
        """What came of a trial; None where it diverged or did not fit into memory."""
        self._outcomes[trial] = outcome

    def lose(self, model: str) -> None:
        """A finalist that cannot go on, whatever the rate."""
        self._states[model] = "failed"

    def next_trials(self) -> tuple[Trial, ...]:
        """What to run now, in any order; nothing when the race is over."""
        while self.ended is None:
            if not self._has_begun:
                self._begin_rung()
                continue
            wanted = [trial for model in self._alive() for trial in self._trials_of(self._rung, model)]
            missing = tuple(trial for trial in wanted if trial not in self._outcomes)
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

    def _trials_of(self, rung: int, model: str) -> list[Trial]:
        if rung == 0:
            return [Trial(model=model, notch=notch, fold=0, stage=0) for notch in self._first_notches]
        if rung == 1:
            third = self._third_notch(model)
            return [] if third in self._first_notches else [Trial(model=model, notch=third, fold=0, stage=0)]
        stage = max(0, rung - 2)
        folds = range(1, NUM_FOLDS) if rung == 2 else range(NUM_FOLDS)
        return [Trial(model=model, notch=self.chosen_notch(model), fold=fold, stage=stage) for fold in folds]

    def _third_notch(self, model: str) -> int:
        low, high = self._first_notches
        best = self.chosen_notch(model, self._first_notches)
        known = self._outcomes.get(Trial(model=model, notch=best, fold=0, stage=0))
        return min(high + 1, _HIGHEST_NOTCH) if best == high and known is not None else low - 1

    def chosen_notch(self, model: str, notches: Sequence[int] | None = None) -> int:
        """By score, then by loss; the lowest where nothing is known."""
        tried = notches if notches is not None else (*self._first_notches, self._third_notch(model))
        known = {notch: self._outcomes.get(Trial(model=model, notch=notch, fold=0, stage=0)) for notch in sorted(tried)}
        good = {notch: each for notch, each in known.items() if each is not None}
        if not good:
            return min(known)
        return max(good, key=lambda notch: (float(good[notch].item_scores.mean()), -good[notch].loss))

    def _begin_rung(self) -> None:
        alive = self._alive()
        if not alive:
            self.ended = "failed"
        elif self._rung - 2 >= len(CYCLES):
            self.ended = "finished"
        else:
            self._leave_behind(alive)
        if self.ended is None:
            self._has_begun = True

    def _leave_behind(self, alive: list[str]) -> None:
        """Go on with as many as the budget lasts for, the likeliest first; with one alone there is no race.

        Up to the first rung in which all items are tested it is all or nothing: before, little is known of anybody.
        """
        left = self._budget_seconds - self._spent_before()
        likely = sorted(alive, key=lambda model: -self._chances[model])
        fitting = self._num_fitting(likely, left)
        if self._rung > 2 and self._rung - 1 < len(CYCLES):
            # what the two likeliest would need for one more rung is put by, where that leaves more than those two now
            with_reserve = self._num_fitting(likely, left - self.rung_seconds(self._rung + 1, likely[:2]))
            fitting = with_reserve if with_reserve > 2 else fitting
        if fitting == len(alive):
            return
        if fitting < 2 or self._rung < 2:
            self.ended = "budget"
            return
        for model in likely[fitting:]:
            self._states[model] = "left behind"

    def _num_fitting(self, likely: list[str], left_seconds: float) -> int:
        fitting = len(likely)
        while fitting > 0 and self.rung_seconds(self._rung, likely[:fitting]) > left_seconds:
            fitting -= 1
        return fitting

    def _spent_before(self) -> float:
        """By the rungs before this one: trials of this one may be known already, after a kill."""
        now = {trial for model in self._alive() for trial in self._trials_of(self._rung, model)}
        return sum(each.seconds for trial, each in self._outcomes.items() if each is not None and trial not in now)

    def _finish_rung(self) -> None:
        self._has_begun = False
        self._rung += 1
        if self._rung == 1:
            return  # rates are still being chosen
        stage, num_folds = max(0, self._rung - 3), self._num_folds_tested()
        for model in self._alive():
            standing = self._standing(model)
            if (standing.stage, standing.num_folds) != (stage, num_folds):
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
        for place, model in enumerate(alive):
            if chances[place] < self._risk and place != best:
                self._states[model] = "dropped"
        survivors = self._alive()
        if self._rung < 3:
            return  # one fold alone is too few items to end on
        if self.is_noise():
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
            beats_guessing(row.item_scores, self._tested(self._guess, row.num_folds), num_tries=3 * len(self._states))
            for row in rows
        )

    def _winning_chances(self, scores: Floats, rows: Sequence[Standing]) -> Floats:
        """In how many of many resamples each of them would have the least left to learn."""
        stage = rows[0].stage
        features = np.array([[self._feature_scores[row.model]] for row in rows])
        resampled = resample_means(scores, seed=self._seed)
        earlier = [row.before for row in rows if row.before is not None]
        before = resample_means(np.stack(earlier), seed=self._seed) if len(earlier) == len(rows) else None
        left = expected_left(
            resampled,
            features,
            before=before,
            fall=rows[0].fall,
            stage=stage,
            num_items=scores.shape[1],
            laws=self._laws,
        )
        left += self._laws[stage].within * np.random.default_rng([self._seed, stage]).standard_normal(left.shape)
        is_best = left <= left.min(axis=0)
        return np.asarray((is_best / is_best.sum(axis=0)).mean(axis=1))

    def _tested(self, values: Floats, num_folds: int | None = None) -> Floats:
        """The values of the items tested by now, fold after fold."""
        count = num_folds if num_folds is not None else self._num_folds_tested()
        return np.concatenate([values[positions] for positions in self._positions[:count]])

    def _num_folds_tested(self) -> int:
        return 1 if self._rung <= 2 else NUM_FOLDS

    def _standing(self, model: str) -> Standing:
        """The furthest stage that all folds have reached by this rung, or the first fold's; after a kill more may be known."""
        notch = self.chosen_notch(model)
        stage, found = 0, self._outcomes_at(model, notch, 0)[:1]
        for reached in range(self._rung - 2):
            outcomes = self._outcomes_at(model, notch, reached)
            if len(outcomes) == NUM_FOLDS:
                stage, found = reached, outcomes
        scores = np.concatenate([each.item_scores for each in found]) if found else np.empty(0)
        before = None
        if stage > 0:
            before = np.concatenate([each.item_scores for each in self._outcomes_at(model, notch, stage - 1)])
        fall = self._common_fall(stage) if stage > 0 else None
        return Standing(
            model=model,
            state=self._states[model],
            notch=notch,
            stage=stage,
            num_folds=len(found),
            item_scores=scores,
            before=before,
            fall=fall,
            expected=self._expected(model, scores, before, fall, stage) if found else float("-inf"),
            chance=self._chances[model] if self._states[model] != "failed" else 0.0,
        )

    def _common_fall(self, stage: int) -> float:
        """Of all that came to this stage."""
        falls = []
        for model in self._states:
            notch = self.chosen_notch(model)
            now, earlier = self._outcomes_at(model, notch, stage), self._outcomes_at(model, notch, stage - 1)
            if len(now) == len(earlier) == NUM_FOLDS:
                scores, before = (np.concatenate([each.item_scores for each in found]) for found in (now, earlier))
                falls.append(log_fall(float(scores.mean()), float(before.mean()), len(scores)))
        return float(np.mean(falls))

    def _expected(self, model: str, scores: Floats, before: Floats | None, fall: float | None, stage: int) -> float:
        left = expected_left(
            np.array(scores.mean()),
            np.array(self._feature_scores[model]),
            before=None if before is None else np.array(before.mean()),
            fall=fall,
            stage=stage,
            num_items=len(scores),
            laws=self._laws,
        )
        return float(1 - np.exp(left))

    def _outcomes_at(self, model: str, notch: int, stage: int) -> list[Outcome]:
        """Of the folds from the first on, as far as they are known and did not fail."""
        found = []
        for fold in range(NUM_FOLDS):
            outcome = self._outcomes.get(Trial(model=model, notch=notch, fold=fold, stage=stage))
            if outcome is None:
                break
            found.append(outcome)
        return found
