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


class Room:
    """Tells when somebody has to wait outside."""

    def __init__(self, semaphore: threading.Semaphore) -> None:
        self._semaphore = semaphore
        self.is_full = threading.Event()
        self.release = semaphore.release

    def acquire(self) -> None:
        if not self._semaphore.acquire(blocking=False):
            self.is_full.set()
            self._semaphore.acquire()


def test_only_a_few_features_wait_for_their_scorers(aside: Aside) -> None:
    begin, given, scored = threading.Event(), [], []
    room = aside._room = Room(aside._room)  # type: ignore[assignment]

    def score(model: str, rows: Any) -> None:
        begin.wait(60)
        scored.append(model)

    def give() -> None:
        for number in range(20):
            aside.do(score, str(number), ROWS, nothing)
            given.append(number)

    giving = threading.Thread(target=give)
    giving.start()
    assert room.is_full.wait(60)
    assert len(given) == aside_module._MOST_WAITING
    begin.set()
    giving.join(60)
    aside.wait()
    assert sorted(map(int, scored)) == list(range(20))


def test_what_went_wrong_is_raised_with_one_of_the_next_and_not_at_the_end(aside: Aside) -> None:
    def fail(model: str, rows: Any) -> None:
        raise ValueError(model)

    aside.do(fail, "the first", ROWS, nothing)
    assert str(aside._waiting[0].exception(60)) == "the first"
    with pytest.raises(ValueError, match="the first"):
        aside.do(fail, "another", ROWS, nothing)


def test_features_that_cannot_be_kept_for_lack_of_memory_are_not_kept_and_any_other_trouble_is_told() -> None:
    def run_out() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def fail() -> None:
        raise OSError("the disk is on fire")

    scored = []
    with Aside("cpu", Lanes()) as aside:
        aside.do(lambda model, rows: scored.append(model), "a model", ROWS, run_out)
        aside.wait()
        assert scored == ["a model"]
        with pytest.raises(OSError, match="on fire"):
            aside.do(lambda model, rows: scored.append(model), "another", ROWS, fail)
    assert scored == ["a model", "another"]
