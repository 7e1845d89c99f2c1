"""Verdicts, scaling and findings from records whose answers are known beforehand."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from modelhound.analysis.bounds import Verdict, judge_blocks, workers_needed
from modelhound.analysis.findings import check_findings
from modelhound.analysis.scaling import measure_scaling
from modelhound.analysis.step_times import measure_steps
from modelhound.analysis.telemetry import summarise_telemetry
from modelhound.cli.train import _answer_sentence
from modelhound.errors import RequestError
from modelhound.meter.telemetry import join_samples
from modelhound.records import (
    Block,
    BlocksMeasured,
    ModelTrained,
    PhaseSamples,
    RankTrained,
    SavedModel,
    TelemetrySample,
)
from modelhound.verbs.train import TrainAnswer, TrainResult


def blocks(times: dict[str, float], *, num_workers: int = 4, noise: float = 0.01, **more: Any) -> BlocksMeasured:
    """Five rounds, each a little slower or faster as a whole."""
    shifts = (1.0, 1 + noise, 1 - noise, 1 + 2 * noise, 1 - 2 * noise)
    return BlocksMeasured(
        model="timm:x",
        num_workers=num_workers,
        batch=8,
        **{"num_ranks": 1, "num_cores": 16, **more},
        blocks=tuple(
            Block(
                condition=condition.partition("+")[0], round=number, seconds=(seconds * shift,) * 4, delay_seconds=delay
            )
            for number, shift in enumerate(shifts)
            for condition, seconds in times.items()
            for delay in (float(condition.partition("+")[2] or 0),)
        ),
    )


def test_a_data_bound_run_says_by_how_much_and_how_many_workers() -> None:
    verdict = judge_blocks(blocks({"live": 0.23, "host batches": 0.10, "device batches": 0.10}))
    assert verdict.bound == "data-bound"
    assert verdict.sentence == (
        "data-bound: with loading for free 2.30x faster [2.30, 2.30]; 10 workers instead of 4 would give 2.30x"
    )
    assert "--workers 10" in verdict.advice


def test_a_model_bound_run_is_advised_only_what_it_does_not_use_yet() -> None:
    times = {"live": 0.2, "host batches": 0.2, "device batches": 0.2}
    assert judge_blocks(blocks(times, unused=("--compile",))).advice == (
        "a step of 200 ms is the model's own: use --compile, a smaller model, or more --ranks"
    )
    assert "--" not in judge_blocks(blocks(times)).advice.replace("--ranks", "")


def test_ranks_on_other_machines_take_no_cores_of_this_one() -> None:
    times = {"live": 0.20, "host batches": 0.10}
    assert "--workers 8" in judge_blocks(blocks(times, num_ranks=8, num_cores=32, num_local_ranks=4)).advice
    assert "more than the 4 cores" in judge_blocks(blocks(times, num_ranks=8, num_cores=32)).advice


def test_pairing_takes_out_what_all_conditions_share() -> None:
    """The machine is up to a third slower in some rounds, and the interval does not care."""
    verdict = judge_blocks(blocks({"live": 0.2, "host batches": 0.1}, noise=0.15))
    assert verdict.interval == pytest.approx((2.0, 2.0))


def test_copies_and_network_are_told_apart_from_loading() -> None:
    copying = judge_blocks(blocks({"live": 0.20, "host batches": 0.20, "device batches": 0.10}))
    assert copying.bound == "copy-bound"
    network = judge_blocks(blocks({"live": 0.20, "host batches": 0.19, "no all-reduce": 0.12}, num_ranks=2))
    assert network.bound == "communication-bound"
    assert "--accumulate" in network.advice


def test_small_gains_are_not_worth_a_name() -> None:
    verdict = judge_blocks(blocks({"live": 0.103, "host batches": 0.1, "device batches": 0.0995}))
    assert verdict.bound == "model-bound"
    assert verdict.speedup == pytest.approx(0.103 / 0.0995)
    assert "for free only 1.04x faster [" in verdict.sentence


def test_what_is_no_faster_is_not_called_faster() -> None:
    verdict = judge_blocks(blocks({"live": 0.097, "host batches": 0.1, "device batches": 0.1}))
    assert verdict.sentence == "model-bound: with everything but the model for free no faster [0.97, 0.97]"


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((0.5, 2.0, 1.0, 0.6, 1.8), "0.38x and 2.65x"),
        ((0.4, 1.0, 1.0, 0.4, 0.4), "0.15x and 1.08x"),  # nothing is slower without loading: chance alone
    ],
)
def test_steps_that_vary_too_much_tell_nothing(ratios: tuple[float, ...], words: str) -> None:
    """Live steps took half as long in some rounds and twice as long in others."""
    measured = blocks({"live": 0.1, "host batches": 0.1}, noise=0)
    wild = tuple(
        msgspec.structs.replace(each, seconds=(0.1 * ratios[each.round],)) if each.condition == "live" else each
        for each in measured.blocks
    )
    verdict = judge_blocks(msgspec.structs.replace(measured, blocks=wild))
    assert verdict.bound == "cannot be told"
    assert verdict.sentence == f"cannot be told: steps vary too much, with loading for free between {words} as fast"


def test_bursts_of_several_loader_processes_are_waiting_too() -> None:
    """Four processes finish together: three of four steps wait for nothing, and all of them take what loading takes."""
    measured = blocks({"live": 0.1, "host batches": 0.1}, noise=0)
    bursts = tuple(
        msgspec.structs.replace(each, seconds=(0.7, 0.1, 0.1, 0.1) * 2) if each.condition == "live" else each
        for each in measured.blocks
    )
    verdict = judge_blocks(msgspec.structs.replace(measured, blocks=bursts))
    assert (verdict.bound, verdict.speedup) == ("data-bound", pytest.approx(2.5))


@pytest.mark.parametrize(("num_rounds", "reach"), [(3, 4.303), (5, 2.776)])
def test_few_rounds_are_as_sure_as_student_says(num_rounds: int, reach: float) -> None:
    """Ratios that neither drift nor last: the standard error of their median, times Student's quantile."""
    logs = np.array([-0.1, 0.1, 0.0, 0.1, -0.1][:num_rounds])
    measured = blocks({"live": 0.2, "host batches": 0.1}, noise=0)
    varied = tuple(
        msgspec.structs.replace(each, seconds=(0.2 * float(np.exp(logs[each.round])),) * 40)
        if each.condition == "live"
        else each
        for each in measured.blocks
        if each.round < num_rounds
    )
    verdict = judge_blocks(msgspec.structs.replace(measured, blocks=varied))
    error = math.sqrt(math.pi / 2 / num_rounds) * float(np.std(logs, ddof=1))
    assert verdict.interval == pytest.approx((2 * math.exp(-reach * error), 2 * math.exp(reach * error)), rel=1e-3)


