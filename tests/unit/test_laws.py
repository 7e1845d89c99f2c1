"""Synthetic times drawn from a law are recognised as that law; what cannot be told is called that."""

import math
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from modelhound.analysis.laws import Law, SweepPoint, fit_law, seconds_by_law
from modelhound.errors import RequestError

Curve = Callable[[float], float]

EIGHT_SIZES = tuple(2.0**power for power in range(8))  # 1 to 128: two decades

CURVES: dict[str, tuple[str, Curve]] = {
    "constant": ("constant", lambda x: 0.004),
    "proportional": ("proportional", lambda x: 0.004 * x),
    "affine with a fixed part as large as ten items": ("affine", lambda x: 0.01 + 0.001 * x),
    "affine with a fixed part as large as one item": ("affine", lambda x: 0.001 + 0.001 * x),
    "affine with a fixed part as large as thirty items": ("affine", lambda x: 0.03 + 0.001 * x),
    "power 0.5": ("power", lambda x: 0.004 * x**0.5),
    "power 0.8": ("power", lambda x: 0.004 * x**0.8),
    "power 1.2": ("power", lambda x: 0.004 * x**1.2),
    "power 1.5": ("power", lambda x: 0.004 * x**1.5),
    "hinge at 5 from the origin": ("hinge", lambda x: max(0.004, 0.0008 * x)),
    "hinge at 25 from the origin": ("hinge", lambda x: max(0.004, 0.00016 * x)),
    "hinge at 10, a third of the floor fixed": ("hinge", lambda x: max(0.003, 0.001 + 0.0002 * x)),
    "quadratic without a linear part": ("quadratic", lambda x: 0.001 + 0.00001 * x * x),
    "quadratic with all parts": ("quadratic", lambda x: 0.001 + 0.0001 * x + 0.000005 * x * x),
    "quadratic without a fixed part": ("quadratic", lambda x: 0.0001 * x + 0.000005 * x * x),
}


FIRST_OF_EACH_FORM = sorted({form: name for name, (form, _) in reversed(CURVES.items())}.values())


def sweep(
    curve: Curve, *, noise: float, seed: int, sizes: tuple[float, ...] = EIGHT_SIZES, num_samples: int = 1
) -> list[SweepPoint]:
    """One sample per point lies off by `noise` itself; of many samples each does."""
    generator = np.random.default_rng(seed)
    return [
        SweepPoint(
            size=size,
            seconds=tuple(float(value) for value in curve(size) * np.exp(generator.normal(0, noise, num_samples))),
        )
        for size in sizes
    ]


def form(law: Law) -> str:
    assert law.chosen is not None
    return law.chosen.form


def recognised(name: str, num_runs: int) -> float:
    expected, curve = CURVES[name]
    found = Counter(form(fit_law(sweep(curve, noise=0.05, seed=seed), num_resamples=2)) for seed in range(num_runs))
    return found[expected] / num_runs


@pytest.mark.parametrize("name", FIRST_OF_EACH_FORM)
def test_eight_points_off_by_5_percent_are_recognised_in_9_of_10_runs(name: str) -> None:
    assert recognised(name, 50) >= 0.9


@pytest.mark.parametrize("name", sorted(set(CURVES) - set(FIRST_OF_EACH_FORM)))
def test_other_curves_of_the_same_laws_are_recognised_as_often(name: str) -> None:
    assert recognised(name, 30) >= 0.9


@pytest.mark.parametrize("name", CURVES)
def test_times_without_noise_give_the_law_they_were_made_from(name: str) -> None:
    expected, curve = CURVES[name]
    law = fit_law(sweep(curve, noise=0, seed=0), num_resamples=2)
    assert form(law) == expected
    assert law.chosen is not None
    assert seconds_by_law(law.chosen, EIGHT_SIZES) == pytest.approx([curve(size) for size in EIGHT_SIZES], rel=0.002)


@pytest.mark.parametrize("name", CURVES)
def test_three_decades_of_sizes_change_nothing(name: str) -> None:
    expected, curve = CURVES[name]
    sizes = tuple(float(size) for size in np.geomspace(1, 1000, 9))
    assert form(fit_law(sweep(curve, noise=0.02, seed=3, sizes=sizes), num_resamples=2)) == expected


def test_parameters_are_those_of_the_curve() -> None:
    law = fit_law(sweep(lambda x: 0.002 + 0.0005 * x, noise=0, seed=0))
    assert law.chosen is not None
    assert law.chosen.parameters == pytest.approx({"fixed_seconds": 0.002, "each_seconds": 0.0005}, rel=1e-6)
    low, high = law.chosen.intervals["each_seconds"]
    assert low < 0.0005 < high


def test_sizes_in_the_millions_and_times_in_microseconds_are_fitted_as_well() -> None:
    sizes = tuple(float(side**2) for side in (64, 96, 128, 160, 224, 320, 512, 1024))
    law = fit_law(sweep(lambda x: 3e-6 + 1e-10 * x, noise=0.01, seed=0, sizes=sizes), axis="pixels")
    assert law.chosen is not None
    assert form(law) == "affine"
    assert law.chosen.parameters["fixed_seconds"] == pytest.approx(3e-6, rel=0.1)


