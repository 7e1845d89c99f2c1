"""The environment of a child process.

In:  variables for it alone
Out: those of this process with them, such that the child finds the same packages wherever it is started
Nothing here starts a process or knows what a variable is for.
"""

import os
import sys
from collections.abc import Mapping

__all__ = ["child_environment"]


def child_environment(own: Mapping[str, str] | None = None) -> dict[str, str]:
    """What `own` says comes last and so counts."""
    # PYTHONPATH may hold relative paths, which mean something else in another folder; those here are whole
    found = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": found, **(own or {})}
