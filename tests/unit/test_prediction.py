"""A predictor finds the device it was shown, and says how far it may be off."""

import math

import msgspec
import numpy as np
import pytest

from modelhound.analysis.prediction import (
    Anchor,
    Predictor,
    fit_predictor,
    leave_one_model_out,
    predict_seconds,
)
from modelhound.errors import RequestError


def device(flops: float, activation_bytes: float) -> float:
    """2 ms to launch, 20 TFLOP/s, 1.5 TB/s."""
    return 2e-3 + flops / 2e13 + activation_bytes / 1.5e12


def models(count: int, *, scatter: float, seed: int = 0) -> list[Anchor]:
    generator = np.random.default_rng(seed)
    anchors = []
    for number in range(count):
        flops = math.exp(generator.uniform(math.log(1e9), math.log(2e12)))
        moved = 60 * flops**0.75 * math.exp(generator.normal(0, 0.6))
        seconds = device(flops, moved) * math.exp(generator.normal(0, scatter))
        anchors.append(Anchor(model=f"m{number}", flops=flops, activation_bytes=moved, seconds=seconds))
    return anchors


def test_a_device_without_scatter_is_found_exactly() -> None:
    predictor = fit_predictor(models(8, scatter=0))
    assert predictor.kind == "sum"
    assert [math.exp(value) for value in predictor.log_coefficients] == pytest.approx(
        [2e-3, 1 / 2e13, 1 / 1.5e12], rel=1e-3
    )
    guess = predict_seconds(predictor, flops=5e11, activation_bytes=3e10)
    assert guess.seconds == pytest.approx(device(5e11, 3e10), rel=1e-3)


def test_the_interval_holds_new_models_about_as_often_as_it_says() -> None:
    held, errors = [], []
    for seed in range(20):
        seen, unseen = (all_models := models(32, scatter=0.2, seed=seed))[:12], all_models[12:]
        predictor = fit_predictor(seen)
        for anchor in unseen:
            guess = predict_seconds(predictor, flops=anchor.flops, activation_bytes=anchor.activation_bytes)
            held.append(guess.interval[0] <= anchor.seconds <= guess.interval[1])
            errors.append(abs(guess.seconds / anchor.seconds - 1))
    assert 0.85 <= np.mean(held) <= 0.98
    assert np.median(errors) < 0.2


def test_more_anchors_narrow_the_interval() -> None:
    few, many = (
        predict_seconds(fit_predictor(models(count, scatter=0.1)), flops=1e11, activation_bytes=1e10)
        for count in (5, 40)
    )
    assert many.interval[1] / many.interval[0] < few.interval[1] / few.interval[0]


def test_five_anchors_without_scatter_are_not_taken_for_certain() -> None:
    guess = predict_seconds(fit_predictor(models(5, scatter=0)), flops=1e11, activation_bytes=1e10)
    assert guess.interval[1] / guess.interval[0] > 1.3


def test_a_device_bound_by_launches_is_predicted_from_its_kernels() -> None:
    generator = np.random.default_rng(0)
    anchors = []
    for number in range(10):
        flops, kernels = float(generator.uniform(1e8, 1e9)), int(generator.integers(50, 500))
        anchors.append(
            Anchor(
                model=f"m{number}",
                flops=flops,
                activation_bytes=float(generator.uniform(1e6, 1e7)),
                seconds=1e-5 * kernels + flops / 2e13,
                num_kernels=kernels,
            )
        )
    predictor = fit_predictor(anchors)
    assert predictor.kind == "kernels"
    guess = predict_seconds(predictor, flops=1e8, activation_bytes=1e6, num_kernels=300)
    assert guess.seconds == pytest.approx(3e-3, rel=0.02)
    with pytest.raises(RequestError, match="count the kernels"):
        predict_seconds(predictor, flops=1e8, activation_bytes=1e6)


def test_a_device_that_grows_faster_the_more_it_has_to_do_is_taken_for_a_power() -> None:
    generator = np.random.default_rng(0)
    anchors = []
    for number in range(12):
        flops, moved = math.exp(generator.uniform(18, 28)), math.exp(generator.uniform(14, 20))
        anchors.append(
            Anchor(model=f"m{number}", flops=flops, activation_bytes=moved, seconds=1e-9 * flops**0.5 * moved**0.3)
        )
    predictor = fit_predictor(anchors)
    assert predictor.kind == "power"
    guess = predict_seconds(predictor, flops=1e10, activation_bytes=1e7)
    assert guess.seconds == pytest.approx(1e-9 * 1e10**0.5 * 1e7**0.3, rel=0.03)


