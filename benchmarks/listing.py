"""How long it takes to list and filter all names of timm, the first time and afterwards.

    python benchmarks/listing.py [--cache FOLDER] [--json]

The whole command is timed, from its start to its end. With a FOLDER that knows all cards already, nothing is said of the
first time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from modelhound.meter import describe_machine, seconds_now
from modelhound.records import to_plain

COMMAND = ["models", "timm:*", "--where", "params < 5e6 and family in ('resnet', 'efficientnet')", "--json"]
REPEATS = 5


def run(cache: str) -> tuple[float, int]:
    """Seconds, and how many models were left."""
    environment = {**os.environ, "MODELHOUND_CACHE": cache}
    started = seconds_now()
    command = [sys.executable, "-m", "modelhound", *COMMAND]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return seconds_now() - started, len(json.loads(done.stdout)["models"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", help="a folder from an earlier run; the default is a new one")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as new:
        cache = asked.cache or new
        first, num_models = run(cache)
        later = [run(cache)[0] for _ in range(REPEATS)]
    result: dict[str, Any] = {
        "first_seconds": None if asked.cache else first,
        "later_seconds": later,
        "num_models": num_models,
        "machine": to_plain(describe_machine()),
    }
    if asked.json:
        print(json.dumps(result))
        return
    print(
        f"first: {'not measured' if asked.cache else f'{first:.1f} s'}; later: {', '.join(f'{each:.2f}' for each in later)} s"
    )
    print(f"{num_models} models are left")


if __name__ == "__main__":
    main()
