"""From what a user typed to the models it means.

In:  references and globs, such as zoo:* or timm:resnet18
Out: ModelRefs, in the order asked for, each once; cards of them
Nothing here loads weights or imports torch.
"""

import contextlib
import difflib
from collections.abc import Iterable, Sequence

from modelhound.errors import ModelError, RequestError, UnknownModelError
from modelhound.models.hub import HubSource
from modelhound.models.local import LocalSource
from modelhound.models.own import OwnSource
from modelhound.models.source import ModelCard, ModelRef, ModelSource
from modelhound.models.timm import TimmSource
from modelhound.models.torchvision import TorchvisionSource
from modelhound.models.where import parse_where
from modelhound.models.zoo import ZooSource
from modelhound.records import Progress, Watch, silent
from modelhound.settings import DEFAULT_MODELS, PLAIN, ModelSettings

__all__ = [
    "SOURCES",
    "check_any_fits",
    "check_arch",
    "describe_models",
    "find_cards",
    "find_models",
    "source_of",
    "stamp_own",
]

_OWN = ("file", "py")

SOURCES: dict[str, ModelSource] = {
    "zoo": ZooSource(),
    "timm": TimmSource(),
    "tv": TorchvisionSource(),
    "py": OwnSource(),
    "hf": HubSource(),
}
SOURCES["file"] = LocalSource(SOURCES)


def find_models(patterns: Iterable[str], *, where: str | None = None, watch: Watch = silent) -> tuple[ModelRef, ...]:
    """The models that the patterns mean and for which `where` holds.

    A pattern that means none is an error that suggests close names, and so is a condition that leaves none.
    """
    if where is None:
        return _match_all(patterns)
    return tuple(model for model, _ in _find_and_describe(patterns, where, watch))


def check_arch(arch: str | None, models: Iterable[ModelRef]) -> None:
    """Refuse an --arch that no model would use."""
    models = tuple(models)
    if arch is not None and all(model.source != "file" for model in models):
        others = f" and {len(models) - 1} more" if len(models) > 1 else ""
        raise RequestError(
            f"cannot use --arch {arch!r} with {', '.join(map(str, models[:1]))}{others}: expected a model of the form "
            "file:PATH, leave it out"
        )


def check_any_fits(models: Sequence[ModelRef], modality: str, data: str) -> None:
    """Single models of the wrong kind fail by themselves; a list of nothing else is a mistake."""
    if not any(modality in source_of(model).modalities for model in models):
        others = " or any other of the models asked for" if len(models) > 1 else ""
        raise RequestError(
            f"cannot use {models[0]}{others} with {data!r}: expected models of {modality}s, such as "
            f"{DEFAULT_MODELS[modality][0]}"
        )


def find_cards(patterns: Iterable[str], *, where: str | None = None, watch: Watch = silent) -> list[ModelCard]:
    """The cards of the same models."""
    return [card for _, card in _find_and_describe(patterns, where, watch)]


def _find_and_describe(patterns: Iterable[str], where: str | None, watch: Watch) -> list[tuple[ModelRef, ModelCard]]:
    holds = parse_where(where) if where is not None else None  # a typing error shows before anything is looked up
    found = _match_all(patterns)
    described = zip(found, describe_models(found, watch=watch), strict=True)
    kept = [(model, card) for model, card in described if holds is None or holds(card)]
    if not kept:
        raise UnknownModelError(f"cannot find a model: --where {where!r} holds for none of {len(found)}, widen it")
    return kept


def describe_models(models: Iterable[ModelRef], *, watch: Watch = silent) -> list[ModelCard]:
    """The cards of many models, in the same order."""
    models = tuple(models)
    cards = []
    for done, model in enumerate(models):
        watch(Progress(task="describing models", done=done, total=len(models)))
        cards.append(source_of(model).describe(model.name))
    watch(Progress(task="describing models", done=len(models), total=len(models)))
    return cards


def _match_all(patterns: Iterable[str]) -> tuple[ModelRef, ...]:
    return tuple(dict.fromkeys(model for pattern in patterns for model in _match(pattern)))


def source_of(model: ModelRef) -> ModelSource:
    return SOURCES[model.source]


def stamp_own(model: ModelRef, settings: ModelSettings = PLAIN) -> str:
    """The stamp of a model in somebody's own files, which may be edited from one start to the next; empty for all others,
    whose names stand for the same network, and for one that cannot be read, as whoever builds it will say."""
    if model.source not in _OWN:
        return ""
    with contextlib.suppress(ModelError):
        return source_of(model).stamp(model.name, settings)
    return ""


_NOT_THERE = {"file": "there is no such file or folder", "py": "there is no such module or file"}


def _match(pattern: str) -> list[ModelRef]:
    prefix, colon, name = pattern.partition(":")
    source = SOURCES.get(prefix)
    if not colon or source is None:
        raise UnknownModelError(
            f"cannot find model {pattern!r}: expected {' or '.join(f'{each}:NAME' for each in SOURCES)}"
            + _suggest(name or prefix)
        )
    matches = source.find(name)
    if not matches:
        why = _NOT_THERE.get(prefix, f"no {prefix} model has that name")
        raise UnknownModelError(f"cannot find model {pattern!r}: {why}{_suggest(name, prefix)}")
    return [ModelRef(prefix, each) for each in matches]


def _suggest(name: str, *prefixes: str) -> str:
    """Close names, those of the source that was asked first."""
    bare = name.strip("*?[]").lower()
    suggestions = []
    for prefix in prefixes or SOURCES:
        close = difflib.get_close_matches(bare, SOURCES[prefix].suggest(bare), n=3, cutoff=0.6)
        suggestions += [f"{prefix}:{each}" for each in close]
    if suggestions:
        return f", did you mean {' or '.join(suggestions[:3])}?"
    prefix = prefixes[0] if prefixes else "zoo"
    return f", see `hound models '{prefix}:*'`" if SOURCES[prefix].listed else ", check how it is written"
