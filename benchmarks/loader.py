"""`hound loader` against the full grid, on a simulated surface, prepared reading against a plain copy, and what it brings.

    python benchmarks/loader.py [--json] [--device cuda] [--parts grid,simulated,reading,pairs,gain] [--kind raw,preprocessed]

grid       every pair with every model, and the default way, on the same photos: mean regret of the default's pair in the grid's
           own table and in fresh runs of the best pairs in turns, and the share of the grid's time that the default took
           (`loader_grid.py`, `loader_truth.py`)
simulated  the research's two tables of 45 pairs as the truth, each evaluation with 2 % noise, 9 evaluations: regret of the pair
           that is chosen then, over 100 seeds
reading    batches of prepared items beside a plain memory-mapped copy of the same bytes
pairs      only the pairs of --pairs 64x0,128x0,... in turns for --repeat-seconds: how much longer each takes than the first
gain       searches with the recommended pair beside the same searches without, in turns (`loader_gain.py`)

Results are written to a file as they come where --out FOLDER or the variable OUT says where.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from loader_blind import choose_blindly
from modelhound.compat import import_timm, wait_asleep
from modelhound.meter import describe_machine, seconds_now
from modelhound.records import to_plain

NOISE, NUM_EVALUATIONS, NUM_SEEDS = 0.02, 9, 100
_WHOLE_PER_GRID = 2.0  # about what a grid, the default's tries and the repeats take together, as a multiple of the grid
TABLES = Path(__file__).with_name("batch_workers.json")


def simulate(kind: str) -> dict[str, Any]:
    """Regret of the chosen pair after nine noisy evaluations of the research's surface."""
    table = {(batch, workers): 1 + regret for batch, workers, regret in json.loads(TABLES.read_text())["regret"][kind]}
    found = [_choose_simulated(table, seed) for seed in range(NUM_SEEDS)]
    regrets = [table[pair] / min(table.values()) - 1 for pair in found]
    return {
        "num_pairs": len(table),
        "num_evaluations": NUM_EVALUATIONS,
        "median_regret": statistics.median(regrets),
        "mean_regret": statistics.mean(regrets),
        "worst_regret": max(regrets),
        "share_within_1_percent": sum(regret < 0.01 for regret in regrets) / len(regrets),
    }


def _choose_simulated(table: dict[tuple[int, int], float], seed: int) -> tuple[int, int]:
    generator = np.random.default_rng(seed)

    def take(pair: tuple[int, int]) -> float:
        return table[pair] * float(1 + NOISE * generator.standard_normal())

    return choose_blindly(tuple(sorted(table)), take, num_runs=NUM_EVALUATIONS, noise=NOISE)


def read_prepared(folder: Path) -> dict[str, Any]:
    """What benchmarks/prepared.py measures of copying, with fewer items."""
    import prepared as reading
    from modelhound.data import open_dataset
    from modelhound.data.sources.prepared import PreparedReader
    from modelhound.verbs.prepare import prepare

    photos, ready, num_items = folder / "large", folder / "ready", 600
    reading.make_photos(photos, num_items)
    prepare(str(photos), ready, size=reading.SIZE)
    reader = open_dataset(str(ready)).reader
    assert isinstance(reader, PreparedReader)
    return {
        name: reading.take_turns(ways, 21)["ratio_of_best"]
        for name, ways in reading.copying(reader, folder, num_items).items()
    }


def measure(asked: argparse.Namespace, out: Path | None) -> dict[str, Any]:
    """Every part that was asked for; what is there so far is written after each."""
    start = seconds_now()
    results: dict[str, Any] = {"machine": to_plain(describe_machine()), "device": asked.device}
    parts, kinds = asked.parts.split(","), asked.kind.split(",")

    def note(part: str, found: dict[str, Any]) -> None:
        results[part] = results.get(part, {}) | found
        results["seconds"] = seconds_now() - start
        print(f"{results['seconds']:6.1f} s  {part}: {', '.join(found)}", file=sys.stderr, flush=True)
        if out is not None:
            (out / f"loader-{asked.device.partition(':')[0]}.json").write_text(json.dumps(results, indent=1))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "simulated" in parts:
            note("simulated", {kind: simulate(kind) for kind in ("raw", "preprocessed")})
        if "reading" in parts:
            note("reading", read_prepared(folder))
        if "grid" in parts:
            import loader_grid

            for kind in kinds:
                left = asked.deadline - (seconds_now() - start)
                wanted = asked.grid_seconds or loader_grid.PLANS[asked.device.partition(":")[0]].grid_seconds.get(kind)
                compared = loader_grid.compare_with_grid(
                    folder,
                    kind,
                    asked.device,
                    items=asked.items,
                    seeds=asked.seeds,
                    repeats=asked.repeats,
                    grid_seconds=None if wanted is None else min(wanted, left / _WHOLE_PER_GRID),
                    repeat_seconds=asked.repeat_seconds,
                    keep=loader_grid.copy_records(out),
                    tell=lambda partial, kind=kind: note("grid", {kind: partial}),  # type: ignore[misc]
                )
                note("grid", {kind: compared})
        if "pairs" in parts:
            import loader_grid

            pairs = [tuple(map(int, pair.split("x"))) for pair in asked.pairs.split(",")]
            for kind in kinds:
                again = loader_grid.compare_pairs(
                    folder, kind, asked.device, pairs, items=asked.items, seconds=asked.repeat_seconds or 60.0
                )
                note("pairs", {kind: again})
        if "gain" in parts:
            import loader_gain

            loader_gain.measure_gain(
                folder,
                asked.device,
                items=asked.items,
                turns=asked.turns,
                num_models=asked.num_models,
                tell=lambda row: note("gain", row),
            )
    return results