def test_two_rounds_tell_nothing() -> None:
    measured = blocks({"live": 0.2, "host batches": 0.1})
    two = tuple(each for each in measured.blocks if each.round < 2)
    with pytest.raises(RequestError, match="from 2 rounds of blocks: expected 3 or more"):
        judge_blocks(msgspec.structs.replace(measured, blocks=two))


def test_more_workers_than_cores_are_not_advised() -> None:
    verdict = judge_blocks(blocks({"live": 1.0, "host batches": 0.1}, num_cores=8))
    assert verdict.workers_needed == 40
    assert verdict.sentence.endswith("; 8 workers instead of 4 would give 2.00x")  # as many as there are cores
    assert "hound prepare" in verdict.advice
    assert "--workers 40" not in verdict.advice
    prepared = judge_blocks(blocks({"live": 1.0, "host batches": 0.1}, num_cores=8, is_prepared=True))
    assert "hound prepare" not in prepared.advice  # that has been done
    crowded = judge_blocks(blocks({"live": 0.2, "host batches": 0.1}, num_workers=0, num_ranks=4, num_cores=2))
    assert crowded.advice.startswith("it would take 1 worker per rank, more than the 0 cores each has here")


@pytest.mark.parametrize(
    ("live", "cached", "workers", "needed"), [(0.4, 0.1, 0, 3), (0.4, 0.1, 2, 8), (0.11, 0.1, 0, 1)]
)
def test_workers_that_would_keep_up(live: float, cached: float, workers: int, needed: int) -> None:
    assert workers_needed(live, cached, workers) == needed


