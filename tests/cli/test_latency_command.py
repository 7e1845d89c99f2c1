"""`hound latency` as a person meets it."""

import json
import os
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest

from command_line import hound
from latencies import CEILINGS, record
from modelhound.cli.latency_tables import show_latency
from modelhound.records import LatencyMeasured, to_plain
from modelhound.settings import LatencySettings
from modelhound.store import open_run, read_run
from modelhound.timing.results import assemble_result
from warm_workers import start_command

NETWORK = """
import torch
from modelhound.data import Preprocessing

class Small(torch.nn.Module):
    preprocessing = Preprocessing(
        input_size=(24, 24), interpolation="bilinear", crop_fraction=1.0, crop_mode="center", mean=(0.5,) * 3, std=(0.5,) * 3
    )

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 8, 3)

    def forward(self, images):
        return self.layer(images).mean((2, 3))

def make():
    return Small()
"""


def fill_run(path: Path, factor: float) -> str:
    with open_run(path, verb="latency", at="2026", settings=to_plain(LatencySettings()), identity={}) as run:
        run.append(CEILINGS)
        for batch in (1, 2, 4, 8):
            run.append(record(factor * 1e-3 * batch, batch=batch))
    return str(path)


@pytest.mark.usefixtures("warm_workers")
def test_a_sweep_is_shown_drawn_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.py").write_text(NETWORK)
    asked = ("latency", "--models", "py:small.py:make", "--batch", "1,2,4,64", "--image", "24", "--seconds", "0.02")
    code, out, err = hound(capsys, *asked, "--run", "run", "--charts", "png")
    assert code == 0, err
    assert "py:small.py:make" in out
    assert "batch 64" in out
    assert "H1: the time of a call is proportional to batch size" in out
    assert re.search(r"GB/s were seen; [^.]*(-bound|cannot be told|far below both ceilings)", " ".join(out.split()))
    assert Path("run/report-charts/latency_batch_image.png").stat().st_size > 1000
    code, out, _ = hound(capsys, *asked, "--run", "run", "--json")
    document = json.loads(out)
    assert code == 0
    points = document["points"]
    assert [point["batch"] for point in points] == [1, 2, 4, 64]
    for point in points:
        assert (point["model"], point["image"], point["num_parameters"]) == ("py:small.py:make", 24, 3 * 8 * 9 + 8)
        assert len(point["samples"]) >= 3
        assert min(point["samples"]) <= point["median_seconds"] <= max(point["samples"])
        assert point["peak_memory_bytes"] > 0
    (law,) = document["laws"]
    assert law["axis"] == "batch"
    assert law["form"] in ("constant", "proportional", "affine", "power", "hinge", "quadratic")
    assert law["interval"][0] <= law["exponent"] <= law["interval"][1]
    assert law["sentence"]
    assert len(read_run(Path("run")).records) == 2 + 1 + 4  # two starts, ceilings, and each point once


@pytest.mark.usefixtures("warm_workers")
def test_why_no_law_is_told_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    measured = [record(1e-3 * batch, batch=batch) for batch in (1, 2)]
    show_latency(assemble_result(Path("run"), measured, [], [CEILINGS], [], margin=0.1))
    assert "3 sizes of batch, image or text are needed" in capsys.readouterr().out
    measured = [record(1e-3 * batch, batch=batch) for batch in (1, 2, 4)]
    show_latency(assemble_result(Path("run"), measured, [], [CEILINGS], [], margin=0.1))
    assert "are needed" not in capsys.readouterr().out


def test_a_sweep_is_priced_before_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hound(
        capsys,
        "latency",
        "--models",
        "tv:squeezenet1_0",
        "--batch",
        "1,2,100000000",
        "--image",
        "64",
        "--explain",
        "--json",
    )
    document = json.loads(out)
    assert code == 0, err
    assert document["num_points"] == 3
    assert 0 < document["seconds"] < 600
    small, medium, huge = document["points"]
    assert 0 < small["call_seconds"] < medium["call_seconds"]
    assert huge["call_seconds"] is None
    assert "not tried" in huge["refusal"]
    assert not Path("runs").exists()


