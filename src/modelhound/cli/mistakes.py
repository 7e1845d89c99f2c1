"""What was mistyped -> a sentence that says what was meant to stand there.

In:  the complaint of the parser of argv
Out: a message in the words of all other messages: cannot <do> <given>: expected <rule>, <advice>
Nothing here knows what an option does.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import cyclopts

__all__ = ["describe_mistake"]

_CALLED = {
    "--gpu": "--device cuda",
    "--cuda": "--device cuda",
    "--cpu": "--device cpu",
    "--lr": "--rate",
    "--learning-rate": "--rate",
    "--weight-decay": "--decay",
    "--dtype": "--precision",
    "--bs": "--batch",
    "--jobs": "--workers",
    "--max-items": "--limit",
    "--samples": "--limit",
    "--filter": "--where",
    "--output": "--out",
    "--resolution": "--image",
    "--html": "--open",
    "--dry-run": "--explain",
}
"""Other programs' names of what is here."""

_POSITIONAL = {"DATA": "digits, fashion, sms or a path", "OUT": "the folder to write"}
_EXPECTED: dict[Any, str] = {int: "a whole number", float: "a number", Path: "a path", bool: "nothing behind it"}


def describe_mistake(
    error: cyclopts.CycloptsError, commands: Iterable[str], options_of: Callable[[str], Sequence[str]]
) -> str:
    """Why these words cannot be understood, and what to write instead; `options_of` knows the options of each command."""
    chain = tuple(name for name in error.command_chain or () if not name.startswith("-"))
    command = " ".join(("hound", *chain))
    advice = f"see `{command} --help`"
    if isinstance(error, cyclopts.UnknownCommandError) or (
        isinstance(error, cyclopts.UnusedCliTokensError) and not chain
    ):
        return _unknown_command((error.unused_tokens or [""])[0], list(commands))
    if isinstance(error, cyclopts.UnknownOptionError):
        return _unknown_option(error, command, advice, [name for name in commands if name not in chain], options_of)
    if isinstance(error, cyclopts.MissingArgumentError) and error.argument is not None:
        return _missing(error, command, advice)
    if isinstance(error, cyclopts.CoercionError) and error.token is not None:
        return _wrong_kind(error, advice)
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        return _too_much(error.unused_tokens[0], command, advice)
    return f"{str(error).rstrip('.')}, {advice}"


def _unknown_command(given: str, commands: list[str]) -> str:
    close = difflib.get_close_matches(given, commands, n=1)
    asked = f"did you mean {close[0]}?" if close else "see `hound --help`"
    return f"cannot run {given!r}: expected one of {', '.join(commands)}, {asked}"


def _unknown_option(
    error: cyclopts.UnknownOptionError,
    command: str,
    advice: str,
    others: Sequence[str],
    options_of: Callable[[str], Sequence[str]],
) -> str:
    given = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    meant = _CALLED.get(given, "")
    if meant.partition(" ")[0] not in known:
        bare = {name.lstrip("-"): name for name in known}  # dashes make any two options look alike
        close = difflib.get_close_matches(given.lstrip("-"), bare, n=1)
        meant = bare[close[0]] if close else ""
    if meant:
        advice = f"did you mean {meant}?"
    elif having := [name for name in others if given in options_of(name)]:
        from modelhound.analysis.wording import list_text  # here, so that --help need not wait for it

        advice = f"only {list_text(having)} {'have' if len(having) > 1 else 'has'} it"
    return f"cannot use {given}: expected an option of `{command}`, {advice}"


def _missing(error: cyclopts.MissingArgumentError, command: str, advice: str) -> str:
    argument = error.argument
    assert argument is not None
    if error.keyword is None and argument.index is not None and not argument.tokens:
        name = argument.name.lstrip("-").upper()
        return f"cannot run `{command}` without {name}: expected {_POSITIONAL.get(name, name)}, {advice}"
    given = error.keyword or next((token.keyword for token in argument.tokens if token.keyword), argument.name)
    return f"cannot use {given} alone: expected a value behind it, {advice}"


def _wrong_kind(error: cyclopts.CoercionError, advice: str) -> str:
    assert error.token is not None
    name = error.token.keyword or (error.argument.name.lstrip("-").upper() if error.argument else "this")
    wanted: Any = error.target_type
    if isinstance(wanted, UnionType):  # of an option that may be left out: its type, or None
        wanted = next(kind for kind in get_args(wanted) if kind is not NoneType)
    if get_origin(wanted) is Literal:
        choices = [str(choice) for choice in get_args(wanted)]
        close = difflib.get_close_matches(error.token.value, choices, n=1)
        meant = f", did you mean {close[0]}?" if close else ""
        return f"cannot use {name} {error.token.value!r}: expected one of {', '.join(choices)}{meant}"
    return f"cannot use {name} {error.token.value!r}: expected {_EXPECTED.get(wanted, 'another value')}, {advice}"


def _too_much(given: str, command: str, advice: str) -> str:
    if ":" in given and command != "hound doctor":
        return f"cannot use {given!r} here: expected an option before it, did you mean --models {given}?"
    return f"cannot use {given!r} here: expected only options in this place, {advice}"
