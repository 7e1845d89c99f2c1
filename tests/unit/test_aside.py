"""Scoring beside other work, with a device that is made up, and on several cores."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modelhound.measuring import aside as aside_module
from modelhound.measuring.aside import BesideDevice, OnCores
from modelhound.meter import Lanes

ROWS: Any = SimpleNamespace(features=SimpleNamespace(record_stream=lambda stream: None))


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> Iterator[BesideDevice]:
    monkeypatch.setattr(BesideDevice, "_settle_in", lambda self: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    event = SimpleNamespace(record=lambda stream: None, wait=lambda stream: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    with BesideDevice("cuda:0", Lanes()) as made:
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


def test_only_a_few_features_wait_for_their_scorers(aside: BesideDevice) -> None:
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


def test_what_went_wrong_is_raised_with_one_of_the_next_and_not_at_the_end(aside: BesideDevice) -> None:
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
    with OnCores(Lanes(), num_items=1, at_once=1) as aside:
        aside.do(lambda model, rows: scored.append(model), "a model", rows_of(1, 1), run_out)
        aside.wait()
        assert scored == ["a model"]
        with pytest.raises(OSError, match="on fire"):
            aside.do(lambda model, rows: scored.append(model), "another", rows_of(1, 1), fail)
    assert scored == ["a model", "another"]


def rows_of(num_items: int, num_features: int) -> Any:
    return SimpleNamespace(features=torch.zeros(num_items, num_features))


def test_small_features_wait_for_a_model_for_each_core_and_are_scored_at_once_by_one_thread_each() -> None:
    together, seen, kept = threading.Barrier(2, timeout=60), [], []

    def score(model: str, rows: Any) -> None:
        together.wait()  # nobody gets past it alone
        seen.append((model, torch.get_num_threads()))

    before = torch.get_num_threads()
    with OnCores(Lanes(), num_items=100, at_once=2) as aside:
        for model in ("a", "b"):
            assert seen == []
            aside.do(score, model, rows_of(100, 16), lambda: kept.append(torch.get_num_threads()))
        assert sorted(seen) == [("a", 1), ("b", 1)]
    assert kept == [before, before]
    assert torch.get_num_threads() == before


def test_features_that_nobody_came_to_wait_with_are_scored_in_the_end() -> None:
    scored: list[str] = []
    with OnCores(Lanes(), num_items=100, at_once=2) as aside:
        aside.do(lambda model, rows: scored.append(model), "a", rows_of(100, 16), nothing)
        assert scored == []
        aside.wait()
        assert scored == ["a"]


def test_large_features_are_scored_when_they_come() -> None:
    scored: list[str] = []
    with OnCores(Lanes(), num_items=100_000, at_once=2) as aside:
        aside.do(lambda model, rows: scored.append(model), "a", rows_of(10, 512), nothing)
        assert scored == ["a"]


def test_of_models_that_are_scored_at_once_one_that_fails_is_told_when_all_are_through_and_none_is_kept() -> None:
    kept: list[str] = []
    scored: list[str] = []

    def score(model: str, rows: Any) -> None:
        if model == "a":
            raise ValueError("the data changed")
        scored.append(model)

    with OnCores(Lanes(), num_items=100, at_once=2) as aside:
        aside.do(score, "a", rows_of(100, 16), lambda: kept.append("a"))
        with pytest.raises(ValueError, match="the data changed"):
            aside.do(score, "b", rows_of(100, 16), lambda: kept.append("b"))
    assert scored == ["b"]
    assert kept == []
