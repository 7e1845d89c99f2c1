"""Races: who may be dropped, and how often that is a mistake."""

import numpy as np
import pytest

from modelhound.analysis.racing import judge_rung, rung_sizes, worthwhile_rungs


def draw(accuracies: list[float], num_items: int, seed: int) -> np.ndarray:
    """Right-or-wrong scores of models that find the same items hard."""
    generator = np.random.default_rng(seed)
    hardness = generator.normal(size=num_items)
    own = generator.normal(size=(len(accuracies), num_items))
    mixed = 0.7 * hardness + 0.7 * own
    return np.stack([row < np.quantile(row, level) for row, level in zip(mixed, accuracies, strict=True)]).astype(float)


def test_rungs_grow_fourfold_up_to_all_items() -> None:
    assert rung_sizes(1000, 10) == (100, 1000)
    assert rung_sizes(2000, 10) == (100, 400, 2000)
    assert rung_sizes(1000, 100) == (1000,)
    assert rung_sizes(350, 2) == (350,)
    assert rung_sizes(8000, 10) == (100, 400, 1600, 8000)


def test_a_hopeless_model_goes_and_close_ones_stay() -> None:
    verdicts = judge_rung(["a", "b", "c"], draw([0.8, 0.79, 0.3], 200, 0), top=1, risk=0.01, seed=0)
    assert [verdict.stays for verdict in verdicts] == [True, True, False]
    assert verdicts[2].chance == 0
    assert sum(verdict.chance for verdict in verdicts) >= 1


def test_equal_models_all_stay() -> None:
    same = np.tile(draw([0.7], 100, 1), (5, 1))
    assert all(verdict.stays and verdict.chance == 1 for verdict in judge_rung("abcde", same, top=1, risk=0.05, seed=0))


def test_as_many_stay_as_are_asked_for() -> None:
    scores = draw([0.9, 0.5, 0.3, 0.1], 400, 2)
    for top in (1, 2, 3, 4, 9):
        assert sum(verdict.stays for verdict in judge_rung("abcd", scores, top=top, risk=0.01, seed=0)) >= min(top, 4)
    assert sum(verdict.stays for verdict in judge_rung("abcd", scores, top=3, risk=0.01, seed=0)) == 3


@pytest.mark.parametrize("gap", [0.02, 0.05])
def test_the_best_model_is_dropped_no_more_often_than_the_risk_says(gap: float) -> None:
    lost = 0
    for seed in range(200):
        scores = draw([0.7] + [0.7 - gap] * 9, 100, seed)
        lost += not judge_rung("abcdefghij", scores, top=1, risk=0.02, seed=seed)[0].stays
    assert lost <= 8  # 2 % of 200 is 4


def test_clearly_worse_models_are_mostly_dropped() -> None:
    stayed = 0
    for seed in range(50):
        verdicts = judge_rung("abcdefghij", draw([0.85] + [0.55] * 9, 200, seed), top=1, risk=0.02, seed=seed)
        stayed += sum(verdict.stays for verdict in verdicts[1:])
    assert stayed < 0.1 * 50 * 9


def test_rungs_stay_where_running_is_dear() -> None:
    sizes = (100, 400, 1600, 8000)
    assert worthwhile_rungs(sizes, forward_seconds_per_item=1.0, judge_seconds=1.0) == sizes


def test_rungs_go_where_judging_is_dearer_than_what_they_save() -> None:
    assert worthwhile_rungs((100, 400, 2000), forward_seconds_per_item=1e-6, judge_seconds=1.0) == (2000,)


def test_a_rung_may_go_while_the_next_one_stays() -> None:
    """From 400 on 800 item-seconds can be hoped for, from 100 on only 150."""
    assert worthwhile_rungs((100, 400, 2000), forward_seconds_per_item=1.0, judge_seconds=200.0) == (400, 2000)


def test_a_rung_that_would_pay_only_without_the_next_is_judged_against_the_next_that_stays() -> None:
    """900 to 1000 saves 50, too little, so 500 is judged against 1000 and saves 250."""
    assert worthwhile_rungs((500, 900, 1000), forward_seconds_per_item=1.0, judge_seconds=60.0) == (500, 1000)


@pytest.mark.parametrize("judge_seconds", [0.0, 1e9])
def test_the_last_rung_is_always_all_items(judge_seconds: float) -> None:
    assert worthwhile_rungs((300,), forward_seconds_per_item=0.0, judge_seconds=judge_seconds) == (300,)
    assert worthwhile_rungs((100, 800), forward_seconds_per_item=1e-3, judge_seconds=judge_seconds)[-1] == 800
