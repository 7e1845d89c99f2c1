"""What is foretold of full fine-tuning, held against made-up networks whose end is known."""

import dataclasses

import numpy as np
import pytest

from modelhound.analysis.foretelling import LAWS, Law, Lesson, common_fall, expected_left, fit_laws, foretell

LAW = Law(intercept=-0.4, short=0.5, features=0.3, within=0.15, overall=0.05)
SPREAD = 0.13  # of data sets around LAW, as logarithms of what is left
NUM_ITEMS = 400


def draw_lessons(seed: int, num_targets: int = 8, num_models: int = 12) -> list[Lesson]:
    """Networks that follow LAW and stray from it, each data set by an amount of its own."""
    generator = np.random.default_rng(seed)
    lessons = []
    for target in range(num_targets):
        own = generator.normal(0, SPREAD)
        for _ in range(num_models):
            short, features = np.log(generator.uniform(0.1, 0.6, 2))
            full = LAW.intercept + LAW.short * short + LAW.features * features + own + generator.normal(0, LAW.within)
            lessons.append(
                Lesson(
                    target=f"target-{target}",
                    stage=0,
                    short=1 - float(np.exp(short)),
                    features=1 - float(np.exp(features)),
                    full=1 - float(np.exp(full)),
                    num_items=NUM_ITEMS,
                )
            )
    return lessons


def item_scores(score: float) -> np.ndarray:
    return (np.arange(NUM_ITEMS) < round(score * NUM_ITEMS)).astype(np.float64)


def test_the_law_that_networks_follow_is_found() -> None:
    lessons = draw_lessons(0, num_targets=40)
    (law,) = fit_laws(lessons, num_stages=1)
    assert law.short == pytest.approx(LAW.short, abs=0.05)
    assert law.features == pytest.approx(LAW.features, abs=0.05)
    assert law.within == pytest.approx(LAW.within, rel=0.1)
    lines = [
        LAW.intercept + LAW.short * np.log(1 - each.short) + LAW.features * np.log(1 - each.features)
        for each in lessons
    ]
    strayed = [(1 - each.full) ** 0.5 - np.exp(line / 2) for each, line in zip(lessons, lines, strict=True)]
    assert law.overall == pytest.approx(np.std(strayed), rel=0.2)


def test_intervals_cover_nine_of_ten_networks_of_other_data_sets() -> None:
    laws = fit_laws(draw_lessons(1, num_targets=20), num_stages=1)
    others = draw_lessons(2, num_targets=20, num_models=6)
    covered = []
    for lesson in others:
        low, high = foretell(item_scores(lesson.short), lesson.features, stage=0, laws=laws).interval
        covered.append(low <= lesson.full <= high)
    assert 0.85 <= np.mean(covered) <= 0.96


def test_an_easy_data_set_is_foretold_to_fewer_points_but_not_in_proportion() -> None:
    """A tenth of the errors left does not make the interval ten times as narrow."""
    hard, easy = (foretell(item_scores(score), score, stage=2) for score in (0.7, 0.97))
    width = [high - low for low, high in (hard.interval, easy.interval)]
    left = [1 - hard.score, 1 - easy.score]
    assert width[1] < width[0]
    assert width[1] / left[1] > 1.5 * width[0] / left[0]


def test_more_is_expected_of_those_that_do_better() -> None:
    poor, good = (foretell(item_scores(score), 0.7, stage=1) for score in (0.6, 0.8))
    assert good.score > poor.score
    assert good.interval[0] < good.score < good.interval[1] <= 1


def test_features_count_less_the_longer_the_training() -> None:
    score, poor, good = (np.array(value) for value in (0.8, 0.5, 0.9))
    gains = [
        float(
            expected_left(score, poor, stage=stage, num_items=NUM_ITEMS)
            - expected_left(score, good, stage=stage, num_items=NUM_ITEMS)
        )
        for stage in range(3)
    ]
    assert gains[0] > 2 * gains[-1] > 0


def test_more_is_expected_of_one_that_still_learns_fast() -> None:
    now = item_scores(0.8)
    slow, fast = (foretell(now, 0.7, before=item_scores(before), stage=1) for before in (0.78, 0.5))
    assert fast.score > slow.score + 0.01


def test_more_is_expected_of_all_where_all_still_learn_fast() -> None:
    slow, fast = (foretell(item_scores(0.8), 0.7, before=item_scores(0.7), fall=fall, stage=2) for fall in (-0.1, -0.6))
    assert fast.score > slow.score + 0.02


def test_the_fall_is_that_of_what_is_left() -> None:
    lessons = [dataclasses.replace(each, short=0.8, before=0.6, stage=1) for each in draw_lessons(0, num_targets=1)]
    assert common_fall(lessons) == pytest.approx(np.log(0.2 / 0.4))
    assert common_fall(draw_lessons(0, num_targets=1)) is None


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
    foretold = foretell(np.ones(50), 1.0, stage=0)
    assert 0.9 < foretold.interval[0] < foretold.score < 1


def test_no_less_than_no_item_at_all_is_foretold_of_a_share() -> None:
    low, high = foretell((np.arange(60) < 5).astype(np.float64), 0.0, stage=0).interval
    assert low == 0
    assert high > low


def test_too_few_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="four or more"):
        fit_laws(draw_lessons(0, num_targets=1, num_models=3), num_stages=1)
