"""What it brings and costs that waiting threads sleep instead of spin, on a quiet machine and beside other work.

Every configuration runs in a process of its own, in turns; the other work is processes that count.

    python benchmarks/waiting.py [--json]
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from children import measure_in_child
from modelhound.meter import describe_machine
from modelhound.records import to_plain

MODELS = {"mobilenet-rotation": 64, "efficientnet_lite0": 16}
"""A network of small operations and one of large ones, with the batch each gets."""
NUM_BATCHES = 5
NUM_ROUNDS = 2


def seconds_per_batch(model: str, batch: int) -> list[float]:
    """Runs in a child."""
    import torch

    from modelhound.compat import keep_freed_memory
    from modelhound.meter import Meter
    from modelhound.models import SOURCES

    keep_freed_memory()
    meter = Meter()
    network = SOURCES["zoo"].build(model, SOURCES["zoo"].read_weights(model))
    images = torch.randn(batch, 3, *network.preprocessing.input_size)
    with torch.inference_mode():
        network.extract(images)
        for _ in range(NUM_BATCHES):
            with meter.phase("forward"):
                network.extract(images)
    return list(meter.samples[0].seconds)


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
        for model, batch in MODELS.items():
            for busy in (0, 1, 2):
                for policy in ("default", "PASSIVE"):
                    environment = {} if policy == "default" else {"OMP_WAIT_POLICY": policy}
                    with other_work(busy):
                        seconds = measure_in_child("waiting:seconds_per_batch", model, batch, **environment)
                    samples.setdefault((model, busy, policy), []).append(sum(seconds))
    return [
        {"model": model, "other busy processes": busy, "policy": policy, "seconds": seconds}
        for (model, busy, policy), seconds in samples.items()
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
        (row["model"], row["other busy processes"]): statistics.median(row["seconds"])
        for row in rows
        if row["policy"] == "default"
    }
    print(f"| model | other busy processes | waiting | s for {NUM_BATCHES} batches, each run | speed against default |")
    print("|---|---|---|---|---|")
    for row in rows:
        ratio = default[row["model"], row["other busy processes"]] / statistics.median(row["seconds"])
        seconds = ", ".join(f"{each:.2f}" for each in row["seconds"])
        print(f"| {row['model']} | {row['other busy processes']} | {row['policy']} | {seconds} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
