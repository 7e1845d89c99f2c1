"""What each scorer costs alone, and what all of them cost together, when they share their algebra.

Every run has a process of its own; its peak memory is that of the whole process, libraries and features included. Rounds over
all runs are repeated, and of each run the fastest is kept, with the largest peak of all.

    python benchmarks/scorers.py [--json] [--case large|small|many-classes] [--repeats N]
"""

import argparse
import json
from typing import Any

from children import measure_in_child
from modelhound.meter import describe_machine
from modelhound.records import to_plain
from modelhound.settings import DEFAULT_SCORERS, SCORERS

CASES = {  # items, features, classes
    "large": (10_000, 2_048, 100),
    "small": (4_000, 1_280, 10),
    "many-classes": (20_000, 256, 10_000),
}
SCORERS_OF = {"large": SCORERS, "small": SCORERS, "many-classes": DEFAULT_SCORERS}
NUM_SOURCE_CLASSES = 1_000
TOGETHER = "all together"


def score_once(scorers: list[str], num_items: int, num_features: int, num_classes: int) -> dict[str, Any]:
    """Runs in a child; no scorers at all tell what the process takes by itself."""
    import torch

    from modelhound.meter import Meter
    from modelhound.scores import FeatureSet, score

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_items) % num_classes
    # Variances fall as in real features, and classes overlap.
    scales = torch.arange(1, num_features + 1).float().pow(-0.5)
    centres = 0.07 * torch.randn(num_classes, num_features, generator=generator)
    features = torch.randn(num_items, num_features, generator=generator).add_(centres[labels]).mul_(scales).add_(0.1)
    classifier = torch.randn(num_features, NUM_SOURCE_CLASSES, generator=generator)
    source = (features @ classifier).softmax(1) if "leep" in scorers else None
    given = FeatureSet(features=features, targets=labels, num_classes=num_classes, source_probabilities=source)
    torch.linalg.eigh(torch.eye(8))  # libraries load on first use
    meter = Meter()
    scores = score(given, scorers, seed=0, timed=meter.phase)
    return {
        "seconds": sum(samples.total for samples in meter.samples),
        "by_scorer": {samples.phase: samples.total for samples in meter.samples},
        "values": {name: each.value for name, each in scores.values.items()},
        "peak_bytes": float(meter.peak_memory_bytes),
    }


def measure(case: str, repeats: int) -> list[dict[str, Any]]:
    """One row for each scorer alone, then one for all of them."""
    scorers_of_case = SCORERS_OF[case]
    runs = {"none": [], **{name: [name] for name in scorers_of_case}, TOGETHER: list(scorers_of_case)}
    rows: dict[str, dict[str, Any]] = {}
    for _ in range(repeats):
        for name, scorers in runs.items():
            measured = measure_in_child("scorers:score_once", scorers, *CASES[case], timeout_seconds=1200)
            before = rows.get(name, measured)
            fastest = min(before, measured, key=lambda row: row["seconds"])
            peak = max(before["peak_bytes"], measured["peak_bytes"])
            rows[name] = {**fastest, "case": case, "scorers": name, "peak_bytes": peak}
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", choices=CASES, action="append", help="one of the sizes; all by default")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, of which the fastest counts")
    asked = parser.parse_args()
    rows = [row for case in asked.case or CASES for row in measure(case, asked.repeats)]
    if asked.json:
        print(
            json.dumps(
                {"cases": CASES, "repeats": asked.repeats, "machine": to_plain(describe_machine()), "rows": rows},
                indent=1,
            )
        )
        return
    print(
        "| items x features, classes | scorer | s alone | s when shared | value | peak MB |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        shape = "{} x {}, {}".format(*CASES[row["case"]])
        together = next(each for each in rows if each["case"] == row["case"] and each["scorers"] == TOGETHER)
        shared = together["by_scorer"].get(row["scorers"])
        value = row["values"].get(row["scorers"])
        print(
            f"| {shape} | {row['scorers']} | {row['seconds']:.2f} | {'' if shared is None else f'{shared:.2f}'} "
            f"| {'' if value is None else f'{value:.4f}'} | {row['peak_bytes'] / 1e6:.0f} |"
        )


if __name__ == "__main__":
    main()
