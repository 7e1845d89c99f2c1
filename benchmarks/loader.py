"""`hound loader` against the full grid, on a simulated surface, and prepared reading against a plain copy.

    python benchmarks/loader.py [--json] [--device cuda] [--parts grid,simulated,reading] [--kind raw,preprocessed] [--items N]

grid       every pair with every model, and the default way, on the same photos: mean regret of the default's pair in the grid's
           own table, and the share of the grid's time that the default took
simulated  the research's two tables of 45 pairs as the truth, each evaluation with 2 % noise, 9 evaluations: regret of the pair
           that is chosen then, over 100 seeds
reading    batches of prepared items beside a plain memory-mapped copy of the same bytes
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modelhound.analysis.surface import UNKNOWN, believe, choose_next, first_pairs
from modelhound.meter import describe_machine, seconds_now
from modelhound.records import to_plain
from modelhound.verbs.loader import LoaderResult, loader

NOISE, NUM_EVALUATIONS, NUM_SEEDS = 0.02, 9, 100
TABLES = Path(__file__).with_name("batch_workers.json")
ON_CPU = {
    "models": (
        "zoo:mobilenet-rotation",
        "zoo:resnet-glyphs",
        "timm:tinynet_e",
        "timm:lcnet_050",
        "timm:mobilenetv3_small_050",
    ),
    "batch": "8,16,32,64,128",
    "workers": "0,1,2,3,4",
    "items": 384,
}
ON_CUDA = {
    "models": (
        "timm:resnet18",
        "timm:resnet50",
        "timm:resnet152",
        "timm:efficientnet_b0",
        "timm:mobilenetv3_large_100",
        "timm:convnext_tiny",
        "timm:vit_small_patch16_224",
        "timm:vit_base_patch16_224",
    ),
    "batch": "32,64,128,256,512,1024",
    "workers": "1,2,4,8,16",
    "items": 1024,
}


def make_photos(folder: Path, num_items: int, size: tuple[int, int] = (256, 192)) -> None:
    """JPEG files with soft shapes and some grain, like photographs."""
    generator = np.random.default_rng(0)
    for number in range(num_items):
        path = folder / f"class{number % 8}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (15, 20, 3), dtype=np.uint8)).resize(size, 3)
        grain = generator.normal(0, 8, (size[1], size[0], 1))
        Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)


def compare_with_grid(folder: Path, kind: str, device: str, num_items: int | None, seeds: int) -> dict[str, Any]:
    """The default with some seeds, then the grid."""
    asked = dict(ON_CPU if device == "cpu" else ON_CUDA)
    asked["items"] = num_items or asked["items"]
    photos = folder / f"photos-{asked['items']}"
    if not photos.exists():
        make_photos(photos, int(asked["items"]))  # type: ignore[call-overload]
    common = {**asked, "weights": "random", "kind": kind, "device": device}

    def find(name: str, **more: Any) -> tuple[LoaderResult, float]:
        start = seconds_now()
        result = loader(str(photos), run=folder / f"{kind}-{name}", **{**common, **more})
        return result, seconds_now() - start

    quick = [find(f"default-{seed}", seed=seed)[0] for seed in range(seeds)]
    grid, wall_seconds = find("grid", grid=True)
    grid_seconds = sum(run.wall_seconds for run in grid.runs)
    table = {(row.batch, row.workers): row.mean for row in grid.answer.kinds[0].regret}
    best = min(value for value in table.values() if value is not None)
    rows = []
    for result in quick:
        answer = result.answer.kinds[0]
        assert answer.recommended is not None
        pair = (answer.recommended.batch, answer.recommended.workers)
        regret = table[pair]
        assert regret is not None
        rows.append(
            {
                "pair": pair,
                "mean_regret": regret,
                "over_the_grids_best": regret - best,
                "seconds": answer.measuring_seconds,
                "share_of_grid": answer.measuring_seconds / grid_seconds,
                "num_runs": answer.num_runs,
                "chance_within": answer.chance_within,
                "noise": answer.noise,
                "verdict": answer.verdict,
            }
        )
    return {
        "num_models": len(grid.answer.kinds[0].models),
        "num_pairs": len(table),
        "num_items": asked["items"],
        "grid_seconds": grid_seconds,
        "grid_wall_seconds": wall_seconds,
        "grid_best": to_plain(grid.answer.kinds[0].recommended),
        "grid_best_mean_regret": best,
        "grid_table": sorted([*pair, value] for pair, value in table.items()),
        "grid_verdict": grid.answer.kinds[0].verdict,
        "advice": [f"{each.text} {each.evidence}" for each in grid.answer.kinds[0].advice],
        "default": rows,
        "num_failures": len(grid.failures),
    }


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
    pairs = tuple(sorted(table))
    nothing = np.ones((1, len(pairs)))
    runs: dict[tuple[int, int], list[float]] = {}

    def evaluate(column: int) -> None:
        seconds = table[pairs[column]] * (1 + NOISE * generator.standard_normal())
        runs.setdefault((0, column), []).append(seconds)

    for pair in first_pairs(pairs):
        evaluate(pairs.index(pair))
    while sum(map(len, runs.values())) < NUM_EVALUATIONS:
        evaluate(choose_next(believe(("all",), pairs, nothing, runs, doubt=UNKNOWN, noise=NOISE))[1])
    belief = believe(("all",), pairs, nothing, runs, doubt=UNKNOWN, noise=NOISE)
    return pairs[int(belief.mean[0].argmin())]


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


def measure(
    parts: Sequence[str], kinds: Sequence[str], device: str, num_items: int | None, seeds: int
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "simulated" in parts:
            results["simulated"] = {kind: simulate(kind) for kind in ("raw", "preprocessed")}
        if "reading" in parts:
            results["reading"] = read_prepared(Path(folder))
        if "grid" in parts:
            results["grid"] = {kind: compare_with_grid(Path(folder), kind, device, num_items, seeds) for kind in kinds}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parts", default="simulated,reading,grid")
    parser.add_argument("--kind", default="raw,preprocessed")
    parser.add_argument("--items", type=int, help="length of a run; the default depends on the device")
    parser.add_argument("--seeds", type=int, default=1, help="how often the default is tried")
    asked = parser.parse_args()
    start = seconds_now()
    measured = measure(asked.parts.split(","), asked.kind.split(","), asked.device, asked.items, asked.seeds)
    if asked.json:
        machine = to_plain(describe_machine())
        print(
            json.dumps(
                {"machine": machine, "device": asked.device, "seconds": seconds_now() - start, **measured}, indent=1
            )
        )
        return
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
        for each in row["default"]:
            print(
                f"  default: {each['pair'][0]} x {each['pair'][1]}, mean regret {each['mean_regret']:.2%} "
                f"({each['over_the_grids_best']:.2%} over the grid's best), {each['share_of_grid']:.0%} of the grid's time, "
                f"{each['num_runs']} runs, {each['chance_within']:.0%} sure"
            )


if __name__ == "__main__":
    main()
