"""The engine against the plain loop, successive halving and prefix sharing alone, on pools of related and unrelated models.

    python benchmarks/engine.py [--pool NAME…] [--quick] [--repeats N] [--json]

A pool is made by the recipe of the field: the first model has some weights, each further one copies a random earlier one and
re-initialises its last blocks, on average a given share of the depth. Weights are random, so what is measured is time and
whether all contestants find the same order, not whether the order is good. Images are JPEGs of 500 x 375 pixels whose classes
differ in colour and texture. Every contestant runs in a process of its own, in turns; imports are not timed, everything after
them is.

Contestants
    plain      each model by itself: DataLoader with all cores, batch 128, fp32, 100 epochs of an SGD probe
    halving    the same on 1/4 of the items for all models, 1/2 for the better half, all for the better quarter
    sharing    equal prefixes run once, everything else plain: fp32, no race
    engine     what `hound search` does
Where the plain loop would take too long, it is timed on every k-th model and scaled; `timed` says on how many.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from children import measure_in_child
from modelhound.meter import count_cores, describe_machine, seconds_now
from modelhound.records import to_plain

POOLS: dict[str, dict[str, Any]] = {
    "resnet152": {
        "architectures": ["resnet152"],
        "models": 35,
        "differ": 0.10,
        "items": 8000,
        "every": 7,
        "device": "cuda",
    },
    "mixed8": {
        "architectures": [
            *("resnet18", "resnet50", "resnet152", "efficientnet_b0"),
            *("mobilenetv2_100", "vit_base_patch16_224", "vit_large_patch16_224", "convnext_tiny"),
        ],
        "models": 24,
        "differ": 1.0,
        "items": 4000,
        "every": 3,
        "device": "cuda",
    },
    "resnet18-10": {
        "architectures": ["resnet18"],
        "models": 24,
        "differ": 0.10,
        "items": 1000,
        "side": 96,
        "device": "cpu",
    },
    "resnet18-25": {
        "architectures": ["resnet18"],
        "models": 24,
        "differ": 0.25,
        "items": 1000,
        "side": 96,
        "device": "cpu",
    },
    "resnet18-50": {
        "architectures": ["resnet18"],
        "models": 24,
        "differ": 0.50,
        "items": 1000,
        "side": 96,
        "device": "cpu",
    },
    "small12": {
        "architectures": [
            *("resnet18", "resnet10t", "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "convnext_atto"),
            *(
                "regnetx_002",
                "vit_tiny_patch16_224",
                "mobilenetv3_large_100",
                "lcnet_100",
                "mnasnet_small",
                "ghostnet_100",
            ),
        ],
        "models": 12,
        "differ": 1.0,
        "items": 1000,
        "side": 128,
        "device": "cpu",
    },
}
NUM_CLASSES = 10
CONTESTANTS = ("plain", "halving", "sharing", "engine")


def make_pool(folder: Path, pool: dict[str, Any], *, seed: int = 0) -> list[str]:
    """Write the models as folders in the hub's layout; their references, in order of birth."""
    import torch
    from safetensors.torch import save_file

    from modelhound.compat import import_timm

    timm = import_timm()
    draw = random.Random(seed)
    born: dict[str, list[dict[str, torch.Tensor]]] = {}
    references = []
    for number in range(pool["models"]):
        name = pool["architectures"][number % len(pool["architectures"])]
        torch.manual_seed(seed + number)
        options = {"img_size": pool["side"]} if "vit" in name and pool.get("side") else {}
        if born.get(name) and pool["differ"] < 1:
            parent = draw.choice(born[name])
            blocks = _blocks(list(parent))
            share = min(1.0, max(0.0, draw.gauss(pool["differ"], pool["differ"] / 3)))
            fresh = set(blocks[len(blocks) - max(1, round(share * len(blocks))) :])
            state = {key: _redraw(tensor) if _block(key) in fresh else tensor for key, tensor in parent.items()}
        else:
            module = timm.create_model(name, num_classes=0, **options)
            state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        born.setdefault(name, []).append(state)
        place = folder / f"{number:02}-{name}"
        place.mkdir(parents=True)
        save_file(state, place / "model.safetensors")
        fed = {**module.pretrained_cfg, "num_classes": 0}
        if pool.get("side"):
            fed["input_size"] = (3, pool["side"], pool["side"])
        keep = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std", "num_classes")
        config = {
            "architecture": name,
            "num_classes": 0,
            "model_args": options,
            "pretrained_cfg": {key: fed[key] for key in keep if key in fed},
        }
        (place / "config.json").write_text(json.dumps(config))
        references.append(f"file:{place}")
    return references


