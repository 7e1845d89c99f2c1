"""Every verb as a function of a folder, to be killed, starved and damaged; started again there, it must end the same."""

import hashlib
import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from layouts import encoded
from modelhound.errors import DataError, RankError

__all__ = ["VERBS", "WITH_WORKERS", "command_of", "warm_context", "write_photos"]


def warm_context() -> ForkServerContext:
    """For processes that have torch and timm loaded when they begin."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm", "modelhound.verbs.search", "modelhound.measuring"])
    return context


def write_photos(folder: Path) -> str:
    for number in range(24):
        path = folder / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():  # whole at once, since whoever writes it may be killed
            unfinished = folder / "photo.part"
            unfinished.write_bytes(encoded(number, size=(64, 48)))
            unfinished.replace(path)
    return str(folder / "photos")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a verb is asked for, by a function of Python or on a command line."""

    verb: str
    given: tuple[str, ...]
    """Before the options; PHOTOS and READY lie in the folder."""
    models: str | None
    options: Mapping[str, Any]

    def call(self, folder: Path, **more: Any) -> Any:
        import modelhound

        given = [*_placed(self.given, folder), *([] if self.models is None else [self.models])]
        run = {} if self.verb == "prepare" else {"run": folder / "run"}
        return getattr(modelhound, self.verb)(*given, **run, **{**self.options, **more})

    def argv(self, folder: Path) -> list[str]:
        words = [self.verb, *_placed(self.given, folder)]
        for name, value in {"models": self.models, **self.options}.items():
            if value is not None:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
        return words if self.verb == "prepare" else [*words, "--run", str(folder / "run")]


def _placed(given: tuple[str, ...], folder: Path) -> list[str]:
    places = {"PHOTOS": "photos", "READY": "ready"}
    return [str(folder / places[each]) if each in places else each for each in given]


_ASKED = {
    "search": _Asked(
        verb="search",
        given=("digits",),
        models="zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:mixer-garments_a,zoo:vit-rotation",
        options={"limit": 120, "scorers": "ridge,knn", "workers": 0},
    ),
    "search --finals": _Asked(
        verb="search",
        given=("digits",),
        models="zoo:mobilenet-rotation,zoo:resnet-glyphs",
        options={"limit": 120, "scorers": "ridge", "workers": 0, "finals": "2", "finals_budget": "600s"},
    ),
    "search --plain": _Asked(
        verb="search",
        given=("digits",),
        models="zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:vit-rotation",
        options={"limit": 80, "scorers": "ridge", "workers": 0, "plain": True},
    ),
    "train": _Asked(
        verb="train",
        given=("digits",),
        models="zoo:mobilenet-shapes",
        options={"limit": 50, "epochs": 4, "batch": 10, "verdict": "none", "device": "cpu"},
    ),
    "prepare": _Asked(verb="prepare", given=("PHOTOS", "READY"), models=None, options={"size": 32}),
    "loader": _Asked(
        verb="loader",
        given=("PHOTOS",),
        models="zoo:resnet-glyphs",
        options={"batch": (8, 24), "workers": (0, 1), "grid": True, "device": "cpu"},
    ),
    "latency": _Asked(
        verb="latency",
        given=(),
        models="zoo:resnet-glyphs",
        options={"batch": (1, 2, 4), "seconds": 0.05, "device": "cpu", "precision": "fp32"},
    ),
    "profile": _Asked(
        verb="profile",
        given=("digits",),
        models="zoo:vit-rotation",
        options={"batches": 3, "warmup": 1, "batch": "4", "parts": "full,1", "joint": "none", "repeats": 1},
    ),
    "breakeven": _Asked(
        verb="breakeven",
        given=("digits",),
        models="zoo:vit-rotation",
        options={"limit": 60, "sizes": "40", "epochs": 2, "measured_epochs": 1, "modes": "full", "pool": "none"},
    ),
}


def command_of(verb: str, folder: Path) -> list[str]:
    """What to write behind `hound` for the same as `VERBS[verb](folder)`."""
    return _ASKED[verb].argv(folder)


def _search(folder: Path) -> Any:
    result = _ASKED["search"].call(folder)
    assert result.failures == ()
    return [[row.model, row.rank, row.score, row.scores] for row in result.ranking.models]


def _search_with_finals(folder: Path) -> Any:
    result = _ASKED["search --finals"].call(folder)
    assert result.ranking.finals is not None
    return [[row.model, row.score, row.predicted] for row in result.ranking.finals.finalists]


def _search_plainly(folder: Path, **more: Any) -> Any:
    result = _ASKED["search --plain"].call(folder, **more)
    if result.failures:
        raise DataError(result.failures[0].error)
    return [[row.model, row.rank, row.score] for row in result.ranking.models]


def _train(folder: Path, **more: Any) -> Any:
    result = _ASKED["train"].call(folder, **more)
    if result.failures:
        raise RankError(result.failures[0].error)
    (trained,) = result.trained
    return [trained.losses, [each.score for each in trained.epochs]]


def _prepare(folder: Path) -> Any:
    write_photos(folder)
    result = _ASKED["prepare"].call(folder)
    pixels = sorted((folder / "ready").rglob("*.bin"))
    return [result.num_items, *(_hash_of(path) for path in pixels)]


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _loader(folder: Path) -> Any:
    write_photos(folder)
    return _ASKED["loader"].call(folder).recommended is not None


def _latency(folder: Path) -> Any:
    return len(_ASKED["latency"].call(folder).to_json()["points"])


def _profile(folder: Path, **more: Any) -> Any:
    return sorted(each.configuration for each in _ASKED["profile"].call(folder, **more).profiles)


def _breakeven(folder: Path, **more: Any) -> Any:
    return [each.num_items for each in _ASKED["breakeven"].call(folder, **more).trainings]


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
