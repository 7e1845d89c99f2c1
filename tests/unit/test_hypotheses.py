"""H1, H2 and H3 are answered by equivalence tests, and an answer says why."""

import re
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from modelhound.analysis.hypotheses import (
    HYPOTHESES,
    Answer,
    Hypothesis,
    answer_hypothesis,
    conclude,
    hypothesis_of,
)
from modelhound.analysis.laws import SweepPoint
from modelhound.errors import RequestError

H1, H2, H3, H3_LONGFORMER = HYPOTHESES
BATCHES = tuple(2.0**power for power in range(8))

Curve = Callable[[float], float]


def sweep(
    curve: Curve,
    *,
    sizes: tuple[float, ...] = BATCHES,
    noise: float = 0.02,
    device: Curve | None = None,
    host: Curve | None = None,
) -> list[SweepPoint]:
    generator = np.random.default_rng(1)
    return [
        SweepPoint(
            size=size,
            seconds=tuple(float(value) for value in curve(size) * np.exp(generator.normal(0, noise, 15))),
            device_seconds=device(size) if device else None,
            host_seconds=host(size) if host else None,
        )
        for size in sizes
    ]


def launch_bound(size: float) -> float:
    return max(0.006, 0.001 * size)


def answer(curve: Curve, hypothesis: Hypothesis = H1, *, model: str = "bert", **given: Curve) -> Answer:
    return answer_hypothesis(hypothesis, sweep(curve, **given), model=model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("curve", "verdict"),
    [
        (lambda x: 0.001 * x, "holds"),
        (lambda x: 0.001 * x**1.05, "holds"),
        (lambda x: 0.001 * x**0.9, "cannot be told"),
        (lambda x: 0.001 * x**0.8, "does not hold"),
        (lambda x: 0.001 * x**1.3, "does not hold"),
        (launch_bound, "does not hold"),
        (lambda x: 0.006, "does not hold"),
        (lambda x: 0.006 + 0.001 * x, "does not hold"),
    ],
)
def test_proportional_means_an_exponent_of_one_up_to_a_tenth(curve: Curve, verdict: str) -> None:
    assert answer(curve).verdict == verdict


def test_a_wider_margin_lets_a_claim_hold() -> None:
    points = sweep(lambda x: 0.001 * x**0.8)
    assert answer_hypothesis(H1, points, model="bert", margin=0.3).verdict == "holds"


def test_a_bent_curve_with_the_right_exponent_on_average_does_not_hold() -> None:
    bent = answer(lambda x: 1 + 0.1 * x + 0.01 * x * x)
    assert bent.law.exponent is not None
    assert bent.law.exponent.overall == pytest.approx(1, abs=0.1)
    assert bent.verdict == "does not hold"
    assert "on average but 0.1" in bent.sentence


def test_noise_alone_cannot_refute_or_confirm() -> None:
    points = [SweepPoint(size=size, seconds=(size,), interval=(size / 1.6, size * 1.6)) for size in (1.0, 2.0, 4.0)]
    assert answer_hypothesis(H1, points, model="bert").verdict == "cannot be told"


def test_a_true_claim_is_rarely_refuted_and_a_false_one_rarely_confirmed() -> None:
    verdicts: dict[float, list[str]] = {1.0: [], 0.85: []}
    for exponent, seen in verdicts.items():
        for seed in range(40):
            generator = np.random.default_rng(seed)
            points = [
                SweepPoint(size=size, seconds=(float(size**exponent * np.exp(generator.normal(0, 0.05))),))
                for size in BATCHES
            ]
            seen.append(answer_hypothesis(H1, points, model="bert").verdict)
    assert verdicts[1.0].count("does not hold") == 0
    assert verdicts[1.0].count("holds") >= 36
    assert verdicts[0.85].count("holds") <= 2


def test_a_floor_with_a_waiting_device_is_called_launch_bound() -> None:
    told = answer(launch_bound, device=lambda x: 0.00348 if x < 6 else 0.001 * x)
    assert told.floor is not None
    assert told.floor.bound == "launch"
    assert "Flat up to batch 6" in told.sentence
    assert (
        "launch-bound, 42% of the time the device waits for the host; past that the exponent is 1.00" in told.sentence
    )


def test_below_a_floor_of_launches_the_device_s_own_part_is_told() -> None:
    told = answer(lambda size: max(4e-3, 1e-4 * size), device=lambda size: 1e-4 * size)
    assert told.device_law is not None
    assert told.device_law.chosen is not None
    assert told.device_law.chosen.form == "proportional"
    assert "What the device is busy for grows all the while, with exponent 1.00" in told.sentence
    alone = answer(lambda size: max(4e-3, 1e-4 * size))
    assert alone.device_law is None
    assert "busy for" not in alone.sentence


def test_a_floor_with_a_busy_device_is_not_called_launch_bound() -> None:
    told = answer(launch_bound, device=lambda x: 0.97 * launch_bound(x))
    assert "not launch-bound, the device is busy 0.97 of the time" in told.sentence


