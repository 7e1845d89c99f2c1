"""Races: who may be dropped, and how often that is a mistake."""

from collections.abc import Sequence

import numpy as np
import pytest

from modelhound.analysis.racing import (
    Evidence,
    close_race,
    judge_rung,
    rung_sizes,
    spread_of_gains,
    worthwhile_rungs,
)


def draw(accuracies: list[float], num_items: int, seed: int) -> np.ndarray:
    """Right-or-wrong scores of models that find the same items hard."""
    generator = np.random.default_rng(seed)
    hardness = generator.normal(size=num_items)
    own = generator.normal(size=(len(accuracies), num_items))
    mixed = 0.7 * hardness + 0.7 * own
    return np.stack([row < np.quantile(row, level) for row, level in zip(mixed, accuracies, strict=True)]).astype(float)


def stand(names: Sequence[str], scores: np.ndarray, gains: np.ndarray | None = None) -> dict[str, Evidence]:
    """Models that all gained the same unless said; the other half of the items says of them what all items say."""
    if gains is None:
        gains = np.zeros((len(scores), 50))
    return {
        name: Evidence(item_scores=one, item_gains=gain, other_score=float(one.mean()))
        for name, one, gain in zip(names, scores, gains, strict=True)
    }


def test_rungs_double_up_to_all_items() -> None:
    assert rung_sizes(1000, 10) == (100, 200, 400, 1000)
    assert rung_sizes(2000, 10) == (100, 200, 400, 800, 2000)
    assert rung_sizes(1000, 100) == (500, 1000)
    assert rung_sizes(900, 100) == (900,)
    assert rung_sizes(199, 2) == (199,)
    assert rung_sizes(200, 2) == (100, 200)


def test_a_hopeless_model_goes_and_close_ones_stay() -> None:
    verdicts = judge_rung(stand(["a", "b", "c"], draw([0.8, 0.79, 0.3], 200, 0)), top=1, risk=0.01, seed=0)
    assert [verdict.stays for verdict in verdicts] == [True, True, False]
    assert verdicts[2].chance == 0
    assert sum(verdict.chance for verdict in verdicts) >= 1


def test_equal_models_all_stay() -> None:
    same = np.tile(draw([0.7], 100, 1), (5, 1))
    assert all(
        verdict.stays and verdict.chance == 1 for verdict in judge_rung(stand("abcde", same), top=1, risk=0.05, seed=0)
    )


def test_as_many_stay_as_are_asked_for() -> None:
    scores = draw([0.9, 0.5, 0.3, 0.1], 400, 2)
    for top in (1, 2, 3, 4, 9):
        assert sum(verdict.stays for verdict in judge_rung(stand("abcd", scores), top=top, risk=0.01, seed=0)) >= min(
            top, 4
        )
    assert sum(verdict.stays for verdict in judge_rung(stand("abcd", scores), top=3, risk=0.01, seed=0)) == 3
    assert {verdict.chance for verdict in judge_rung(stand("abcd", scores), top=9, risk=0.01, seed=0)} == {1.0}


@pytest.mark.parametrize(
    ("num_gains", "chance"),
    [(50, 0.176), (0, 0.228)],  # deviations are widened by 1.2 where it is known that all gained the same, else by 1.5
)
def test_a_chance_is_that_of_a_normal_deviation_that_is_widened(num_gains: int, chance: float) -> None:
    """A mean of 400 items with a spread of 0.4 deviates by 0.02, and the second is 0.03 behind, which is a variance of 0.00045.

    Chance makes 0.0002 of it, so that 0.556 is left: of 0.03 that much, of 0.02 its root. So 0.0167 against 0.0149, widened.
    """
    steady, spread = np.full(400, 0.5), np.tile([0.07, 0.87], 200)
    given = stand("ab", np.stack([steady, spread]), np.zeros((2, num_gains)))
    first, second = judge_rung(given, top=1, risk=0.05, seed=0)
    assert (first.chance, second.chance) == pytest.approx((1 - chance, chance), abs=0.02)
    assert (first.score, second.score) == pytest.approx((0.5, 0.47))


def test_models_that_differ_by_no_more_than_chance_all_have_one() -> None:
    dropped = 0
    for seed in range(20):
        right = np.random.default_rng(seed).random((24, 100)) < 0.5
        verdicts = judge_rung(stand("abcdefghijklmnopqrstuvwx", right.astype(float)), top=5, risk=0.01, seed=seed)
        dropped += sum(not verdict.stays for verdict in verdicts)
    assert dropped <= 4  # of 480; by resampling alone, widened by half, it is 9


def test_models_that_gain_differently_are_dropped_with_more_care() -> None:
    """Every item tells them apart by 0.1, a variance of 0.005. Gains of 0.1 and 0.13 have one of 0.00045, of which two models
    tell so little that 2.41 times as much may explain why they differ: 0.783 of the distance is left.

    That is 0.0783, and the two may still move from each other by 0.03: they are 2.61 deviations apart.
    """
    scores, gains = np.stack([np.full(400, 0.5), np.full(400, 0.4)]), np.repeat([[0.1], [0.13]], 50, axis=1)
    assert judge_rung(stand("ab", scores), top=1, risk=0.05, seed=0)[1].chance == 0
    chance = judge_rung(stand("ab", scores, gains), top=1, risk=0.05, seed=0)[1].chance
    assert chance == pytest.approx(0.0045, abs=0.003)