def test_doses_tell_the_critical_path() -> None:
    times = {"live": 0.1, "host batches": 0.1, "model+0.02": 0.12, "model+0.05": 0.15, "loading+0.05": 0.1}
    shares = {dose.stage: dose for dose in judge_blocks(blocks(times, noise=0)).doses}
    assert shares["model"].share == pytest.approx(1.0)
    assert shares["loading"].share == pytest.approx(0.0)
    assert shares["model"].interval[0] > 0.9


def run(num_ranks: int, model: str = "timm:x", num_parameters: int = 10) -> ModelTrained:
    return ModelTrained(
        model=model,
        stamp="",
        num_ranks=num_ranks,
        mode="full",
        num_parameters=num_parameters,
        num_trained_parameters=10,
        num_items=64,
        num_test_items=16,
        batch=8,
        num_parts=1,
        precision="fp32",
        metric="accuracy",
        score=0.5,
        top5=None,
        epochs=(),
        losses=(),
        checkpoint="",
        stopped="finished",
        wall_seconds=1.0,
    )


def rank(num_ranks: int, number: int = 0, *, model: str = "timm:x", **seconds: float) -> RankTrained:
    """8 steps of 8 items; `seconds` are those of each step."""
    num_steps = 8
    names = {"wait": "wait for data", "exchange": "communication"}
    phases = tuple(
        PhaseSamples(phase=names.get(name, name), seconds=(value,) * num_steps) for name, value in seconds.items()
    )
    return RankTrained(
        model=model,
        num_ranks=num_ranks,
        rank=number,
        device="cpu",
        num_steps=num_steps,
        num_items=64,
        phases=phases,
        wall_seconds=sum(each.total for each in phases),
        peak_memory_bytes=1,
        num_workers=0,
    )


def ranks(num_ranks: int, **seconds: float) -> list[RankTrained]:
    return [rank(num_ranks, number, **seconds) for number in range(num_ranks)]


def test_data_and_training_are_told_apart_per_batch_and_epoch() -> None:
    trained = run(2)  # 64 items in batches of 8: four steps of two ranks
    times = measure_steps(trained, rank(2, wait=0.1, forward=0.2, exchange=0.3))
    assert times is not None
    assert (times.data_seconds_per_batch, times.data_seconds_per_epoch) == pytest.approx((0.1, 0.4))
    assert (times.training_seconds_per_batch, times.training_seconds_per_epoch) == pytest.approx((0.5, 2.0))
    assert measure_steps(trained, msgspec.structs.replace(rank(2), num_steps=0)) is None


def train_result(folder: Path, trained: tuple[ModelTrained, ...], *verdicts: Verdict) -> TrainResult:
    return TrainResult(
        run=folder,
        data="photos",
        task="classification",
        device="cpu",
        weights="pretrained",
        num_classes=2,
        trained=trained,
        ranks=(),
        answer=TrainAnswer(verdicts=verdicts, scalings=(), findings=(), guess=0.5),
        operators=(),
        failures=(),
        skipped=(),
        saved=tuple(SavedModel(model=f"file:{each.model}-on-{each.num_ranks}") for each in trained),
        num_resumed=0,
    )


