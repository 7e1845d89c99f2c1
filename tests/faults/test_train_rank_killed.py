"""A rank killed in mid-epoch: the run ends and says so, nothing hangs, and starting it again goes on."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

import modelhound

NUM_EPOCHS, STEPS_PER_EPOCH = 6, 4


def _train() -> modelhound.TrainResult:
    return modelhound.train(
        *("digits", "zoo:mobilenet-shapes"),
        **{"limit": 100, "epochs": NUM_EPOCHS, "batch": 10, "ranks": (2,), "device": "cpu", "verdict": "none"},
        run=Path("run"),
    )


def _kill_rank_one(killed: list[int]) -> None:
    """As soon as an epoch is kept: the next one has begun then."""
    for _ in range(2400):
        if list(Path("run").glob("*/checkpoints/epoch-*")):
            killed += [each.pid for each in _ranks() if each.environ().get("RANK") == "1"]
            os.kill(killed[0], signal.SIGKILL)
            return
        time.sleep(0.05)


def _ranks() -> list[Any]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "modelhound.launch.rank_child" in each.cmdline()]


def test_a_killed_rank_ends_the_run_and_the_next_start_goes_on() -> None:
    killed: list[int] = []
    killer = threading.Thread(target=_kill_rank_one, args=(killed,))
    killer.start()
    result = _train()
    killer.join()
    assert killed
    assert not result.trained
    assert "rank 1 of 2 ended by SIGKILL" in result.failures[0].error
    assert not _ranks()
    kept = max(int(path.name[6:]) for path in Path("run").glob("*/checkpoints/epoch-*"))
    resumed = _train()
    assert not resumed.failures
    assert len(resumed.trained[0].epochs) == NUM_EPOCHS
    assert resumed.ranks[0].num_steps <= (NUM_EPOCHS - kept) * STEPS_PER_EPOCH  # those before were not run again
