"""Kill the search at random moments; starting it again must end with the very same ranking."""

import json
import multiprocessing
import random
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

NUM_KILLS = 5
MODELS = "zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:mixer-garments_a,zoo:vit-rotation"


def _search(run: Path, answer: Path) -> None:
    import modelhound

    result = modelhound.search("digits", MODELS, limit=60, run=run, scorers="ridge,knn", workers=0)
    answer.write_text(json.dumps(result.to_json()))


def _start(run: Path, answer: Path) -> ForkServerProcess:
    process = _context().Process(target=_search, args=(run, answer))
    process.start()
    return process


def _context() -> Any:
    # A server that has torch loaded already: 40 starts cost 40 searches, not 40 times loading torch.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm", "modelhound.verbs.search", "modelhound.features"])
    return context


def _finish(run: Path, answer: Path) -> dict[str, Any]:
    process = _start(run, answer)
    process.join(120)
    assert process.exitcode == 0
    document: dict[str, Any] = json.loads(answer.read_text())
    return document


def _comparable(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The ranking without what a clock measured."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in document["ranking"]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], float]:
    import time

    folder = tmp_path_factory.mktemp("undisturbed")
    _finish(folder / "warm-up", folder / "answer.json")
    start = time.monotonic()
    document = _finish(folder / "run", folder / "answer.json")
    return _comparable(document), time.monotonic() - start


@pytest.mark.parametrize("attempt", range(NUM_KILLS))
def test_a_search_killed_at_a_random_moment_ends_with_the_same_ranking(
    attempt: int, undisturbed: tuple[list[dict[str, Any]], float], tmp_path: Path
) -> None:
    expected, seconds = undisturbed
    process = _start(tmp_path / "run", tmp_path / "answer.json")
    process.join(random.Random(attempt).uniform(0, seconds))
    process.kill()
    process.join()
    document = _finish(tmp_path / "run", tmp_path / "answer.json")
    assert _comparable(document) == expected
    assert document["failures"] == []
