"""What is believed of runs that were not made."""

import importlib
import json
import statistics
from pathlib import Path

import numpy as np
import pytest

from modelhound.analysis.pairs import rate_pairs
from modelhound.analysis.surface import believe, choose_next

PAIRS = tuple((batch, workers) for batch in (16, 32, 64) for workers in (0, 1, 2, 4))
MODELS = ("fast", "slow")
EXPECTED = np.outer([1.0, 3.0], np.linspace(1, 2, len(PAIRS)))
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESEARCH = json.loads((BENCHMARKS / "batch_workers.json").read_text())


def test_before_any_run_the_expectation_is_what_is_believed() -> None:
    belief = believe(MODELS, PAIRS, EXPECTED, {})
    assert np.exp(belief.mean) == pytest.approx(EXPECTED)
    assert not belief.is_measured.any()


def test_a_run_moves_its_neighbours_more_than_those_far_away() -> None:
    runs = {(0, 0): [EXPECTED[0, 0]], (0, 5): [EXPECTED[0, 5] * 1.3]}
    moved = np.exp(believe(MODELS, PAIRS, EXPECTED, runs).mean) / EXPECTED
    assert moved[0, 5] == pytest.approx(1.3, rel=0.05)
    near, far = PAIRS.index((32, 2)), PAIRS.index((16, 0))
    assert moved[0, near] > 1.1 * moved[0, far]
    assert moved[1, 5] > moved[1, far]  # what one model shows of a pair is likely of the others too


def test_runs_that_are_all_slower_alike_change_no_choice() -> None:
    runs = {(0, column): [EXPECTED[0, column] * 2] for column in range(len(PAIRS))}
    rated = rate_pairs(believe(MODELS, PAIRS, EXPECTED, runs).times(seed=0))
    assert (rated[0].batch, rated[0].workers) == PAIRS[0]


def test_what_fails_is_never_believed_in() -> None:
    expected = EXPECTED.copy()
    expected[1, 0] = np.nan
    belief = believe(MODELS, PAIRS, expected, {(0, 1): [1.0]})
    times = belief.times(seed=0)
    assert np.isnan(times.seconds[1, 0])
    assert np.isnan(times.versions[:, 1, 0]).all()
    assert PAIRS[choose_next(belief)[1]] != PAIRS[0]
    assert rate_pairs(times)[-1].mean is None


def test_the_next_run_is_of_a_pair_that_may_win() -> None:
    expected = np.full((1, len(PAIRS)), 9.0)
    expected[0, [2, 3]] = 1.0, 1.02
    runs: dict[tuple[int, int], list[float]] = {}
    for _ in range(4):
        cell = choose_next(believe(("m",), PAIRS, expected, runs))
        runs.setdefault(cell, []).append(float(expected[cell]))
    assert {column for _, column in runs} <= {2, 3}


def test_certainty_grows_with_runs() -> None:
    expected = np.ones((1, len(PAIRS)))
    truth = np.linspace(1, 1.8, len(PAIRS))
    some, all_of_them = (
        rate_pairs(believe(("m",), PAIRS, expected, {(0, each): [truth[each]] for each in seen}).times(seed=0))
        for seen in ((0, 11), range(len(PAIRS)))
    )
    assert some[0].chance_within is not None
    assert all_of_them[0].chance_within is not None
    assert some[0].chance_within < all_of_them[0].chance_within
    assert all_of_them[0].chance_within > 0.9


def test_pairs_that_meet_in_the_same_slow_moment_are_told_apart_by_it() -> None:
    """Two pairs 5 % apart, one after the other every minute, on a machine whose pace changes by 15 % from minute to minute."""
    expected, doubts = np.ones((1, len(PAIRS))), {}
    pace = np.exp(0.15 * np.random.default_rng(3).standard_normal(8))
    runs = {(0, 2): list(pace), (0, 3): list(pace * 0.95)}
    for name, gap in (("together", 1.0), ("apart", 900.0)):
        when = {(0, 2): [60.0 * minute for minute in range(8)], (0, 3): [60.0 * minute + gap for minute in range(8)]}
        belief = believe(("m",), PAIRS, expected, runs, when=when, noise=0.15)
        between = belief.covariance[2, 2] + belief.covariance[3, 3] - 2 * belief.covariance[2, 3]
        doubts[name] = float(np.sqrt(between))
        assert belief.mean[0, 3] < belief.mean[0, 2]
        assert (belief.drift.share > 0.6) == (name == "together")
    assert doubts["together"] < 0.7 * doubts["apart"]


def test_a_batch_beyond_what_was_measured_is_tried_with_costly_models_too() -> None:
    """However often cheap ones were run with it: what a model outgrows is its own."""
    pairs, expected = ((32, 0), (64, 0)), np.outer([0.1, 0.1, 0.8], [1.0, 1.0])
    runs = {(row, column): [0.1] * 4 for row in (0, 1) for column in (0, 1)}
    beyond = np.array([[False, True]] * 3)
    assert choose_next(believe("abc", pairs, expected, runs, guessed=beyond, noise=0.1)) == (2, 1)
    assert choose_next(believe("abc", pairs, expected, runs, noise=0.1))[0] != 2


@pytest.mark.parametrize("kind", ["raw", "preprocessed"])
def test_nine_noisy_evaluations_of_the_researchs_surface_find_a_pair_within_one_percent(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even for somebody who knows nothing but the times of whole runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    blind = importlib.import_module("loader_blind")
    table = {(batch, workers): 1 + regret for batch, workers, regret in RESEARCH["regret"][kind]}
    regrets = []
    for seed in range(15):
        generator = np.random.default_rng(seed)
        chosen = blind.choose_blindly(
            tuple(sorted(table)),
            lambda pair, chance=generator: table[pair] * (1 + 0.02 * chance.standard_normal()),
            num_runs=9,
            noise=0.02,
        )
        regrets.append(table[chosen] / min(table.values()) - 1)
    assert statistics.median(regrets) < 0.01
