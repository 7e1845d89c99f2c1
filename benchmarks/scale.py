"""Planner and placement for more models and GPUs than anybody here has: 50 000 models on 1 to 256 GPUs.

The pool: families of real networks with the costs measured on one H200 (shared/FACTS: forward passes in bf16, reading weights,
closed-form scores), each model a copy of a random earlier one of its family with new weights in its last 50, 25 or 10 %, or one
of its own. Every model has its own segment objects, as if its worker had sent them. What is replayed is the code that
`hound search --on ray` runs: `place_chains`, `make_plan` for every worker's share, `Deal` for who does what next.

    placed     what the placement predicts for the last worker, against the lower bound: all work evenly spread, nothing twice
    planned    every share planned and forecast by the planner (overlap, memory, launches), the last worker against an even
               share of what one GPU would take for everything; past 32 GPUs the last of 32 workers
    replayed   an event simulation in which, by chance, models take 20 % and workers 5 % more or less than predicted; the
               worst of three
    with loss  the same, while one worker in twenty dies for good at a random moment; the bound counts it until then

    python benchmarks/scale.py [--json] [--models 50000] [--gpus 1,2,4,8,16,32,64,128,256] [--out FILE.md]
"""

import argparse
import dataclasses
import heapq
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from children import measure_in_child
from documents import write_document
from modelhound.meter import describe_machine
from modelhound.records import to_plain

NUM_ITEMS = 4_000
GPUS_PER_NODE = 8
LINK_BYTES_PER_SECOND = 3e9  # from the object store of another node, at 25 Gbit/s
# images or texts a second in bf16, parameters, parts, features, input, items' bytes
FAMILIES: dict[str, tuple[float, float, int, int, str, int]] = {
    "resnet50": (16_221, 25.6e6, 18, 2048, "224 bicubic 0.95", 150_528),
    "resnet152": (7_980, 60.2e6, 52, 2048, "224 bicubic 0.95", 150_528),
    "vit_b": (11_061, 86.6e6, 14, 768, "224 bicubic 0.9", 150_528),
    "vit_l": (3_668, 304.3e6, 26, 1024, "224 bicubic 0.9", 150_528),
    "efficientnet_b0": (22_740, 5.3e6, 18, 1280, "224 bicubic 0.875", 150_528),
    "vit_b_384": (3_100, 86.9e6, 14, 768, "384 bicubic 1.0", 442_368),
}
READ_BYTES_PER_SECOND = 241e6 / 0.26  # ResNet-152, built on the meta device, straight to the GPU
SHARE_OF_ITS_OWN = 0.3
NUM_REPLAYS = 3  # the worst counts
MOST_PLANNED = 32  # shares that the planner is asked about, of those drawn by chance: it takes a while


def simulate(num_models: int, gpus: Sequence[int]) -> dict[str, Any]:
    """Runs in a child, so that its peak memory is that of the driver alone."""
    import pickle

    from modelhound.meter import Meter
    from modelhound.plan import Costs

    chains = build_pool(num_models)
    costs = Costs(
        flops_per_second=1e14,
        weight_bytes_per_second=READ_BYTES_PER_SECOND,
        spill_bytes_per_second=2e9,
        decode_seconds_per_item=0.0,  # decoded once in the cluster; workers copy
        score_seconds=0.007,
        launch_seconds=1e-4,
        batch_items=256,
        memory_bytes=100e9,
    )
    meter = Meter()
    rows = [place_and_replay(chains, costs, number, meter) for number in gpus]
    alone = rows[0]["planned_seconds"] * rows[0]["num_gpus"]
    for row in rows:
        row["planned_ratio"] = row["planned_seconds"] * row["num_gpus"] / alone
    with meter.phase("end"):
        pass
    return {
        "num_models": num_models,
        "num_segments": sum(len(chain.segments) for chain in chains),
        "chain_bytes": len(pickle.dumps(chains[: min(1000, num_models)])) / min(1000, num_models),
        "driver_peak_bytes": meter.peak_memory_bytes,
        "rows": rows,
    }


def build_pool(num_models: int) -> list[Any]:
    """Chains of all models, families mixed."""
    from modelhound.plan import Chain, Segment

    chance = random.Random(0)
    known: dict[str, list[list[str]]] = {name: [] for name in FAMILIES}
    chains = []
    for number in range(num_models):
        name = chance.choice(list(FAMILIES))
        rate, parameters, num_parts, num_features, form, item_bytes = FAMILIES[name]
        num_new = num_parts
        if known[name] and chance.random() > SHARE_OF_ITS_OWN:
            num_new = max(
                1, round(num_parts * min(1.0, max(0.01, chance.gauss(chance.choice([0.5, 0.25, 0.1]), 0.05))))
            )
        kept = chance.choice(known[name])[: num_parts - num_new] if num_new < num_parts else []
        prints = kept + [f"{chance.getrandbits(128):032x}" for _ in range(num_new)]
        known[name].append(prints)
        chains.append(
            Chain(
                model=f"hub:{name}-{number}",
                input=form,
                input_bytes_per_item=item_bytes,
                segments=tuple(
                    Segment(
                        fingerprint=(each + " ")[:32],  # a new string
                        flops_per_item=0.0,
                        output_bytes_per_item=2 * num_features if place == num_parts - 1 else 800_000,
                        weight_bytes=int(4 * parameters / num_parts),
                        peak_bytes_per_item=2_400_000,
                        seconds_per_item=1 / rate / num_parts,
                    )
                    for place, each in enumerate(prints)
                ),
            )
        )
    return chains


