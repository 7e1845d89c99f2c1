"""A search of 2 000 tiny models: do memory, file handles, threads and the time of a model stay as they were?

Every model is a network of its own (benchmarks/tiny_pool.py), so that nothing is shared and everything is done 2 000 times. At
every 50th model the process looks at itself. Growth is that of the mean of the last tenth over the mean of the tenth that
begins with model 200. The exit status is 0 where nothing grew; the pace is judged by the seconds of the processor, which hardly
depend on what else the machine does. `make test-faults` runs it.

    python benchmarks/long_run.py [--models 2000] [--ways engine,plain] [--json] [--out FILE.md]
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from children import measure_in_child
from documents import write_document
from modelhound.meter import describe_machine
from modelhound.records import to_plain

EVERY = 50
FIRST = 200
MOST_GROWTH, MORE_HANDLES, SLOWER = 0.05, 2, 1.25


def search_many(num_models: int, way: str) -> dict[str, Any]:
    """Runs in a child: samples of (model, seconds, bytes, handles, threads, seconds of its processors), for reading and for
    measuring."""
    import os
    import time

    import psutil

    import modelhound

    process = psutil.Process()
    samples: dict[str, list[list[float]]] = {"reading models": [], "models": []}
    began = time.monotonic()

    def watch(progress: Any) -> None:
        taken = samples.get(progress.task)
        if taken is not None and progress.done % EVERY == 0 and (not taken or taken[-1][0] != progress.done):
            seconds = time.monotonic() - began
            now = [process.memory_info().rss, process.num_fds(), process.num_threads(), time.process_time()]
            taken.append([progress.done, seconds, *now])

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODELHOUND_CACHE"] = f"{folder}/cache"
        result = modelhound.search(
            "digits",
            [f"py:tiny_pool:make_{number}" for number in range(num_models)],
            limit=40,
            scorers="ridge",
            workers=0,
            device="cpu",
            run=f"{folder}/run",
            watch=watch,
            **({"plain": True} if way == "plain" else {"exhaustive": True}),
        )
    return {
        "way": way,
        "num_measured": len(result.ranking.models),
        "num_failures": len(result.failures),
        "seconds": time.monotonic() - began,
        "samples": samples,
    }


def judge(found: dict[str, Any]) -> dict[str, Any]:
    """Growth from model 200 on, by what it is of."""
    phases = {}
    for task, samples in found["samples"].items():
        late = [each for each in samples if each[0] >= FIRST]
        if len(late) < 4:
            continue
        size = max(1, len(late) // 10)
        first, last = late[: size + 1], late[-size - 1 :]

        def grown(column: int, first: Any = first, last: Any = last) -> float:
            before, after = (sum(each[column] for each in part) / len(part) for part in (first, last))
            return float(after / before - 1)

        def paces(column: int, first: Any = first, last: Any = last) -> list[float]:
            return [(part[-1][column] - part[0][column]) / max(1.0, part[-1][0] - part[0][0]) for part in (first, last)]

        phases[task] = {
            "memory_growth": grown(2),
            "handles": [first[0][3], last[-1][3]],
            "threads": [first[0][4], last[-1][4]],
            "seconds_a_model": paces(1),
            "processor_seconds_a_model": paces(5),
            "peak_bytes": max(each[2] for each in samples),
        }
    return {**{key: value for key, value in found.items() if key != "samples"}, "phases": phases}


def is_flat(judged: dict[str, Any]) -> bool:
    """Whether every model was measured and nothing grew with their number."""
    if judged["num_failures"] or not judged["phases"]:
        return False
    for phase in judged["phases"].values():
        before, after = phase["processor_seconds_a_model"]
        grown = [phase[name][1] > phase[name][0] + MORE_HANDLES for name in ("handles", "threads")]
        if phase["memory_growth"] >= MOST_GROWTH or any(grown) or after > SLOWER * before + 0.001:
            return False
    return True


def as_document(judged: list[dict[str, Any]], num_models: int) -> str:
    machine = describe_machine()
    lines = [
        f"# A search of {num_models} tiny models (2026-11)\n",
        f"Script: `benchmarks/long_run.py` on {machine.cpu}, {machine.num_cores} cores. Growth is from model {FIRST} on.\n",
        "| way | phase | models | failed | memory growth | handles | threads | seconds a model | of the processor | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for found in judged:
        for task, phase in found["phases"].items():
            handles, threads, paces, processor = (
                phase[key] for key in ("handles", "threads", "seconds_a_model", "processor_seconds_a_model")
            )
            lines.append(
                f"| {found['way']} | {task} | {found['num_measured']} | {found['num_failures']} "
                f"| {phase['memory_growth']:+.1%} | {handles[0]:.0f} → {handles[1]:.0f} | {threads[0]:.0f} → {threads[1]:.0f} "
                f"| {paces[0]:.3f} → {paces[1]:.3f} | {processor[0]:.3f} → {processor[1]:.3f} "
                f"| {phase['peak_bytes'] / 1e6:.0f} |"
            )
    return "\n".join(lines) + "\n\nBar: memory grows by less than 5 %, the others stay as they were.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=2000)
    parser.add_argument("--ways", default="engine,plain")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    found = [
        measure_in_child("long_run:search_many", asked.models, way, timeout_seconds=3600, OMP_NUM_THREADS="1")
        for way in asked.ways.split(",")
    ]
    judged = [judge(each) for each in found]
    document = as_document(judged, asked.models)
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "runs": found}))
    else:
        print(document)
    if asked.out is not None:
        write_document(asked.out, document)
    sys.exit(not all(is_flat(each) for each in judged))


if __name__ == "__main__":
    main()
