"""A process that stays warm for the next call, and is replaced after any failure."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelhound.launch import Worker

HERE = Path(__file__).parent


def process_id() -> int:
    return os.getpid()


def add(first: int, second: int) -> int:
    sys.stdout.write("this goes nowhere near the reply\n")
    return first + second


def die_by(name: str) -> None:
    sys.stderr.write("my last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.Signals[name])


def leave(code: int) -> None:
    os._exit(code)


def complain() -> None:
    raise ValueError("the third wheel is missing")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def tell(variable: str) -> str | None:
    return os.environ.get(variable)


def long_text(num_characters: int) -> str:
    return "x" * num_characters


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, sys.path)]))
    with Worker(environment={"HOUND_TEST": "seen"}) as made:
        yield made


def test_calls_return_values_from_one_and_the_same_process(worker: Worker) -> None:
    first = worker.call("test_timing_worker:process_id")
    assert worker.call("test_timing_worker:add", 2, 3).value == 5
    assert worker.call("test_timing_worker:tell", "HOUND_TEST").value == "seen"
    assert len(worker.call("test_timing_worker:long_text", 3_000_000).value) == 3_000_000
    again = worker.call("test_timing_worker:process_id")
    assert first.ok
    assert first.value == again.value != os.getpid()
    assert worker.is_running


def test_an_exception_is_told_and_the_process_is_replaced(worker: Worker) -> None:
    before = worker.call("test_timing_worker:process_id").value
    outcome = worker.call("test_timing_worker:complain")
    assert (outcome.ok, outcome.ending, outcome.value) == (False, "raised ValueError", "the third wheel is missing")
    assert "in complain" in outcome.last_words
    assert not worker.is_running
    assert worker.call("test_timing_worker:process_id").value != before


@pytest.mark.parametrize("name", ["SIGILL", "SIGKILL"])
def test_a_death_is_an_outcome_with_its_last_words(worker: Worker, name: str) -> None:
    outcome = worker.call("test_timing_worker:die_by", name)
    assert (outcome.ok, outcome.ending) == (False, name)
    assert "my last words" in outcome.last_words
    assert worker.call("test_timing_worker:add", 1, 1).value == 2


def test_a_process_that_leaves_tells_its_exit_code(worker: Worker) -> None:
    assert worker.call("test_timing_worker:leave", 7).ending == "exit code 7"


def test_a_call_beyond_its_deadline_is_ended(worker: Worker) -> None:
    before = worker.call("test_timing_worker:process_id").value
    outcome = worker.call("test_timing_worker:sleep", 60, timeout_seconds=0.2)
    assert (outcome.ok, outcome.ending) == (False, "timed out")
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_the_process_ends_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, sys.path)]))
    with Worker() as worker:
        child = worker.call("test_timing_worker:process_id").value
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