def test_names_of_a_priced_sweep_and_of_a_measured_one_are_not_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("zoo:mobilenet-rotation-glyphs", "zoo:convnext-garments_b")
    code, out, err = hound(capsys, "latency", "--models", ",".join(names), "--batch", "1,2", "--explain")
    assert code == 0, err
    assert all(name in out for name in names)
    sides = range(32, 80, 8)  # each model has its own, which is no axis
    measured = [
        record(1e-3 * batch, batch=batch, image=side, model=f"zoo:mobilenet-rotation-on-{side}-pixels")
        for side in sides
        for batch in (1, 2, 4)
    ]
    show_latency(assemble_result(Path("run"), measured, [], [CEILINGS], [], margin=0.1))
    first = capsys.readouterr().out.partition("zoo:mobilenet-rotation-on-40-pixels")[0]
    assert "zoo:mobilenet-rotation-on-32-pixels" in first
    assert "batch 4" in first
    assert "image 40" not in first


def test_runs_are_compared_and_a_slow_one_fails_the_build(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old, same, slow = (
        fill_run(tmp_path / name, factor) for name, factor in (("old", 1.0), ("same", 1.0), ("slow", 1.3))
    )
    code, out, _ = hound(capsys, "latency", "--compare", old, slow)
    assert code == 0
    assert "1.30" in out
    code, out, _ = hound(capsys, "latency", "--compare", old, slow, "--fail-if-slower", "5%")
    assert code == 1
    assert "slower by more than 5%" in out
    code, out, _ = hound(capsys, "latency", "--compare", old, same, "--fail-if-slower", "5%", "--json")
    assert code == 0
    assert json.loads(out)["slower"] is False


def test_a_baseline_that_cannot_be_compared_with_is_refused_before_the_sweep(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelhound.verbs import latency

    def measure(*_: object, **__: object) -> None:
        raise AssertionError("the sweep has begun")

    monkeypatch.setattr(latency, "run_latency", measure)
    with open_run(Path("empty"), verb="latency", at="2026-11-18T00:00:00+00:00", settings={}, identity={}):
        pass
    for baseline, expected in (("nowhere", "expected a run folder"), ("empty", "expected at least one point in it")):
        code, out, err = hound(capsys, "latency", "--compare", baseline)
        assert (code, out) == (2, "")
        assert expected in " ".join(err.split())


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--batch", "0"), "--batch '0'"),
        (("--batch=-4",), "--batch '-4'"),
        (("--batch", "1.5"), "--batch '1.5'"),
        (("--device", "cuda:99"), "cannot use --device 'cuda:99'"),
        (("--models", "tv:resnet1"), "did you mean"),
        (("--fail-if-slower", "5%"), "expected --compare"),
        (("--explain", "--charts", "png"), "cannot use --explain"),
        (("--scale", "linear"), "expected --charts"),
        (("--compare", "nowhere", "neither"), "expected a run folder"),
        (("--compare", "nowhere", "./nowhere"), "cannot compare 'nowhere' with itself"),
        (("--compare", "nowhere"), "cannot read run 'nowhere': expected a run folder"),
    ],
)
def test_requests_that_cannot_be_served_end_with_two_and_a_reason(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    code, out, err = hound(capsys, "latency", *argv)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_what_is_measured_before_ctrl_c_is_kept() -> None:
    Path("small.py").write_text(
        NETWORK.replace("return self.layer", "import time; time.sleep(0.02); return self.layer")
    )
    asked = ["latency", "--models", "py:small.py:make", "--seconds", "0.2", "--image", "24", "--run", "run"]
    records = Path("run/records.jsonl")
    batches = ",".join(str(size) for size in range(1, 60))
    with tempfile.TemporaryFile() as words, start_command([*asked, "--batch", batches], words) as process:
        while process.poll() is None and not (records.exists() and records.read_text().count("latency_point") >= 2):
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        process.wait(60)
        words.seek(0)
        err = words.read().decode()
    assert process.returncode == 130, err
    assert "kept" in err
    assert 2 <= len(read_run(Path("run")).of(LatencyMeasured)) < 59
