"""A sweep from settings to answer, with networks that misbehave; run folders that are read and compared."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from latencies import CEILINGS, record
from modelhound.analysis.newest import newest_failures
from modelhound.errors import RequestError
from modelhound.meter import describe_machine
from modelhound.models import ModelRef, source_of
from modelhound.records import Failure, LatencyFailed, LatencyMeasured, RunStarted, to_plain
from modelhound.report.pages import build_page
from modelhound.settings import LatencySettings, parse_share
from modelhound.store import open_run, read_run
from modelhound.verbs.latency import compare_latency, read_latency, run_latency

NETWORKS = """
import os
import torch
from modelhound.data import Preprocessing


class Odd(torch.nn.Module):
    preprocessing = Preprocessing(
        input_size=(32, 32), interpolation="bilinear", crop_fraction=1.0, crop_mode="center", mean=(0.5,) * 3, std=(0.5,) * 3
    )

    def __init__(self, how):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3)
        self.how = how

    def forward(self, images):
        if images.shape[-1] < 16:
            raise ValueError("too small for me")
        features = self.layer(images).mean((2, 3))
        if not images.is_meta and len(images) > 1:
            if self.how == "raise":
                raise ValueError("one at a time")
            if self.how == "die":
                os.abort()
            if self.how == "grow":
                torch.ones(len(images) * 300_000_000, dtype=torch.uint8)
        return features


def plain():
    return Odd("")


def raises():
    return Odd("raise")


def dies():
    return Odd("die")


def grows():
    return Odd("grow")


def broken():
    network = Odd("")
    network.layer = torch.nn.Conv2d(7, 4, 3)
    return network
