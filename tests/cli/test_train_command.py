"""`hound train` as a person types it."""

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import command_line
import modelhound
from modelhound.cli.console import open_console
from modelhound.cli.train import _phases_table
from modelhound.records import ModelTrained, RankTrained
from modelhound.settings import TrainSettings
from modelhound.store import read_run
from verb_runs import write_verb_runs

TINY = ("--batch", "8", "--workers", "0", "--model", "zoo:mobilenet-shapes")
QUICK = ("--epochs", "1", *TINY)


@pytest.fixture
def hound(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """What the processes of ranks print comes back, too."""
    return partial(command_line.hound, capfd)


def test_the_answer_carries_what_the_contract_says(hound: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = hound(
        "train", "digits", *QUICK, "--limit", "60", "--device", "cpu", "--trace", "1", "--charts", "png", "--json"
    )
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    assert 0 <= answer["accuracy"] <= 1
    assert (answer["metric"], answer["score"]) == ("accuracy", answer["accuracy"])
    low, high = answer["interval"]
    assert low <= answer["score"] <= high
    assert high - low > 0.2  # ten test items say little
    assert "kind" not in answer["operators"][0]
    (rank,) = answer["phases"]
    assert sum(rank["seconds"].values()) == pytest.approx(rank["wall_seconds"], rel=0.02)
    assert answer["verdict"]["bound"] in (
        "data-bound",
        "model-bound",
        "cannot be told",
    )  # a few steps on a busy machine
    assert answer["efficiency"] == {"zoo:mobilenet-shapes": {"1": 1.0}}
    assert (Path(answer["checkpoint"]) / "model.safetensors").is_file()
    assert json.loads(Path(answer["operators"][0]["trace"]).read_text())["traceEvents"]
    assert {path.stem for path in Path(answer["run"]).glob("report-charts/*.png")} >= {
        "train_phases",
        "train_losses",
        "train_verdicts",
    }
    file, arch = answer["runs"][0]["read_back"]["model"], answer["runs"][0]["read_back"]["arch"]
    code, out, err = hound("search", "digits", "--limit", "60", "--models", file, "--arch", arch, "--json")
    assert code == 0, err
    assert json.loads(out)["ranking"][0]["model"] == file


def test_it_works_from_python_and_tells_what_an_option_is_not() -> None:
    result = modelhound.train(
        "digits", "zoo:mobilenet-shapes", limit=60, epochs=1, mode="cached", test=None, verdict="none"
    )
    assert result.trained[0].mode == "cached"
    with pytest.raises(modelhound.RequestError, match="'speed'"):
        modelhound.train("digits", speed=3)


def test_a_finished_run_gets_what_is_asked_for_later_and_a_kill_loses_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelhound.training import rank

    asked: dict[str, Any] = {"limit": 60, "epochs": 1, "mode": "head", "workers": 0, "run": tmp_path / "run"}

    def stop(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rank, "intervene", stop)  # killed while it is found out what bounds the run
        with pytest.raises(KeyboardInterrupt):
            modelhound.train("digits", "zoo:mobilenet-shapes", **asked)
    first = modelhound.train("digits", "zoo:mobilenet-shapes", verdict="none", **asked)
    assert first.ranks[0].num_steps > 0
    assert (first.num_resumed, first.operators, first.answer.verdicts) == (1, (), ())  # it was trained already
    traced = modelhound.train("digits", "zoo:mobilenet-shapes", verdict="none", trace=1, **asked)
    assert traced.operators[0].num_steps == 1
    assert (traced.trained, traced.ranks, traced.num_resumed) == (first.trained, first.ranks, 1)
    with monkeypatch.context() as patch:
        patch.setattr(rank, "train", stop)
        again = modelhound.train("digits", "zoo:mobilenet-shapes", verdict="none", trace=1, **asked)
    assert again.operators == traced.operators


def test_a_part_of_the_data_set_can_be_tested_on(tmp_path: Path) -> None:
    from layouts import write_food101

    data = str(write_food101(tmp_path / "food"))
    result = modelhound.train(data, "zoo:mobilenet-shapes", epochs=1, test="test", mode="cached", batch=1000)
    assert (result.trained[0].num_items, result.trained[0].num_test_items) == (30, 15)
    assert "a batch of 1000 is more than there are items" in result.trained[0].notes[0]
    with pytest.raises(modelhound.RequestError, match="which is trained on"):
        modelhound.train(data, "zoo:mobilenet-shapes", epochs=1, test="train", mode="cached")


def test_a_label_that_is_only_in_the_test_part_and_a_test_part_without_items_are_refused(
    tmp_path: Path, hound: Callable[..., tuple[int, str, str]]
) -> None:
    from PIL import Image

    for name in ("train/cat", "train/dog", "test/cat", "test/emu", "none/cat", "none/dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(0 if name.startswith("none") else 4):
            Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / "pets" / name / f"{number}.png")
    for part, words in (("test", "found 'emu'; train on a part that has it"), ("none", "hold no jpg")):
        code, out, err = hound("train", str(tmp_path / "pets"), *QUICK, "--test", part)
        assert code != 0
        assert out == ""
        assert words in err
        assert "Traceback" not in err


def test_the_script_for_slurm_is_printed_and_nothing_is_submitted(hound: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = hound(
        *("train", "digits", *QUICK, "--slurm", "--dry-run", "--partition", "gpu", "--ranks", "1,8", "--nodes", "2")
    )
    assert code == 0, err
    assert out.startswith("#!/bin/bash")
    assert "#SBATCH --gpus-per-node=4" in out
    assert "#SBATCH --cpus-per-task=4" in out  # four ranks without loader processes
    assert not Path("runs").exists()


def test_what_a_slurm_job_runs_trains_and_says_when_it_is_over(tmp_path: Path) -> None:
    from modelhound.launch import slurm
    from modelhound.records import to_plain
    from modelhound.store import read_run
    from modelhound.verbs.train import train_on_node

    settings = TrainSettings(
        "digits", model=("zoo:mobilenet-shapes",), limit=60, epochs=1, mode="cached", run=tmp_path / "run"
    )
    train_on_node(to_plain(settings))
    assert (tmp_path / "run" / slurm.find_place().over).is_file()
    assert read_run(tmp_path / "run").headline.startswith("zoo:mobilenet-shapes accuracy")


def test_a_job_handed_to_slurm_finds_a_run_folder_that_it_may_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit keeps the job's script and its log in the run folder, so that this is not empty when the job begins."""
    from submitit.core.utils import DelayedSubmission

    from modelhound.verbs.train import submit_train

    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("sbatch", "srun", "sacct"):
        (commands / name).write_text('#!/bin/sh\necho "Submitted batch job 17"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    settings = TrainSettings(
        "digits",
        model=("zoo:mobilenet-shapes",),
        limit=60,
        epochs=1,
        mode="cached",
        workers=0,
        device="cpu",
        slurm=True,
        run=tmp_path / "run",
    )
    assert submit_train(settings).job == "17"
    DelayedSubmission.load(tmp_path / "run" / "slurm" / "17_submitted.pkl").result()  # as the node does
    assert read_run(tmp_path / "run").headline.startswith("zoo:mobilenet-shapes accuracy")


def test_without_slurm_a_job_is_refused(
    hound: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = hound("train", "digits", *QUICK, "--slurm")
    assert code == 2
    assert "sbatch" in err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--ranks", "0"), "--ranks '0'"),
        (("--ranks", "two"), "--ranks 'two'"),
        (("--epochs", "0"), "--epochs 0"),
        (("--rate", "-1"), "--rate -1"),
        (("--mode", "cached", "--trace", "3"), "--trace 3 with --mode cached"),
        (("--nodes", "2"), "without --slurm"),
        (("--mode", "cached", "--augment", "flip"), "--augment flip with --mode cached"),
        (("--mode", "head", "--batchnorm", "sync"), "--batchnorm sync"),
        (("--loader", "found.json"), "--loader with --batch and --workers"),
        (("--test", "validation"), "use --test with"),
        (("--model", "zoo:nothing"), "zoo:nothing"),
        (("--device", "cuda"), "--device"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    options: tuple[str, ...], word: str, hound: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = hound("train", "digits", *(TINY if "--model" not in options else ()), *options)
    assert code == 2
    assert out == ""
    assert err.startswith("hound: cannot ")
    assert word in err
    assert "Traceback" not in err


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(modelhound.RequestError, match=r"cannot run 4 ranks on 2 GPUs.*--ranks 2 or fewer"):
        modelhound.train("digits", "zoo:mobilenet-shapes", device="cuda", ranks=(1, 4))


def test_more_ranks_than_cores_or_items_can_serve_are_refused_before_any_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request: dict[str, Any] = {"device": "cpu", "ranks": (1, 100), "limit": 60, "run": Path("run")}
    monkeypatch.setattr("modelhound.training.limits.count_cores", lambda: 2)
    with pytest.raises(modelhound.RequestError, match=r"cannot run 100 ranks on 2 cores.*--ranks 8 or fewer"):
        modelhound.train("digits", "zoo:mobilenet-shapes", **request)
    monkeypatch.setattr("modelhound.training.limits.count_cores", lambda: 64)
    with pytest.raises(
        modelhound.RequestError, match=r"cannot train on 5\d items with 100 ranks.*--ranks 5\d or fewer"
    ):
        modelhound.train("digits", "zoo:mobilenet-shapes", **request)
    assert not Path("run").exists()


def test_a_loader_file_decides_what_is_left_open(tmp_path: Path) -> None:
    import msgspec

    from modelhound.settings import LoaderFile, LoaderSettings
    from modelhound.store import read_run

    file = tmp_path / "loader.json"
    file.write_bytes(msgspec.json.encode(LoaderFile(settings=(LoaderSettings(batch=6, workers=1),))))
    result = modelhound.train("digits", "zoo:mobilenet-shapes", limit=60, epochs=1, loader=file, verdict="none")
    assert (result.trained[0].batch, result.ranks[0].num_workers) == (6, 1)
    assert result.to_json()["loader"] == {
        "batch": 6,
        "workers": 1,
        "prefetch": 2,
        "origin": str(file),
        "found_for": "other data",
        "is_of_computing": False,
    }
    assert read_run(result.run).settings["loader"] == str(file)  # what was asked, and not what came of it


def test_settings_are_the_same_from_a_list_and_a_text() -> None:
    assert TrainSettings("digits", ranks=(1, 2), model=["a:b"]) == TrainSettings("digits", ranks="1, 2", model="a:b")  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", ["80", "100", "160"])
def test_shares_of_many_phases_fit_the_terminal_and_make_a_whole(
    columns: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    run = read_run(write_verb_runs(tmp_path)["train"])
    (trained, *_), (rank, *_) = run.of(ModelTrained), run.of(RankTrained)
    shares = dict.fromkeys(("wait for data", "augment", "optimiser", "logging", "evaluate", "save checkpoint"), 0.05)
    shares |= {"forward": 0.3, "backward": 0.3, "communication": 0.06, "first batch": 0.01}
    console = open_console()
    with console.capture() as captured:
        console.print(_phases_table([(trained, rank, shares)] * 2, console))
    header, below = re.split("─+", captured.get())
    rows = [line for line in below.splitlines() if line.strip()]
    assert len(rows) == 2, "one line each"
    assert {"forward", "backward", "other"} <= set(header.split())
    assert ("first" in header.split()) == (columns == "160")
    if columns == "160":
        assert {"wait", "for", "data", "communication", "save", "checkpoint"} <= set(header.split()), (
            "the names of the page, in full"
        )
    assert sum(float(part) for part in re.findall(r"([\d.]+)%", rows[0])) == pytest.approx(100)


def test_ranks_that_spent_their_time_on_nothing_in_particular_are_a_table_too(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["train"])
    trained, rank = run.of(ModelTrained)[0], run.of(RankTrained)[0]
    console = open_console()
    with console.capture() as captured:
        console.print(_phases_table([(trained, rank, {"other": 1.0})] * 2, console))
    assert captured.get().count("100.0%") == 2
