"""Counts what tests did to modelhound, where $HOUND_FAULT_LOG says that somebody wants to know (see benchmarks/faults.py)."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FAULT_SEED", "counted", "note_fault", "wanted"]

FAULT_SEED = int(os.environ.get("HOUND_FAULT_SEED", "0"))
"""Decides the moments and the bytes that are left to chance."""


def wanted(name: str, few: int) -> int:
    """How often to try: `few` in the everyday suite, else what $HOUND_NUM_... says."""
    return int(os.environ.get(name, few))


@contextlib.contextmanager
def counted(fault: str, where: str, number: int = 1) -> Iterator[None]:
    """Note so many faults when what they did is known: as survived, or not if it raises."""
    try:
        yield
    except Exception:
        note_fault(fault, where, tried=number, survived=0)
        raise
    note_fault(fault, where, tried=number, survived=number)


def note_fault(fault: str, where: str, **counts: int) -> None:
    """One line for the table: what was done to what, how often, and how often it was survived."""
    log = os.environ.get("HOUND_FAULT_LOG")
    if log:
        line = json.dumps({"fault": fault, "where": where, **counts}) + "\n"
        with Path(log).open("a") as file:
            file.write(line)