def test_models_that_gains_put_in_any_order_all_have_a_chance() -> None:
    """Scores 0.04 apart with no chance in them, and gains that spread by as much: near-copies on few items."""
    scores = np.repeat(np.linspace(0.3, 0.7, 11)[:, None], 400, axis=1)
    gains = np.repeat(np.array([[0.0, 0.3, 0.1, 0.4, 0.2, 0.2, 0.2, 0.0, 0.3, 0.1, 0.4]]).T, 50, axis=1)
    verdicts = judge_rung(stand("abcdefghijk", scores, gains), top=2, risk=0.01, seed=0)
    assert all(verdict.stays for verdict in verdicts)
    assert verdicts[0].chance > 0.05  # of 2 in 11, were they the same; 0.004 where scores are taken as they are


def test_that_better_models_gain_more_is_no_reason_to_keep_worse_ones() -> None:
    scores, gains = np.stack([np.full(400, 0.5), np.full(400, 0.4)]), np.repeat([[0.3], [0.1]], 50, axis=1)
    assert judge_rung(stand("ab", scores, gains), top=1, risk=0.05, seed=0)[1].chance == 0


def test_gains_spread_by_what_neither_scores_nor_the_choice_of_items_explain() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(0.5, 0.1, size=(100, 40))
    by_chance = [random.normal(0.2, 0.3, size=(40, 100)) + random.normal(size=100) for _ in range(100)]
    explained = [each + 0.5 * score[:, None] for each, score in zip(by_chance, scores, strict=True)]
    assert np.mean([spread_of_gains(*each) ** 2 for each in zip(explained, scores, strict=True)]) < 0.02**2
    own = [each + random.normal(0, 0.08, size=(40, 1)) for each in explained]
    found = [spread_of_gains(*each) ** 2 for each in zip(own, scores, strict=True)]
    assert np.mean(found) ** 0.5 == pytest.approx(0.08, rel=0.05)


def test_a_chance_as_small_as_the_risk_is_still_taken() -> None:
    scores = np.stack([np.full(400, 0.5), np.tile([0.07, 0.87], 200)])
    chance = judge_rung(stand("ab", scores), top=1, risk=0.05, seed=0)[1].chance
    for risk, stays in ((chance, True), (np.nextafter(chance, 1), False)):
        assert judge_rung(stand("ab", scores), top=1, risk=risk, seed=0)[1].stays is stays


@pytest.mark.parametrize("gap", [0.02, 0.05])
def test_the_best_model_is_dropped_no_more_often_than_the_risk_says(gap: float) -> None:
    lost = 0
    for seed in range(200):
        scores = draw([0.7] + [0.7 - gap] * 9, 100, seed)
        lost += not judge_rung(stand("abcdefghij", scores), top=1, risk=0.02, seed=seed)[0].stays
    assert lost <= 8  # 2 % of 200 is 4


def test_clearly_worse_models_are_mostly_dropped() -> None:
    stayed = 0
    for seed in range(50):
        verdicts = judge_rung(stand("abcdefghij", draw([0.85] + [0.55] * 9, 200, seed)), top=1, risk=0.02, seed=seed)
        stayed += sum(verdict.stays for verdict in verdicts[1:])
    assert stayed < 0.1 * 50 * 9


def test_rungs_stay_where_running_is_dear() -> None:
    sizes = (100, 400, 1600, 8000)
    assert worthwhile_rungs(sizes, spared_seconds_per_item=0.5, judge_seconds=1.0) == sizes


def test_rungs_go_where_judging_is_dearer_than_what_they_save() -> None:
    assert worthwhile_rungs((100, 400, 2000), spared_seconds_per_item=5e-7, judge_seconds=1.0) == (2000,)


@pytest.mark.parametrize("judge_seconds", [151.0, 799.0])
def test_a_rung_may_go_while_the_next_one_stays(judge_seconds: float) -> None:
    """From 400 on 800 item-seconds can be hoped for, from 100 on only 150."""
    assert worthwhile_rungs((100, 400, 2000), spared_seconds_per_item=0.5, judge_seconds=judge_seconds) == (400, 2000)


def test_a_rung_that_would_pay_only_without_the_next_is_judged_against_the_next_that_stays() -> None:
    """900 to 1000 saves 50, too little, so 500 is judged against 1000 and saves 250."""
    assert worthwhile_rungs((500, 900, 1000), spared_seconds_per_item=0.5, judge_seconds=60.0) == (500, 1000)


@pytest.mark.parametrize("judge_seconds", [0.0, 1e9])
def test_the_last_rung_is_always_all_items(judge_seconds: float) -> None:
    assert worthwhile_rungs((300,), spared_seconds_per_item=0.0, judge_seconds=judge_seconds) == (300,)
    assert worthwhile_rungs((100, 800), spared_seconds_per_item=5e-4, judge_seconds=judge_seconds)[-1] == 800


def behind(*num_missed: int, num_items: int = 2000) -> dict[str, np.ndarray]:
    """Models that miss so many of the items that the first gets, and are called by that number."""
    return {str(each): (np.arange(num_items) >= each).astype(float) for each in num_missed}


def test_a_race_is_close_where_few_items_decide_it_beyond_doubt() -> None:
    """Of n items that all speak for one model, n deviate by sqrt(n): 4 are more than 1.96 deviations, and 3 are not."""
    assert close_race(behind(0, 4)) == ("0", "4")
    assert close_race(behind(0, 3)) == ()
    assert close_race(behind(0, 5)) == ("0", "5")
    assert close_race(behind(0, 7)) == ()  # 0.0035 behind is more than rounding does
    assert close_race(behind(0)) == ()


def test_a_close_race_is_between_the_first_and_two_more_in_any_order() -> None:
    assert close_race(behind(5, 4, 0)) == ("0", "4", "5")
    assert close_race(behind(3, 900, 5, 0)) == ("0", "5")  # 3 cannot be told from 0, and shares its rank
    assert close_race(behind(5, 3, 2, 0)) == ()  # the third was the last to be looked at
