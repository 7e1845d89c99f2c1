"""From points to laws, hypotheses, regimes and predictions, on times that were made up with a known answer."""

import msgspec
import numpy as np
import pytest

from latencies import CEILINGS, record
from modelhound.analysis.latency import (
    conclude_sweeps,
    fastest_beyond,
    find_laws,
    find_unrest,
    judge_prediction,
    summarise_points,
)
from modelhound.analysis.prediction import Anchor, fit_predictor, leave_one_model_out, predict_seconds
from modelhound.analysis.roofline import Ceilings, least_seconds
from modelhound.analysis.samples import percentile_of
from modelhound.records import CeilingsMeasured


def test_a_point_is_summed_up_with_an_interval_and_rates() -> None:
    (row,) = summarise_points([record(0.01, batch=8, kernel_seconds=0.004, flops=2e10)], [CEILINGS])
    assert row.median_seconds == pytest.approx(0.01, rel=0.03)
    assert row.interval is not None
    assert row.interval[0] < row.median_seconds < row.interval[1]
    assert row.items_per_second == pytest.approx(8 / row.median_seconds)
    assert row.flops_per_second == pytest.approx(2e10 / row.median_seconds)
    assert row.launch_seconds == pytest.approx(row.median_seconds - 0.004)
    assert row.regime.bound == "launch"
    assert row.percentiles == {}


def test_a_percentile_is_told_only_from_enough_samples() -> None:
    seconds = list(range(1, 1001))
    assert percentile_of(seconds, 0.9) == pytest.approx(900.1)
    assert percentile_of(seconds[:-1], 0.9) is None
    assert percentile_of(seconds, 0.99) is None


def test_a_floor_of_launches_is_found_named_and_refutes_the_first_hypothesis() -> None:
    batches = [2**power for power in range(9)]
    records = [
        record(
            max(1e-3, 1e-4 * batch),
            batch=batch,
            kernel_seconds=1e-4 * batch,
            host_seconds=1e-3,
            model="hf:bert",
            image=None,
            tokens=128,
        )
        for batch in batches
    ]
    (law,) = find_laws(records, [CEILINGS], margin=0.1)
    assert (law.axis, law.held, law.answer.hypothesis.name) == ("batch", "128 tokens", "H1")
    assert law.answer.law.chosen is not None
    assert law.answer.law.chosen.form == "hinge"
    assert law.answer.law.knee == pytest.approx(10, rel=0.2)
    assert law.answer.verdict == "does not hold"
    assert "launch-bound" in law.answer.sentence
    (conclusion,) = conclude_sweeps([law])
    assert conclusion.conclusion.fails_for == ("hf:bert",)


def test_time_in_proportion_to_pixels_confirms_the_second_hypothesis() -> None:
    records = [record(1e-7 * side**2, image=side) for side in (64, 96, 128, 160, 192, 224)]
    (law,) = find_laws(records, margin=0.1)
    assert (law.axis, law.held) == ("image", "batch 1")
    assert law.answer.verdict == "holds"
    assert law.answer.law.chosen is not None
    assert law.answer.law.chosen.form == "proportional"


def test_longformer_is_asked_to_be_constant_and_others_proportional() -> None:
    lengths = (16, 32, 64, 128, 256, 512)
    records = [
        record(seconds, model=model, image=None, tokens=length)
        for model, seconds_of in (("hf:longformer", lambda n: 0.5), ("hf:bert", lambda n: 1e-3 * n))
        for length, seconds in ((length, seconds_of(length)) for length in lengths)
    ]
    laws = find_laws(records, margin=0.1)
    assert {law.model: law.answer.verdict for law in laws} == {"hf:longformer": "holds", "hf:bert": "holds"}
    (conclusion,) = conclude_sweeps(laws)
    assert (conclusion.conclusion.name, conclusion.conclusion.verdict) == ("H3", "holds")


def test_on_a_cpu_what_does_not_grow_is_explained_by_weights_and_operators() -> None:
    ceilings = CeilingsMeasured(
        device="cpu",
        device_name="a CPU",
        precision="fp32",
        flops_per_second=1e11,
        bytes_per_second=1e10,
        memory_limit_bytes=10**10,
    )  # 47 MB of weights in 4.7 ms
    records = [record(0.02 + 0.01 * batch, batch=batch, device="cpu", noise=0.005) for batch in (1, 2, 4, 8, 16)]
    (law,) = find_laws(records, [ceilings], margin=0.1)
    assert law.answer.verdict == "does not hold"
    assert "reading the weights once takes 4.70 ms" in law.answer.sentence
    assert "70 operators" in law.answer.sentence


