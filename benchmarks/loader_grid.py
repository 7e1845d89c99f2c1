"""`hound loader` beside the full grid: the same machine, the same process, the same photos.

In:  a kind of items, a device, how long the grid may take
Out: the pair that the default recommends, its regret in the grid's own table, and what both took
Half of the default's tries come before the grid, half after it. The models are built once and run once with every batch size
before anything is timed, since both would pay for that alike.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modelhound.data import open_dataset
from modelhound.data.recommended import item_kind
from modelhound.feeding import Feed, supplying
from modelhound.feeding.concluding import choose_pairs
from modelhound.feeding.runs import measure_load, warm_up
from modelhound.meter import count_cores, resolve_device, seconds_now
from modelhound.models import Network, find_models
from modelhound.records import FeedMeasured, silent, to_plain
from modelhound.settings import LoaderSearchSettings
from modelhound.verbs.loader import LoaderResult, run_loader

__all__ = ["PLANS", "Plan", "compare_with_grid", "copy_records", "make_photos"]

_GRANULE = 128  # runs are as many items long as a multiple of this
_PROBE_ITEMS = 96
_START_SECONDS, _START_PER_WORKER, _COMPUTE_SECONDS = 0.1, 0.03, 0.0004  # rough, to choose the length of runs with


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured on one kind of device."""

    models: tuple[str, ...]
    batch: str
    workers: str
    items: int
    """In a run, unless the grid would take too long."""
    grid_seconds: Mapping[str, float] = field(default_factory=dict)
    """By kind of items: what a grid may take; shorter runs are made of it where that is needed."""
    photo_size: tuple[int, int] = (256, 192)


PLANS = {
    "cpu": Plan(
        models=(
            "zoo:mobilenet-rotation",
            "zoo:resnet-glyphs",
            "timm:tinynet_e",
            "timm:lcnet_050",
            "timm:mobilenetv3_small_050",
        ),
        batch="8,16,32,64,128",
        workers="0,1,2,3,4",
        items=384,
    ),
    "cuda": Plan(
        models=(
            "timm:resnet18",
            "timm:resnet50",
            "timm:resnet152",
            "timm:densenet121",
            "timm:efficientnet_b0",
            "timm:mobilenetv3_large_100",
            "timm:vit_small_patch16_224",
            "timm:vit_base_patch16_224",
        ),
        batch="32,64,128,256,512,1024",
        workers="1,2,4,8,16",
        items=2048,
        grid_seconds={"raw": 190.0, "preprocessed": 85.0},
    ),
}


def make_photos(folder: Path, num_items: int, size: tuple[int, int]) -> None:
    """JPEG files with soft shapes and some grain, like photographs."""
    generator = np.random.default_rng(0)
    for number in range(num_items):
        path = folder / f"class{number % 8}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (15, 20, 3), dtype=np.uint8)).resize(size, 3)
        grain = generator.normal(0, 8, (size[1], size[0], 1))
        Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)