"""


def fill_run(path: Path, *records: LatencyMeasured | LatencyFailed, tf32: str | None = None) -> Path:
    with open_run(path, verb="latency", at="2026", settings=to_plain(LatencySettings()), identity={}) as run:
        run.append(msgspec.structs.replace(CEILINGS, tf32=tf32))
        for each in records:
            run.append(each)
    return path


@pytest.mark.usefixtures("warm_workers")
def test_what_misbehaves_is_a_row_and_the_rest_is_measured(tmp_path: Path) -> None:
    Path("odd.py").write_text(NETWORKS)
    settings = LatencySettings(
        models=("py:odd.py:plain", "py:odd.py:raises", "py:odd.py:dies", "py:odd.py:grows", "py:odd.py:broken"),
        batch=(1, 2),
        image=(32,),
        seconds=0.02,
        memory="500MB",
        run=tmp_path / "run",
    )
    told = []
    result = run_latency(settings, watch=lambda progress: told.append((progress.task, progress.done, progress.total)))
    assert ("timing", 8, 8) in told
    ends = {(each.model, each.point.batch): each.why for each in result.failed}
    assert ends == {
        ("py:odd.py:raises", 2): "error",
        ("py:odd.py:dies", 2): "crashed",
        ("py:odd.py:grows", 2): "out of memory",
    }
    messages = {(each.model, each.point.batch): each.message for each in result.failed}
    assert messages["py:odd.py:raises", 2] == "ValueError: one at a time"
    assert "SIGABRT" in messages["py:odd.py:dies", 2]
    assert "llocate" in messages["py:odd.py:grows", 2]
    assert {each.num_parameters for each in result.failed} == {3 * 4 * 9 + 4}
    assert {row["num_parameters"] for row in result.to_json()["points"]} == {3 * 4 * 9 + 4}
    assert {(each.model, each.point.batch) for each in result.measured} >= {("py:odd.py:plain", b) for b in (1, 2)}
    assert [each.model for each in result.broken] == ["py:odd.py:broken"]
    assert len(result.measured) == 5
    first = result.measured[0]
    assert first.num_parameters == 3 * 4 * 9 + 4
    assert first.flops == 2 * (3 * 4 * 9) * 30 * 30
    assert len(first.seconds) >= 3
    own = source_of(ModelRef("py", "odd.py:plain")).stamp("odd.py:plain")
    assert {each.stamp for each in (*result.measured, *result.failed)} == {own} != {""}
    assert sorted(each.place for each in result.measured) != [each.place for each in result.measured]
    again = read_latency(result.run)
    assert len(again.measured) == len(result.measured)
    assert {each.point for each in again.failed} == {each.point for each in result.failed}


@pytest.mark.usefixtures("warm_workers")
def test_a_size_that_some_models_refuse_is_still_told_of_when_the_folder_is_read(tmp_path: Path) -> None:
    Path("odd.py").write_text(NETWORKS)
    settings = LatencySettings(
        models=("py:odd.py:plain", "py:odd.py:raises"), batch=(1,), image=(8, 32), seconds=0.02, run=tmp_path / "run"
    )
    result = run_latency(settings)
    refused = [("py:odd.py:plain", "8 pixels"), ("py:odd.py:raises", "8 pixels")]
    assert [(each.model, each.phase) for each in result.broken] == refused
    assert len(result.measured) == 2  # at the other size
    kept = read_run(tmp_path / "run")
    assert [(each.model, each.phase) for each in newest_failures(kept.records)] == refused
    assert read_latency(tmp_path / "run").broken == result.broken


@pytest.mark.usefixtures("warm_workers")
def test_a_size_that_is_refused_stops_the_sweep_before_anything_is_timed(tmp_path: Path) -> None:
    Path("odd.py").write_text(NETWORKS)
    with pytest.raises(
        RequestError, match=r"py:odd.py:plain at 8 pixels: expected a size it takes, such as 16, 28, 32"
    ):
        run_latency(LatencySettings(models=("py:odd.py:plain",), image=(8, 32), run=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": (0,)}, "--batch '0': expected whole numbers from 1"),
        ({"batch": "-3"}, "--batch '-3'"),
        ({"image": "large"}, "--image 'large'"),
        ({"sequence": ""}, "an empty --sequence"),
        ({"precision": ("fp8",)}, "--precision 'fp8': expected one of auto, fp32"),
        ({"seconds": 0}, "--seconds 0"),
        ({"memory": "much"}, "--memory 'much'"),
        ({"timeout": float("nan")}, "--timeout nan"),
        ({"models": ()}, "cannot time no models"),
        ({"sampling": "timm", "seconds": 3.0}, "--sampling timm"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match="cannot") as caught:
        LatencySettings(**options)  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("precision", ["tf32", "fp32-strict"])
def test_a_precision_that_only_gpus_have_is_refused_on_a_cpu(precision: str) -> None:
    with pytest.raises(RequestError, match=f"{precision} on a CPU"):
        run_latency(LatencySettings(models=("tv:resnet18",), precision=(precision,), device=("cpu",)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seconds": ()}, "expected one or more positive numbers of seconds"),
        ({"seconds": (0.0,) * 9}, "expected one or more positive numbers of seconds"),
        ({"flops_per_second": 0.0}, "the ceilings of cuda:0 in fp32: expected positive numbers"),
    ],
)
def test_times_that_cannot_be_are_refused_in_a_sentence(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Of a folder that somebody has written by hand: its lines are whole, and no line of ours."""
    lines = [
        msgspec.structs.replace(each, **{name: value for name, value in changed.items() if hasattr(each, name)})
        for each in (CEILINGS, record(1e-3, batch=1))
    ]
    with open_run(tmp_path / "run", verb="latency", at="2026", settings={}, identity={}) as run:
        for each in lines:
            run.append(each)
    with pytest.raises(RequestError, match=message):
        read_latency(tmp_path / "run")
    with pytest.raises(RequestError, match=message):
        build_page([read_run(tmp_path / "run")])


