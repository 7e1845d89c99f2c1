"""Put what a person gave into its one form, or say what is wrong with it.

In:  a value and the name of its option
Out: the value in its one form, or a RequestError that says what is allowed
Nothing here knows what an option means.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from modelhound.errors import RequestError

__all__ = [
    "check_at_least",
    "check_choices",
    "check_device",
    "check_number",
    "check_once",
    "check_place",
    "check_text",
    "make_settings",
    "name_all",
    "parse_bytes",
    "parse_share",
    "part_of",
    "split_list",
    "tidy",
    "whole_numbers",
]

Made = TypeVar("Made")

_SAID_FOR_CUDA = ("gpu", "GPU", "CUDA", "nvidia")
_TOO_LARGE = 1 << 32  # of counts and seeds: what every generator of random numbers takes
_MOST_DIGITS = 9  # of a count in a list
_MOST_SHOWN = 40  # characters of a slip
_LEAST_BYTES = 1_000_000  # of a number without a unit: no network fits into less
_MOST_BYTES = 1e18


def make_settings(kind: type[Made], doing: str, /, *given: Any, **options: Any) -> Made:
    """The settings that somebody asks for in Python; an option that does not exist is told as on the command line."""
    try:
        return kind(*given, **options)
    except TypeError as error:
        raise RequestError(
            f"cannot {doing}: {str(error).partition(' ')[2]}, see help(modelhound.{kind.__name__})"
        ) from None


def part_of(kind: type[Made], settings: object) -> Made:
    """Settings of that kind with what these, which are a kind of them, hold of it."""
    return kind(**{name: getattr(settings, name) for name in kind.__dataclass_fields__ if name != "_"})  # type: ignore[attr-defined]


def name_all(given: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def parse_bytes(name: str, text: str) -> int:
    """4GB, 512 MiB, 1e9: a number of bytes."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", str(text), flags=re.IGNORECASE)
    try:
        value = float(found[1]) if found else 0.0
    except ValueError:
        value = 0.0
    if found is None or not value > 0:
        raise RequestError(f"cannot use --{name} {text!r}: expected a size such as 4GB, 512MB or 8GiB")
    power = "kmgt".find(found[2].lower()) + 1 if found[2] else 0
    num_bytes = value * (1024 if found[3] else 1000) ** power
    if not num_bytes < _MOST_BYTES:
        raise RequestError(f"cannot use --{name} {text!r}: expected a size such as 4GB, less than a million terabytes")
    if num_bytes < _LEAST_BYTES and not found[2]:
        raise RequestError(
            f"cannot use --{name} {text!r}: expected a unit behind so small a number, that would be {num_bytes:.0f} bytes; "
            f"did you mean {found[1]}GB?"
        )
    return int(num_bytes)


def parse_share(name: str, given: float | str, *, least: float = 0.0, most: float = 1.0) -> float:
    """5%, 5 % or 0.05: a share."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(e-?[0-9]+)?\s*(%?)\s*", str(given))
    share = float(found[1] + (found[2] or "")) / (100 if found[3] else 1) if found else -1.0
    if not least <= share <= most:
        raise RequestError(
            f"cannot use --{name} {given!r}: expected a share from {100 * least:g}% to {100 * most:g}%, such as 5% or 0.05"
        )
    return share


def split_list(given: str | Iterable[str]) -> tuple[str, ...]:
    """Take a list written as "a,b" or ("a,b", "c") apart; order is kept, repeats are dropped."""
    given = given or ()
    texts = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    strange = next((text for text in texts if not isinstance(text, str)), None)
    if strange is not None:
        raise RequestError(f"cannot use {strange!r} in a list: expected texts, such as 'a,b'")
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def whole_numbers(
    name: str, given: object, *, least: int, most: int = 10**_MOST_DIGITS - 1, such_as: str, auto: bool = False
) -> tuple[int, ...]:
    """100, "100,1000" or (100, "1000"): whole numbers, each once, in the order given; with `auto` the caller takes that too."""
    rule = (
        f"expected {'auto alone, or ' if auto else ''}whole numbers from {least} to {most}, such as --{name} {such_as}"
    )
    if not isinstance(given, int | str | Iterable):
        raise RequestError(f"cannot use --{name} {given!r}: {rule}")
    texts = split_list([str(each) for each in ((given,) if isinstance(given, int | str) else given)])
    for text in texts:
        is_count = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
        if not is_count or not least <= int(text) <= most:
            shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
            raise RequestError(f"cannot use --{name} {shown!r}: {rule}")
    if not texts:
        raise RequestError(f"cannot use an empty --{name}: {rule}")
    return tuple(dict.fromkeys(int(text) for text in texts))


def tidy(settings: object, name: str, value: object) -> None:
    """Put a value into its one form while a frozen object is still being made."""
    object.__setattr__(settings, name, value)


def check_text(name: str, value: object) -> None:
    try:
        usable = isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:  # a path of bytes that are no text; it could not be written down
        usable = False
    if not usable:
        raise RequestError(f"cannot use --{name} {value!r}: expected text, in UTF-8")


def check_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and (type(value) is not int or not least <= value < _TOO_LARGE):
        limit = f"below {_TOO_LARGE}" if type(value) is int and value >= _TOO_LARGE else f"of at least {least}"
        raise RequestError(f"cannot use --{name} {value!r}: expected a whole number {limit}")


def check_number(name: str, value: object, *, least: float, most: float, above_least: bool = False) -> None:
    """From `least` to `most`; with `above_least`, more than the former."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and least <= value <= most and not (above_least and value == least):  # type: ignore[operator]
        return
    rule = f"above {least:g} and up to {most:g}" if above_least else f"from {least:g} to {most:g}"
    raise RequestError(f"cannot use --{name} {value!r}: expected a number {rule}")


def check_once(name: str, keys: Sequence[str]) -> None:
    """Of NAME=VALUE pairs: the last would silently win."""
    twice = next((key for place, key in enumerate(keys) if key in keys[:place]), None)
    if twice is not None:
        raise RequestError(f"cannot use {twice} twice in --{name}: expected each name once, leave one of them out")


def check_place(on: object) -> None:
    """Where to run; whether there is a cluster is found out later."""
    if not isinstance(on, str) or not re.fullmatch(r"local|ray(://[^\s/]+:[0-9]{1,5})?", on):
        raise RequestError(f"cannot use --on {on!r}: expected local, ray or ray://HOST:PORT")


def check_device(wanted: object) -> None:
    """Its form; whether this machine has it is found out later."""
    check_text("device", wanted)
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", str(wanted)):
        meant = ", did you mean cuda?" if str(wanted).partition(":")[0] in _SAID_FOR_CUDA else ""
        raise RequestError(f"cannot use --device {wanted!r}: expected auto, cpu, cuda or cuda:N{meant}")


def check_choices(name: str, values: tuple[str, ...], allowed: tuple[str, ...], *, auto: bool = False) -> None:
    """Each is one of those; with `auto`, that alone is allowed too."""
    if auto and "auto" in values:
        if len(values) > 1:
            raise RequestError(
                f"cannot use --{name} {','.join(values)!r}: expected auto alone, or some of {', '.join(allowed)}"
            )
        return
    allowed = ("auto", *allowed) if auto else allowed
    if not values:
        raise RequestError(f"cannot use an empty --{name}: expected one or more of {', '.join(allowed)}")
    for value in values:
        if value not in allowed:
            close = difflib.get_close_matches(str(value), allowed, n=1)
            meant = f", did you mean {close[0]}?" if close else ""
            raise RequestError(f"cannot use --{name} {value!r}: expected one of {', '.join(allowed)}{meant}")
