"""The race by short fine-tuning, on learning curves that are made up: what it asks for, whom it drops, when it ends."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from modelhound.analysis.finals import FinalsRace, num_starting
from modelhound.analysis.trials import (
    CYCLES,
    FULL_EPOCHS,
    HIGH_NOTCHES,
    NUM_FOLDS,
    USUAL_NOTCHES,
    Outcome,
    Trial,
    beats_guessing,
    draw_folds,
    trial_epochs,
)

Floats = NDArray[np.float64]
NUM_ITEMS = 180
STRAYED = (0.45, 0.3, 0.2)  # how far curves stray from what comes of them, in logarithms of what is left
BEHIND = (0.9, 0.45, 0.2)  # how much more is left after each stage than in the end


@dataclass(frozen=True)
class World:
    """Networks whose learning curves are drawn, and a data set of made-up items."""

    names: list[str]
    left: Floats
    features: dict[str, float]
    folds: NDArray[np.int64]
    labels: NDArray[np.int64]
    seed: int

    def outcome(self, trial: Trial) -> Outcome:
        """Items differ in how hard they are, for all networks alike."""
        place = self.names.index(trial.model)
        curve = np.random.default_rng([self.seed, place, trial.stage])
        left = self.left[place] * np.exp(BEHIND[trial.stage] + STRAYED[trial.stage] * curve.standard_normal())
        left *= 1 + 0.2 * abs(trial.notch - place % 2)  # each has a rate that suits it
        tested = np.flatnonzero(self.folds == trial.fold)
        hardness = np.random.default_rng(self.seed).random(NUM_ITEMS)[tested]
        luck = np.random.default_rng([self.seed, place, trial.stage, trial.fold]).random(len(tested))
        right = (0.7 * hardness + 0.3 * luck) > min(left, 0.95)
        return Outcome(item_scores=right.astype(np.float64), loss=float(left), seconds=trial_epochs(trial))

    def race(self, models: list[str], *, budget: float = 1e9, **options: object) -> FinalsRace:
        return FinalsRace(
            models,
            feature_scores=self.features,
            epoch_seconds=dict.fromkeys(self.names, 1.0),
            budget_seconds=budget,
            folds=self.folds,
            guess=(self.labels == 0).astype(np.float64),
            seed=self.seed,
            **options,  # type: ignore[arg-type]
        )


def make_world(seed: int, num_models: int = 30) -> World:
    """All but one leave an eighth to a third of the items untold; the planted winner half as much as the best of them."""
    generator = np.random.default_rng([seed, 99])
    left = np.exp(generator.uniform(np.log(0.12), np.log(0.35), num_models))
    left[generator.integers(num_models)] = 0.06
    names = [f"net-{place:02}" for place in range(num_models)]
    features = 1 - np.minimum(0.95, left * np.exp(0.4 + 0.3 * generator.standard_normal(num_models)))
    labels = np.arange(NUM_ITEMS) % 6
    return World(
        names=names,
        left=left,
        features=dict(zip(names, features.tolist(), strict=True)),
        folds=draw_folds(labels, seed=seed),
        labels=labels,
        seed=seed,
    )


def finish(race: FinalsRace, outcome: Callable[[Trial], Outcome | None]) -> list[Trial]:
    """Run the race to its end; the trials that it took."""
    ran: list[Trial] = []
    while trials := race.next_trials():
        for trial in trials:
            race.tell(trial, outcome(trial))
            ran.append(trial)
    return ran


def test_a_planted_winner_among_30_is_found_in_95_of_100_seeds_at_a_fifth_of_the_full_cost() -> None:
    found, costs = 0, []
    for seed in range(100):
        world = make_world(seed)
        by_features = sorted(world.names, key=lambda name: -world.features[name])
        full_seconds = float(len(world.names) * FULL_EPOCHS)
        num_finalists = num_starting([1.0] * len(world.names), 0.2 * full_seconds)
        race = world.race(by_features[:num_finalists], budget=0.2 * full_seconds)
        finish(race, world.outcome)
        found += race.standings()[0].model == world.names[int(world.left.argmin())]
        costs.append(race.spent_seconds / full_seconds)
    assert found >= 95
    assert max(costs) <= 0.2 * (1 + 1e-9)


def test_noise_ends_without_a_winner_whatever_the_seed() -> None:
    """Scores as of networks that learned nothing: about one item in six is right by luck."""
    for seed in range(40):
        world = make_world(seed)

        def by_luck(trial: Trial, world: World = world) -> Outcome:
            tested = np.flatnonzero(world.folds == trial.fold)
            luck = np.random.default_rng(
                [world.seed, world.names.index(trial.model), trial.stage, trial.fold, trial.notch + 9]
            )
            right = (luck.random(len(tested)) < 1 / 6).astype(np.float64)
            return Outcome(item_scores=right, loss=1.8, seconds=trial_epochs(trial))

        race = world.race(world.names[:8], features_tell=False)
        finish(race, by_luck)
        assert race.ended == "noise"
        assert race.is_noise()


def test_networks_that_are_equally_good_are_not_told_apart() -> None:
    world = make_world(3)
    race = world.race(world.names[:4])
    finish(race, lambda trial: world.outcome(Trial(model="net-00", notch=0, fold=trial.fold, stage=trial.stage)))
    assert race.ended == "finished"
    assert max(row.chance for row in race.standings()) < 0.95
    assert not race.is_noise()


def test_the_rungs_go_from_one_fold_and_two_rates_to_longer_training_and_then_to_all_folds() -> None:
    world = make_world(0)
    race = world.race(world.names[:3], risk=-1.0, certainty=2.0)
    ran = [trial for trial in finish(race, world.outcome) if trial.model == "net-00"]
    assert [(trial.fold, trial.stage) for trial in ran] == [(0, 0), (0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]
    assert [trial.notch for trial in ran[:2]] == list(USUAL_NOTCHES)
    assert len({trial.notch for trial in ran[2:]}) == 1
    assert race.standings()[0].num_folds == NUM_FOLDS


@pytest.mark.parametrize("suits", [2, 1])
def test_each_network_goes_on_at_the_rate_that_suits_it(suits: int) -> None:
    world = make_world(0)
    race = world.race(world.names[:2], risk=-1.0, certainty=2.0, first_notches=HIGH_NOTCHES)

    def outcome(trial: Trial) -> Outcome:
        right = np.zeros(int((world.folds == trial.fold).sum()))
        right[: len(right) // (1 + abs(trial.notch - suits))] = 1
        return Outcome(item_scores=right, loss=0.0, seconds=1.0)

    ran = [trial for trial in finish(race, outcome) if trial.model == "net-00"]
    assert [trial.notch for trial in ran if (trial.fold, trial.stage) == (0, 0)] == [2, 1]
    assert {trial.notch for trial in ran if trial.stage} == {suits}


def test_a_race_asks_for_the_same_after_a_kill() -> None:
    world = make_world(1)
    whole = world.race(world.names[:6], budget=90.0)
    ran = finish(whole, world.outcome)
    for killed_after in (3, 7, 14, len(ran) - 1, len(ran)):
        again = world.race(world.names[:6], budget=90.0)
        for trial in ran[:killed_after]:
            again.tell(trial, world.outcome(trial))
        assert finish(again, world.outcome) == ran[killed_after:]
        assert summary(again) == summary(whole)


def summary(race: FinalsRace) -> list[tuple[object, ...]]:
    return [(row.model, row.state, row.stage, row.notch, row.chance) for row in race.standings()]


def test_a_rate_that_diverges_leaves_the_others_to_choose_from() -> None:
    world = make_world(2)
    race = world.race(world.names[:2], risk=-1.0, certainty=2.0)
    ran = finish(race, lambda trial: None if (trial.model, trial.notch) == ("net-00", 1) else world.outcome(trial))
    row = next(row for row in race.standings() if row.model == "net-00")
    assert row.state == "in"
    assert row.notch == 0
    assert [trial.notch for trial in ran if trial.model == "net-00" and trial.stage == 0] == [1, 0]


def test_a_rate_below_both_is_tried_where_both_diverge() -> None:
    world = make_world(2)
    race = world.race(world.names[:2], risk=-1.0, certainty=2.0)
    finish(race, lambda trial: None if trial.model == "net-00" and trial.notch >= 0 else world.outcome(trial))
    assert {row.model: row.notch for row in race.standings()}["net-00"] == -1


def test_a_finalist_that_diverges_at_every_rate_is_lost_and_the_others_go_on() -> None:
    world = make_world(2)
    race = world.race(world.names[:3])
    finish(race, lambda trial: None if trial.model == "net-01" else world.outcome(trial))
    states = {row.model: row.state for row in race.standings()}
    assert states["net-01"] == "failed"
    assert states["net-00"] != "failed"
    assert race.standings()[-1].model == "net-01"


def test_a_finalist_that_diverges_late_is_lost_too() -> None:
    world = make_world(2)
    race = world.race(world.names[:3], risk=-1.0, certainty=2.0)
    finish(race, lambda trial: None if (trial.model, trial.stage) == ("net-01", 2) else world.outcome(trial))
    assert {row.model: row.state for row in race.standings()}["net-01"] == "failed"


def test_nobody_left_ends_the_race() -> None:
    world = make_world(2)
    race = world.race(world.names[:3])
    finish(race, lambda trial: None)
    assert race.ended == "failed"


def test_a_budget_is_not_overdrawn_and_keeps_the_likeliest_going() -> None:
    world = make_world(5)
    race = world.race(world.names, budget=0.13 * FULL_EPOCHS * len(world.names), certainty=2.0)
    ran = finish(race, world.outcome)
    assert race.spent_seconds <= 0.13 * FULL_EPOCHS * len(world.names)
    assert race.ended == "budget"
    rows = race.standings()
    assert [row.state for row in rows].count("left behind") > 20
    by_stage = [sum((trial.fold, trial.stage) == (0, stage) for trial in ran) for stage in range(3)]
    assert by_stage[0] > 30
    assert by_stage[0] > 4 * by_stage[1] > 4 * by_stage[2] > 4
    assert [row.stage for row in rows] == sorted((row.stage for row in rows), reverse=True)


def test_trials_that_take_longer_than_foretold_leave_more_behind_and_the_budget_holds() -> None:
    world = make_world(5)
    budget = 0.13 * FULL_EPOCHS * len(world.names)
    ran = []
    for times in (1.0, 1.5):

        def outcome(trial: Trial, times: float = times) -> Outcome:
            return replace(world.outcome(trial), seconds=times * trial_epochs(trial))

        race = world.race(world.names, budget=budget, certainty=2.0)
        ran.append(len(finish(race, outcome)))
        assert race.spent_seconds <= budget
    assert ran[0] > ran[1] >= len(world.names)


def test_how_those_fared_that_went_on_moves_what_is_foretold_of_those_left_behind() -> None:
    """By the same way for all of them, so that their order stays."""
    world, left_behind = make_world(5), []
    for share_right in (0.2, 0.9):

        def outcome(trial: Trial, share: float = share_right) -> Outcome:
            found = world.outcome(trial)
            right = np.arange(len(found.item_scores)) < share * len(found.item_scores)
            return found if trial.stage == 0 else replace(found, item_scores=right.astype(np.float64))

        race = world.race(world.names, budget=0.13 * FULL_EPOCHS * len(world.names), certainty=2.0, risk=-1.0)
        finish(race, outcome)
        rows = race.standings()
        assert {row.level.shift for row in rows if row.state == "in" and row.level} == {0.0}
        left_behind.append({row.model: row.expected for row in rows if row.stage == 0})
    low, high = left_behind
    assert low.keys() == high.keys()
    assert len(low) > 20
    assert all(low[model] < high[model] for model in low)
    assert sorted(low, key=lambda model: low[model]) == sorted(high, key=lambda model: high[model])


@pytest.mark.parametrize("num_in_time", [0, 1, 4])
def test_a_race_that_is_stopped_in_a_rung_goes_by_those_that_were_in_time(num_in_time: int) -> None:
    world = make_world(5)
    race = world.race(world.names[:6], certainty=2.0, risk=-1.0)
    for _ in range(2):
        for trial in race.next_trials():
            race.tell(trial, world.outcome(trial))
    asked = race.next_trials()
    chances = {row.model: row.chance for row in race.standings()}
    assert [chances[trial.model] for trial in asked] == sorted(chances.values(), reverse=True)
    for trial in asked[:num_in_time]:
        race.tell(trial, world.outcome(trial))
    race.stop()
    rows = race.standings()
    assert (race.ended, race.next_trials()) == ("budget", ())
    assert {row.model for row in rows if row.stage == 1} == {trial.model for trial in asked[:num_in_time]}
    assert [row.state for row in rows] == ["in"] * (num_in_time or 6) + ["left behind"] * (6 - (num_in_time or 6))
    assert sum(row.chance for row in rows) == pytest.approx(1.0)


@pytest.mark.parametrize(("budget", "num"), [(1.0, 2), (20.0, 7), (100.0, 9)])
def test_half_of_the_budget_is_for_trying_everybody_once(budget: float, num: int) -> None:
    assert num_starting([1.0] * 9, budget) == num


def test_chances_add_up_to_one_and_only_a_winner_that_is_certain_is_called_so() -> None:
    """Whoever was dropped or left behind keeps the chance that it had."""
    seen = set()
    for seed in range(30):
        world = make_world(seed)
        race = world.race(world.names[:12], budget=80.0)
        finish(race, world.outcome)
        rows = race.standings()
        assert sum(row.chance for row in rows) == pytest.approx(1.0)
        assert race.ended != "certain" or max(row.chance for row in rows) >= 0.95
        seen |= {row.state for row in rows if row.chance} | {race.ended}
    assert seen >= {"in", "dropped", "left behind", "certain", "budget"}


def test_a_budget_for_no_rung_ends_it_before_anything_is_run() -> None:
    world = make_world(5)
    race = world.race(world.names[:6], budget=1.0)
    assert race.next_trials() == ()
    assert race.ended == "budget"


def test_folds_hold_every_class_evenly() -> None:
    labels = np.repeat(np.arange(4), (10, 11, 12, 40))
    folds = draw_folds(labels, seed=0)
    counts = np.array([np.bincount(labels[folds == fold], minlength=4) for fold in range(NUM_FOLDS)])
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert (draw_folds(labels, seed=1) != folds).any()


@pytest.mark.parametrize(("num_right", "tells"), [(50, True), (22, False), (0, False)])
def test_guessing_is_beaten_by_more_than_luck(num_right: int, tells: bool) -> None:
    scores = np.zeros(100)
    scores[:num_right] = 1
    guess = np.zeros(100)
    guess[80:96] = 1
    assert beats_guessing(scores, guess, num_tries=24) is tells


def test_a_full_training_is_longer_than_all_stages_together() -> None:
    assert sum(CYCLES) < FULL_EPOCHS
