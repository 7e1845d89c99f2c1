"""What a worker's process runs: one call after the other, until nobody asks any more.

In:  on stdin, a line of JSON for each call: the dotted name of a function and its arguments
Out: on stdout, a line of JSON for each: the value, or the error with its traceback
Nothing here knows what a function does. `worker` holds the other ends; the process is over when stdin is.
"""

import json
import os
import pkgutil
import sys
import traceback
from typing import Any

from modelhound.errors import is_out_of_memory


def _serve() -> None:
    # Whatever a function prints must not be taken for a reply: replies go through a copy, and prints to the last words.
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(_answer(json.loads(line))).encode() + b"\n")


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": pkgutil.resolve_name(question["function"])(*question["arguments"])}
    except Exception as error:
        kind = MemoryError if is_out_of_memory(error) else type(error)  # libraries have many names for it
        return {"error": kind.__name__, "message": str(error), "traceback": traceback.format_exc()}


if __name__ == "__main__":
    _serve()