def test_leaving_one_out_gives_the_error_that_new_models_show() -> None:
    error = leave_one_model_out(models(30, scatter=0.15))
    assert set(error.errors) == {f"m{number}" for number in range(30)}
    assert error.median_error == pytest.approx(np.median(np.abs(list(error.errors.values()))))
    assert 0.05 < error.median_error < 0.2  # the median of |N(0, 0.15)| is 0.10
    assert error.within >= 0.8
    assert error.sentence.startswith("predicted from the other 29, a model's time is off by ")


def test_a_model_that_is_slow_for_its_counts_is_named() -> None:
    anchors = models(12, scatter=0.02)
    slow = msgspec.structs.replace(anchors[3], seconds=anchors[3].seconds * 5)
    error = leave_one_model_out([*anchors[:3], slow, *anchors[4:]])
    assert "farthest off is m3 by -8" in error.sentence
    assert error.errors["m3"] == pytest.approx(-0.8, abs=0.05)


def test_a_predictor_comes_back_from_json_and_predicts_the_same() -> None:
    predictor = fit_predictor(models(6, scatter=0.1))
    back = msgspec.json.decode(msgspec.json.encode(predictor), type=Predictor)
    first, second = (predict_seconds(one, flops=1e11, activation_bytes=1e9) for one in (predictor, back))
    assert first == second


def test_four_anchors_are_too_few() -> None:
    for function in (fit_predictor, leave_one_model_out):
        with pytest.raises(RequestError, match="cannot predict from 4 anchors: expected 5 or more"):
            function(models(4, scatter=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flops": 0.0}, "0.0 FLOPs"),
        ({"activation_bytes": -1.0}, "-1.0 activation bytes"),
        ({"seconds": math.nan}, "nan seconds"),
        ({"model": "m1"}, "share a name"),
    ],
)
def test_anchors_that_cannot_be_are_refused(change: dict[str, float], message: str) -> None:
    anchors = models(6, scatter=0)
    with pytest.raises(RequestError, match=message):
        fit_predictor([msgspec.structs.replace(anchors[0], **change), *anchors[1:]])


def test_a_model_without_flops_is_not_predicted() -> None:
    predictor = fit_predictor(models(6, scatter=0))
    with pytest.raises(RequestError, match="count them again"):
        predict_seconds(predictor, flops=0.0, activation_bytes=1.0)
    with pytest.raises(RequestError, match="between 0 and 1"):
        predict_seconds(predictor, flops=1.0, activation_bytes=1.0, confidence=90)


def eager(count: int, *, reordered: bool) -> list[Anchor]:
    """A GPU that works while its host hands over what comes next: 40 us an operator, or the device's own time."""
    generator = np.random.default_rng(11)
    anchors = []
    for number in range(count):
        compute, memory, reorder = (float(10 ** generator.uniform(-3.5, -1.5)) for _ in range(3))
        kernels = int(generator.integers(50, 900))
        work = 1.2 * compute + 1.5 * (memory + reorder * reordered)
        seconds = max(4e-5 * kernels, work) * math.exp(generator.normal(0, 0.03))
        anchors.append(
            Anchor(
                model=f"m{number}",
                flops=float(10 ** generator.uniform(8, 11)),  # says nothing here
                activation_bytes=float(10 ** generator.uniform(6, 9)),
                seconds=seconds,
                num_kernels=kernels,
                compute_seconds=compute,
                memory_seconds=memory,
                reorder_seconds=reorder,
            )
        )
    return anchors


@pytest.mark.parametrize(("reordered", "kind"), [(False, "overlap"), (True, "reordered overlap")])
def test_where_host_and_device_work_at_once_the_longer_of_the_two_is_predicted(reordered: bool, kind: str) -> None:
    anchors = eager(24, reordered=reordered)
    predictor = fit_predictor(anchors)
    assert predictor.kind == kind
    assert math.exp(predictor.log_coefficients[0]) == pytest.approx(4e-5, rel=0.15)
    assert leave_one_model_out(anchors).median_error < 0.12


def test_a_predictor_that_learnt_of_reordering_asks_for_it() -> None:
    predictor = fit_predictor(eager(24, reordered=True))
    with pytest.raises(RequestError, match="without reorder_seconds"):
        predict_seconds(
            predictor, flops=1e9, activation_bytes=1e7, num_kernels=9, compute_seconds=1e-3, memory_seconds=1e-3
        )
