"""What keeping freed memory and a smaller batch bring to the plain path on a CPU.

Every configuration runs in a process of its own, in turns, so that a busy moment hits all alike.

    python benchmarks/allocator.py [--json]
"""

import argparse
import json
import statistics
from typing import Any

from children import measure_in_child
from modelhound.meter import describe_machine
from modelhound.records import to_plain

MODEL = "efficientnet_lite1"
BATCHES = (16, 64)
NUM_ITEMS = 128
NUM_ROUNDS = 3


def items_per_second(keep: bool, batch: int) -> dict[str, float]:
    """Runs in a child."""
    import torch

    from modelhound.compat import keep_freed_memory
    from modelhound.meter import Meter
    from modelhound.models import SOURCES

    if keep and not keep_freed_memory():
        raise SystemExit("cannot keep freed memory: expected glibc")
    meter = Meter()
    source = SOURCES["zoo"]
    network = source.build(MODEL, source.read_weights(MODEL))
    images = torch.randn(batch, 3, *network.preprocessing.input_size)
    with torch.inference_mode():
        network.extract(images)
        for _ in range(NUM_ITEMS // batch):
            with meter.phase("forward"):
                network.extract(images)
    return {"rate": NUM_ITEMS / meter.samples[0].total, "peak_bytes": float(meter.peak_memory_bytes)}


def measure() -> list[dict[str, Any]]:
    rows: dict[tuple[bool, int], list[dict[str, float]]] = {}
    for _ in range(NUM_ROUNDS):
        for keep in (False, True):
            for batch in BATCHES:
                rows.setdefault((keep, batch), []).append(measure_in_child("allocator:items_per_second", keep, batch))
    return [
        {
            "keep freed memory": keep,
            "batch": batch,
            "items per second": [round(each["rate"], 1) for each in values],
            "median": statistics.median(each["rate"] for each in values),
            "peak MB": max(each["peak_bytes"] for each in values) / 1e6,
        }
        for (keep, batch), values in rows.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = measure()
    if asked.json:
        print(json.dumps({"model": MODEL, "machine": to_plain(describe_machine()), "rows": rows}, indent=1))
        return
    plain = next(row["median"] for row in rows if not row["keep freed memory"] and row["batch"] == max(BATCHES))
    print("| keep freed memory | batch | items/s, each run | ratio of medians | peak MB |\n|---|---|---|---|---|")
    for row in rows:
        rates = ", ".join(str(rate) for rate in row["items per second"])
        print(
            f"| {'yes' if row['keep freed memory'] else 'no'} | {row['batch']} | {rates} "
            f"| {row['median'] / plain:.2f} | {row['peak MB']:.0f} |"
        )


if __name__ == "__main__":
    main()
