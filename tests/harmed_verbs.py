"""Every verb as a function of a folder, to be killed, starved and damaged; started again there, it must end the same."""

import hashlib
import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from layouts import encoded
from modelhound.errors import DataError, RankError

__all__ = ["VERBS", "WITH_WORKERS", "warm_context", "write_photos"]


def warm_context() -> ForkServerContext:
    """For processes that have torch and timm loaded when they begin."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm", "modelhound.verbs.search", "modelhound.measuring"])
    return context


def write_photos(folder: Path) -> str:
    for number in range(24):
        path = folder / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(encoded(number, size=(64, 48)))
    return str(folder / "photos")


def _search(folder: Path) -> Any:
    import modelhound

    models = "zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:mixer-garments_a,zoo:vit-rotation"
    result = modelhound.search("digits", models, limit=120, run=folder / "run", scorers="ridge,knn", workers=0)
    assert result.failures == ()
    return [[row.model, row.rank, row.score, row.scores] for row in result.ranking.models]


def _search_with_finals(folder: Path) -> Any:
    import modelhound

    options: dict[str, Any] = {"limit": 120, "scorers": "ridge", "workers": 0, "finals": "2", "finals_budget": "600s"}
    result = modelhound.search("digits", "zoo:mobilenet-rotation,zoo:resnet-glyphs", run=folder / "run", **options)
    assert result.ranking.finals is not None
    return [[row.model, row.score, row.predicted] for row in result.ranking.finals.finalists]


def _search_plainly(folder: Path, **more: Any) -> Any:
    import modelhound

    models = "zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:vit-rotation"
    options: dict[str, Any] = {"limit": 80, "scorers": "ridge", "workers": 0, "plain": True, **more}
    result = modelhound.search("digits", models, run=folder / "run", **options)
    if result.failures:
        raise DataError(result.failures[0].error)
    return [[row.model, row.rank, row.score] for row in result.ranking.models]


def _train(folder: Path, **more: Any) -> Any:
    import modelhound

    options: dict[str, Any] = {"limit": 50, "epochs": 4, "batch": 10, "verdict": "none", "device": "cpu", **more}
    result = modelhound.train("digits", "zoo:mobilenet-shapes", run=folder / "run", **options)
    if result.failures:
        raise RankError(result.failures[0].error)
    (trained,) = result.trained
    return [trained.losses, [each.score for each in trained.epochs]]


def _prepare(folder: Path) -> Any:
    import modelhound

    result = modelhound.prepare(write_photos(folder), str(folder / "ready"), size=32)
    pixels = sorted((folder / "ready").rglob("*.bin"))
    return [result.num_items, *(_hash_of(path) for path in pixels)]


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _loader(folder: Path) -> Any:
    import modelhound

    options: dict[str, Any] = {"batch": (8, 24), "workers": (0, 1), "grid": True, "device": "cpu"}
    result = modelhound.loader(write_photos(folder), "zoo:resnet-glyphs", run=folder / "run", **options)
    return result.recommended is not None


def _latency(folder: Path) -> Any:
    import modelhound

    options: dict[str, Any] = {"batch": (1, 2, 4), "seconds": 0.05, "device": "cpu", "precision": "fp32"}
    result = modelhound.latency("zoo:resnet-glyphs", run=folder / "run", **options)
    return len(result.to_json()["points"])


def _profile(folder: Path, **more: Any) -> Any:
    import modelhound

    options: dict[str, Any] = {
        "batches": 3,
        "warmup": 1,
        "batch": "4",
        "parts": "full,1",
        "joint": "none",
        "repeats": 1,
        **more,
    }
    result = modelhound.profile("digits", "zoo:vit-rotation", run=folder / "run", **options)
    return sorted(each.configuration for each in result.profiles)


def _breakeven(folder: Path, **more: Any) -> Any:
    import modelhound

    options: dict[str, Any] = {
        "sizes": "40",
        "epochs": 2,
        "measured_epochs": 1,
        "modes": "full",
        "pool": "none",
        **more,
    }
    result = modelhound.breakeven("digits", "zoo:vit-rotation", limit=60, run=folder / "run", **options)
    return [each.num_items for each in result.trainings]


VERBS: dict[str, Callable[[Path], Any]] = {
    "search": _search,
    "search --plain": _search_plainly,
    "search --finals": _search_with_finals,
    "train": _train,
    "prepare": _prepare,
    "loader": _loader,
    "latency": _latency,
    "profile": _profile,
    "breakeven": _breakeven,
}
WITH_WORKERS: dict[str, Callable[[Path], Any]] = {
    "search --plain --workers 1": partial(_search_plainly, workers=1, batch=8),
    "train --workers 1": partial(_train, workers=1),
    "train --ranks 2": partial(_train, ranks="2"),
    "loader": _loader,
    "latency": _latency,
    "profile --workers 1": partial(_profile, workers=1),
    "breakeven --workers 1": partial(_breakeven, workers=1),
}
"""Of whose processes one is killed: that of a loader, a rank, or the one that measures."""
