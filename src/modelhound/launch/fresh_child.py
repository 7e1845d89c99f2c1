"""What a fresh process runs: one function, whose value goes into a file."""

import importlib
import json
import sys
from pathlib import Path


def _answer_parent(function: str, arguments: str, answer: str) -> None:
    """What the child runs."""
    module, _, name = function.partition(":")
    value = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    Path(answer).write_text(json.dumps(value))


if __name__ == "__main__":
    _answer_parent(*sys.argv[1:4])
