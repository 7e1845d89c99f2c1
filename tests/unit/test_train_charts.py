"""The charts of training show what the records hold."""

import threading

import psutil
import pytest
from test_train_analysis import blocks, ranks, run

from modelhound.analysis.bounds import judge_blocks
from modelhound.analysis.scaling import measure_scaling
from modelhound.meter import Telemetry
from modelhound.records import EpochDone, PhaseSamples, RankTrained, TelemetrySample
from modelhound.report.charts import spec
from modelhound.report.train_charts import train_charts


def test_the_charts_hold_what_was_measured_and_can_be_drawn() -> None:
    import msgspec

    records: list[RankTrained] = [each for n in (1, 2) for each in ranks(n, forward=0.1, wait=0.05, exchange=0.01 * n)]
    done = EpochDone(epoch=1, loss=1.0, score=0.5, top5=None, test_loss=1.1, rate=0.1, seconds=1.0)
    trained = [msgspec.structs.replace(run(n), epochs=(done,), losses=(2.0, 1.0)) for n in (1, 2)]
    verdict = judge_blocks(blocks({"live": 0.2, "host batches": 0.1}))
    charts = train_charts(trained, records, verdicts=[verdict], scalings=[measure_scaling(trained, records)])
    by_name = {chart.name: chart for chart in charts}
    assert set(by_name) == {
        *("train_phases", "train_scores", "train_losses", "train_verdicts", "train_speedup", "train_efficiency"),
    } | {"train_steps"}
    first = [row for row in by_name["train_phases"].data if row["rank"] == "timm:x, 1 rank: rank 0"]
    assert sum(float(row["share"] or 0) for row in first) == pytest.approx(1)
    assert by_name["train_verdicts"].data[0]["speedup"] == pytest.approx(2)
    whole = [row for row in by_name["train_efficiency"].data if row["run"] == "timm:x, 2 ranks"]
    assert sum(float(row["share"] or 0) for row in whole) == pytest.approx(1)
    for chart in charts:
        assert spec(chart)["description"].startswith(chart.title)


def test_nothing_measured_gives_no_charts() -> None:
    assert train_charts([], []) == ()


def test_a_start_that_had_no_steps_left_to_do_leaves_the_other_charts() -> None:
    """Killed after its last step and started again, a rank has tested and saved, and no step to tell of."""
    import msgspec

    whole = ranks(1, forward=0.1, wait=0.05)[0]
    steps = [msgspec.structs.replace(each, seconds=()) for each in whole.phases]
    left = msgspec.structs.replace(
        whole,
        num_steps=0,
        num_items=0,
        phases=(*steps, PhaseSamples(phase="evaluate", seconds=(0.4,))),
        wall_seconds=0.5,
    )
    charts = {chart.name: chart for chart in train_charts([run(1)], [left])}
    assert "train_steps" not in charts
    shares = {row["phase"]: row["share"] for row in charts["train_phases"].data}
    assert shares == pytest.approx({"evaluate, save checkpoint": 0.8, "other": 0.2})


def test_the_fitted_line_goes_through_the_dots_where_one_rank_was_not_measured() -> None:
    """A disk that all share: two ranks are not twice as fast as one, but that is what the dots take for granted."""
    records = [each for count in (2, 4, 8) for each in ranks(count, forward=8 * 0.1, wait=8 * 0.01 * count)]
    trained = [run(count) for count in (2, 4, 8)]
    charts = {each.name: each for each in train_charts(trained, records, scalings=[measure_scaling(trained, records)])}
    speedups: dict[object, dict[object, float]] = {}
    for row in charts["train_speedup"].data:
        speedups.setdefault(row["kind"], {})[row["ranks"]] = float(row["speedup"] or 0)
    assert speedups["measured"][2] == pytest.approx(2)
    assert {count: speedups["fitted law"][count] for count in (2, 4, 8)} == pytest.approx(speedups["measured"])


def test_telemetry_goes_on_after_a_device_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([RuntimeError("no answer"), None])
    look = Telemetry._look

    def look_or_fail(self: Telemetry) -> TelemetrySample:
        trouble = next(answers, None)
        if trouble is not None:
            raise trouble
        return look(self)

    monkeypatch.setattr(Telemetry, "_look", look_or_fail)
    with Telemetry(interval_seconds=0.01) as telemetry:
        while not telemetry.samples:
            threading.Event().wait(0.01)
    assert next(answers, None) is None


def test_telemetry_does_without_counters_that_a_system_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose kernel has no /proc/diskstats."""

    def refuse() -> None:
        raise NotImplementedError("/proc/diskstats is not available on this system")

    monkeypatch.setattr(psutil, "disk_io_counters", refuse)
    with Telemetry(interval_seconds=0.01) as telemetry:
        while not telemetry.samples:
            threading.Event().wait(0.01)
    assert (telemetry.samples[0].disk_read_bytes, telemetry.samples[0].disk_written_bytes) == (0, 0)


def test_telemetry_sees_this_process_work() -> None:
    with Telemetry(interval_seconds=0.05) as telemetry:
        while len(telemetry.samples) < 3:
            threading.Event().wait(0.01)
            sum(range(100_000))
    last = telemetry.samples[-1]
    assert all(0 <= share <= 1 for share in last.cpu_shares)
    assert last.memory_bytes > 10_000_000
    assert max(sample.process_cpu_share for sample in telemetry.samples) > 0
    assert last.gpu_share is None
