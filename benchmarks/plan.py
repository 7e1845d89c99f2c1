"""How long planning takes for a pool of near-copies, and what the plan saves.

The pool: each new model copies a random earlier one and gets new weights in its last n segments, n drawn around 50, 25 or 10 %
of the depth. Every model has its own segment objects and fingerprint strings, as if read from its own file. Every run has a
process of its own and one core; building the pool is not timed. CPU seconds are what the process itself used: on a machine that
is busy with other work, wall seconds say more about that work.

    python benchmarks/plan.py [--json] [--models 5000] [--segments 200] [--repeats 3]
"""

import argparse
import json
from typing import Any

from children import measure_in_child
from modelhound.meter import describe_machine
from modelhound.records import to_plain

BUDGETS = {"all": 1.0, "a half": 0.5, "a quarter": 0.25, "a tenth": 0.1}  # of what the unlimited plan takes at its peak
NUM_ITEMS = 8_000


def plan_once(num_models: int, num_segments: int, share: float) -> dict[str, Any]:
    """Runs in a child: plan with all the memory that is useful, then with `share` of that."""
    import time
    from dataclasses import replace

    from modelhound.meter import Meter
    from modelhound.plan import Costs, explain_plan, forecast_plan, make_plan, peak_bytes

    chains = build_pool(num_models, num_segments)
    # Near what an H200 does with ResNet-152 in bf16; the planner only sees ratios.
    costs = Costs(
        flops_per_second=180e12,
        weight_bytes_per_second=2e9,
        spill_bytes_per_second=2e9,
        decode_seconds_per_item=1e-4,
        score_seconds=0.01,
        launch_seconds=1e-4,
        batch_items=128,
    )
    meter = Meter()
    cpu_started = time.process_time()
    with meter.phase("unlimited"):
        plan = make_plan(chains, num_items=NUM_ITEMS, costs=costs)
    cpu_seconds = time.process_time() - cpu_started
    if share < 1:
        limited = replace(costs, memory_bytes=share * peak_bytes(plan))
        cpu_started = time.process_time()
        with meter.phase("plan"):
            plan = make_plan(chains, num_items=NUM_ITEMS, costs=limited)
        cpu_seconds = time.process_time() - cpu_started
    with meter.phase("forecast"):
        forecast = forecast_plan(plan)
    with meter.phase("explain"):
        explain_plan(plan)
    seconds = {samples.phase: samples.total for samples in meter.samples}
    return {
        "plan_seconds": seconds.get("plan", seconds["unlimited"]),
        "plan_cpu_seconds": cpu_seconds,
        "forecast_seconds": seconds["forecast"],
        "explain_seconds": seconds["explain"],
        "num_steps": len(plan.steps),
        "num_chunks": plan.num_chunks,
        "batch_items": plan.batch_items,
        "prefetch": plan.prefetch,
        "num_spilled": sum(step.keep == "disk" for step in plan.steps),
        "num_segments": forecast.num_segments,
        "num_segments_run": forecast.num_segments_run,
        "peak_bytes": forecast.peak_bytes,
        "predicted_seconds": forecast.total_seconds,
        "process_peak_bytes": float(meter.peak_memory_bytes),
    }


def build_pool(num_models: int, num_segments: int) -> list[Any]:
    """Chains whose sizes shrink along the depth as in a convolutional network."""
    import random

    from modelhound.plan import Chain, Segment

    rng = random.Random(0)
    prints: list[list[str]] = [[f"{rng.getrandbits(256):064x}" for _ in range(num_segments)]]
    for _ in range(1, num_models):
        num_new = round(num_segments * min(1.0, max(0.005, rng.gauss(rng.choice([0.5, 0.25, 0.1]), 0.05))))
        kept = rng.choice(prints)[: num_segments - num_new]
        prints.append(kept + [f"{rng.getrandbits(256):064x}" for _ in range(num_new)])

    def segment(depth: int, fingerprint: str) -> Segment:
        stage = 4 * depth // num_segments
        output_bytes = 4_096 if depth == num_segments - 1 else 1_600_000 >> stage
        return Segment(
            fingerprint=(fingerprint + " ")[:64],  # a new string
            flops_per_item=23e9 / num_segments,
            output_bytes_per_item=output_bytes,
            weight_bytes=(120_000_000 // num_segments) * (1, 2, 4, 8)[stage] // 4,
            peak_bytes_per_item=3 * (1_600_000 >> stage),
        )

    return [
        Chain(
            model=f"model-{index}",
            input="224",
            input_bytes_per_item=150_528,
            segments=tuple(segment(depth, fingerprint) for depth, fingerprint in enumerate(each)),
        )
        for index, each in enumerate(prints)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", type=int, default=5_000)
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    rows = [
        {"memory": name, **measure_in_child("plan:plan_once", asked.models, asked.segments, share, OMP_NUM_THREADS="1")}
        for _ in range(asked.repeats)
        for name, share in BUDGETS.items()
    ]
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "rows": rows}, indent=1))
        return
    print(
        "| memory | plan CPU s, each run | plan wall s | forecast wall s | explain wall s | steps | chunks | batch | prefetch "
        "| spilled | segments run | peak GB | predicted s |\n" + "|---" * 13 + "|"
    )
    for name in BUDGETS:
        same = [row for row in rows if row["memory"] == name]
        row = same[0]
        cpu, wall, forecast, explain = (
            ", ".join(f"{each[key]:.2f}" for each in same)
            for key in ("plan_cpu_seconds", "plan_seconds", "forecast_seconds", "explain_seconds")
        )
        print(
            f"| {name} | {cpu} | {wall} | {forecast} | {explain} | {row['num_steps']} | {row['num_chunks']} "
            f"| {row['batch_items']} | {'yes' if row['prefetch'] else 'no'} | {row['num_spilled']} "
            f"| {row['num_segments_run']} of {row['num_segments']} | {row['peak_bytes'] / 1e9:.1f} "
            f"| {row['predicted_seconds']:.0f} |"
        )


if __name__ == "__main__":
    main()
