"""`hound loader` beside the full grid: the same machine, the same process, the same photos.

In:  a kind of items, a device, how long the grid may take
Out: the pair that the default recommends, what both took, and its regret: in the grid's own table, and in fresh runs of it and
     of the grid's best pairs in turns (`loader_truth`)
Half of the default's tries come before the grid, half after it. The models are built once and run once with every batch size
before anything is timed, since both would pay for that alike.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import loader_truth
from modelhound.data import Preprocessing, open_dataset
from modelhound.data.loading import free_shared_memory
from modelhound.data.preparing import prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.feeding import supplying
from modelhound.feeding.concluding import choose_pairs
from modelhound.feeding.runs import Feed, measure_load, warm_up
from modelhound.meter import count_cores, resolve_device, seconds_now
from modelhound.models import Network, find_models
from modelhound.records import FeedMeasured, silent, to_plain
from modelhound.settings import LoaderSearchSettings
from modelhound.verbs.loader import LoaderResult, run_loader

__all__ = ["PLANS", "Plan", "compare_pairs", "compare_with_grid", "copy_records", "make_photos"]

_GRANULE = 128  # runs are as many items long as a multiple of this
_PROBE_ITEMS = 96
_START_SECONDS, _START_PER_WORKER, _COMPUTE_SECONDS = 0.15, 0.02, 0.0002  # rough, to choose the length of runs with
_LEAST_FINALISTS, _MOST_FINALISTS = 3, 5

_built: dict[str, Network] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured on one kind of device."""

    models: tuple[str, ...]
    batch: str
    workers: str
    items: Mapping[str, int]
    """In a run, by kind of items, unless the grid would take too long."""
    grid_seconds: Mapping[str, float] = field(default_factory=dict)
    """By kind of items: what a grid may take; shorter runs are made of it where that is needed."""
    repeat_seconds: float
    """For fresh runs of the pairs that matter."""
    photo_size: tuple[int, int] = (256, 192)
    image: int | None = None
    """Pixels of the networks' input, where it is not what they were made for."""


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
        items={"raw": 192, "preprocessed": 384},
        repeat_seconds=60.0,
    ),
    # Runs long enough to keep 16 workers busy with batches of 1024, 200 times within minutes: only with small images.
    "cuda": Plan(
        models=(
            "timm:resnet18",
            "timm:resnet50",
            "timm:resnet152",
            "timm:densenet121",
            "timm:efficientnet_b0",
            "timm:mobilenetv3_large_100",
            "timm:convnext_tiny",
            "timm:regnety_016",
        ),
        batch="32,128,256,512,1024",
        workers="1,2,4,8,16",
        items={"raw": 2048, "preprocessed": 4096},
        grid_seconds={"raw": 120.0, "preprocessed": 75.0},
        repeat_seconds=25.0,
        photo_size=(128, 96),
        image=96,
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
    repeat_seconds: float | None,
    keep: Callable[[str, Path], None],
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """The default with some seeds, the grid in between; `keep` is given the records of each, `tell` what is known so far."""
    plan = PLANS[device.partition(":")[0]]
    settings, networks = _arrange(folder, kind, device, plan, items)
    length = items or _fitting_length(settings, networks, grid_seconds or plan.grid_seconds.get(kind))
    _warm_up(settings, networks, length)
    found: dict[str, Any] = {"num_items": length, "shared_memory_bytes": free_shared_memory(), "image": plan.image}
    tell(found)

    def find(name: str, **more: Any) -> tuple[LoaderResult, float]:
        run, start = folder / f"{kind}-{name}", seconds_now()
        asked = {"length": length, "limit": length, "run": run, **more}
        result = run_loader(_replace(settings, **asked))
        keep(f"{kind}-{name}", run / "records.jsonl")
        return result, seconds_now() - start

    half = -(-seeds // 2)
    tries = [find(f"default-{seed}", seed=seed) for seed in range(half)]
    found["default"] = [_describe_default(*each) for each in tries]
    tell(found)
    grid, grid_wall = find("grid", grid=True, repeats=repeats)
    found |= _describe_grid(grid, repeats) | {"grid_wall_seconds": grid_wall}
    tell(found)
    tries += [find(f"default-{seed}", seed=seed) for seed in range(half, seeds)]
    found["default"] = [_describe_default(*each) | _judge(each[0], each[1], found) for each in tries]
    tell(found)
    pairs = _finalists(grid, [each[0] for each in tries])
    seconds = plan.repeat_seconds if repeat_seconds is None else repeat_seconds
    truth = _repeat(_replace(settings, limit=length), networks, pairs, kind=kind, items=length, seconds=seconds)
    best = (found["grid_best"]["batch"], found["grid_best"]["workers"])
    for each in found["default"]:
        each["repeated"] = {
            "over_the_grids_pair": truth.regret_over(each["pair"], best),
            "over_the_best_of_the_repeats": truth.regret_over(each["pair"], None),
        }
    found["repeated"] = truth.describe() | {"the_grids_pair": truth.regret_over(best, None)}
    return found | {
        name: float(np.mean([each[name] for each in found["default"]]))
        for name in ("over_the_grids_best", "share_of_grid", "share_of_grid_wall")
    }


def compare_pairs(
    folder: Path, kind: str, device: str, pairs: Sequence[tuple[int, int]], *, items: int | None, seconds: float
) -> dict[str, Any]:
    """Just these pairs in turns: how much longer each takes than the first."""
    plan = PLANS[device.partition(":")[0]]
    settings, networks = _arrange(folder, kind, device, plan, items)
    length = items or plan.items[kind]
    _warm_up(settings, networks, length)
    truth = _repeat(settings, networks, pairs, kind=kind, items=length, seconds=seconds)
    over = [{"pair": pair, **truth.regret_over(pair, pairs[0])} for pair in pairs[1:]]
    return truth.describe() | {"num_items": length, "over_the_first": over}


def _arrange(
    folder: Path, kind: str, device: str, plan: Plan, items: int | None
) -> tuple[LoaderSearchSettings, Mapping[str, Network]]:
    """Photos, or prepared items; and the networks."""
    photos, ready = folder / "photos", folder / "ready"
    if not photos.exists():
        make_photos(photos, items or max(plan.items.values()), plan.photo_size)
        os.sync()  # what is not on the disk yet cannot be dropped from memory, and would be waited for later
    settings = LoaderSearchSettings(
        str(photos if kind == "raw" else ready),
        models=plan.models,
        batch=tuple(plan.batch.split(",")),
        workers=tuple(plan.workers.split(",")),
        weights="random",
        kind=(kind,),
        device=device,
        length=items or plan.items[kind],
    )
    networks = _build_once(settings, plan)
    if kind == "preprocessed" and not ready.exists():
        forms = [network.preprocessing for network in networks.values()]
        variants = tuple(dict.fromkeys(Variant.of(form) for form in forms if isinstance(form, Preprocessing)))
        prepare_items(open_dataset(str(photos), limit=settings.length), ready, variants, glance="", watch=silent)
    return settings, networks


def _replace(settings: LoaderSearchSettings, **changes: Any) -> LoaderSearchSettings:
    fields = {name: getattr(settings, name) for name in settings.__dataclass_fields__ if name != "_"}
    return LoaderSearchSettings(**(fields | changes))


def _build_once(settings: LoaderSearchSettings, plan: Plan) -> Mapping[str, Network]:
    """All later studies of this process get these networks: building them is no part of what is compared."""
    if _built:
        return _built
    device = resolve_device(settings.device)
    built, failed = supplying.build_networks(find_models(settings.models), settings, "image", device, watch=silent)
    if failed:
        raise SystemExit(f"cannot compare: {failed[0].model} {failed[0].error}")
    for model, network in built.items():
        form = network.preprocessing
        if plan.image is not None and isinstance(form, Preprocessing):
            form = dataclasses.replace(form, input_size=(plan.image, plan.image))
        _built[model] = dataclasses.replace(network, preprocessing=form)
    supplying.build_networks = lambda *_, **__: (dict(_built), [])  # type: ignore[assignment]
    return _built


def _repeat(
    settings: LoaderSearchSettings,
    networks: Mapping[str, Network],
    pairs: Sequence[tuple[int, int]],
    *,
    kind: str,
    items: int,
    seconds: float,
) -> loader_truth.Truth:
    """These pairs in turns over the items that the settings name."""
    dataset = open_dataset(settings.data, limit=items, seed=settings.seed)
    return loader_truth.repeat_pairs(networks, dataset, _feed(settings), pairs, kind=kind, items=items, seconds=seconds)


def _feed(settings: LoaderSearchSettings) -> Feed:
    device = resolve_device(settings.device)
    return Feed(device=device, pin=device != "cpu", precision=settings.precision)


def _fitting_length(settings: LoaderSearchSettings, networks: Mapping[str, Network], grid_seconds: float | None) -> int:
    """The longest run whose grid is likely to stay below the limit."""
    wanted = settings.length or 0
    if grid_seconds is None:
        return wanted
    data = open_dataset(settings.data, limit=_PROBE_ITEMS)
    form = next(iter(networks.values())).preprocessing
    probe = [
        measure_load(data, form, _feed(settings), item_kind="", form_name="", **how)
        for how in [{"batch": 32, "workers": 1, "num_items": _PROBE_ITEMS}] * 3
    ]
    item_seconds = min((each.arrivals[-1] - each.arrivals[0]) / (_PROBE_ITEMS - 32) for each in probe)
    lengths = range(wanted, _GRANULE, -_GRANULE)
    fitting = (each for each in lengths if _guess(settings, networks, each, item_seconds) <= grid_seconds)
    return next(fitting, min(wanted, _GRANULE))


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
    if resolve_device(settings.device) == "cpu":
        return
    data = open_dataset(settings.data, limit=_PROBE_ITEMS)
    for batch in sorted({min(int(each), items) for each in settings.batch}):
        for size in {batch, items % batch or batch}:  # the last batch may be smaller
            for network in networks.values():
                warm_up(network, data, _feed(settings), batch=size, num_waiting=items // batch)


def _finalists(grid: LoaderResult, tries: Sequence[LoaderResult]) -> list[tuple[int, int]]:
    """The grid's best pairs, as far as noise may have put them there, and those that were recommended without it."""
    regret = [row for row in grid.answer.kinds[0].regret if row.mean is not None]
    rows = [row for place, row in enumerate(regret) if row.as_good or place < _LEAST_FINALISTS][:_MOST_FINALISTS]
    recommended = [kind.recommended for result in (grid, *tries) for kind in result.answer.kinds]
    pairs = [(each.batch, each.workers) for each in (*rows, *recommended) if each is not None]
    return list(dict.fromkeys(pairs))


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


def _describe_default(result: LoaderResult, wall: float) -> dict[str, Any]:
    (answer,) = result.answer.kinds
    assert answer.recommended is not None
    return {
        "pair": (answer.recommended.batch, answer.recommended.workers),
        "seconds": answer.measuring_seconds,
        "wall_seconds": wall,
        "num_runs": answer.num_runs,
        "run_seconds": sum(run.wall_seconds for run in result.runs),
        "chance_within": answer.chance_within,
        "noise": answer.noise,
        "verdict": answer.verdict,
    }


def _judge(result: LoaderResult, wall: float, grid: Mapping[str, Any]) -> dict[str, Any]:
    """In the grid's own table."""
    (answer,) = result.answer.kinds
    assert answer.recommended is not None
    pair = (answer.recommended.batch, answer.recommended.workers)
    regret = {(batch, workers): value for batch, workers, value in grid["grid_table"]}[pair]
    regret = float("nan") if regret is None else regret  # a pair that fails in the grid
    return {
        "mean_regret": regret,
        "over_the_grids_best": regret - grid["grid_best_mean_regret"],
        "share_of_grid": answer.measuring_seconds / grid["grid_seconds"],
        "share_of_grid_wall": wall * grid["repeats"] / grid["grid_wall_seconds"],
    }


def copy_records(into: Path | None) -> Callable[[str, Path], None]:
    """Keeps the records of the grid and of the default's first try in a folder, where one is given."""

    def keep(name: str, records: Path) -> None:
        if into is not None and name.endswith(("grid", "default-0")):
            shutil.copyfile(records, into / f"loader-{name}.jsonl")

    return keep
