"""Sums of terms are fitted in relative error, and numbers are said as people read them."""

import math

import numpy as np
import pytest
from scipy import optimize

from modelhound.analysis.fitting import fit_terms, join_terms, straight_line
from modelhound.analysis.samples import log_median_error, median_interval, median_of, series_interval
from modelhound.analysis.wording import (
    count_text,
    list_text,
    number_text,
    seconds_text,
    seconds_texts,
    share_text,
    size_text,
    span_of_seconds_text,
)


def test_the_fit_is_as_good_as_that_of_a_general_optimiser() -> None:
    generator = np.random.default_rng(0)
    sizes = np.geomspace(1, 100, 9)
    terms = sizes[:, None] ** np.arange(3)
    weights = generator.uniform(0.5, 2, 9)
    log_values = np.log(terms @ [1.0, 0.1, 0.01]) + generator.normal(0, 0.05, 9)

    def residuals(log_coefficients: np.ndarray) -> np.ndarray:
        return np.sqrt(weights) * (log_values - np.log(terms @ np.exp(log_coefficients)))

    reference = optimize.least_squares(residuals, np.log([1.0, 0.1, 0.01]), xtol=1e-12, ftol=1e-12, gtol=1e-12)
    fit = fit_terms(terms, log_values, weights)
    assert (weights * fit.residuals**2).sum() == pytest.approx(2 * reference.cost, rel=1e-6)
    assert fit.log_coefficients == pytest.approx(reference.x, abs=1e-3)


def test_terms_twenty_powers_of_ten_apart_are_found() -> None:
    terms = np.stack([np.ones(8), np.geomspace(1e18, 1e21, 8)], axis=1)
    fit = fit_terms(terms, np.log(terms @ [1e-3, 1e-22]), np.ones(8))
    assert np.exp(fit.log_coefficients) == pytest.approx([1e-3, 1e-22], rel=1e-5, abs=0)


def test_a_term_that_is_not_needed_gets_no_share() -> None:
    sizes = np.geomspace(1, 100, 8)
    terms = np.stack([np.ones(8), sizes], axis=1)
    fit = fit_terms(terms, np.log(0.3 * sizes), np.ones(8))
    assert np.exp(fit.log_coefficients)[0] < 1e-6
    assert fit.residuals == pytest.approx(np.zeros(8), abs=1e-6)


def test_many_fits_in_one_call_equal_one_call_each() -> None:
    generator = np.random.default_rng(0)
    sizes = np.geomspace(1, 100, 8)
    terms = np.stack([np.ones(8), sizes], axis=1)
    log_values = np.log(1 + 0.1 * sizes) + generator.normal(0, 0.05, (5, 8))
    together = fit_terms(terms, log_values, np.ones(8)).log_coefficients
    for row, log_value in zip(together, log_values, strict=True):
        assert row == pytest.approx(fit_terms(terms, log_value, np.ones(8)).log_coefficients, abs=1e-4)


def test_a_straight_line_is_the_one_of_polyfit() -> None:
    generator = np.random.default_rng(0)
    x, y, weights = np.arange(7.0), generator.normal(size=7), generator.uniform(1, 2, 7)
    intercept, slope = straight_line(x, y, weights)
    assert (slope, intercept) == pytest.approx(tuple(np.polyfit(x, y, 1, w=np.sqrt(weights))))


def test_the_interval_of_a_median_holds_it_at_least_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        low, high = median_interval(list(generator.exponential(size=15))) or (0.0, 0.0)
        held.append(low <= math.log(2) <= high)
    assert 0.95 <= np.mean(held) <= 0.985  # ranks 4 and 12 of 15 hold it with 96.5 %


def test_five_samples_bound_no_median_and_six_do() -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([6, 2, 3, 4, 5, 1]) == (1, 6)


