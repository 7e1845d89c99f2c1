"""What is foretold of full fine-tuning, held against made-up networks whose end is known."""

import dataclasses

import numpy as np
import pytest

from modelhound.analysis.foretelling import (
    LAWS,
    Foretold,
    Law,
    Lesson,
    Level,
    expected_left,
    find_level,
    fit_laws,
    foretell,
)

LAW = Law(intercept=-0.4, short=0.5, features=0.3, own_short=0.4, own_features=0.2, within=0.15, overall=0.05)
SPREAD = 0.13  # of data sets around LAW, as logarithms of what is left
NUM_ITEMS = 400


def draw_lessons(seed: int, num_targets: int = 8, num_models: int = 12) -> list[Lesson]:
    """Networks that follow LAW and stray from it, each data set by an amount of its own."""
    generator = np.random.default_rng(seed)
    lessons = []
    for target in range(num_targets):
        own, hardness = generator.normal(0, SPREAD), generator.normal(0, 0.5, 2)
        left = np.minimum(np.log(generator.uniform(0.1, 0.5, (num_models, 2))) + hardness, -0.05)
        level = left.mean(axis=0)
        for short, features in left:
            full = LAW.intercept + LAW.short * level[0] + LAW.features * level[1] + own
            full += LAW.own_short * (short - level[0]) + LAW.own_features * (features - level[1])
            lessons.append(
                Lesson(
                    target=f"target-{target}",
                    stage=0,
                    short=1 - float(np.exp(short)),
                    features=1 - float(np.exp(features)),
                    full=1 - float(np.exp(full + generator.normal(0, LAW.within))),
                    num_items=NUM_ITEMS,
                )
            )
    return lessons


def level_of(lessons: list[Lesson]) -> Level:
    short, features = (np.array([getattr(each, name) for each in lessons]) for name in ("short", "features"))
    return find_level(short, features, None, num_items=NUM_ITEMS)


def level_at(short: float, features: float, fall: float = 0.0) -> Level:
    return Level(short=float(np.log(1 - short)), features=float(np.log(1 - features)), fall=fall)


def foretell_alone(score: float, features: float, *, stage: int, fall: float = 0.0) -> Foretold:
    """Of a network that stands where all others do."""
    return foretell(item_scores(score), features, level_at(score, features, fall), stage=stage)


def item_scores(score: float) -> np.ndarray:
    return (np.arange(NUM_ITEMS) < round(score * NUM_ITEMS)).astype(np.float64)


def test_the_lines_that_networks_follow_are_found() -> None:
    (law,) = fit_laws(draw_lessons(0, num_targets=80), num_stages=1)
    assert law.short == pytest.approx(LAW.short, abs=0.08)
    assert law.features == pytest.approx(LAW.features, abs=0.08)
    assert law.own_short == pytest.approx(LAW.own_short, abs=0.05)
    assert law.own_features == pytest.approx(LAW.own_features, abs=0.05)
    assert law.within == pytest.approx(LAW.within, rel=0.1)


def test_intervals_cover_nine_of_ten_networks_of_other_data_sets() -> None:
    laws = fit_laws(draw_lessons(1, num_targets=20), num_stages=1)
    others = draw_lessons(2, num_targets=12)
    covered = []
    for start in range(0, len(others), 12):
        lessons = others[start : start + 12]
        for lesson in lessons:
            foretold = foretell(item_scores(lesson.short), lesson.features, level_of(lessons), stage=0, laws=laws)
            covered.append(foretold.interval[0] <= lesson.full <= foretold.interval[1])
    assert 0.85 <= np.mean(covered) <= 0.96


def test_an_easy_data_set_is_foretold_to_fewer_points_but_not_in_proportion() -> None:
    """A tenth of the errors left does not make the interval ten times as narrow."""
    hard, easy = (foretell_alone(score, score, stage=2) for score in (0.7, 0.97))
    width = [high - low for low, high in (hard.interval, easy.interval)]
    left = [1 - hard.score, 1 - easy.score]
    assert width[1] < width[0]
    assert width[1] / left[1] > 1.5 * width[0] / left[0]


def test_more_is_expected_of_those_that_do_better_but_less_than_they_lead_by() -> None:
    poor, good = (foretell(item_scores(score), 0.7, level_at(0.7, 0.7), stage=1) for score in (0.6, 0.8))
    assert 0 < good.score - poor.score < 0.1
    assert good.interval[0] < good.score < good.interval[1] <= 1


def test_features_count_too_and_less_than_short_training() -> None:
    score, poor, good = (np.array(value) for value in (0.8, 0.5, 0.9))
    for stage in range(3):
        options = {"stage": stage, "num_items": NUM_ITEMS}
        by_features = expected_left(score, poor, level_at(0.7, 0.7), **options) - expected_left(
            score, good, level_at(0.7, 0.7), **options
        )
        by_training = expected_left(poor, score, level_at(0.7, 0.7), **options) - expected_left(
            good, score, level_at(0.7, 0.7), **options
        )
        assert by_training > by_features > 0


def test_more_is_expected_of_all_where_all_still_learn_fast() -> None:
    slow, fast = (foretell_alone(0.8, 0.7, stage=2, fall=fall) for fall in (-0.1, -0.6))
    assert fast.score > slow.score + 0.02


def test_the_level_is_the_mean_of_what_is_left_and_of_how_it_fell() -> None:
    level = find_level(np.array([0.8, 0.9]), np.array([0.5, 0.5]), np.array([0.6, 0.8]), num_items=NUM_ITEMS)
    assert level.short == pytest.approx((np.log(0.2) + np.log(0.1)) / 2)
    assert level.features == pytest.approx(np.log(0.5))
    assert level.fall == pytest.approx(np.log(0.5))
    assert find_level(np.array([0.8]), np.array([0.5]), None, num_items=NUM_ITEMS).fall == 0


def test_data_sets_that_differ_in_level_make_intervals_wider() -> None:
    (alike,) = fit_laws(draw_lessons(3, num_targets=5), num_stages=1)
    moved = [
        dataclasses.replace(each, full=1 - (1 - each.full) * (0.5 if each.target.endswith(("0", "1")) else 1.0))
        for each in draw_lessons(3, num_targets=5)
    ]
    (apart,) = fit_laws(moved, num_stages=1)
    assert apart.overall > 1.5 * alike.overall
    assert apart.within == pytest.approx(alike.within, rel=0.2)


def test_longer_training_makes_surer() -> None:
    reach = [law.overall for law in LAWS]
    assert reach == sorted(reach, reverse=True)
    laws = fit_laws(
        [dataclasses.replace(each, stage=stage) for stage in (0, 1) for each in draw_lessons(stage)], num_stages=2
    )
    assert laws[0].overall >= laws[1].overall


def test_nothing_left_to_learn_is_not_the_end_of_doubt() -> None:
    level = find_level(np.ones(1), np.ones(1), None, num_items=50)
    foretold = foretell(np.ones(50), 1.0, level, stage=0)
    assert 0.8 < foretold.interval[0] < foretold.score < 1


def test_no_less_than_no_item_at_all_is_foretold_of_a_share() -> None:
    low, high = foretell((np.arange(60) < 5).astype(np.float64), 0.0, level_at(0.1, 0.0), stage=0).interval
    assert low == 0
    assert high > low


def test_too_few_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="four or more"):
        fit_laws(draw_lessons(0, num_targets=1, num_models=3), num_stages=1)
