"""What is made of a child that tries bf16: a CPU is blamed only for what a CPU does."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelhound.errors import RequestError
from modelhound.launch import arithmetic
from modelhound.verbs import doctor


def end_as_told() -> dict[str, Any]:
    """Behaves like a product that ends the process, or like one that somebody else ends."""
    os.kill(os.getpid(), signal.Signals[os.environ["ENDS_WITH"]])
    return {"is_right": True, "times_fp32": 2.0}


@pytest.fixture(autouse=True)
def _own_probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
    monkeypatch.setattr(arithmetic, "_PROBE", f"{Path(__file__).stem}:end_as_told")
    arithmetic._try_bf16.cache_clear()
    yield
    arithmetic._try_bf16.cache_clear()


@pytest.mark.parametrize("ending", ["SIGILL", "SIGSEGV"])
def test_a_product_that_ends_the_process_is_fatal(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setenv("ENDS_WITH", ending)
    with pytest.raises(RequestError, match=f"cannot use --precision bf16 on this CPU: .* {ending}"):
        arithmetic.Bf16Trial("bf16").settle("cpu")


@pytest.mark.parametrize("ending", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_a_child_that_somebody_else_ends_says_nothing_of_the_cpu(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setenv("ENDS_WITH", ending)
    arithmetic.Bf16Trial("bf16").settle("cpu")
    assert not arithmetic.try_bf16().is_fatal


def test_a_machine_too_busy_to_try_bf16_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_MOST_SECONDS", 0.001)
    monkeypatch.setattr(doctor, "_LOOKS", {"bf16 on the CPU": doctor._look_at_bf16})
    arithmetic.Bf16Trial("bf16").settle("cpu")
    (check,) = doctor.doctor().checks
    assert check.verdict == "note"
    assert "could not be tried (timed out)" in check.finding
