"""Everything that is done to modelhound on purpose, counted: kills, full disks, damage, hostile input.

Each part is a process with a bound on its time and can be run alone, with a seed of its own: other moments to kill at, other
bytes. Two of them are run at once; what one says is shown when it has ended. What tests note (tests/fault_log.py) is added to
a log, one line a part, and all lines of the log become one table: what was run on different days adds up. What people have to
say of it, below "## Notes" in FILE.md, is kept.

    python benchmarks/faults.py [--parts verbs,ray,hostile,fuzz,rest,long] [--kills 200] [--verbs search,train] [--only WORDS]
                                [--seed 0] [--inputs 300] [--fuzz-seconds 20] [--minutes 60] [--at-once 2] [--log FILE.jsonl]
                                [--out FILE.md]
"""

import argparse
import collections
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

import psutil

from documents import write_document
from modelhound.meter import describe_machine

ROOT = Path(__file__).resolve().parents[1]
NUM_VERBS, NUM_WITH_WORKERS = 9, 7
KILLS_PER_WORKER_KILL = 4
PARTS = ("verbs", "ray", "hostile", "fuzz", "rest", "long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--kills", type=int, default=200, help="of all verbs and their workers together")
    parser.add_argument("--verbs", default="", help="kill only these; the default is all")
    parser.add_argument("--only", default="", help="tests whose names match, as in pytest -k; of fuzz, parsers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=300, help="per parser")
    parser.add_argument("--fuzz-seconds", type=int, default=20, help="per parser")
    parser.add_argument("--minutes", type=float, default=60.0, help="for each part at most")
    parser.add_argument("--at-once", type=int, default=2, help="parts that are run beside each other")
    parser.add_argument("--log", type=Path, default=None, help="adds up over several runs; the default is forgotten")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    wanted = [each for each in PARTS if each in asked.parts.split(",")]
    pieces = []
    with ThreadPoolExecutor(asked.at_once) as parts:
        for piece in parts.map(lambda part: run_part(part, asked), wanted):
            pieces.append(piece)
            if asked.log is not None:
                with asked.log.open("a") as file:
                    file.write(json.dumps(piece) + "\n")
    if asked.log is not None:
        pieces = [json.loads(line) for line in asked.log.read_text().splitlines()]
    document = as_document(pieces)
    print(document)
    if asked.out is not None:
        write_document(asked.out, document)
    sys.exit(any(piece["ending"] != "passed" for piece in pieces[-len(wanted) :]))


def run_part(part: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One line of the log: how the part ended, how many test cases it had, and what they noted."""
    began = time.monotonic()
    print(f"{part}: begun", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        log, cases, words = (Path(folder) / name for name in ("faults.jsonl", "cases.xml", "words"))
        with words.open("w") as said:
            if part in ("fuzz", "long"):
                ending = {"fuzz": fuzz, "long": run_long}[part](asked, log, said)
            else:
                ending = run_tests(part, asked, log, cases, said)
        print(f"{words.read_text()}{part}: {ending}, {time.monotonic() - began:.0f} s", flush=True)
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        suite = next(iter(ElementTree.parse(cases).getroot()), None) if cases.exists() else None
    names = ("tests", "skipped", "failures", "errors")
    counted = {name: int(suite.get(name, 0)) for name in names} if suite is not None else {}
    counts: dict[tuple[str, str], collections.Counter[str]] = {}
    for line in lines:
        counter = counts.setdefault((line["fault"], line["where"]), collections.Counter())
        counter.update({name: line.get(name, 0) for name in ("tried", "survived")})
    return {
        "part": part,
        "seed": asked.seed,
        "ending": ending,
        "seconds": round(time.monotonic() - began),
        "cases": counted,
        "counts": [[fault, where, each["tried"], each["survived"]] for (fault, where), each in sorted(counts.items())],
    }


def run_tests(part: str, asked: argparse.Namespace, log: Path, cases: Path, said: TextIO) -> str:
    """How it ended: passed, failed, or ended because its time was over."""
    environment = {**os.environ, "HOUND_FAULT_LOG": str(log), "HOUND_FAULT_SEED": str(asked.seed)}
    killing = "tests/faults/test_every_verb_killed.py"
    chosen = {
        "verbs": [killing],
        "ray": ["tests/ray"],
        "hostile": ["tests/hostile"],
        "rest": ["tests/faults", "--deselect", killing],
    }[part]
    verbs = [each for each in asked.verbs.split(",") if each]
    if part == "verbs":
        shares = len(verbs) or NUM_VERBS + NUM_WITH_WORKERS / KILLS_PER_WORKER_KILL
        environment["HOUND_NUM_KILLS"] = str(math.ceil(asked.kills / shares))
        environment["HOUND_KILLED_VERBS"] = ",".join(verbs)
    if part == "ray":
        environment |= {"HOUND_RAY": "1", "HOUND_NUM_RAY_KILLS": "5"}
    if part == "hostile":
        environment["HOUND_NUM_INPUTS"] = str(asked.inputs)
    if part == "rest":
        environment["HOUND_MANY_FAULTS"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "--durations=20", "-p", "no:cacheprovider", f"--junitxml={cases}"]
    command += chosen
    command += ["-k", asked.only] if asked.only else []
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said) as tests:
        try:
            return "passed" if tests.wait(60 * asked.minutes) == 0 else "failed"
        except subprocess.TimeoutExpired:
            end_with_descendants(tests.pid)
            return f"ended after {asked.minutes:.0f} minutes"


def end_with_descendants(pid: int) -> None:
    """Tests give processes groups and sessions of their own, which would go on without them."""
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            process.kill()


def fuzz(asked: argparse.Namespace, log: Path, said: TextIO) -> str:
    """Every parser in a process of its own."""
    if not (ROOT / ".fuzz").is_dir():
        return "not run: atheris is not there (make .fuzz)"
    sys.path.insert(0, str(ROOT / "tests"))
    from hostile_parsers import PARSERS

    failed = []
    end = time.monotonic() + 60 * asked.minutes
    for name in asked.only.split(" or ") if asked.only else PARSERS:
        seconds = min(asked.fuzz_seconds, end - time.monotonic())
        if seconds < 1:
            return f"ended after {asked.minutes:.0f} minutes"
        command = [
            sys.executable,
            "tests/hostile/fuzz.py",
            name,
            f"--seconds={seconds:.0f}",
            f"--seed={asked.seed + 1}",
        ]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60 * seconds)
        except subprocess.TimeoutExpired:  # a parser that goes round for ever is a fault like any other
            done = subprocess.CompletedProcess(command, 1, "", "it did not end")
        counts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"parser"')]
        if done.returncode != 0 or not counts:
            failed.append(name)
            said.write(f"{name}: {done.stderr[-2000:]}\n")
        counts = counts or [{"tried": 1}]  # the one that ended it
        with log.open("a") as file:
            for count in counts:
                line = {"fault": "bytes led by coverage (atheris)", "where": name, "tried": count["tried"]}
                file.write(json.dumps({**line, "survived": count["tried"] - (name in failed)}) + "\n")
    return "passed" if not failed else f"failed: {', '.join(failed)}"


def run_long(asked: argparse.Namespace, log: Path, said: TextIO) -> str:
    """One search of very many models, with the engine and without, in a document of its own."""
    out = [] if asked.out is None else ["--out", str(asked.out.resolve().with_name("long_run_202611.md"))]
    command = [sys.executable, "benchmarks/long_run.py", "--json", *out]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True) as search:
        try:
            told, _ = search.communicate(timeout=60 * asked.minutes)
        except subprocess.TimeoutExpired:
            end_with_descendants(search.pid)
            return f"ended after {asked.minutes:.0f} minutes"
    ways = json.loads(told)["runs"] if told else []
    with log.open("a") as file:
        for way in ways:
            where = "search --plain" if way["way"] == "plain" else "search"
            tried = way["num_measured"] + way["num_failures"]
            line = {"fault": "very many models in one search", "where": where, "tried": tried}
            file.write(json.dumps({**line, "survived": way["num_measured"]}) + "\n")
    return "passed" if search.returncode == 0 else "failed"


def as_document(pieces: list[dict[str, Any]]) -> str:
    machine = describe_machine()
    counts: dict[tuple[str, str], list[int]] = {}
    for piece in pieces:
        for fault, where, tried, survived in piece["counts"]:
            known = counts.setdefault((fault, where), [0, 0])
            known[0], known[1] = known[0] + tried, known[1] + survived
    kills = [sum(each[place] for (fault, _), each in counts.items() if "kill" in fault) for place in (0, 1)]
    inputs = [sum(each[place] for (fault, _), each in counts.items() if fault.startswith("bytes")) for place in (0, 1)]
    rows = [f"| {fault} | {where} | {each[0]} | {each[1]} |" for (fault, where), each in sorted(counts.items())]
    runs = [
        f"| {piece['part']} | {piece['seed']} | {piece['cases'].get('tests', 0) - piece['cases'].get('skipped', 0) or ''} "
        f"| {piece['seconds']} | {piece['ending']} |"
        for piece in pieces
    ]
    return (
        "# Faults and hostile input (2026-11)\n\n"
        f"Script: `benchmarks/faults.py` on {machine.cpu}, {machine.num_cores} cores, Python {machine.python}. "
        f"{kills[1]} of {kills[0]} kills survived, {inputs[1]} of {inputs[0]} inputs read or refused.\n"
        "A fault is survived if nothing finished was lost, the next start repaired what was left, and the answer was the same; "
        "an input if it was read or refused in a sentence.\n\n"
        "| fault | where | tried | survived |\n|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "The pieces that this adds up:\n\n"
        "| part | seed | test cases | seconds | ending |\n|---|---|---|---|---|\n" + "\n".join(runs) + "\n"
    )


if __name__ == "__main__":
    main()