@pytest.mark.parametrize(
    ("count", "alike", "least"), [(3, 0.0, 0.95), (5, 0.0, 0.95), (10, 0.0, 0.95), (5, 0.3, 0.92), (5, 0.5, 0.87)]
)
def test_the_interval_of_a_series_holds_its_middle_about_as_often_as_it_says(
    count: int, alike: float, least: float
) -> None:
    """Also where one value tells something of the next, of which five know little: drawn again, they would hold it 77 %."""
    generator = np.random.default_rng(0)
    held = []
    for _ in range(2000):
        series = [generator.normal()]
        while len(series) < count:
            series.append(alike * series[-1] + math.sqrt(1 - alike**2) * generator.normal())
        low, high = series_interval(series) or (0.0, 0.0)
        held.append(low <= 0 <= high)
    assert least <= np.mean(held) <= 0.99


def test_values_that_drift_are_worth_fewer_than_values_that_jump() -> None:
    drifting, jumping = (series_interval(values) for values in ([1, 2, 3, 4, 5], [3, 1, 5, 2, 4]))
    assert drifting is not None
    assert jumping is not None
    assert drifting[1] - drifting[0] > 1.5 * (jumping[1] - jumping[0])
    assert series_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert series_interval([1.0, 2.0]) is None


def test_the_error_of_a_median_is_that_of_repeated_medians() -> None:
    generator = np.random.default_rng(0)
    medians, errors = [], []
    for _ in range(500):
        samples = np.exp(generator.normal(0, 0.1, 40))
        medians.append(math.log(median_of(list(samples))))
        errors.append(log_median_error(list(samples)) or 0.0)
    assert np.mean(errors) == pytest.approx(np.std(medians), rel=0.15)


def test_two_samples_say_nothing_of_their_error() -> None:
    assert log_median_error([1.0, 2.0]) is None
    assert log_median_error([1.0], (math.exp(-1.96), math.exp(1.96))) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (seconds_text(0.00412), "4.12 ms"),
        (seconds_text(0.9999), "1.00 s"),
        (seconds_text(60.0), "60 s"),
        (seconds_texts([0.664, 1.0003]), ["0.66 s", "1.00 s"]),
        (seconds_texts([0.0818, 0.0828]), ["81.8 ms", "82.8 ms"]),
        (seconds_texts([1e-5, 3.0]), ["10 µs", "3 s"]),
        (span_of_seconds_text((0.00818, 0.0104)), "8.2 – 10.4 ms"),
        (seconds_text(123.4), "123 s"),
        (seconds_text(2.5e-10), "0.250 ns"),
        (seconds_text(0.0), "0 s"),
        (number_text(50176), "50,200"),
        (count_text(999_940), "999.9\N{NO-BREAK SPACE}k"),
        (count_text(999_960), "1.0\N{NO-BREAK SPACE}M"),
        (number_text(1e-12), "1e-12"),
        (share_text(-0.001), "0.00"),
        (size_text("pixels", 50176), "50,176 pixels"),
        (size_text("batch", 6.02, (4.0, 9.0)), "batch 6.02 [4, 9]"),
        (list_text(["a"]), "a"),
        (list_text(["a", "b", "c"]), "a, b and c"),
        (list_text([str(number) for number in range(9)], most=2), "0, 1 and 7 more"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_shares_are_how_the_sum_moves_with_each_part(sharpness: float) -> None:
    logs = np.log([[3.0, 1.0, 2.5], [0.1, 4.0, 1.0]])
    total, shares = join_terms(np.exp(logs), sharpness)
    assert shares.sum(axis=-1) == pytest.approx(1.0)
    for at in range(3):
        moved = logs.copy()
        moved[:, at] += 1e-6
        assert (join_terms(np.exp(moved), sharpness)[0] - total) / 1e-6 == pytest.approx(shares[:, at], abs=1e-5)


def test_the_sharper_the_more_the_larger_of_the_two_rules() -> None:
    parts = np.array([[3.0, 1.0, 1.0]])
    assert np.exp(join_terms(parts)[0]) == pytest.approx(5.0)
    assert np.exp(join_terms(parts, 4.0)[0]) == pytest.approx((3.0**4 + 2.0**4) ** 0.25)
