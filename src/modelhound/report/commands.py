"""What was asked, as the command line that asks it again.

In:  a verb and the settings its run folder keeps
Out: a command line a shell understands
Only what differs from the defaults is said. Nothing here runs anything.
"""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from modelhound import settings as all_settings
from modelhound.records import SavedModel

__all__ = ["arithmetic_of", "command_on_same_data", "command_to_repeat", "command_to_train", "needed_by"]

_NEVER_REPEATED = ("run",)  # it would take up the old run folder, where everything is measured already
_SETTINGS = {"loader": "LoaderSearchSettings"}  # where they are not called after the verb
_OF_THE_DATA = ("columns", "task", "split", "follow_links", "tokens")  # which items, and how much of them
_OF_THE_MODELS = ("weights", "pooling", "layers")  # what was done to them
_OF_THE_ARITHMETIC = ("precision", "device")  # what was found out holds where and how it was asked for


def command_to_repeat(verb: str, settings: Mapping[str, Any], **changes: Any) -> str:
    """`hound VERB …` as it was asked, but for `changes`."""
    settings = {**settings, **changes}
    defaults, positional = _read_defaults(verb)
    if defaults:  # what another verb was asked for, and this one does not have
        settings = {name: value for name, value in settings.items() if name in defaults or name in positional}
    words = ["hound", verb]
    for name in positional:
        words += _as_words(settings.get(name))
    for name, value in settings.items():
        if (
            name in (*positional, *_NEVER_REPEATED)
            or value is None
            or (name in defaults and _same(defaults[name], value))
        ):
            continue
        words += _as_option(name, value if value or not _is_list(defaults.get(name)) else "none")
    return shlex.join(words)


def command_to_train(settings: Mapping[str, Any], model: str | SavedModel) -> str:
    """`hound train …` for one model on the data of a search, with all of its items."""
    if isinstance(model, str):
        return command_on_same_data("train", settings, model=model, **needed_by(settings, [model]))
    # whatever the search did to weights, those of a checkpoint are what it is for
    needed = needed_by({**settings, "weights": "pretrained"}, [model.model]) | {"arch": model.arch}
    return command_on_same_data("train", settings, model=model.model, **needed)


def needed_by(settings: Mapping[str, Any], models: Iterable[str]) -> dict[str, Any]:
    """What was asked for beside these models, without which they are others: --arch is refused where no file needs it."""
    has_files = any(model.startswith("file:") for model in models)
    return {
        "arch": settings.get("arch") if has_files else None,
        "allow_code": settings.get("allow_code") or None,
        **{name: settings.get(name) for name in _OF_THE_MODELS},
        "seed": settings.get("seed") if settings.get("weights") == "random" else None,  # which draws them
    }


def command_on_same_data(verb: str, settings: Mapping[str, Any], **more: Any) -> str:
    """`hound VERB …` on the data that another verb was given, with those of `more` options that it has."""
    defaults, _ = _read_defaults(verb)
    words = ["hound", verb, str(settings.get("data", ""))]
    same = {name: settings.get(name) for name in _OF_THE_DATA} | arithmetic_of(settings)
    for name, value in {**more, **same}.items():
        if value is not None and name in defaults and not _same(defaults[name], value):
            words += _as_option(name, value)
    return shlex.join(words)


def arithmetic_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Precision and device that were asked for, where it was one: not every verb takes several."""
    found = {}
    for name in _OF_THE_ARITHMETIC:
        value = settings.get(name)
        one = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
        if isinstance(one, str) and one != "auto":
            found[name] = one
    return found


def _read_defaults(verb: str) -> tuple[dict[str, Any], list[str]]:
    """Defaults of a verb's settings by name, and the names that need no option; nothing where the verb is not known here."""
    kind = getattr(all_settings, _SETTINGS.get(verb, f"{verb.capitalize()}Settings"), None)
    if kind is None or not dataclasses.is_dataclass(kind):
        return {}, ["data"]
    defaults: dict[str, Any] = {}
    positional: list[str] = []
    for each in dataclasses.fields(kind):
        if each.default is not dataclasses.MISSING:
            defaults[each.name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            defaults[each.name] = each.default_factory()
        if not each.kw_only:
            positional.append(each.name)
    return defaults, positional


def _same(default: Any, value: Any) -> bool:
    """The run folder keeps JSON, which has lists for tuples and texts for paths."""
    if _is_list(default) and _is_list(value):
        return [str(each) for each in default] == [str(each) for each in value]
    return bool(default == value) or (default is not None and str(default) == str(value))


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _as_option(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    words = _as_words(value)
    return [option, ",".join(words)] if words else []


def _as_words(value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if _is_list(value):
        return [str(each) for each in value]
    return [str(value)]
