"""A function in its own process may die; the caller learns how."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from modelhound.launch import Outcome, run_in_fresh_process

HERE = Path(__file__).parent


def add(first: int, second: int) -> int:
    return first + second


def die_by(name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])


def tell(variable: str) -> str | None:
    return os.environ.get(variable)


def complain() -> None:
    raise ValueError("the third wheel is missing")


def sleep() -> None:
    time.sleep(60)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, sys.path)]))


def call(name: str, *arguments: Any, **options: Any) -> Outcome:
    return run_in_fresh_process(f"test_launch:{name}", *arguments, **options)


def test_a_value_comes_back() -> None:
    assert call("add", 2, 3).value == 5


@pytest.mark.parametrize("name", ["SIGILL", "SIGKILL", "SIGSEGV"])
def test_a_signal_is_named(name: str) -> None:
    outcome = call("die_by", name)
    assert (outcome.ok, outcome.ending, outcome.value) == (False, name, None)


def test_an_exception_is_an_exit_code_with_its_last_words() -> None:
    outcome = call("complain")
    assert outcome.ending == "exit code 1"
    assert "the third wheel is missing" in outcome.last_words


def test_a_function_that_ends_its_process_has_returned_nothing() -> None:
    outcome = run_in_fresh_process("sys:exit")
    assert (outcome.ok, outcome.value, outcome.ending) == (False, None, "exit code 0")


def test_the_environment_is_the_childs_alone() -> None:
    assert call("tell", "HOUND_TEST", environment={"HOUND_TEST": "woof"}).value == "woof"
    assert "HOUND_TEST" not in os.environ


def test_a_function_that_does_not_end_is_ended() -> None:
    assert call("sleep", timeout_seconds=1.0).ending == "timed out"
