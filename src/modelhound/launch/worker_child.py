"""What a worker's process runs: one call after the other, until nobody asks any more."""

import importlib
import json
import os
import sys
import traceback
from typing import Any


def _serve() -> None:
    # Whatever a function prints must not be taken for a reply: replies go through a copy, and prints to the last words.
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    module, _, name = question["function"].partition(":")
    try:
        return {"value": getattr(importlib.import_module(module), name)(*question["arguments"])}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}


if __name__ == "__main__":
    _serve()
