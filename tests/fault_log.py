"""Counts what tests did to modelhound, where $HOUND_FAULT_LOG says that somebody wants to know (see benchmarks/faults.py)."""

import json
import os
from pathlib import Path

__all__ = ["note_fault", "wanted"]


def wanted(name: str, few: int) -> int:
    """How often to try: `few` in the everyday suite, else what $HOUND_NUM_... says."""
    return int(os.environ.get(name, few))


def note_fault(fault: str, where: str, **counts: int) -> None:
    """One line for the table: what was done to what, how often, and how often it was survived."""
    log = os.environ.get("HOUND_FAULT_LOG")
    if log:
        line = json.dumps({"fault": fault, "where": where, **counts}) + "\n"
        with Path(log).open("a") as file:
            file.write(line)
