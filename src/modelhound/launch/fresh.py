"""Run a function in a fresh process that may die without taking this one along.

In:  the dotted name of a function, its arguments as JSON values, environment variables for it alone
Out: an Outcome: what it returned, or how it ended and the last words it wrote
Nothing here knows what the function does. The child is a new interpreter, so that libraries read their environment anew.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelhound.launch.environment import child_environment

__all__ = ["Outcome", "name_ending", "run_in_fresh_process"]

_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a function ended in its own process."""

    value: Any
    """What it returned; of a worker's call that raised, the message; else None."""
    ok: bool
    ending: str
    """returned, timed out, exit code N, or the name of the signal that killed it, such as SIGILL."""
    last_words: str
    """The end of what the process wrote to stderr."""


def run_in_fresh_process(
    function: str, *arguments: Any, environment: Mapping[str, str] | None = None, timeout_seconds: float = 60.0
) -> Outcome:
    """Call `function` ("package.module:name") with JSON-like arguments in a new interpreter and wait for it."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "modelhound.launch.fresh_child", function, json.dumps(arguments), str(answer)]
        try:
            done = subprocess.run(
                command,
                env=child_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            words = expired.stderr.decode(errors="replace") if isinstance(expired.stderr, bytes) else ""
            return Outcome(value=None, ok=False, ending="timed out", last_words=words[-_TAIL_CHARACTERS:])
        words = done.stderr[-_TAIL_CHARACTERS:]
        if done.returncode == 0 and answer.is_file():  # or it ended by its own will before it had an answer
            return Outcome(value=json.loads(answer.read_text()), ok=True, ending="returned", last_words=words)
        return Outcome(value=None, ok=False, ending=name_ending(done.returncode), last_words=words)


def name_ending(return_code: int) -> str:
    """How a process ended, from its return code."""
    if return_code < 0:
        try:
            return signal.Signals(-return_code).name
        except ValueError:
            return f"signal {-return_code}"
    return f"exit code {return_code}"