def test_the_verdict_of_the_first_run_is_not_that_of_another(tmp_path: Path) -> None:
    """What bounds the first could not be found out, or was found out by a later start."""
    trained = (run(1, model="timm:first"), run(1, model="timm:x"))
    verdict = judge_blocks(blocks({"live": 0.2, "host batches": 0.1}))
    assert train_result(tmp_path, trained, verdict).to_json()["verdict"] is None
    assert train_result(tmp_path, trained[::-1], verdict).to_json()["verdict"]["bound"] == "data-bound"


def test_each_run_names_its_own_checkpoint_and_a_model_that_of_its_best_run(tmp_path: Path) -> None:
    trained = tuple(msgspec.structs.replace(run(count), score=1 / count) for count in (2, 1, 4))
    result = train_result(tmp_path, trained)
    assert [each["read_back"]["model"] for each in result.to_json()["runs"]] == [
        f"file:timm:x-on-{count}" for count in (2, 1, 4)
    ]
    assert result.read_back == {"timm:x": SavedModel(model="file:timm:x-on-1")}


def test_of_runs_that_are_equally_good_the_fastest_is_named_and_none_is_called_the_best(tmp_path: Path) -> None:
    trained = tuple(msgspec.structs.replace(run(count), wall_seconds=9.0 / count) for count in (1, 2))
    result = train_result(tmp_path, trained)
    assert _answer_sentence(result).partition(".")[0].startswith("[bold]timm:x[/bold] reaches 50")
    assert "epochs, the fastest of 2 runs with that score." in _answer_sentence(result)
    assert result.read_back == {"timm:x": SavedModel(model="file:timm:x-on-2")}


def test_perfect_scaling_loses_nothing() -> None:
    scaling = measure_scaling([run(1), run(2), run(4)], [each for n in (1, 2, 4) for each in ranks(n, forward=0.1)])
    assert [point.efficiency for point in scaling.points] == pytest.approx([1, 1, 1])
    assert scaling.last_worthy_rank is None
    assert "worth it as far as thousands" in scaling.sentence


def test_where_one_rank_was_not_measured_the_fewest_count_as_if_they_scaled_perfectly() -> None:
    records = [*ranks(2, forward=0.1), *ranks(4, forward=0.1, exchange=0.1)]
    scaling = measure_scaling([run(4), run(2)], records)
    assert [(point.num_ranks, point.speedup, point.efficiency) for point in scaling.points] == [
        (2, pytest.approx(2.0), pytest.approx(1.0)),
        (4, pytest.approx(2.0), pytest.approx(0.5)),  # twice the ranks, of which each takes twice as long
    ]
    assert scaling.sentence.startswith("4 ranks are 2.00x as fast as one would be if 2 scaled perfectly, an efficiency")
    measured = measure_scaling([run(1), run(2)], [*ranks(1, forward=0.1), *ranks(2, forward=0.1)])
    assert measured.sentence.startswith("2 ranks are 2.00x as fast as one, an efficiency of 100%")


def test_the_loss_is_split_by_its_causes_and_adds_up() -> None:
    two = [
        rank(2, 0, forward=0.1, wait=0.03, exchange=0.07),
        rank(2, 1, forward=0.15, wait=0.03, exchange=0.02),
    ]
    scaling = measure_scaling([run(1), run(2)], [rank(1, forward=0.1, wait=0.01, exchange=0.0), *two])
    point = scaling.points[1]
    assert point.speedup == pytest.approx(2 * 0.11 / 0.20)
    assert point.losses["data"] == pytest.approx(0.02 / 0.2)
    assert point.losses["communication"] == pytest.approx(0.02 / 0.2)
    assert point.losses["stragglers"] == pytest.approx(0.025 / 0.2)
    assert point.efficiency + sum(point.losses.values()) == pytest.approx(1)


