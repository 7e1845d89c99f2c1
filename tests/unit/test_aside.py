"""Scoring beside the device's other work, with a device that is made up."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modelhound.measuring import aside as aside_module
from modelhound.measuring.aside import Aside
from modelhound.meter import Lanes

ROWS: Any = SimpleNamespace(features=SimpleNamespace(record_stream=lambda stream: None))


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aside]:
    monkeypatch.setattr(Aside, "_settle_in", lambda self: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    event = SimpleNamespace(record=lambda stream: None, wait=lambda stream: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    with Aside("cuda:0", Lanes()) as made:
        yield made


def nothing() -> None:
    """Keep nothing."""


def test_only_a_few_features_wait_for_their_scorers(aside: Aside) -> None:
    begin, given, scored = threading.Event(), [], []

    def score(model: str, rows: Any) -> None:
        begin.wait(10)
        scored.append(model)

    def give() -> None:
        for number in range(20):
            aside.do(score, str(number), ROWS, nothing)
            given.append(number)

    giving = threading.Thread(target=give)
    giving.start()
    giving.join(0.2)
    assert len(given) == aside_module._MOST_WAITING
    begin.set()
    giving.join(10)
    aside.wait()
    assert sorted(map(int, scored)) == list(range(20))


def test_what_went_wrong_is_raised_with_one_of_the_next_and_not_at_the_end(aside: Aside) -> None:
    def fail(model: str, rows: Any) -> None:
        raise ValueError(model)

    aside.do(fail, "the first", ROWS, nothing)
    assert aside._waiting[0].exception(10) is not None
    with pytest.raises(ValueError, match="the first"):
        aside.do(fail, "another", ROWS, nothing)


def test_features_that_cannot_be_kept_for_lack_of_memory_are_not_kept() -> None:
    def keep() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with Aside("cpu", Lanes()) as aside:
        aside.do(lambda model, rows: None, "a model", ROWS, keep)
        aside.wait()


def test_scorers_go_on_while_features_are_being_kept(aside: Aside) -> None:
    disk, order = threading.Event(), []

    def keep() -> None:
        assert disk.wait(10)
        order.append("kept")

    def score(model: str, rows: Any) -> None:
        order.append(model)
        if model == "4":
            disk.set()

    for number in range(5):  # more than there are threads that score
        aside.do(score, str(number), ROWS, keep)
    aside.wait()
    assert order.index("4") < order.index("kept")
    assert order.count("kept") == 5


def test_features_that_no_scorer_could_take_are_not_kept(aside: Aside) -> None:
    def fail(model: str, rows: Any) -> None:
        raise ValueError(model)

    kept: list[str] = []
    aside.do(fail, "a model", ROWS, lambda: kept.append("a model"))
    with pytest.raises(ValueError, match="a model"):
        aside.wait()
    assert kept == []