def test_lines_of_one_model_at_two_sizes_are_told_apart() -> None:
    records = [record(1e-3 * batch * side, batch=batch, image=side) for side in (64, 96) for batch in (1, 2, 4, 8)]
    laws = [law for law in find_laws(records, margin=0.1) if law.axis == "batch"]
    (conclusion,) = conclude_sweeps(laws)
    assert set(conclusion.conclusion.holds_for) == {"tv:resnet18 (image 64)", "tv:resnet18 (image 96)"}


def test_two_sizes_are_no_law() -> None:
    assert find_laws([record(1.0, batch=1), record(2.0, batch=2)], margin=0.1) == ()


def machine_time(flops: float, moved: float, kernels: int) -> float:
    return 5e-6 * kernels + flops / 1e13 + moved / 1e12


def make_anchors(num_models: int, settings: tuple[int, ...] = (1,)) -> list[Anchor]:
    generator = np.random.default_rng(3)
    anchors = []
    for number in range(num_models):
        flops, moved, kernels = (
            10 ** generator.uniform(8, 11),
            10 ** generator.uniform(6, 9),
            generator.integers(20, 900),
        )
        for batch in settings:
            seconds = machine_time(batch * flops, batch * moved, int(kernels))
            anchors.append(
                Anchor(
                    model=f"m{number}",
                    setting=f"batch {batch}",
                    flops=batch * flops,
                    activation_bytes=batch * moved,
                    num_kernels=int(kernels),
                    seconds=seconds,
                )
            )
    return anchors


def test_a_model_is_left_out_with_all_its_settings() -> None:
    anchors = make_anchors(7, settings=(1, 8, 64))
    error = leave_one_model_out(anchors)
    assert set(error.errors) == {f"m{number}" for number in range(7)}
    assert error.median_error < 0.03
    assert "the other 6" in error.sentence


def test_five_models_in_several_settings_predict_a_sixth() -> None:
    predictor = fit_predictor(make_anchors(5, settings=(1, 8, 64)))
    predicted = predict_seconds(predictor, flops=3e10, activation_bytes=2e8, num_kernels=300)
    assert predicted.seconds == pytest.approx(machine_time(3e10, 2e8, 300), rel=0.1)
    assert predictor.num_anchors == 5


def test_too_few_models_are_not_judged() -> None:
    records = [record(1e-3, model=f"tv:m{number}") for number in range(5)]
    (anchors,) = judge_prediction(records)
    assert anchors.error is None
    (anchors,) = judge_prediction([*records, record(1e-3, model="tv:m5")])
    assert anchors.error is not None


def test_operators_are_bound_by_whichever_ceiling_is_nearer() -> None:
    ceilings = Ceilings(flops_per_second=100.0, bytes_per_second=10.0)
    operators = [("product", 200.0, 10.0, 0.0, 1), ("other", 0.0, 20.0, 0.0, 3), ("product", 10.0, 1.0, 50.0, 1)]
    assert least_seconds(operators, ceilings) == pytest.approx((2.0, 3 * 2.0 + 5.1))
    assert least_seconds(operators, ceilings, batch=10, width=0.5) == pytest.approx((20.0, 3 * 10.0 + 3.0))


def test_models_of_different_kinds_are_predicted_by_what_their_operators_would_take() -> None:
    generator = np.random.default_rng(5)
    anchors = []
    for number in range(12):
        compute, memory = 10 ** generator.uniform(-4, -2, 2)
        anchors.append(
            Anchor(
                model=f"m{number}",
                flops=10 ** generator.uniform(8, 11),  # says nothing here
                activation_bytes=10 ** generator.uniform(6, 9),
                num_kernels=int(generator.integers(20, 900)),
                compute_seconds=compute,
                memory_seconds=memory,
                seconds=1.4 * compute + 1.2 * memory,
            )
        )
    assert fit_predictor(anchors).kind in ("roofline", "overlap")
    assert leave_one_model_out(anchors).median_error < 0.05


def test_a_network_is_judged_by_the_ceilings_of_its_own_operators() -> None:
    """A GPU multiplies five times as fast in convolutions, where it may round, as in products."""
    ceilings = msgspec.structs.replace(CEILINGS, kind_flops_per_second={"convolution": 1e13, "product": 2e12})
    products = msgspec.structs.replace(record(1e-2, flops=1.8e10, noise=0.0), flops_by_kind={"product": 1.8e10})
    (row,) = summarise_points([products], [ceilings])
    assert row.regime.compute_share == pytest.approx(0.9)
    assert row.regime.bound == "compute"


