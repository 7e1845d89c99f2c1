"""What a fresh process runs: one function, whose value goes into a file.

In:  argv: the dotted name of the function, its arguments as JSON, the path of the file
Out: the file, as JSON; nothing where the function raised, of which stderr tells
Nothing here knows what the function does. `fresh` starts it and reads the file.
"""

import json
import pkgutil
import sys
from pathlib import Path


def _answer_parent(function: str, arguments: str, answer: str) -> None:
    """What the child runs."""
    value = pkgutil.resolve_name(function)(*json.loads(arguments))
    Path(answer).write_text(json.dumps(value))


if __name__ == "__main__":
    _answer_parent(*sys.argv[1:4])