def place_and_replay(chains: Sequence[Any], costs: Any, num_gpus: int, meter: Any) -> dict[str, Any]:
    """One row of the table."""
    import time

    from modelhound.plan import forecast_plan, make_plan, place_chains

    item_bytes = {chain.input: chain.input_bytes_per_item for chain in chains}
    input_seconds = NUM_ITEMS * max(item_bytes.values()) / LINK_BYTES_PER_SECOND
    began = time.process_time()
    with meter.phase(f"place on {num_gpus}"):
        copying = dict.fromkeys(item_bytes, input_seconds / NUM_ITEMS)
        placement = place_chains(
            chains,
            num_items=NUM_ITEMS,
            costs=dataclasses.replace(costs, form_seconds_per_item=copying),
            speeds=[1.0] * num_gpus,
        )
    cpu_seconds = time.process_time() - began
    by_name = {chain.model: chain for chain in chains}
    planned, weight_bytes = [], 0.0
    node_inputs: dict[int, set[str]] = {}
    asked = set(random.Random(num_gpus).sample(range(num_gpus), min(num_gpus, MOST_PLANNED)))
    for worker, share in enumerate(placement.shares):
        mine = [by_name[model] for parcel in share for model in parcel.models]
        node_inputs.setdefault(worker // GPUS_PER_NODE, set()).update(chain.input for chain in mine)
        if mine and worker in asked:
            forecast = forecast_plan(make_plan(mine, num_items=NUM_ITEMS, costs=costs))
            planned.append(forecast.total_seconds)
            weight_bytes += forecast.weight_bytes_read * num_gpus / len(asked)
    kinds = {chain.model: chain.input for chain in chains}
    quiet, lossy = (
        max(
            (replay(placement, kinds, input_seconds, num_lost, seed=seed) for seed in range(NUM_REPLAYS)),
            key=lambda each: each["seconds"] / each["least_seconds"],
        )
        for num_lost in (0, num_gpus // 20)
    )
    least = placement.least_seconds
    return {
        "num_gpus": num_gpus,
        "least_seconds": least,
        "placed_ratio": placement.seconds / least,
        "planned_seconds": max(planned),
        "replayed_ratio": quiet["seconds"] / quiet["least_seconds"],
        "lossy_ratio": lossy["seconds"] / lossy["least_seconds"],
        "num_lost": num_gpus // 20,
        "num_parcels": sum(len(share) for share in placement.shares),
        "num_moved": quiet["num_moved"],
        "place_seconds": next(each.total for each in meter.samples if each.phase == f"place on {num_gpus}"),
        "place_cpu_seconds": cpu_seconds,
        "item_bytes_moved": sum(NUM_ITEMS * item_bytes[each] for inputs in node_inputs.values() for each in inputs),
        "weight_bytes_read": weight_bytes,
        "score_bytes_moved": len(chains) * NUM_ITEMS * 4,
    }


class Replay:
    """Workers that go through their parcels, each as long as chance has it; some die and do not come back."""

    def __init__(
        self, placement: Any, kinds: dict[str, str], input_seconds: float, num_lost: int, chance: random.Random
    ) -> None:
        from modelhound.plan import Deal

        self.num_workers = len(placement.shares)
        self.now = 0.0
        self._kinds, self._input_seconds, self._chance = kinds, input_seconds, chance
        self._told: set[str] = set()
        self.deal = Deal(placement.shares, [1.0] * self.num_workers, is_told=self._told.__contains__)
        lost = chance.sample(range(self.num_workers), num_lost)
        self.dies = {worker: chance.uniform(0, placement.seconds) for worker in lost}
        self._pace = [math.exp(chance.gauss(0, 0.05)) for _ in range(self.num_workers)]
        self._has: list[set[str]] = [set() for _ in range(self.num_workers)]  # kinds of items
        self._turn = [0] * self.num_workers
        self._doing: dict[int, tuple[float, float, Any]] = {}
        self._events: list[tuple[float, int, int]] = []  # when, which worker, which of its turns
        self._idle = set(range(self.num_workers))

    def run(self) -> None:
        while not self.deal.is_done:
            for worker in sorted(self._idle):
                self._give(worker)
            if not self._events:
                self.now += 1.0
                continue
            self.now, worker, turn = heapq.heappop(self._events)
            if turn == self._turn[worker]:
                self._end(worker)

    def _give(self, worker: int) -> None:
        parcel = self.deal.take(worker, self.now)
        if parcel is None:
            return
        self._idle.discard(worker)
        left = parcel.without(self._told.__contains__)
        took = (
            left.seconds * self._pace[worker] * math.exp(self._chance.gauss(0, 0.2 / math.sqrt(len(left.models) or 1)))
        )
        missing = {self._kinds[model] for model in left.models} - self._has[worker]
        self._has[worker] |= missing
        took += self._input_seconds * len(missing)
        self._turn[worker] += 1
        self._doing[worker] = self.now, took, left
        ends = min(self.now + took, max(self.dies.get(worker, math.inf), self.now))
        heapq.heappush(self._events, (ends, worker, self._turn[worker]))

    def _end(self, worker: int) -> None:
        since, took, parcel = self._doing.pop(worker)
        if self.now < self.dies.get(worker, math.inf):
            self._told.update(parcel.models)
            for other in self.deal.finish(worker, self.now):
                self._turn[other] += 1
                self._idle.add(other)
            self._idle.add(worker)
            return
        done, seconds = (self.now - since) / took * parcel.seconds, 0.0
        for place, model in enumerate(parcel.models):  # models are told one by one; the one that was being run is lost
            seconds += (parcel.new if place else parcel.alone)[place]
            if seconds <= done:
                self._told.add(model)
        self.deal.lose(worker)


def replay(
    placement: Any, kinds: dict[str, str], input_seconds: float, num_lost: int, *, seed: int
) -> dict[str, float]:
    """How long it takes, and how long at least: all work spread over workers that are there as long as they are."""
    replayed = Replay(placement, kinds, input_seconds, num_lost, random.Random(seed))
    replayed.run()
    work = placement.least_seconds * replayed.num_workers
    deaths = sorted(replayed.dies.values())
    least, there, done, before = 0.0, replayed.num_workers, 0.0, 0.0
    for death in (*deaths, math.inf):
        least = before + (work - done) / there
        if least <= death:
            break
        done, there, before = done + (death - before) * there, there - 1, death
    return {"seconds": replayed.now, "least_seconds": least, "num_moved": replayed.deal.num_moved}


def as_table(found: dict[str, Any]) -> str:
    lines = [
        "| GPUs | bound s | placed | planned | replayed | with loss | workers lost | parcels | moved | placing s (CPU) "
        "| items moved GB | weights read TB | scores moved GB |",
        "|---" * 13 + "|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['num_gpus']} | {row['least_seconds']:.0f} | {row['placed_ratio']:.3f} | {row['planned_ratio']:.3f} "
            f"| {row['replayed_ratio']:.3f} | {row['lossy_ratio']:.3f} | {row['num_lost']} | {row['num_parcels']} "
            f"| {row['num_moved']:.0f} | {row['place_seconds']:.1f} ({row['place_cpu_seconds']:.1f}) "
            f"| {row['item_bytes_moved'] / 1e9:.1f} | {row['weight_bytes_read'] / 1e12:.2f} "
            f"| {row['score_bytes_moved'] / 1e9:.1f} |"
        )
    return "\n".join(lines)


def as_document(found: dict[str, Any]) -> str:
    machine = describe_machine()
    return (
        f"# Placement of {found['num_models']} models on 1 to {found['rows'][-1]['num_gpus']} GPUs (2026-11)\n\n"
        f"Script: `benchmarks/scale.py`, a simulation with costs measured on one H200; the driver ran on {machine.cpu} with "
        f"Python {machine.python}. {found['num_segments']} segments in all, {NUM_ITEMS} items. Ratios are against the lower "
        "bound, which runs every shared segment once in the whole cluster and spreads all work evenly; in those with loss "
        "over workers that are there until they die.\n\n"
        + as_table(found)
        + f"\n\nPeak memory of the driver: {found['driver_peak_bytes'] / 1e9:.2f} GB (bar 2 GB), {found['chain_bytes']:.0f} "
        "bytes for what is sent of each model. Bars: at most 1.15 times the bound, placing in less than 30 s.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", type=int, default=50_000)
    parser.add_argument("--gpus", default="1,2,4,8,16,32,64,128,256")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    gpus = [int(each) for each in asked.gpus.split(",")]
    found = measure_in_child("scale:simulate", asked.models, gpus, timeout_seconds=1800, OMP_NUM_THREADS="1")
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), **found}, indent=1))
    else:
        print(as_document(found))
    if asked.out is not None:
        write_document(asked.out, as_document(found))


if __name__ == "__main__":
    main()