@pytest.mark.parametrize(("slow", "told"), [(1.0, 0), (2.0, 1)])
def test_a_host_that_takes_twice_as_long_for_the_same_work_is_named(slow: float, told: int) -> None:
    records = [
        record(seconds, batch=batch, host_seconds=seconds, kernel_seconds=1e-4, noise=0.0)
        for batch, seconds in ((1, 1e-3), (2, 1e-3 * slow), (4, 1e-3), (8, 1e-3 * slow), (16, 1e-3 * slow))
    ]
    notes = find_unrest(records, summarise_points(records, [CEILINGS]))
    assert len(notes) == told
    assert all("1 ms at some points and 2 ms at others" in note for note in notes)


def test_times_that_fall_with_a_growing_size_get_no_law_and_no_ceiling() -> None:
    times = {1: 1e-3, 2: 9e-3, 4: 4e-3, 8: 8e-3}
    line = [record(seconds, batch=batch, device="cpu") for batch, seconds in times.items()]
    (law,) = find_laws(line, margin=0.1)
    assert (law.answer.verdict, law.answer.law.chosen, law.answer.law.exponent) == ("cannot be told", None, None)
    assert "times fall with a growing size, from 8.96 ms at batch 2 to 3.96 ms at batch 4" in law.answer.law.sentence
    assert "H1 cannot be told" in law.answer.sentence
    ceilings = msgspec.structs.replace(CEILINGS, device="cpu", flops_per_second=5e12)
    bounds = [row.regime.bound for row in summarise_points(line, [ceilings])]
    assert bounds[1] == "unknown", "what disturbed it says nothing of the ceiling"
    assert "unknown" not in (bounds[0], *bounds[2:])
    (law,) = find_laws([record(1e-3 * batch, batch=batch, device="cpu") for batch in times], margin=0.1)
    assert law.answer.verdict == "holds"


def test_one_point_far_off_among_many_costs_only_its_own_verdict() -> None:
    line = [
        record(1e-3 * batch * (3 if batch == 8 else 1), batch=batch, device="cpu") for batch in (1, 2, 4, 8, 16, 32, 64)
    ]
    (law,) = find_laws(line, margin=0.1)
    assert law.answer.law.chosen is not None


def test_what_was_sampled_too_few_times_gets_no_verdict() -> None:
    line = [
        record(1e-3 * batch, batch=batch, device="cpu", num_samples=4 if batch > 2 else 20) for batch in (1, 2, 4, 8)
    ]
    (law,) = find_laws(line, margin=0.1)
    assert law.answer.law.sentence == (
        "cannot be told: 2 of 4 points were sampled too few times to say how sure their medians are; give them more --seconds"
    )
    rows = summarise_points(line, [msgspec.structs.replace(CEILINGS, device="cpu")])
    assert [row.regime.sentence.startswith("cannot be told: 4 samples say too little") for row in rows] == [
        False
    ] * 2 + [True] * 2
    assert [row.regime.bound for row in rows[2:]] == ["unknown", "unknown"]
    (law,) = find_laws([record(1e-3 * batch, batch=batch, num_samples=3) for batch in (1, 2, 4)], margin=0.1)
    assert law.answer.verdict == "cannot be told"


@pytest.mark.parametrize(("noise", "told"), [(0.02, 0), (0.5, 1)])
def test_calls_on_a_cpu_that_scatter_tell_of_other_work(noise: float, told: int) -> None:
    line = [record(1e-3 * batch, batch=batch, device="cpu", noise=noise, num_samples=60) for batch in (1, 2, 4)]
    notes = find_unrest(line, summarise_points(line, []))
    assert len(notes) == told
    assert all("calls on cpu scattered" in note and "other work on the machine" in note for note in notes)


def test_a_network_that_passes_the_measured_ceiling_is_found_and_shares_are_of_what_it_reached() -> None:
    """As where something else ran while ceilings were measured: 67 GFLOP/s were told as the most beside points of 285."""
    flops = 2 * CEILINGS.flops_per_second * 0.01
    passing, slower = record(0.01, batch=8, flops=flops), record(0.1, batch=16, flops=flops)
    rows = summarise_points([passing, slower], [CEILINGS])
    reached = fastest_beyond(rows, CEILINGS)
    assert reached == pytest.approx(rows[0].flops_per_second)
    assert reached == pytest.approx(2 * CEILINGS.flops_per_second, rel=0.05)
    assert fastest_beyond(rows[1:], CEILINGS) is None
    assert fastest_beyond(rows, msgspec.structs.replace(CEILINGS, device="another")) is None
    assert rows[0].regime.share is None or rows[0].regime.share <= 1
