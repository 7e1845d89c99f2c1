"""Kill training between and in the middle of checkpoints; starting it again must end with the very same losses and score."""

import json
import multiprocessing
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

MOMENTS = {"after its second epoch": "epoch-00002", "while it keeps its third": ".epoch-00003.*"}


def _train(run: Path, answer: Path) -> None:
    import modelhound

    result = modelhound.train(
        "digits", "zoo:mobilenet-shapes", limit=50, epochs=4, batch=10, augment="strong", verdict="none", run=run
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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return _finish(folder / "run", folder / "answer.json")


@pytest.mark.parametrize("moment", MOMENTS)
def test_training_killed_ends_with_the_same_losses(moment: str, undisturbed: list[Any], tmp_path: Path) -> None:
    process = _start(tmp_path / "run", tmp_path / "answer.json")
    while process.is_alive() and not list((tmp_path / "run").glob(f"*/checkpoints/{MOMENTS[moment]}")):
        time.sleep(0.0005)  # one that is missed for once is killed after its end, which must be harmless too
    process.kill()  # which leaves one alone that has ended
    process.join()
    assert _finish(tmp_path / "run", tmp_path / "answer.json") == undisturbed
