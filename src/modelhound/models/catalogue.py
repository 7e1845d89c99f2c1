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
from modelhound.models.where import Condition, parse_where
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
        return _match_all(patterns, watch)
    holds = parse_where(where)  # a typing error shows before anything is looked up
    found = _match_all(patterns, watch)
    sure, unsure = _sort_out(found, holds)
    cards = dict(zip(unsure, describe_models(unsure, watch=watch), strict=True))
    return _keep_some(
        [model for model in found if model in sure or (model in cards and holds(cards[model]))], found, where
    )


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
    holds = None if where is None else parse_where(where)
    found = _match_all(patterns, watch)
    if holds is None or where is None:
        return describe_models(found, watch=watch)
    sure, unsure = _sort_out(found, holds)
    asked = [model for model in found if model in sure or model in unsure]
    cards = {card.model: card for card in describe_models(asked, watch=watch) if holds(card)}
    return [cards[str(model)] for model in _keep_some([each for each in found if str(each) in cards], found, where)]


def _sort_out(models: Sequence[ModelRef], holds: Condition) -> tuple[set[ModelRef], list[ModelRef]]:
    """Those for which the condition holds by what is known at once, and those of which more must be looked up to tell."""
    told = {model: holds.decide({"model": str(model), **source_of(model).glance(model.name)}) for model in models}
    return {model for model in models if told[model]}, [model for model in models if told[model] is None]


def _keep_some(kept: Sequence[ModelRef], found: Sequence[ModelRef], where: str) -> tuple[ModelRef, ...]:
    if not kept:
        raise UnknownModelError(f"cannot find a model: --where {where!r} holds for none of {len(found)}, widen it")
    return tuple(kept)


def describe_models(models: Iterable[ModelRef], *, watch: Watch = silent) -> list[ModelCard]:
    """The cards of many models, in the same order."""
    models = tuple(models)
    cards = []
    for done, model in enumerate(models):
        watch(Progress(task="describing models", done=done, total=len(models)))
        cards.append(source_of(model).describe(model.name))
    watch(Progress(task="describing models", done=len(models), total=len(models)))
    return cards


def _match_all(patterns: Iterable[str], watch: Watch) -> tuple[ModelRef, ...]:
    """Told, because the first look at what a library has takes as long as loading it."""
    patterns = tuple(patterns)
    found: dict[ModelRef, None] = {}
    for done, pattern in enumerate(patterns):
        watch(Progress(task="looking up models", done=done, total=len(patterns), detail=pattern))
        found |= dict.fromkeys(_match(pattern))
    watch(Progress(task="looking up models", done=len(patterns), total=len(patterns)))
    return tuple(found)


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