def show(measured: dict[str, Any]) -> None:
    for kind, row in measured.get("simulated", {}).items():
        print(
            f"simulated {kind}: median regret {row['median_regret']:.2%}, mean {row['mean_regret']:.2%}, worst "
            f"{row['worst_regret']:.1%} with {row['num_evaluations']} of {row['num_pairs']} evaluations, {NUM_SEEDS} seeds"
        )
    for name, ratio in measured.get("reading", {}).items():
        print(f"reading {name}: {ratio:.2f} of a plain memory-mapped copy")
    for kind, row in measured.get("grid", {}).items():
        print(
            f"{kind}: grid of {row['num_models']} models x {row['num_pairs']} pairs, {row['num_items']} items, "
            f"{row['grid_seconds']:.0f} s, best {row['grid_best']['batch']} x {row['grid_best']['workers']}"
        )
        again = row["repeated"]
        print(
            f"  the best {len(again['pairs'])} pairs again, {again['num_rounds']} rounds: one run scatters by "
            f"{again['one_run_scatters_by']:.1%}, one round over all models by {again['one_round_scatters_by']:.1%}"
        )
        for each in row["default"]:
            fresh = each["repeated"]["over_the_grids_pair"]
            print(
                f"  default: {each['pair'][0]} x {each['pair'][1]}, {each['over_the_grids_best']:.2%} over the grid's best in "
                f"its table, {fresh['regret']:.2%} [{fresh['interval'][0]:.2%}, {fresh['interval'][1]:.2%}] in fresh runs; "
                f"{each['share_of_grid']:.0%} of the grid's time, {each['num_runs']} runs, {each['chance_within']:.0%} sure"
            )
    for kind, again in measured.get("pairs", {}).items():
        for each in again["over_the_first"]:
            low, high = each["interval"]
            print(
                f"{kind}, {again['num_rounds']} rounds of {again['num_items']} items: {each['pair']} takes "
                f"{each['regret']:.2%} [{low:.2%}, {high:.2%}] longer than {again['pairs'][0]}"
            )
    for name, row in measured.get("gain", {}).items():
        pair = row["recommended"]
        for what in ("search", "loading"):
            ratio, (least, most) = row[what]["ratio"], row[what]["range"]
            print(
                f"gain, {name}, {pair['batch']} x {pair['workers']}: {what} {ratio:.2f}x faster ({least:.2f} to {most:.2f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parts", default="simulated,reading,grid,gain")
    parser.add_argument("--kind", default="raw,preprocessed")
    parser.add_argument("--items", type=int, help="length of a run; the default depends on the device")
    parser.add_argument("--seeds", type=int, default=1, help="how often the default is tried")
    parser.add_argument("--repeats", type=int, default=1, help="how often the grid measures each cell")
    parser.add_argument(
        "--grid-seconds", type=float, help="choose the length of runs so that a grid takes about this long"
    )
    parser.add_argument("--repeat-seconds", type=float, help="for fresh runs of the pairs that matter")
    parser.add_argument("--pairs", default="64x0,64x2", help="of the part pairs")
    parser.add_argument("--deadline", type=float, default=1e9, help="make grids shorter so as to end about then")
    parser.add_argument("--turns", type=int, default=5, help="of the part gain")
    parser.add_argument("--num-models", type=int, help="of the part gain: only the first so many of the device's plan")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder for results as they come")
    asked = parser.parse_args()
    out = None if asked.out is None else Path(asked.out)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    wait_asleep()
    import_timm()
    measured = measure(asked, out)
    if asked.json:
        print(json.dumps(measured, indent=1))
    else:
        show(measured)


if __name__ == "__main__":
    main()
