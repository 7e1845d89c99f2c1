"""Top counts, regret and the recommended pair, on tables whose answers can be worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from modelhound.analysis.pairs import (
    PairTimes,
    count_top,
    find_unrest,
    order_pairs,
    rate_pairs,
    resample_times,
    scatter,
)

PAIRS = ((32, 1), (32, 2), (64, 1), (64, 2))
RESEARCH = json.loads((Path(__file__).parents[2] / "benchmarks" / "batch_workers.json").read_text())


def table(rows: list[list[float]], pairs: tuple[tuple[int, int], ...] = PAIRS) -> PairTimes:
    """Measured once each, as if without noise."""
    seconds = np.array(rows)
    return PairTimes(
        models=tuple(f"model{row}" for row in range(len(rows))),
        pairs=pairs,
        seconds=seconds,
        versions=np.repeat(seconds[None], 8, axis=0),
        is_measured=~np.isnan(seconds),
    )


def test_top_pairs_are_counted_over_models_and_sorted() -> None:
    counts = count_top(table([[4, 3, 2, 1], [1, 2, 3, 4], [9, 1, 2, 3]]), num_top=2)
    assert [(each.batch, each.workers, each.count) for each in counts] == [
        (32, 2, 2),
        (64, 1, 2),
        (32, 1, 1),
        (64, 2, 1),
    ]


def test_regret_is_relative_to_the_best_pair_of_each_model() -> None:
    rated = rate_pairs(table([[10, 11, 12, 20], [2, 1, 1.5, 1.2]]))
    by_pair = {(row.batch, row.workers): row for row in rated}
    assert by_pair[32, 1].mean == pytest.approx((0 + 1) / 2)
    assert by_pair[32, 2].mean == pytest.approx((0.1 + 0) / 2)
    assert by_pair[64, 1].mean == pytest.approx((0.2 + 0.5) / 2)
    assert by_pair[64, 2].mean == pytest.approx((1 + 0.2) / 2)
    assert (by_pair[64, 2].worst, by_pair[64, 2].worst_model) == (pytest.approx(1.0), "model0")
    assert by_pair[64, 1].median == pytest.approx(0.35)
    assert [(row.batch, row.workers) for row in rated] == [(32, 2), (64, 1), (32, 1), (64, 2)]


def test_of_equal_pairs_the_one_with_fewer_workers_comes_first() -> None:
    rated = rate_pairs(table([[1, 1, 1, 1]]))
    assert [(row.batch, row.workers) for row in rated] == [(32, 1), (64, 1), (32, 2), (64, 2)]


def test_whatever_names_a_best_pair_breaks_ties_in_the_same_way() -> None:
    """Also where equal times were scaled to another length, and differ by what rounding added."""
    alike = table([[0.3, 0.1 + 0.2, 0.3, 0.5]], pairs=((64, 2), (64, 1), (32, 2), (32, 1)))
    assert (rate_pairs(alike)[0].batch, rate_pairs(alike)[0].workers) == (64, 1)
    assert [(each.batch, each.workers) for each in count_top(alike, num_top=1)] == [(64, 1)]
    assert order_pairs(np.array([np.nan, 2.0, 2.0, np.inf]), alike.pairs) == [1, 2, 3, 0]


def test_a_pair_that_fails_with_one_model_is_no_pair_for_all() -> None:
    rated = rate_pairs(table([[1, 2, 3, 4], [np.nan, 2, 3, 4]]))
    assert (rated[0].batch, rated[0].workers) == (32, 2)
    assert (rated[-1].batch, rated[-1].workers, rated[-1].mean, rated[-1].worst_model) == (32, 1, None, "model1")
    assert rated[0].mean == pytest.approx(0.5)  # the first model would have liked the pair that fails
    assert [row.num_measured for row in rated] == [2, 2, 2, 1]  # and how many models each was measured with


@pytest.mark.parametrize(("kind", "best", "regret"), [("raw", (128, 12), 0.0196), ("preprocessed", (256, 2), 0.0036)])
def test_the_researchs_tables_name_the_pairs_that_it_published(kind: str, best: tuple[int, int], regret: float) -> None:
    rows = sorted(RESEARCH["regret"][kind], key=lambda row: row[2])
    assert (len(rows), tuple(rows[0][:2])) == (45, best)
    assert rows[0][2] == pytest.approx(regret, abs=5e-5)
    # as times of one model whose best pair takes a second
    pairs = tuple((batch, workers) for batch, workers, _ in rows)
    rated = rate_pairs(table([[1 + row[2] for row in rows]], pairs))
    assert (rated[0].batch, rated[0].workers) == best


def test_what_noise_cannot_tell_apart_is_as_good() -> None:
    generator = np.random.default_rng(0)
    truth = {(0, 0): 1.0, (0, 1): 1.005, (0, 2): 1.4, (0, 3): 2.0}
    runs = {cell: (value * np.exp(generator.normal(0, 0.03, 4))).tolist() for cell, value in truth.items()}
    rated = rate_pairs(resample_times(("m",), PAIRS, runs, seed=0))
    as_good = {(row.batch, row.workers) for row in rated if row.as_good}
    assert as_good == {(32, 1), (32, 2)}
    assert rated[0].chance_within is not None
    assert rated[0].chance_within > 0.5
    assert [row.chance_within for row in rated[2:]] == [0.0, 0.0]


def test_an_interval_shrinks_with_repeats_and_holds_the_estimate() -> None:
    def width(num_repeats: int) -> float:
        runs = {(0, column): [1.0 + column, 1.06 + column] * num_repeats for column in range(4)}
        first, second, *_ = rate_pairs(resample_times(("m",), PAIRS, runs, seed=0))
        assert second.interval is not None
        assert second.mean is not None
        assert second.interval[0] < second.mean < second.interval[1]
        assert first.interval is not None
        return second.interval[1] - second.interval[0]

    assert width(8) < 0.6 * width(1)


def test_unrest_is_pooled_over_all_that_was_repeated_and_short_runs_scatter_more() -> None:
    generator = np.random.default_rng(1)
    runs = [
        np.exp(generator.normal(np.log(seconds), 0.1 / np.sqrt(seconds), 3)).tolist()
        for seconds in (0.25, 1.0, 4.0) * 70
    ]
    unrest = find_unrest(runs)
    assert scatter(unrest, np.array([0.25, 1.0, 4.0])) == pytest.approx([0.2, 0.1, 0.05], rel=0.15)
    assert scatter(find_unrest([[1.0]]), np.array([0.5])) == pytest.approx(0.02)  # as usual
    assert find_unrest([[1.0]], usual=0.04) == pytest.approx(0.04)
