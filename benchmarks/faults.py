"""Everything that is done to modelhound on purpose, counted: kills, full disks, damage, hostile input.

Each part is a process with a bound on its time and can be run alone. What tests note (tests/fault_log.py) becomes a table.

    python benchmarks/faults.py [--parts verbs,ray,hostile,fuzz,rest] [--kills 200] [--inputs 300] [--fuzz-seconds 20]
                                [--minutes 30] [--out FILE.md]
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from modelhound.meter import describe_machine

ROOT = Path(__file__).resolve().parents[1]
NUM_VERBS = 8
PARTS = ("verbs", "ray", "hostile", "fuzz", "rest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="verbs,ray,hostile,fuzz,rest")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--inputs", type=int, default=300, help="per parser")
    parser.add_argument("--fuzz-seconds", type=int, default=20, help="per parser")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each part at most")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    wanted = [each for each in PARTS if each in asked.parts.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "faults.jsonl"
        endings = {part: run_part(part, asked, log) for part in wanted}
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    document = as_document(endings, lines)
    print(document)
    if asked.out is not None:
        asked.out.write_text(document)
    sys.exit(any(ending != "passed" for ending in endings.values()))


def run_part(part: str, asked: argparse.Namespace, log: Path) -> str:
    """How it ended: passed, failed, or ended because its time was over."""
    environment = {**os.environ, "HOUND_FAULT_LOG": str(log)}
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    commands = {
        "verbs": [*pytest, "tests/faults/test_every_verb_killed.py"],
        "ray": [*pytest, "tests/ray"],
        "hostile": [*pytest, "tests/hostile"],
        "rest": [*pytest, "tests/faults", "--deselect", "tests/faults/test_every_verb_killed.py"],
    }
    if part == "verbs":
        environment["HOUND_NUM_KILLS"] = str(-(-asked.kills // NUM_VERBS))
    if part == "ray":
        environment |= {"HOUND_RAY": "1", "HOUND_NUM_RAY_KILLS": "5"}
    if part == "hostile":
        environment["HOUND_NUM_INPUTS"] = str(asked.inputs)
    if part == "rest":
        environment["HOUND_MANY_FAULTS"] = "1"
    if part == "fuzz":
        return fuzz(asked.fuzz_seconds, log)
    try:
        done = subprocess.run(commands[part], cwd=ROOT, env=environment, timeout=60 * asked.minutes, check=False)
    except subprocess.TimeoutExpired:
        return f"ended after {asked.minutes:.0f} minutes"
    return "passed" if done.returncode == 0 else "failed"


def fuzz(seconds: int, log: Path) -> str:
    """Every parser in a process of its own."""
    if not (ROOT / ".fuzz").is_dir():
        return "not run: atheris is not there (make .fuzz)"
    sys.path.insert(0, str(ROOT / "tests"))
    from hostile_parsers import PARSERS

    failed = []
    for name in PARSERS:
        command = [sys.executable, "tests/hostile/fuzz.py", name, "--seconds", str(seconds)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60 * seconds)
        counts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"parser"')]
        if done.returncode != 0 or not counts:
            failed.append(name)
            print(f"{name}: {done.stderr[-2000:]}")
        with log.open("a") as file:
            for count in counts:
                line = {"fault": "bytes led by coverage (atheris)", "where": name, "tried": count["tried"]}
                file.write(json.dumps({**line, "survived": count["tried"] - (name in failed)}) + "\n")
    return "passed" if not failed else f"failed: {', '.join(failed)}"


def as_document(endings: dict[str, str], lines: list[dict[str, object]]) -> str:
    machine = describe_machine()
    counts: dict[tuple[str, str], collections.Counter[str]] = {}
    for line in lines:
        counter = counts.setdefault((str(line["fault"]), str(line["where"])), collections.Counter())
        counter.update({name: int(str(line[name])) for name in ("tried", "survived")})
    rows = [
        f"| {fault} | {where} | {counter['tried']} | {counter['survived']} |"
        for (fault, where), counter in sorted(counts.items())
    ]
    ended = "; ".join(f"{part}: {ending}" for part, ending in endings.items())
    return (
        "# Faults and hostile input (2026-11)\n\n"
        f"Script: `benchmarks/faults.py` on {machine.cpu}, {machine.num_cores} cores, Python {machine.python}. {ended}.\n"
        "A fault is survived if nothing finished was lost, the next start repaired what was left, and the answer was the same; "
        "an input if it was read or refused in a sentence.\n\n"
        "| fault | where | tried | survived |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