def _redraw(tensor: Any) -> Any:
    """Other weights of the same spread; what is no weight stays."""
    import torch

    return torch.randn_like(tensor) * tensor.std() if tensor.ndim > 1 else tensor.clone()


def _blocks(names: list[str]) -> list[str]:
    return list(dict.fromkeys(_block(name) for name in names))


def _block(name: str) -> str:
    """layer3.5 of layer3.5.conv1.weight: everything up to the last number, or the first word."""
    words = name.split(".")
    numbers = [place for place, word in enumerate(words[:3]) if word.isdigit()]
    return ".".join(words[: numbers[-1] + 1]) if numbers else words[0]


def make_images(folder: Path, num_items: int) -> None:
    per_class = -(-num_items // NUM_CLASSES)
    with ProcessPoolExecutor(count_cores()) as workers:
        list(
            workers.map(
                _draw_image,
                [(folder, place % NUM_CLASSES, place) for place in range(per_class * NUM_CLASSES)],
                chunksize=50,
            )
        )


def _draw_image(job: tuple[Path, int, int]) -> None:
    """Waves of the class's colours and directions under noise: about 70 KB as a JPEG, like a photo."""
    import numpy as np
    from PIL import Image

    folder, label, number = job
    generator = np.random.default_rng(number)
    across, down = np.meshgrid(np.linspace(0, 1, 500), np.linspace(0, 1, 375))
    angle = label * 0.6 + generator.normal(0, 0.5)
    waves = np.sin(
        2 * np.pi * (3 + label % 4 * 2) * (across * np.cos(angle) + down * np.sin(angle)) + generator.uniform(0, 6)
    )
    tint = np.array([np.cos(label), np.sin(label * 2), np.cos(label * 3 + 1)])
    picture = (
        128
        + 50 * waves[..., None] * (0.5 + 0.5 * tint)
        + 30 * generator.normal(size=3)
        + 22 * generator.normal(size=(375, 500, 3))
    )
    place = folder / f"class{label}" / f"{number:05}.jpg"
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(place, quality=88)


def run_plain(models: list[str], data: str, device: str, num_items: int | None = None) -> dict[str, float]:
    """The loop of the research: every model by itself. Accuracy of the probe by model."""
    import torch

    from modelhound.data import load_batches, open_dataset
    from modelhound.models import find_models, source_of
    from modelhound.scores import FeatureSet, score

    dataset = open_dataset(data, limit=num_items)
    found = {}
    for model in find_models(models):
        source = source_of(model)
        network = source.build(model.name, source.read_weights(model.name))
        network.module.to(device)
        rows, targets = [], []
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for batch in load_batches(dataset, network.preprocessing, batch=128, workers=count_cores(), device=device):
                rows.append(network.extract(batch.inputs_on(device)))
                targets.append(batch.targets)
        features = FeatureSet(
            features=torch.cat(rows), targets=torch.cat(targets).to(device), num_classes=len(dataset.class_names)
        )
        found[str(model)] = score(features, ["sgd_probe"], seed=0).values["sgd_probe"].value
    return found


def contest(contestant: str, models: list[str], data: str, device: str, num_items: int) -> dict[str, Any]:
    """Runs in a child: seconds from the first weight file to the ranking, and the ranking."""
    import torch

    import modelhound
    import modelhound.measuring
    import modelhound.verbs.search
    from modelhound.compat import import_timm
    from modelhound.meter import Meter, resolve_device

    import_timm()
    device = resolve_device(device)
    if device != "cpu":
        torch.zeros(1, device=device)
    meter = Meter(device)
    phases: dict[str, float] = {}
    dropped = 0
    if contestant == "plain":
        scores = run_plain(models, data, device)
    elif contestant == "halving":
        scores, alive = {}, models
        for share, keep in ((4, 2), (2, 2), (1, 1)):
            scores.update(run_plain(alive, data, device, num_items // share))
            alive = sorted(alive, key=lambda model: -scores[model])[: max(1, len(alive) // keep)]
    else:
        folder = Path(tempfile.mkdtemp())
        options: dict[str, Any] = (
            {"precision": "fp32", "exhaustive": True, "scorers": "sgd_probe"} if contestant == "sharing" else {}
        )
        result = modelhound.search(data, models, device=device, run=folder / "run", **options)
        shutil.rmtree(folder)
        if result.failures:
            raise SystemExit(f"failed: {result.failures[0].model}: {result.failures[0].error}")
        scores = {row.model: row.score for row in result.ranking.models}
        scores |= {each.model: each.score - 1 for each in result.dropped}
        phases, dropped = result.phases, len(result.dropped)
    return {
        "seconds": meter.wall_seconds,
        "peak_bytes": meter.peak_memory_bytes,
        "scores": scores,
        "phases": phases,
        "dropped": dropped,
    }


def exhaustive_scores(models: list[str], data: str, device: str) -> dict[str, Any]:
    """Runs in a child: the ranking that the plain path gives, to compare the engine's with."""
    import modelhound

    folder = Path(tempfile.mkdtemp())
    result = modelhound.search(data, models, device=device, run=folder / "run", plain=True, scorers="ridge")
    shutil.rmtree(folder)
    return {"scores": {row.model: row.score for row in result.ranking.models}}


def measure(name: str, contestants: list[str], repeats: int, shrink: int, compare: bool) -> dict[str, Any]:
    from modelhound.analysis.ranking import rank_agreement

    pool = dict(POOLS[name])
    pool["items"] //= shrink
    folder = Path(tempfile.mkdtemp(prefix="hound-engine-"))
    try:
        started = seconds_now()
        models = make_pool(folder / "models", pool)
        make_images(folder / "images", pool["items"])
        print(f"{name}: made in {seconds_now() - started:.0f} s", file=sys.stderr)
        rows: dict[str, dict[str, Any]] = {}
        for _ in range(repeats):
            for contestant in contestants:
                every = pool.get("every", 1) if contestant in ("plain", "halving") else 1
                timed = models[::every] if contestant == "plain" else models
                if contestant == "halving" and every > 1:
                    timed = models[:: max(1, every // 2)]
                made = measure_in_child(
                    "engine:contest",
                    contestant,
                    timed,
                    str(folder / "images"),
                    pool["device"],
                    pool["items"],
                    timeout_seconds=1500,
                )
                made["timed"], made["scaled_seconds"] = len(timed), made["seconds"] * len(models) / len(timed)
                print(
                    f"{name} {contestant}: {made['seconds']:.1f} s on {len(timed)} of {len(models)}, {made['phases']}",
                    file=sys.stderr,
                )
                if contestant not in rows or made["scaled_seconds"] < rows[contestant]["scaled_seconds"]:
                    rows[contestant] = made
        agreement = None
        if compare and "engine" in rows:
            truth = measure_in_child(
                "engine:exhaustive_scores", models, str(folder / "images"), pool["device"], timeout_seconds=1500
            )["scores"]
            ours = rows["engine"]["scores"]
            agreement = rank_agreement([truth[model] for model in models], [ours[model] for model in models])
            rows["engine"]["same_best"] = max(truth.values()) - truth[max(ours, key=lambda model: ours[model])]
        return {"pool": name, **pool, "rows": rows, "kendall_tau": agreement}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", choices=POOLS, action="append", help="all that this machine can run by default")
    parser.add_argument("--contestant", choices=CONTESTANTS, action="append")
    parser.add_argument("--quick", action="store_true", help="the CPU pools at a tenth of their size")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--compare", action="store_true", help="also rank by the plain path, and compare")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    names = asked.pool or [name for name, pool in POOLS.items() if pool["device"] == "cpu"]
    contestants = asked.contestant or list(CONTESTANTS)
    results = [measure(name, contestants, asked.repeats, 10 if asked.quick else 1, asked.compare) for name in names]
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "results": results}))
        return
    print("| pool | contestant | seconds (scaled) | times plain | peak MB | tau with plain ranking |")
    print("|---|---|---|---|---|---|")
    for result in results:
        plain = result["rows"].get("plain", {}).get("scaled_seconds")
        for contestant, row in result["rows"].items():
            ratio = f"{plain / row['scaled_seconds']:.1f}" if plain else ""
            tau = f"{result['kendall_tau']:.2f}" if contestant == "engine" and result["kendall_tau"] is not None else ""
            cells = (
                result["pool"],
                contestant,
                f"{row['scaled_seconds']:.1f}",
                ratio,
                f"{row['peak_bytes'] / 1e6:.0f}",
                tau,
            )
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