def test_the_law_finds_a_shared_disk_and_where_ranks_stop_paying() -> None:
    """100 ms of computing per item and rank, and 10 ms of a disk that all share: with n ranks 10 + 100 / n."""
    records = [each for count in (1, 2, 4) for each in ranks(count, forward=8 * 0.1, wait=8 * 0.01 * count)]
    scaling = measure_scaling([run(1), run(2), run(4)], records)
    assert scaling.law is not None
    assert scaling.law.serial_seconds == pytest.approx(0.01, rel=1e-6)
    assert scaling.law.parallel_seconds == pytest.approx(0.1, rel=1e-6)
    rates = [1 / (0.01 + 0.1 / count) for count in range(1, 40)]
    worthy = [count for count in range(2, 39) if rates[count - 1] - rates[count - 2] >= rates[0] / 2]
    assert scaling.last_worthy_rank == max(worthy)


def test_the_law_goes_through_two_ranks_that_are_slower_than_one() -> None:
    """One item of two ranks takes longer than one of one: no part that merely does not shrink explains that."""
    scaling = measure_scaling([run(1), run(2)], ranks(1, forward=0.1) + ranks(2, forward=0.1, exchange=0.2))
    assert scaling.law is not None
    assert scaling.points[1].speedup < 1
    assert scaling.law.seconds_at(1) / scaling.law.seconds_at(2) == pytest.approx(scaling.points[1].speedup)
    assert scaling.last_worthy_rank == 1


def test_where_exchange_alone_would_fit_best_one_rank_still_takes_time() -> None:
    """Times as (n - 1) / n^2 and a little more at four ranks: of a law of nothing else, one rank would be done at once."""
    steps = {2: 4.0, 4: 6.3, 8: 7.0}
    records = [each for count, seconds in steps.items() for each in ranks(count, forward=seconds)]
    scaling = measure_scaling([run(count) for count in steps], records)
    assert scaling.law is not None
    assert scaling.law.seconds_at(1) > scaling.points[0].seconds_per_item
    assert scaling.last_worthy_rank is None or scaling.last_worthy_rank > 1


def test_a_run_with_missing_ranks_is_not_counted() -> None:
    with pytest.raises(RequestError, match="some are missing"):
        measure_scaling([run(2)], [rank(2, 0, forward=0.1)])


def test_telemetry_is_summed_up_by_means_peaks_and_totals() -> None:
    assert summarise_telemetry([]) is None
    usual = {"machine_memory_bytes": 9, "disk_written_bytes": 0, "network_received_bytes": 0}
    samples = [
        TelemetrySample(
            at_seconds=number,
            cpu_shares=(1.0, 0.5),
            process_cpu_share=1.0 + number,
            memory_bytes=100 - number,
            disk_read_bytes=7,
            network_sent_bytes=3,
            gpu_share=0.5 * number,
            gpu_memory_bytes=80 - number,
            gpu_power_watts=watts,
            gpu_temperature_celsius=60.0 - number,
            gpu_throttled=reasons,
            **usual,
        )
        for number, watts, reasons in ((0, 300.0, ("power",)), (1, None, ()))
    ]
    found = summarise_telemetry(samples)
    assert found is not None
    assert (found.busy_cores, found.machine_busy_cores, found.num_cores) == (1.5, 1.5, 2)
    assert (found.peak_memory_bytes, found.disk_read_bytes, found.network_sent_bytes) == (100, 14, 6)
    assert (found.gpu_power_watts, found.gpu_share, found.gpu_throttled) == (300.0, 0.25, {"power": 0.5})
    assert (found.gpu_peak_memory_bytes, found.gpu_highest_celsius) == (80, 60.0)
    assert summarise_telemetry([msgspec.structs.replace(samples[1], gpu_share=None)]).gpu_share is None  # type: ignore[union-attr]
    joined = summarise_telemetry([join_samples(*samples)])  # as a long run keeps them: nothing that was counted is lost
    assert joined is not None
    assert (joined.busy_cores, joined.peak_memory_bytes, joined.disk_read_bytes, joined.network_sent_bytes) == (
        1.5,
        100,
        14,
        6,
    )
    of_gpu = (joined.gpu_share, joined.gpu_peak_memory_bytes, joined.gpu_power_watts, joined.gpu_highest_celsius)
    assert of_gpu == (0.25, 80, 300.0, 60.0)