def test_the_knee_lies_in_its_interval_about_as_often_as_the_interval_says() -> None:
    knees = []
    for seed in range(60):
        points = sweep(lambda x: max(0.004, 0.0012 + 0.00028 * x), noise=0.05, seed=seed)
        law = fit_law(points, confidence=0.9, num_resamples=200)
        if law.knee_interval is not None:
            knees.append(law.knee_interval[0] <= 10 <= law.knee_interval[1])
    assert len(knees) >= 54
    assert np.mean(knees) >= 0.8


def test_the_exponents_interval_holds_the_exponent_about_as_often_as_it_says() -> None:
    held = []
    for seed in range(100):
        exponent = fit_law(sweep(lambda x: x**0.7, noise=0.05, seed=seed), confidence=0.9, num_resamples=300).exponent
        assert exponent is not None
        held.append(exponent.overall_interval[0] <= 0.7 <= exponent.overall_interval[1])
    assert 0.8 <= np.mean(held) <= 0.98


def test_a_hinge_is_flat_at_its_start_and_proportional_past_its_knee() -> None:
    exponent = fit_law(sweep(lambda x: max(0.004, 0.0008 * x), noise=0.01, seed=0)).exponent
    assert exponent is not None
    assert exponent.at_start == 0
    assert exponent.past_knee == pytest.approx(1, abs=0.03)
    assert exponent.at_start_interval[1] < exponent.at_end_interval[0]
    assert 0.5 < exponent.overall < 0.8


def test_a_power_has_the_same_exponent_everywhere() -> None:
    exponent = fit_law(sweep(lambda x: 0.1 * x**1.4, noise=0, seed=0)).exponent
    assert exponent is not None
    assert (exponent.overall, exponent.at_start, exponent.at_end) == pytest.approx((1.4, 1.4, 1.4))
    assert exponent.past_knee is None


def test_a_quadratics_exponent_rises_to_nearly_two() -> None:
    exponent = fit_law(sweep(lambda x: 1 + 0.01 * x * x, noise=0, seed=0)).exponent
    assert exponent is not None
    assert exponent.at_start == pytest.approx(0.02 / 1.01, abs=0.02)
    assert exponent.at_end == pytest.approx(2 * 163.84 / 164.84, abs=0.02)


def test_many_samples_make_a_narrower_interval_than_few() -> None:
    def width(num_samples: int) -> float:
        points = sweep(lambda x: x**0.7, noise=0.2, seed=1, num_samples=num_samples)
        exponent = fit_law(points).exponent
        assert exponent is not None
        return exponent.overall_interval[1] - exponent.overall_interval[0]

    assert width(400) < 0.5 * width(8)


def test_a_noisy_point_counts_for_less_than_a_sure_one() -> None:
    points = sweep(lambda x: 0.004 * x, noise=0, seed=0)
    noisy = SweepPoint(size=128.0, seconds=(0.004 * 128 * 1.5,), interval=(0.004 * 128 * 0.9, 0.004 * 128 * 2.5))
    sure = SweepPoint(size=128.0, seconds=(0.004 * 128 * 1.5,), interval=(0.004 * 128 * 1.49, 0.004 * 128 * 1.51))
    slopes = [
        exponent.overall for point in (noisy, sure) if (exponent := fit_law([*points[:-1], point]).exponent) is not None
    ]
    assert slopes[0] < 1.02 < slopes[1]


def test_one_point_far_off_bends_the_law_unless_the_fit_is_robust() -> None:
    points = sweep(lambda x: 0.01 + 0.001 * x, noise=0.01, seed=0, sizes=tuple(float(2**power) for power in range(10)))
    points[4] = SweepPoint(size=points[4].size, seconds=(points[4].seconds[0] * 4,))
    bent, straight = fit_law(points), fit_law(points, robust=True)
    assert straight.chosen is not None
    assert form(straight) == "affine"
    assert straight.chosen.parameters["fixed_seconds"] == pytest.approx(0.01, rel=0.05)
    assert bent.chosen is not None
    assert abs(seconds_by_law(bent.chosen, [1.0])[0] / 0.011 - 1) > 0.08


@pytest.mark.parametrize("name", CURVES)
def test_the_robust_fit_recognises_clean_times_too(name: str) -> None:
    expected, curve = CURVES[name]
    assert form(fit_law(sweep(curve, noise=0.02, seed=1), robust=True, num_resamples=2)) == expected


def test_where_two_laws_fit_alike_the_one_with_fewer_parameters_is_taken_and_the_other_named() -> None:
    tilted = [0.06, 0.02, 0.04, 0.03, 0.01, -0.01, 0.0, -0.04]  # falls by a hundredth for each doubling
    points = [
        SweepPoint(size=size, seconds=(0.004 * math.exp(off),)) for size, off in zip(EIGHT_SIZES, tilted, strict=True)
    ]
    law = fit_law(points, axis="batch")
    assert law.candidates[0].form == "power"
    assert form(law) == "constant"
    assert law.sentence == "constant at 4.06 ms, from batch 1 to batch 128; power would fit about as well"