def test_a_floor_with_a_busy_host_and_no_device_times_is_called_launch_bound() -> None:
    told = answer(launch_bound, host=lambda x: 0.0057)
    assert re.search(r"launch-bound, for 9[4-6]% of the time the host is handing work over", told.sentence)


def test_a_floor_without_host_and_device_times_is_left_open() -> None:
    told = answer(launch_bound)
    assert told.floor is None
    assert "host and device times that would show it were not measured" in told.sentence


def test_a_fixed_part_is_named_with_its_share_of_the_smallest() -> None:
    told = answer(lambda x: 0.006 + 0.001 * x, device=lambda x: 0.002 + 0.001 * x)
    assert "86% of the smallest: launch-bound, 57% of the time the device waits" in told.sentence


def test_time_that_never_grows_is_explained_too() -> None:
    assert "Flat all the way at 6.0" in answer(lambda x: 0.006, device=lambda x: 0.001).sentence


def test_pixels_are_claimed_proportional_and_counted_whole() -> None:
    sizes = tuple(float(side * side) for side in (64, 96, 128, 160, 224, 320))
    told = answer_hypothesis(hypothesis_of("pixels", "vgg16"), sweep(lambda x: 1e-7 * x, sizes=sizes), model="vgg16")
    assert told.sentence.startswith(
        "H2 holds for vgg16: latency is proportional to the number of pixels from 4,096 pixels to 102,400 pixels, exponent 1.0"
    )
    assert told.sentence.endswith("], within 1 ± 0.1.")


def test_attention_over_all_pairs_refutes_that_time_is_proportional_to_length() -> None:
    sizes = tuple(16.0 * 2**power for power in range(9))
    told = answer_hypothesis(H3, sweep(lambda x: 0.003 + 2e-5 * x + 1e-7 * x * x, sizes=sizes), model="bert")
    assert told.verdict == "does not hold"
    assert "grows with the square, as attention over all pairs of tokens does, makes 0.95" in told.sentence


@pytest.mark.parametrize(
    ("curve", "verdict"),
    [(lambda x: 0.03, "holds"), (lambda x: 0.03 * x**0.5, "does not hold"), (lambda x: 1e-4 * x, "does not hold")],
)
def test_longformer_is_claimed_constant(curve: Curve, verdict: str) -> None:
    assert hypothesis_of("tokens", "allenai/Longformer-base-4096") is H3_LONGFORMER
    assert answer(curve, H3_LONGFORMER).verdict == verdict


def test_each_axis_has_its_hypothesis() -> None:
    found = [hypothesis_of(axis, "bert") for axis in ("batch", "pixels", "tokens")]
    assert found == [H1, H2, H3]
    assert hypothesis_of("batch", "longformer") is H1
    with pytest.raises(RequestError, match="expected batch, pixels or tokens"):
        hypothesis_of("size", "bert")


def test_two_sizes_answer_nothing() -> None:
    points = sweep(lambda x: x, sizes=(1.0, 2.0))
    told = answer_hypothesis(H1, points, model="bert")
    assert told.sentence == "H1 cannot be told for bert: 2 sizes are measured, and a law needs 3 or more."


def test_one_exception_refutes_and_all_are_named() -> None:
    answers = [
        answer(lambda x: x, model="vgg16"),
        answer(launch_bound, model="bert"),
        answer(lambda x: x**0.9, model="mnasnet"),
    ]
    told = conclude(answers)
    assert told.verdict == "does not hold"
    assert (told.holds_for, told.fails_for, told.untold_for) == (("vgg16",), ("bert",), ("mnasnet",))
    assert told.sentence == "H1 does not hold for bert; it holds for vgg16 and cannot be told for mnasnet."


def test_a_claim_holds_where_it_holds_for_each_model() -> None:
    assert (
        conclude([answer(lambda x: x, model="a"), answer(lambda x: x, model="b")]).sentence == "H1 holds for a and b."
    )


def test_what_cannot_be_told_for_one_model_is_not_concluded() -> None:
    told = conclude([answer(lambda x: x, model="a"), answer(lambda x: x**0.9, model="b")])
    assert told.verdict == "cannot be told"


def test_answers_to_several_hypotheses_are_not_concluded_together() -> None:
    with pytest.raises(RequestError, match="answers to one hypothesis"):
        conclude([answer(lambda x: x), answer(lambda x: x, H3)])
    with pytest.raises(RequestError, match="answers to one hypothesis"):
        conclude([])


def test_a_margin_of_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="expected more than 0"):
        answer_hypothesis(H1, sweep(lambda x: x), model="bert", margin=0)


def test_an_answer_comes_back_from_json() -> None:
    told = answer(launch_bound, device=lambda x: 0.001 * x)
    assert msgspec.json.decode(msgspec.json.encode(told), type=Answer) == told
