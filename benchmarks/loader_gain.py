"""What the recommended pair brings to `hound search`: the same search with and without it, in turns.

In:  a device, a number of turns, how many models of the device's plan, where to tell results as they come
Out: for raw and preprocessed items, one by one (--plain) and by the engine: seconds without over seconds with, for the whole
     search and for what the pair decides (waiting for data, data to device, forward)
Each pair of searches is one ratio; the median and the range of the ratios are told.
"""

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import loader_grid
from modelhound.meter import seconds_now
from modelhound.records import ModelMeasured, to_plain
from modelhound.store import read_run
from modelhound.verbs.loader import loader
from modelhound.verbs.prepare import prepare
from modelhound.verbs.search import search

__all__ = ["measure_gain"]

_LOADING = ("wait for data", "data to device", "forward")
_WAYS: dict[str, dict[str, Any]] = {
    "plain": {"plain": True},
    "engine": {"exhaustive": True, "fresh": True},
}


def measure_gain(
    folder: Path,
    device: str,
    *,
    items: int | None,
    turns: int,
    num_models: int | None,
    tell: Callable[[dict[str, Any]], None],
) -> None:
    """By kind of items and way to search; each is told when it is known."""
    plan = loader_grid.PLANS[device.partition(":")[0]]
    models = plan.models[:num_models]
    photos, ready, found = folder / "gain-photos", folder / "gain-ready", folder / "found.json"
    loader_grid.make_photos(photos, items or plan.items["raw"], plan.photo_size)
    prepare(str(photos), ready, models=models)
    recommended = loader(
        str(photos),
        models,
        batch=plan.batch,
        workers=plan.workers,
        kind=("raw", "preprocessed"),
        weights="random",
        device=device,
        out=found,
        run=folder / "gain-loader",
    ).answer.kinds
    for (kind, data), (way, options) in itertools.product((("raw", photos), ("preprocessed", ready)), _WAYS.items()):
        own = next(each.recommended for each in recommended if each.kind == kind)
        runs: dict[str, list[tuple[float, float]]] = {str(found): [], "none": []}
        for turn in range(turns):
            for choice in sorted(runs, reverse=bool(turn % 2)):
                run = folder / f"gain-{kind}-{way}-{turn}-{Path(choice).stem}"
                runs[choice].append(_time_search(str(data), models, run, device, loader=choice, **options))
        with_it, without = runs[str(found)], runs["none"]
        row = {
            "recommended": to_plain(own),
            "models": models,
            "search": _ratios([each[0] for each in without], [each[0] for each in with_it]),
            "loading": _ratios([each[1] for each in without], [each[1] for each in with_it]),
        }
        tell({f"{kind}, {way}": row})


def _time_search(data: str, models: Sequence[str], run: Path, device: str, **options: Any) -> tuple[float, float]:
    """Seconds of the search, and of what the pair decides."""
    start = seconds_now()
    search(data, models, weights="random", device=device, run=run, scorers=("ridge",), **options)
    wall = seconds_now() - start
    records = read_run(run).of(ModelMeasured)
    return wall, sum(each.total for record in records for each in record.phases if each.phase in _LOADING)


def _ratios(without: Sequence[float], with_it: Sequence[float]) -> dict[str, Any]:
    ratios = sorted(slow / fast for slow, fast in zip(without, with_it, strict=True))
    return {
        "ratio": statistics.median(ratios),
        "range": (ratios[0], ratios[-1]),
        "seconds_without": list(without),
        "seconds_with": list(with_it),
    }
