"""From what a user typed to the models it means.

In:  references and globs, such as zoo:* or timm:resnet18
Out: ModelRefs, in the order asked for, each once; cards of them
Nothing here loads weights or imports torch.
"""

import difflib
import fnmatch
from collections.abc import Iterable

from modelhound.errors import UnknownModelError
from modelhound.models.source import ModelCard, ModelRef, ModelSource
from modelhound.models.timm import TimmSource
from modelhound.models.where import parse_where
from modelhound.models.zoo import ZooSource
from modelhound.records import Progress, Watch, silent

__all__ = ["SOURCES", "describe_models", "find_models", "source_of"]

SOURCES: dict[str, ModelSource] = {"zoo": ZooSource(), "timm": TimmSource()}

_GLOB_CHARACTERS = frozenset("*?[")


def find_models(patterns: Iterable[str], *, where: str | None = None, watch: Watch = silent) -> tuple[ModelRef, ...]:
    """The models that the patterns mean and for which `where` holds.

    A pattern that means none is an error that suggests close names, and so is a condition that leaves none.
    """
    holds = parse_where(where) if where is not None else None
    found: dict[ModelRef, None] = {}
    for pattern in patterns:
        found.update(dict.fromkeys(_match(pattern)))
    if holds is None:
        return tuple(found)
    cards = describe_models(found, watch=watch)
    kept = tuple(model for model, card in zip(found, cards, strict=True) if holds(card))
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


def source_of(model: ModelRef) -> ModelSource:
    return SOURCES[model.source]


def _match(pattern: str) -> list[ModelRef]:
    prefix, colon, name = pattern.partition(":")
    source = SOURCES.get(prefix)
    if not colon or source is None:
        raise UnknownModelError(
            f"cannot find model {pattern!r}: expected {' or '.join(f'{each}:NAME' for each in SOURCES)}"
            + _suggest(name or prefix)
        )
    names = source.names() if "." not in name else (*source.names(), *source.tagged_names())
    if _GLOB_CHARACTERS.isdisjoint(name):
        matches = [name] if name in names else []
    else:
        matches = [each for each in names if fnmatch.fnmatchcase(each, name)]
    if not matches:
        raise UnknownModelError(
            f"cannot find model {pattern!r}: no {prefix} model has that name" + _suggest(name, prefix)
        )
    return [ModelRef(prefix, each) for each in matches]


def _suggest(name: str, *prefixes: str) -> str:
    """Close names, those of the source that was asked first."""
    bare = name.strip("*?[]").lower()
    suggestions = []
    for prefix in prefixes or SOURCES:
        close = difflib.get_close_matches(bare, SOURCES[prefix].names(), n=3, cutoff=0.6)
        suggestions += [f"{prefix}:{each}" for each in close]
    if suggestions:
        return f", did you mean {' or '.join(suggestions[:3])}?"
    return f", see `hound models '{prefixes[0] if prefixes else 'zoo'}:*'`"