def test_the_findings_of_the_research_hold_where_they_hold() -> None:
    small = [
        each
        for n, wait in ((1, 0.02), (2, 0.02), (4, 0.03))
        for each in ranks(n, forward=0.1, wait=wait, exchange=0.02 * (n - 1))
    ]
    large = [rank(1, model="timm:y", forward=0.3)]
    found = {each.name: each for each in check_findings([run(1), run(1, "timm:y", 20)], [*small, *large])}
    assert {name: each.outcome for name, each in found.items()} == {
        "larger-costs-more": "holds",
        "loading-stays": "holds",
        "second-helps-most": "holds",
    }
    assert "timm:y 37.5 ms per item" in found["larger-costs-more"].evidence


def test_findings_are_refuted_or_left_open_where_that_is_so() -> None:
    shrinking = [each for n in (1, 2) for each in ranks(n, forward=0.1, wait=0.08 / n)]
    found = {each.name: each.outcome for each in check_findings([run(1)], shrinking)}
    assert found == {
        "larger-costs-more": "cannot be told",
        "loading-stays": "does not hold",
        "second-helps-most": "cannot be told",
    }


@pytest.mark.parametrize(("counts", "outcome"), [((1, 2, 8), "holds"), ((1, 4, 8), "cannot be told")])
def test_what_the_second_rank_helps_is_compared_with_whole_doublings(counts: tuple[int, ...], outcome: str) -> None:
    """Two ranks are twice as fast as one, and eight 3.3 times as fast as two: 1.8 for each doubling."""
    steps = {1: 0.1, 2: 0.1, 4: 0.1, 8: 0.12}
    records = [each for count in counts for each in ranks(count, forward=steps[count])]
    found = {each.name: each.outcome for each in check_findings([run(1)], records)}
    assert found["second-helps-most"] == outcome


def test_times_of_zero_tell_nothing() -> None:
    trained = [run(1, "timm:x", 10), run(1, "timm:y", 20)]
    none = [each for n in (1, 2, 4) for each in ranks(n, forward=0.0, wait=0.0)]
    none.append(rank(1, model="timm:y", forward=0.0))
    assert {each.outcome for each in check_findings(trained, none)} == {"cannot be told"}


@pytest.mark.parametrize(("seconds", "outcome"), [(0.2, "holds"), (0.05, "does not hold"), (0.101, "cannot be told")])
def test_what_costs_about_the_same_does_not_cost_more(seconds: float, outcome: str) -> None:
    trained = [run(1, "timm:small", 10), run(1, "timm:large", 20)]
    costs = [rank(1, model="timm:small", forward=0.1), rank(1, model="timm:large", forward=seconds)]
    assert check_findings(trained, costs)[0].outcome == outcome


def test_the_phases_of_a_record_and_what_they_leave_over_add_up_to_the_whole() -> None:
    phases = {"forward": (2.0, 3.0), "other": (0.5,), "backward": (1.0,)}
    rank = RankTrained(
        model="timm:x",
        num_ranks=1,
        rank=0,
        device="cpu",
        num_steps=2,
        num_items=16,
        phases=tuple(PhaseSamples(phase=name, seconds=seconds) for name, seconds in phases.items()),
        wall_seconds=8.0,
        peak_memory_bytes=0,
        num_workers=0,
    )
    assert rank.totals() == {"forward": 5.0, "other": 2.0, "backward": 1.0}
    assert (rank.seconds_of("forward", "backward"), rank.seconds_of("evaluate")) == (6.0, 0.0)
    assert (rank.samples_of("forward"), rank.samples_of("evaluate")) == ((2.0, 3.0), ())
