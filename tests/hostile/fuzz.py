"""Throw bytes at one parser, led by which code they reach: atheris (libFuzzer), beside hypothesis in `test_hostile_bytes`.

    python tests/hostile/fuzz.py PARSER --seconds 20 --seed 1

Prints one line of JSON: the parser, how many inputs were tried, how many of them were refused. An input that is neither read
nor refused ends the process and is shown. atheris lies in `.fuzz` (see the Makefile); it has wheels for Linux and some versions
of Python only.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / ".fuzz")]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["modelhound", "hostile_parsers"]):
    import hostile_parsers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parser", choices=tuple(hostile_parsers.PARSERS))
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    counts = {"tried": 0, "refused": 0}
    end = time.monotonic() + asked.seconds

    def try_one(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            counts["refused"] += bool(hostile_parsers.feed(asked.parser, data, Path(folder)))
        counts["tried"] += 1
        if time.monotonic() > end:
            print(json.dumps({"parser": asked.parser, **counts}), flush=True)  # noqa: T201
            os._exit(0)  # libFuzzer never comes back

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(hostile_parsers.PARSERS[asked.parser].seeds):
            (Path(corpus) / str(number)).write_bytes(seed)
        options = ["-max_len=20000", "-rss_limit_mb=3000", "-verbosity=0", "-timeout=60", f"-seed={asked.seed}"]
        atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={corpus}/", corpus], try_one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
