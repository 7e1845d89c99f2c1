"""A ranking says how sure it is: known answers on constructed items."""

import zlib

import numpy as np
import pytest

from modelhound.analysis.ranking import rank_agreement, rank_models, resample_means
from modelhound.errors import StoreError
from modelhound.records import ModelDropped, ModelMeasured, pack_items, unpack_items


def model(name: str, hits: np.ndarray, num_parameters: int = 10, scorer: str = "ridge") -> ModelMeasured:
    return ModelMeasured(
        model=name,
        num_parameters=num_parameters,
        num_features=2,
        num_items=len(hits),
        scores={scorer: float(np.nanmean(hits))},
        item_scores={scorer: pack_items(hits)},
        phases=(),
        wall_seconds=1.0,
        peak_memory_bytes=1,
    )


def hits(num_right: int, num_items: int = 400) -> np.ndarray:
    return np.random.default_rng(5).permutation((np.arange(num_items) < num_right).astype(np.float32))


def test_packed_items_come_back() -> None:
    values = np.array([0.0, 1.0, np.nan, 0.25], dtype=np.float32)
    np.testing.assert_array_equal(unpack_items(pack_items(values)), values)


@pytest.mark.parametrize(
    "packed", [b"", b"not packed at all", zlib.compress(b"half a number: abc"), pack_items(np.ones(9))[:-2]]
)
def test_scores_that_nobody_packed_are_refused_in_a_sentence(packed: bytes) -> None:
    with pytest.raises(StoreError, match=r"cannot read a record: .* do not trust it"):
        unpack_items(packed)


def test_models_stand_best_first_with_the_mean_as_score() -> None:
    ranking = rank_models([model("a", hits(100)), model("b", hits(300))], rests_on=["ridge"], seed=0)
    assert [(row.model, row.rank, row.score) for row in ranking.models] == [("b", 1, 0.75), ("a", 2, 0.25)]


def test_the_interval_is_that_of_a_binomial_share() -> None:
    ranking = rank_models([model("a", hits(300))], rests_on=["ridge"], seed=0)
    half_width = 1.96 * np.sqrt(0.75 * 0.25 / 400)
    assert ranking.models[0].interval == pytest.approx((0.75 - half_width, 0.75 + half_width), abs=0.003)
    narrow = rank_models([model("a", hits(300))], rests_on=["ridge"], seed=0, confidence=0.68)
    half_width *= 0.994 / 1.96
    assert narrow.models[0].interval == pytest.approx((0.75 - half_width, 0.75 + half_width), abs=0.002)


def test_all_right_is_not_taken_for_certain() -> None:
    low, high = rank_models([model("a", np.ones(100, np.float32))], rests_on=["ridge"], seed=0).models[0].interval
    assert (low, high) == pytest.approx((0.025 ** (1 / 100), 1.0))  # the exact binomial bound
    low, high = rank_models([model("a", np.zeros(100, np.float32))], rests_on=["ridge"], seed=0).models[0].interval
    assert (low, high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 100)))


def test_models_that_differ_in_few_items_share_a_rank() -> None:
    base = hits(300)
    close = base.copy()
    close[np.flatnonzero(base)[:2]] = 0
    ranking = rank_models([model("a", base), model("b", close), model("c", hits(100))], rests_on=["ridge"], seed=0)
    assert [(row.model, row.rank, row.tied) for row in ranking.models] == [
        ("a", 1, True),
        ("b", 1, True),
        ("c", 3, False),
    ]


def test_pairing_tells_models_apart_whose_intervals_overlap() -> None:
    # b misses 15 items that a gets and wins none: unpaired, the two intervals overlap widely.
    base = hits(300)
    worse = base.copy()
    worse[np.flatnonzero(base)[:15]] = 0
    rows = rank_models([model("a", base), model("b", worse)], rests_on=["ridge"], seed=0).models
    assert rows[0].interval[0] < rows[1].interval[1]
    assert [row.rank for row in rows] == [1, 2]


def test_equal_scores_are_listed_by_name_and_tied() -> None:
    rows = rank_models([model("b", hits(300)), model("a", hits(300))], rests_on=["ridge"], seed=0).models
    assert [(row.model, row.rank, row.tied) for row in rows] == [("a", 1, True), ("b", 1, True)]


def test_items_that_were_not_tested_take_no_part() -> None:
    partly = np.array([1, 0, np.nan, np.nan, 1, 1], dtype=np.float32)
    ranking = rank_models([model("a", partly)], rests_on=["ridge"], seed=0)
    assert (ranking.num_items, ranking.models[0].score) == (4, 0.75)
    other = np.array([np.nan, 0, 1, 1, 1, 0], dtype=np.float32)
    ranking = rank_models([model("a", partly), model("b", other)], rests_on=["ridge"], seed=0)
    assert ranking.num_items == 3  # those that both were tested on
    assert {row.model: row.score for row in ranking.models} == pytest.approx({"a": 2 / 3, "b": 1 / 3})


