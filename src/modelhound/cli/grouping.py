"""Many options, shown by topic in `--help`.

In:  settings, and the topic of each of their fields
Out: the same settings, whose fields cyclopts shows by topic
The settings themselves know nothing of a command, so the topics are put on here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import Group, Parameter, Token

__all__ = ["DATA", "MODELS", "in_groups", "output_group"]

Settings = TypeVar("Settings")

DATA = ("data", "columns", "task", "split", "limit", "seed", "follow_links")
"""What all verbs that take a data set ask of it."""

MODELS = ("models", "where", "weights", "arch", "pooling", "layers", "tokens", "allow_code")
"""What all verbs that take models ask of them."""

_ALSO_CALLED = {"models": "--model", "model": "--models", "sequence": "--tokens"}
"""Field -> what the same thing is called elsewhere: whoever has learnt one name need not learn the other."""

_SHARES = ("budget", "risk", "width")
"""Fields that are shares: 5% says the same as 0.05."""

output_group = Group("Output", sort_key=100)
"""For what all commands share: --charts, --open, --json."""


def in_groups(settings: type[Settings], topics: Mapping[str, Sequence[str]]) -> type[Settings]:
    """A class that differs from `settings` in what `--help` says; every field has one topic."""
    groups = {topic: _group(topic, number) for number, topic in enumerate(topics)}
    topic_of = {name: topic for topic, names in topics.items() for name in names}
    known = [field.name for field in fields(settings)]  # type: ignore[arg-type]  # a dataclass, as all settings are
    if sorted(topic_of) != sorted(known) or sum(map(len, topics.values())) != len(known):
        raise TypeError(f"the topics of {settings.__name__} must hold each field once: {set(topic_of) ^ set(known)}")
    hints = get_type_hints(settings, include_extras=True)
    annotations: dict[str, Any] = {
        name: Annotated[
            hints[name] | str if name in _SHARES else hints[name],
            Parameter(
                group=groups[topic_of[name]],
                alias=_ALSO_CALLED.get(name),
                converter=_as_written if name in _SHARES else _CONVERTERS.get(hints[name]),
            ),
        ]
        for name in known
    }
    return type(settings.__name__, (settings,), {"__annotations__": annotations, "__doc__": settings.__doc__})


def _as_written(wanted: Any, tokens: Sequence[Token]) -> str:
    """The settings read it, and know what is allowed.

    cyclopts must be told to expect text as well: where pydantic happens to be loaded, it has pydantic check what comes out.
    """
    return tokens[0].value


def _read_whole(wanted: type[int], tokens: Sequence[Token]) -> int:
    """Not rounded, as cyclopts would: whoever writes 1.5 means something else."""
    return int(tokens[0].value)


_CONVERTERS: dict[Any, Any] = {int: _read_whole, int | None: _read_whole}
"""By type, where what cyclopts reads is not what was meant."""


def _group(topic: str, number: int) -> Group:
    return output_group if topic == output_group.name else Group(topic, sort_key=number + 1)