def compare_with_grid(
    folder: Path,
    kind: str,
    device: str,
    *,
    items: int | None,
    seeds: int,
    repeats: int,
    grid_seconds: float | None,
    keep: Callable[[str, Path], None],
) -> dict[str, Any]:
    """The default with some seeds, the grid in between; `keep` is given the records of each."""
    plan = PLANS[device.partition(":")[0]]
    photos = folder / "photos"
    if not photos.exists():
        make_photos(photos, items or plan.items, plan.photo_size)
    settings = LoaderSearchSettings(
        str(photos),
        models=plan.models,
        batch=tuple(plan.batch.split(",")),
        workers=tuple(plan.workers.split(",")),
        weights="random",
        kind=(kind,),
        device=device,
        items=items or plan.items,
    )
    networks = _build_once(settings)
    length = items or _fitting_length(settings, kind, networks, grid_seconds or plan.grid_seconds.get(kind))
    _warm_up(settings, networks, length)

    def find(name: str, **more: Any) -> tuple[LoaderResult, float]:
        run, start = folder / f"{kind}-{name}", seconds_now()
        asked = {"items": length, "limit": length, "run": run, **more}
        result = run_loader(_replace(settings, **asked))
        keep(f"{kind}-{name}", run / "records.jsonl")
        return result, seconds_now() - start

    early = [find(f"default-{seed}", seed=seed) for seed in range(-(-seeds // 2))]
    grid, grid_wall = find("grid", grid=True, repeats=repeats)
    late = [find(f"default-{seed}", seed=seed) for seed in range(-(-seeds // 2), seeds)]
    found = _describe_grid(grid, repeats) | {"num_items": length, "grid_wall_seconds": grid_wall}
    defaults = [_judge(result, wall, found) for result, wall in [*early, *late]]
    return found | {
        "default": defaults,
        "mean_over_the_grids_best": float(np.mean([each["over_the_grids_best"] for each in defaults])),
        "mean_share_of_grid": float(np.mean([each["share_of_grid"] for each in defaults])),
    }


def _replace(settings: LoaderSearchSettings, **changes: Any) -> LoaderSearchSettings:
    fields = {name: getattr(settings, name) for name in settings.__dataclass_fields__ if name != "_"}
    return LoaderSearchSettings(**(fields | changes))


def _build_once(settings: LoaderSearchSettings) -> Mapping[str, Network]:
    """All later studies of this process get these networks: building them is no part of what is compared."""
    device = resolve_device(settings.device)
    built = supplying.build_networks(find_models(settings.models), settings, "image", device, watch=silent)
    if built[1]:
        raise SystemExit(f"cannot compare: {built[1][0].model} {built[1][0].error}")
    supplying.build_networks = lambda *_, **__: (dict(built[0]), [])  # type: ignore[assignment]
    return built[0]


def _fitting_length(
    settings: LoaderSearchSettings, kind: str, networks: Mapping[str, Network], grid_seconds: float | None
) -> int:
    """The longest run whose grid is likely to stay below the limit."""
    wanted = settings.items or 0
    if grid_seconds is None:
        return wanted
    data = open_dataset(settings.data, limit=_PROBE_ITEMS)
    device = resolve_device(settings.device)
    form = next(iter(networks.values())).preprocessing
    with supplying.supply_items(data, kind, networks, _PROBE_ITEMS, watch=silent) as (items, _):
        probe = [
            measure_load(items, form, Feed(device=device), item_kind=item_kind(items), form_name="", **how)
            for how in [{"batch": 32, "workers": 1, "num_items": _PROBE_ITEMS}] * 2
        ]
    item_seconds = min((each.arrivals[-1] - each.arrivals[0]) / (_PROBE_ITEMS - 32) for each in probe)
    lengths = range(wanted, _GRANULE, -_GRANULE)
    return next((each for each in lengths if _guess(settings, networks, each, item_seconds) <= grid_seconds), _GRANULE)


def _guess(settings: LoaderSearchSettings, networks: Mapping[str, Network], items: int, item_seconds: float) -> float:
    """About what the grid takes."""
    pairs, _ = choose_pairs(settings, device="cuda", num_cores=count_cores(), num_items=items)
    seconds = 0.0
    for batch, workers in pairs:
        size = min(batch, items)
        rounds = -(-items // size) // max(1, workers) or 1  # batches that each worker makes, about
        seconds += max(rounds * size * item_seconds, items * _COMPUTE_SECONDS) + _START_SECONDS
        seconds += _START_PER_WORKER * workers
    return len(networks) * seconds


def _warm_up(settings: LoaderSearchSettings, networks: Mapping[str, Network], items: int) -> None:
    device = resolve_device(settings.device)
    if device == "cpu":
        return
    data = open_dataset(settings.data, limit=_PROBE_ITEMS)
    for batch in sorted({min(int(each), items) for each in settings.batch}):
        for size in {batch, items % batch or batch}:  # the last batch may be smaller
            for network in networks.values():
                warm_up(network, data, Feed(device=device, precision=settings.precision), batch=size)


def _describe_grid(grid: LoaderResult, repeats: int) -> dict[str, Any]:
    (answer,) = grid.answer.kinds
    table = {(row.batch, row.workers): row.mean for row in answer.regret}
    return {
        "num_models": len(answer.models),
        "models": [each.model for each in answer.models],
        "num_pairs": len(table),
        "repeats": repeats,
        "grid_seconds": sum(run.wall_seconds for run in grid.runs) / repeats,
        "grid_best": to_plain(answer.recommended),
        "grid_best_mean_regret": min(value for value in table.values() if value is not None),
        "grid_table": sorted([*pair, value] for pair, value in table.items()),
        "grid_noise": answer.noise,
        "one_pass_loses": _one_pass_loses(grid.runs, repeats),
        "grid_verdict": answer.verdict,
        "advice": [f"{each.text} {each.evidence}" for each in answer.advice],
        "num_failures": len(grid.failures),
        "failures": [to_plain(each)["error"] for each in grid.failures[:4]],
    }


def _one_pass_loses(runs: Sequence[FeedMeasured], repeats: int) -> float | None:
    """What a grid of one run per cell loses by noise: its best pair in the means of the other passes."""
    if repeats < 2:
        return None
    models = sorted({run.model for run in runs})
    pairs = sorted({(run.batch, run.workers) for run in runs})
    seconds = np.full((repeats, len(models), len(pairs)), np.nan)
    seen: dict[tuple[int, int], int] = {}
    for run in runs:
        cell = (models.index(run.model), pairs.index((run.batch, run.workers)))
        seconds[seen.get(cell, 0), *cell] = run.wall_seconds
        seen[cell] = seen.get(cell, 0) + 1
    lost = []
    for left in range(repeats):
        alone, others = _mean_regrets(seconds[left]), _mean_regrets(np.delete(seconds, left, axis=0).mean(axis=0))
        lost.append(float(others[np.nanargmin(alone)] - np.nanmin(others)))
    return float(np.mean(lost))


def _mean_regrets(seconds: Any) -> Any:
    return (seconds / np.nanmin(seconds, axis=1, keepdims=True) - 1).mean(axis=0)


def _judge(result: LoaderResult, wall: float, grid: Mapping[str, Any]) -> dict[str, Any]:
    (answer,) = result.answer.kinds
    assert answer.recommended is not None
    pair = (answer.recommended.batch, answer.recommended.workers)
    regret = {(batch, workers): value for batch, workers, value in grid["grid_table"]}[pair]
    regret = float("nan") if regret is None else regret  # a pair that fails in the grid
    return {
        "pair": pair,
        "mean_regret": regret,
        "over_the_grids_best": regret - grid["grid_best_mean_regret"],
        "seconds": answer.measuring_seconds,
        "wall_seconds": wall,
        "share_of_grid": answer.measuring_seconds / grid["grid_seconds"],
        "num_runs": answer.num_runs,
        "chance_within": answer.chance_within,
        "noise": answer.noise,
        "verdict": answer.verdict,
    }


def copy_records(into: Path | None) -> Callable[[str, Path], None]:
    """Keeps the records of the grid and of the default's first try in a folder, where one is given."""

    def keep(name: str, records: Path) -> None:
        if into is not None and name.endswith(("grid", "default-0")):
            shutil.copyfile(records, into / f"loader-{name}.jsonl")

    return keep
