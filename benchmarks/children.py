"""Run one measurement of a benchmark in a process of its own."""

import os
import sys
from pathlib import Path
from typing import Any

from modelhound.launch import run_in_fresh_process


def measure_in_child(function: str, *arguments: Any, timeout_seconds: float = 300, **environment: str) -> Any:
    """What `function` ("script:name", a script of this folder) returns; a benchmark ends where one of its children fails."""
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    outcome = run_in_fresh_process(
        function, *arguments, environment={"PYTHONPATH": here, **environment}, timeout_seconds=timeout_seconds
    )
    if not outcome.ok:
        raise SystemExit(f"{function} {arguments} ended with {outcome.ending}: {outcome.last_words}")
    return outcome.value
