"""Kill training at random moments; starting it again must end with the very same losses and score."""

import json
import multiprocessing
import os
import random
import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

NUM_KILLS = 2


def _train(run: Path, answer: Path) -> None:
    import modelhound

    result = modelhound.train(
        "digits", "zoo:mobilenet-shapes", limit=50, epochs=6, batch=10, augment="strong", verdict="none", run=run
    )
    (trained,) = result.trained
    answer.write_text(json.dumps([trained.losses, [each.score for each in trained.epochs], trained.checkpoint]))


def _start(run: Path, answer: Path) -> ForkServerProcess:
    # A server that has torch loaded already: a start costs the training, not loading torch.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm", "modelhound.verbs.train", "modelhound.training.rank"])
    process = context.Process(target=_train, args=(run, answer))
    process.start()
    return process


def _finish(run: Path, answer: Path) -> list[Any]:
    process = _start(run, answer)
    process.join(120)
    assert process.exitcode == 0
    document: list[Any] = json.loads(answer.read_text())
    return document


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], float]:
    import time

    folder = tmp_path_factory.mktemp("undisturbed")
    _finish(folder / "warm-up", folder / "answer.json")
    start = time.monotonic()
    document = _finish(folder / "run", folder / "answer.json")
    return document, time.monotonic() - start


@pytest.mark.parametrize("attempt", range(NUM_KILLS))
def test_training_killed_at_a_random_moment_ends_with_the_same_losses(
    attempt: int, undisturbed: tuple[list[Any], float], tmp_path: Path
) -> None:
    expected, seconds = undisturbed
    process = _start(tmp_path / "run", tmp_path / "answer.json")
    process.join(random.Random(attempt).uniform(0.3, 0.95) * seconds)
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert _finish(tmp_path / "run", tmp_path / "answer.json") == expected