def test_weights_add_up_to_one_and_each_form_stands_once_best_first() -> None:
    law = fit_law(sweep(lambda x: max(0.004, 0.0008 * x), noise=0.05, seed=0))
    assert sum(row.weight for row in law.candidates) == pytest.approx(1)
    assert [row.aicc for row in law.candidates] == sorted(row.aicc for row in law.candidates)
    assert sorted(row.form for row in law.candidates) == sorted({expected for expected, _ in CURVES.values()})
    best, *others = law.candidates
    for row in others:  # Akaike's weights
        assert row.weight / best.weight == pytest.approx(math.exp(-(row.aicc - best.aicc) / 2))


def test_a_laws_criterion_is_the_corrected_one_of_akaike() -> None:
    """Without deviations only the three points of the prior deviate: 11 ln(3 / 11), and 2 unknowns for a law with one."""
    law = fit_law(sweep(lambda x: 0.004 * x, noise=0, seed=0))
    assert law.chosen is not None
    assert law.chosen.form == "proportional"
    assert law.chosen.aicc == pytest.approx(11 * math.log(3 / 11) + 2 * 2 + 2 * 2 * 3 / (11 - 2 - 1))
    assert law.chosen.relative_scatter == pytest.approx(0.05 * math.sqrt(3 / 11))


@pytest.mark.parametrize("num_sizes", [0, 1, 2])
def test_fewer_than_three_sizes_tell_nothing(num_sizes: int) -> None:
    law = fit_law(sweep(lambda x: x, noise=0, seed=0, sizes=EIGHT_SIZES[:num_sizes]) * 2)
    assert (law.chosen, law.exponent, law.knee) == (None, None, None)
    assert law.sentence.startswith("cannot be told: ")
    assert (law.smallest, law.largest) == {0: (None, None), 1: (1.0, 1.0), 2: (1.0, 2.0)}[num_sizes]


def test_three_sizes_tell_proportional_from_constant() -> None:
    assert form(fit_law(sweep(lambda x: x, noise=0.02, seed=0, sizes=(1.0, 2.0, 4.0)))) == "proportional"
    assert form(fit_law(sweep(lambda x: 1, noise=0.02, seed=0, sizes=(1.0, 2.0, 4.0)))) == "constant"


def test_four_sizes_are_enough_for_a_clear_hinge() -> None:
    assert form(fit_law(sweep(lambda x: max(4, x), noise=0.01, seed=0, sizes=(1.0, 2.0, 16.0, 64.0)))) == "hinge"


def test_the_order_of_points_does_not_matter_and_the_seed_decides_the_intervals() -> None:
    points = sweep(lambda x: max(0.004, 0.0008 * x), noise=0.05, seed=0)
    law = fit_law(points, seed=1)
    assert fit_law(points[::-1], seed=1) == law
    assert fit_law(points, seed=2) != law


def test_a_law_comes_back_from_json() -> None:
    law = fit_law(sweep(lambda x: max(0.004, 0.0008 * x), noise=0.05, seed=0))
    assert msgspec.json.decode(msgspec.json.encode(law), type=Law) == law


@pytest.mark.parametrize(
    ("curve", "sentence"),
    [
        (lambda x: 0.004 * x, "proportional, 4 ms per item, from batch 1 to batch 128"),
        (lambda x: 0.002 + 0.0005 * x, "affine, 2 ms fixed and 500 µs per item, from batch 1 to batch 128"),
        (lambda x: 1 + 0.01 * x * x, "a square that makes 0.99 of the time at the largest, from batch 1 to batch 128"),
        (lambda x: max(0.004, 0.0008 * x), "then 800 µs per item, from batch 1 to batch 128"),
    ],
)
def test_the_sentence_says_the_law_in_numbers(curve: Curve, sentence: str) -> None:
    assert sentence in fit_law(sweep(curve, noise=0, seed=0), axis="batch").sentence


@pytest.mark.parametrize(
    "point",
    [
        SweepPoint(size=0.0, seconds=(1.0,)),
        SweepPoint(size=math.inf, seconds=(1.0,)),
        SweepPoint(size=1.0, seconds=()),
        SweepPoint(size=1.0, seconds=(1.0, -1.0)),
        SweepPoint(size=1.0, seconds=(math.nan,)),
        SweepPoint(size=1.0, seconds=(1.0,), interval=(2.0, 1.0)),
    ],
)
def test_points_that_are_none_are_refused(point: SweepPoint) -> None:
    with pytest.raises(RequestError, match=r"^cannot "):
        fit_law([point])


def test_a_confidence_of_95_is_refused() -> None:
    with pytest.raises(RequestError, match=r"take 0\.95"):
        fit_law([], confidence=95)