def test_the_control_is_ordered_by_size_and_its_agreement_is_stated() -> None:
    models = [model("small", hits(300), 1), model("middle", hits(200), 2), model("large", hits(100), 3)]
    ranking = rank_models(models, rests_on=["ridge"], seed=0)
    assert ranking.by_size == ("large", "middle", "small")
    assert ranking.size_agreement == -1.0
    assert [row.size_rank for row in ranking.models] == [3, 2, 1]


def test_the_same_seed_gives_the_same_intervals_and_another_seed_others() -> None:
    models = [model("a", hits(300))]
    first = rank_models(models, rests_on=["ridge"], seed=1)
    assert first == rank_models(models, rests_on=["ridge"], seed=1)
    assert first != rank_models(models, rests_on=["ridge"], seed=2)


def test_many_items_are_resampled_in_pieces() -> None:
    rng = np.random.default_rng(0)
    many = (rng.random(30_000) < 0.5).astype(np.float32)
    low, high = rank_models([model("a", many)], rests_on=["ridge"], seed=0).models[0].interval
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(30_000), rel=0.1)


@pytest.mark.parametrize("num_items", [1000, 4000])
def test_resampled_means_spread_as_means_do_however_items_are_drawn(num_items: int) -> None:
    shares = np.array([0.6, 0.95, 0.5])
    scores = (np.arange(num_items) < (shares * num_items)[:, None]).astype(np.float64)
    means = resample_means(np.vstack([scores, scores[:1], np.ones(num_items)]), seed=0)
    assert means.shape == (5, 2000)
    np.testing.assert_allclose(means[:3].mean(axis=1), shares, atol=0.002)
    np.testing.assert_allclose(means[:3].std(axis=1), np.sqrt(shares * (1 - shares) / num_items), rtol=0.08)
    assert (means[0] == means[3]).all()  # the same items for all models
    np.testing.assert_allclose(means[4], 1.0)


@pytest.mark.parametrize("num_items", [40, 2000])
def test_the_first_and_the_last_item_are_drawn_as_often_as_any_other(num_items: int) -> None:
    shares = resample_means(np.eye(num_items)[[0, -1]], seed=0) * num_items
    np.testing.assert_allclose(shares.mean(axis=1), 1.0, atol=0.1)  # a mean of 2000 counts with a deviation of 1


def test_no_models_give_an_empty_ranking() -> None:
    ranking = rank_models([], rests_on=["ridge"], seed=0)
    assert (ranking.models, ranking.num_items) == ((), 0)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2], [2, 1], -1.0),
        ([1, 1], [1, 2], None),
        ([1, 2], [1, 1], None),
        ([1], [1], None),
    ],
)
def test_agreement_of_two_orders(first: list[float], second: list[float], expected: float | None) -> None:
    assert rank_agreement(first, second) == expected


def test_models_dropped_from_the_race_count_in_the_control() -> None:
    """Three winners in the order of their sizes say little of size, if larger models were dropped before."""
    measured = [model(f"m{place}", hits(300 - 100 * place), num_parameters=30 - place) for place in range(3)]
    dropped = [
        ModelDropped(
            model=f"d{place}",
            stamp="",
            num_parameters=100 + place,
            num_items=5,
            score=0.9 - 0.1 * place,
            chance=0.0,
            top=3,
            seconds=1.0,
        )
        for place in range(3)
    ]
    alone = rank_models(measured, rests_on=["ridge"], seed=0)
    together = rank_models(measured, rests_on=["ridge"], seed=0, dropped=dropped)
    assert alone.size_agreement == 1
    # Behind all others, whatever they scored on the few items they saw, and among themselves in that order: larger is worse in
    # all 9 pairs of one of them with a winner and in their own 3, and better in the 3 pairs of winners.
    assert together.size_agreement == pytest.approx((3 - 9 - 3) / 15)
    assert together.by_size == ("d2", "d1", "d0", "m0", "m1", "m2")
    assert [row.size_rank for row in together.models] == [4, 5, 6]
    assert [row.model for row in together.models] == [row.model for row in alone.models]


def test_a_ranking_says_whether_anybody_is_better_than_guessing() -> None:
    guess = np.zeros(400)
    guess[::2] = 1
    good, poor = model("a", hits(300)), model("b", hits(205))
    clear = rank_models([good, poor], rests_on=["ridge"], seed=0, guess=guess)
    assert (clear.guess, clear.is_guess_beaten) == (0.5, True)
    assert not rank_models([poor], rests_on=["ridge"], seed=0, guess=guess).is_guess_beaten
    unknown = rank_models([poor], rests_on=["ridge"], seed=0)
    assert (unknown.guess, unknown.is_guess_beaten) == (None, True)
