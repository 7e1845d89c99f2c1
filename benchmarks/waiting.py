"""What it brings and costs that waiting threads sleep instead of spin, at once or after a short look, on a quiet machine and
beside other work.

Every configuration runs in a process of its own, in turns; the other work is processes that count.

    python benchmarks/waiting.py [--json]
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from children import measure_in_child
from modelhound.meter import describe_machine
from modelhound.records import to_plain

MODELS = {"mobilenet-rotation": 64, "efficientnet_lite0": 16}
"""A network of small operations and one of large ones, with the batch each gets."""
SPECTRUM = "eigendecomposition"
WIDTH = 512
WAYS = {
    "default": {},
    "asleep": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"},
    **{
        f"asleep after {looks} looks": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(looks)}
        for looks in (1000, 10000)
    },
}
NUM_TURNS = 10
NUM_ROUNDS = 2


def seconds_of_turns(work: str) -> list[float]:
    """Of a forward pass, or of the decomposition that scores begin with. Runs in a child."""
    import torch

    from modelhound.compat import keep_freed_memory
    from modelhound.meter import Meter

    keep_freed_memory()
    turn = _decomposition() if work == SPECTRUM else _forward(work, MODELS[work])
    meter = Meter()
    with torch.inference_mode():
        turn()
        for _ in range(NUM_TURNS):
            with meter.phase("turn"):
                turn()
    return list(meter.samples[0].seconds)


def _decomposition() -> Callable[[], object]:
    import torch

    rows = torch.randn(2 * WIDTH, WIDTH, dtype=torch.float64)
    return lambda: torch.linalg.eigh(rows.T @ rows)


def _forward(model: str, batch: int) -> Callable[[], object]:
    import torch

    from modelhound.models import SOURCES

    network = SOURCES["zoo"].build(model, SOURCES["zoo"].read_weights(model))
    images = torch.randn(batch, 3, *network.preprocessing.input_size)
    return lambda: network.extract(images)


@contextmanager
def other_work(count: int) -> Iterator[None]:
    workers = [multiprocessing.Process(target=_count, daemon=True) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _count() -> None:
    number = 0
    while True:
        number += 1


def measure() -> list[dict[str, Any]]:
    samples: dict[tuple[str, int, str], list[float]] = {}
    for _ in range(NUM_ROUNDS):
        for work in (*MODELS, SPECTRUM):
            for busy in (0, 1, 2):
                for waiting, environment in WAYS.items():
                    with other_work(busy):
                        seconds = measure_in_child("waiting:seconds_of_turns", work, **environment)
                    samples.setdefault((work, busy, waiting), []).append(sum(seconds))
    return [
        {"work": work, "other busy processes": busy, "waiting": waiting, "seconds": seconds}
        for (work, busy, waiting), seconds in samples.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = measure()
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "rows": rows}, indent=1))
        return
    default = {
        (row["work"], row["other busy processes"]): statistics.median(row["seconds"])
        for row in rows
        if row["waiting"] == "default"
    }
    print(f"| work | other busy processes | waiting | s for {NUM_TURNS} turns, each run | speed against default |")
    print("|---|---|---|---|---|")
    for row in rows:
        ratio = default[row["work"], row["other busy processes"]] / statistics.median(row["seconds"])
        seconds = ", ".join(f"{each:.2f}" for each in row["seconds"])
        print(f"| {row['work']} | {row['other busy processes']} | {row['waiting']} | {seconds} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
