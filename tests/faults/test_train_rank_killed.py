"""A rank killed in mid-epoch of a series: the run ends and says so, nothing hangs, and the same command goes on."""

import json
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import command_line
from fault_log import counted
from modelhound.training import series
from modelhound.training.rank import train_rank
from train_things import on_ranks

NUM_EPOCHS, STEPS_PER_EPOCH = 6, 4
SERIES = (
    *("train", "digits", "--model", "zoo:mobilenet-shapes", "--limit", "100", "--epochs", str(NUM_EPOCHS)),
    *("--batch", "10", "--ranks", "1,2", "--device", "cpu", "--verdict", "none", "--run", "run"),
)


@pytest.fixture
def hound(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """What the processes of ranks print comes back, too."""
    return partial(command_line.hound, capfd)


def _kill_rank_one(killed: list[int], over: threading.Event) -> None:
    """As soon as two ranks have kept an epoch: the next one has begun then."""
    while not over.wait(0.02):
        if list(Path("run").glob("*-on-2/checkpoints/epoch-*")):
            killed += [each.pid for each in _ranks() if each.environ().get("RANK") == "1"]
            os.kill(killed[0], signal.SIGKILL)
            return


def _ranks() -> list[Any]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "modelhound.launch.rank_child" in each.cmdline()]


def _launch_by_forking(function: str, argument: Any, *, num_ranks: int, folder: Path, **others: Any) -> list[Any]:
    """As torchrun would, without starting interpreters that load torch again."""
    return on_ranks(num_ranks, folder, _forked_rank, argument)


def _forked_rank(argument: Any) -> Any:
    import torch

    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(torch.distributed.get_rank())
    return train_rank(argument)


@counted("kill -9 of a rank", "train --ranks 1,2")
def test_a_killed_rank_ends_its_run_and_the_next_start_of_the_series_goes_on_and_tells_how_it_scales(
    hound: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    over = threading.Event()
    killer = threading.Thread(target=_kill_rank_one, args=(killed, over))
    killer.start()
    code, out, err = hound(*SERIES, "--json")
    over.set()
    killer.join()
    answer = json.loads(out)
    assert killed
    assert (code, [run["num_ranks"] for run in answer["runs"]]) == (1, [1]), err
    assert "rank 1 of 2 ended by SIGKILL" in answer["failures"][0]["error"]
    assert not _ranks()
    kept = max(int(path.name[6:]) for path in Path("run").glob("*-on-2/checkpoints/epoch-*"))

    monkeypatch.setattr(series, "run_on_ranks", _launch_by_forking)  # the launcher has been seen at work
    code, out, err = hound(*SERIES, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert [run["num_ranks"] for run in answer["runs"]] == [1, 2]
    assert [len(run["phases"]) for run in answer["runs"]] == [1, 2]
    assert [len(run["epochs"]) for run in answer["runs"]] == [NUM_EPOCHS, NUM_EPOCHS]
    # those before were not run again
    assert answer["runs"][1]["phases"][0]["num_steps"] <= (NUM_EPOCHS - kept) * STEPS_PER_EPOCH
    assert set(answer["efficiency"]["zoo:mobilenet-shapes"]) == {"1", "2"}
    scaled = answer["scalings"][0]["points"][1]
    assert scaled["efficiency"] + sum(scaled["losses"].values()) == pytest.approx(1)

    code, out, err = hound(*SERIES)
    assert code == 0, err
    assert "2 runs were finished by an earlier start" in out
    assert "2 ranks are" in out
