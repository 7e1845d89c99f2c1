"""A rank killed in mid-epoch: the run ends and says so, nothing hangs, and starting it again goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

REQUEST = (
    *("train", "digits", "--model", "zoo:mobilenet-shapes", "--limit", "100", "--epochs", "10", "--batch", "10"),
    *("--ranks", "2", "--device", "cpu", "--verdict", "none", "--run", "run", "--json"),
)


def _hound() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "modelhound", *REQUEST]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _wait_for_a_checkpoint(process: "subprocess.Popen[str]") -> None:
    import time

    for _ in range(1200):
        if list(Path("run").glob("*/checkpoints/epoch-*")):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("no epoch was ever finished")


def _rank_one(process: "subprocess.Popen[str]") -> int:
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.environ().get("RANK") == "1":
            return child.pid
    raise AssertionError("there is no rank 1")


def test_a_killed_rank_ends_the_run_and_the_next_start_goes_on() -> None:
    process = _hound()
    _wait_for_a_checkpoint(process)
    os.kill(_rank_one(process), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    answer = json.loads(out)
    assert process.returncode == 1, err
    assert "rank 1 of 2 ended by SIGKILL" in answer["failures"][0]["error"]
    kept = max(int(path.name[6:]) for path in Path("run").glob("*/checkpoints/epoch-*"))
    process = _hound()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (run,) = json.loads(out)["runs"]
    assert len(run["epochs"]) == 10
    assert run["phases"][0]["num_steps"] <= (10 - kept) * 4  # those before were not run again