def test_what_a_later_start_could_run_is_not_called_broken(tmp_path: Path) -> None:
    mended = record(1e-3, batch=1)
    started = RunStarted(at="2026", device="cpu", machine=describe_machine())
    failure = Failure(model=mended.model, phase="forward", error="its layers do not fit")
    with open_run(tmp_path / "run", verb="latency", at="2026", settings={"margin": "wide"}, identity={}) as run:
        for each in (started, failure, started, mended):
            run.append(each)
    found = read_latency(tmp_path / "run")  # whatever stands there for a margin
    assert (found.broken, found.measured) == ((), (mended,))


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5 %", 0.05), ("0.1", 0.1), ("0", 0.0)])
def test_a_share_is_read_as_people_write_it(text: str, share: float) -> None:
    assert parse_share("fail-if-slower", text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "fast", "-5%", "2000%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="fail-if-slower"):
        parse_share("fail-if-slower", text)


def test_runs_are_compared_point_by_point(tmp_path: Path) -> None:
    batches = (1, 2, 4)
    old = fill_run(tmp_path / "old", *(record(1e-3 * batch, batch=batch) for batch in batches))
    slow = {1: 1.0, 2: 1.5, 4: 1.0}
    new = fill_run(tmp_path / "new", *(record(1e-3 * batch * slow[batch], batch=batch) for batch in batches))
    comparison = compare_latency((old, new), limit=0.05)
    changes = {point.name: point.change for point in comparison.runs[0].points}
    assert changes["tv:resnet18 batch 2, image 224"] == "slower"
    assert changes["tv:resnet18 batch 1, image 224"] == "same"
    assert comparison.slower
    assert not compare_latency((old, old), limit=0.05).slower


def test_the_same_sweep_on_two_devices_is_compared_by_shape(tmp_path: Path) -> None:
    here = fill_run(tmp_path / "here", record(1e-3))
    there = fill_run(tmp_path / "there", record(2e-2, device="cpu"))
    (point,) = compare_latency((here, there)).runs[0].points
    assert point.ratio == pytest.approx(20, rel=0.05)


def test_runs_that_round_otherwise_are_told_apart(tmp_path: Path) -> None:
    strict = fill_run(tmp_path / "strict", record(2e-3), tf32="none")
    loose = fill_run(tmp_path / "loose", record(1e-3), tf32="convolutions")
    (note,) = compare_latency((strict, loose)).notes
    assert note == "in fp32 strict rounds nothing to TF32, loose convolutions"
    assert compare_latency((strict, strict)).notes == ()


def test_a_point_that_fails_now_is_told(tmp_path: Path) -> None:
    measured = record(1e-3)
    old = fill_run(tmp_path / "old", measured)
    lost = LatencyFailed(point=measured.point, why="out of memory", tried=True, message="")
    comparison = compare_latency((old, fill_run(tmp_path / "new", lost)))
    assert comparison.runs[0].points[0].change == "fails now"
    assert comparison.slower


def test_of_a_network_that_was_edited_the_last_outcome_counts(tmp_path: Path) -> None:
    slow, quick = record(2e-3, model="py:a"), record(1e-3, model="py:a")
    edited = msgspec.structs.replace(quick, stamp="later")
    assert read_latency(fill_run(tmp_path / "timed", slow, edited)).measured == (edited,)
    broken = LatencyFailed(point=slow.point, why="error", tried=True, message="it says no", stamp="later")
    found = read_latency(fill_run(tmp_path / "broken", slow, broken))
    assert (found.measured, found.failed) == ((), (broken,))


def test_a_run_of_another_verb_is_no_sweep(tmp_path: Path) -> None:
    with open_run(tmp_path / "other", verb="search", at="2026", settings={}, identity={}):
        pass
    with pytest.raises(RequestError, match="expected a run of `hound latency`"):
        read_latency(tmp_path / "other")


def test_records_survive_being_written_down() -> None:
    measured = record(1e-3, kernel_seconds=1e-4)
    assert msgspec.json.decode(msgspec.json.encode(measured), type=LatencyMeasured) == measured
