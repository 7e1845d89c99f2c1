"""From the raw values of a label column to targets: which task, which classes, which number.

In:  one value per item (text, number, true or false, or a list of these), none of them missing
Out: Labels with the targets of a Listing, or a DataError that names rows
Nothing here knows files, or what the items are.

Every value is of one kind: a list; a flag (true or false, but not the texts "true" and "false"); a number (also one written as
text: digits with sign, point and exponent); a word (any other text). Then
    lists                   multilabel. Lists of flags, or of 0 and 1 that are all equally long and repeat some, say for
                            each label whether it holds, and the labels are called 0, 1, …
    words, flags            classification
    numbers, all whole      classification, by value: 1, 1.0 and 01 are the same class, called 1
    other numbers           regression
    several of these kinds  an error, since it is mostly a slip
--task decides otherwise: classification takes all but lists as classes, mixed kinds too; regression wants numbers; multilabel
splits texts at | and ;. Classes are sorted: numbers by value, then words by code point. Where the table names its classes (as
Hugging Face's ClassLabel does), whole numbers stand for these names, in that order.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from modelhound.errors import DataError
from modelhound.settings import Task

__all__ = ["LabelColumn", "Labels", "encode_labels", "tidy_label"]

_Kind = Literal["list", "flag", "number", "word"]
_PLURALS = {"list": "lists", "flag": "true or false", "number": "numbers", "word": "words"}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SEPARATORS = re.compile(r"[|;]")
_MISSING = {"", "nan", "null"}
_MAX_CELLS = 2**31  # of a table of items x labels: more would be more memory than people have to spare
_NUM_SHOWN = 3
_MANY_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelColumn:
    """The values of all items that have one, and how to speak of them."""

    reference: str
    name: str
    values: Sequence[Any]
    name_item: Callable[[int], str]
    class_names: tuple[str, ...] | None = None
    """What whole numbers stand for, where the table says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """As in a Listing."""

    task: Task
    class_names: tuple[str, ...]
    targets: npt.NDArray[Any]


def tidy_label(value: Any, *, named: bool = False) -> Any:
    """The value without blanks around it, or None where there is no label: nothing, NaN, "nan" and "null" in any case.

    Among classes that have names (`named`) a negative number also means that there is no label.
    """
    if isinstance(value, bytes):  # some writers of Parquet do not say that their bytes are text
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, str):
        stripped = value.strip()
        return None if stripped.lower() in _MISSING else stripped
    if isinstance(value, float | Decimal) and math.isnan(value):
        return None
    if named and isinstance(value, int) and value < 0:
        return None
    return value


def encode_labels(column: LabelColumn, task: Task | None) -> Labels:
    """The targets; `task` None looks at the values."""
    kinds = _find_kinds(column)
    if "list" in kinds and len(kinds) == 1 and task in (None, "multilabel"):
        return _encode_lists(column)
    if "list" in kinds:
        expected = "one class" if task == "classification" else "one number" if task == "regression" else "lists only"
        raise _unfit(
            column, kinds, f"{expected} per row", "leave --task out" if len(kinds) == 1 else "make them one kind"
        )
    if task == "multilabel":
        return _encode_sets(column, [_split(value) for value in column.values])
    if column.class_names is not None and set(kinds) == {"number"} and task != "regression":
        return _encode_named(column, column.class_names)
    if task == "regression" and set(kinds) != {"number"}:
        raise _unfit(column, kinds, "numbers for --task regression", "repair these rows or choose another --task")
    if task is None and len(kinds) > 1:
        raise _unfit(
            column, kinds, "one kind of label", "repair these rows, or use --task classification if all are classes"
        )
    if task == "regression" or (task is None and set(kinds) == {"number"} and not _all_whole(column.values)):
        return _encode_numbers(column)
    return _encode_classes(column)


def _find_kinds(column: LabelColumn) -> dict[_Kind, list[int]]:
    """For each kind that there is the positions of the first few of it."""
    kinds: dict[_Kind, list[int]] = {}
    of_text: dict[str, _Kind] = {}
    for position, value in enumerate(column.values):
        kind = of_text.get(value) if isinstance(value, str) else None
        if kind is None:
            kind = _kind_of(column, position, value)
            if isinstance(value, str):
                of_text[value] = kind
        first = kinds.setdefault(kind, [])
        if len(first) < _NUM_SHOWN:
            first.append(position)
    return kinds


def _kind_of(column: LabelColumn, position: int, value: Any) -> _Kind:
    if isinstance(value, str):
        return "number" if _NUMBER.fullmatch(value) else "word"
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | float | Decimal):
        return "number"
    if isinstance(value, list | tuple):
        return "list"
    raise DataError(
        f"cannot use column {column.name!r} of {column.reference!r} as label: expected texts, numbers, true or false, or lists "
        f"of these, but {column.name_item(position)} holds {type(value).__name__}; name another by --columns label=COLUMN"
    )


def _unfit(column: LabelColumn, kinds: dict[_Kind, list[int]], expected: str, advice: str) -> DataError:
    shown = " and ".join(
        f"{_PLURALS[kind]} in {', '.join(f'{column.name_item(place)} ({_short(column.values[place])})' for place in places)}"
        for kind, places in sorted(kinds.items())
    )
    return DataError(
        f"cannot use column {column.name!r} of {column.reference!r} as label: expected {expected}, but there are {shown}; "
        + advice
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:38] + " …"


def _split(value: Any) -> list[str]:
    parts = _SEPARATORS.split(value) if isinstance(value, str) else [_class_name(value)]
    return [_class_name(part.strip()) for part in parts if part.strip()]


def _class_name(value: Any) -> str:
    """The name by which equal labels are equal: whole numbers without point and leading zeros, other things as they stand."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return value
        if value.lstrip("+-").isdecimal():  # by its digits: a float has room for 15 of them
            return str(int(value)) if len(value) < 1000 else value
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, int):
        return str(value)
    number = float(value)
    return str(int(number)) if number.is_integer() else repr(number)


def _sort_key(name: str) -> tuple[int, float, str]:
    return (0, float(name), name) if _NUMBER.fullmatch(name) else (1, 0.0, name)


def _all_whole(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) or float(value).is_integer() for value in values)


def _encode_numbers(column: LabelColumn) -> Labels:
    numbers = np.fromiter(map(_to_float, column.values), dtype=np.float64, count=len(column.values))
    wild = np.flatnonzero(~np.isfinite(numbers))
    if len(wild):
        raise DataError(
            f"cannot use column {column.name!r} of {column.reference!r} as label: expected finite numbers, but "
            f"{column.name_item(int(wild[0]))} holds {numbers[wild[0]]}; repair or remove the row"
        )
    return Labels(task="regression", class_names=(column.name,), targets=numbers)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # of a whole number with more than 308 digits
        return math.inf


def _encode_named(column: LabelColumn, class_names: tuple[str, ...]) -> Labels:
    codes = np.fromiter((_code(column, place, len(class_names)) for place in range(len(column.values))), dtype=np.int64)
    there = np.unique(codes)  # classes without items, as in a split that lacks some, take no part
    names = tuple(class_names[code] for code in there)
    return _checked(column, names, np.searchsorted(there, codes), numbers=False)


def _code(column: LabelColumn, position: int, num_classes: int) -> int:
    value = column.values[position]
    number = _to_float(value)
    if not number.is_integer() or not 0 <= number < num_classes:
        raise DataError(
            f"cannot use column {column.name!r} of {column.reference!r} as label: expected numbers from 0 to "
            f"{num_classes - 1}, which have names there, but {column.name_item(position)} holds {value!r}; repair or "
            "remove the row"
        )
    return int(number)


def _encode_classes(column: LabelColumn) -> Labels:
    name_of: dict[tuple[type, Any], str] = {}  # by type too: True equals 1 and would be taken for it
    codes: dict[str, int] = {}
    targets = np.empty(len(column.values), dtype=np.int64)
    for position, value in enumerate(column.values):
        key = (type(value), value)
        name = name_of.get(key)
        if name is None:
            name = name_of[key] = _class_name(value)
        targets[position] = codes.setdefault(name, len(codes))
    names = sorted(codes, key=_sort_key)
    order = np.empty(len(names), dtype=np.int64)
    order[[codes[name] for name in names]] = np.arange(len(names))
    numbers = all(_NUMBER.fullmatch(name) for name in names)
    return _checked(column, tuple(names), order[targets], numbers=numbers)


def _checked(column: LabelColumn, names: tuple[str, ...], targets: npt.NDArray[np.int64], *, numbers: bool) -> Labels:
    start = f"cannot use column {column.name!r} of {column.reference!r} as label: expected "
    if len(names) == 1:
        raise DataError(
            f"{start}two or more classes, but {_short(names[0])} is the only one; name another by --columns label=COLUMN"
        )
    single = np.flatnonzero(np.bincount(targets, minlength=len(names)) == 1)
    if len(single):
        shown = ", ".join(_short(names[place]) for place in single[:_MANY_SHOWN])
        more = f" and {len(single) - _MANY_SHOWN} more" if len(single) > _MANY_SHOWN else ""
        otherwise = ", or use --task regression if these numbers are quantities" if numbers else ""
        raise DataError(
            f"{start}at least two items in every class, but {len(single)} of {len(names)} classes have only one: {shown}{more}"
            f"; drop or merge them{otherwise}, or name another column by --columns label=COLUMN"
        )
    return Labels(task="classification", class_names=names, targets=targets)


def _encode_lists(column: LabelColumn) -> Labels:
    values = column.values
    simple = (str, bool, int, float)
    bad = next(
        (place for place, value in enumerate(values) if not all(isinstance(each, simple) for each in value)), None
    )
    if bad is not None:
        raise DataError(
            f"cannot use column {column.name!r} of {column.reference!r} as label: expected lists of texts or whole numbers, "
            f"but {column.name_item(bad)} holds {_short(values[bad])}; name another by --columns label=COLUMN"
        )
    if _are_switches(values):
        names = column.class_names or tuple(map(str, range(len(values[0]))))
        if len(names) == len(values[0]):
            return Labels(task="multilabel", class_names=names, targets=np.array(values, dtype=np.bool_))
    if column.class_names is not None:
        return _encode_sets(
            column, [[_name_in(column, place, each) for each in values[place]] for place in range(len(values))]
        )
    return _encode_sets(column, [[_class_name(each) for each in value if each != ""] for value in values])


def _are_switches(values: Sequence[Sequence[Any]]) -> bool:
    """Whether each list says yes or no to every label in turn."""
    width = len(values[0])
    if width < 2 or any(len(value) != width for value in values):
        return False
    if all(isinstance(each, bool) for value in values for each in value):
        return True
    zero_or_one = all(not isinstance(each, str) and each in (0, 1) for value in values for each in value)
    return zero_or_one and any(len(set(value)) < width for value in values)


def _name_in(column: LabelColumn, position: int, label: Any) -> str:
    names = column.class_names or ()
    if not isinstance(label, int) or not 0 <= label < len(names):
        raise DataError(
            f"cannot use column {column.name!r} of {column.reference!r} as label: expected numbers from 0 to {len(names) - 1}, "
            f"which have names there, but {column.name_item(position)} holds {label!r}; repair or remove the row"
        )
    return names[label]


def _encode_sets(column: LabelColumn, sets: Sequence[Sequence[str]]) -> Labels:
    there = {name for names in sets for name in names}
    ranked = {name: place for place, name in enumerate(column.class_names or ())}
    names = sorted(there, key=lambda name: (ranked.get(name, len(ranked)), *_sort_key(name)))
    if not names or len(names) * len(sets) > _MAX_CELLS:
        told = f"{len(names)} labels for {len(sets)} items" if names else "none"
        raise DataError(
            f"cannot use column {column.name!r} of {column.reference!r} as label: expected some labels, at most "
            f"{_MAX_CELLS // max(1, len(sets))} for so many items, but there are {told}; name another by --columns label=COLUMN"
        )
    places = {name: place for place, name in enumerate(names)}
    targets = np.zeros((len(sets), len(names)), dtype=np.bool_)
    for position, each in enumerate(sets):
        targets[position, [places[name] for name in each]] = True
    return Labels(task="multilabel", class_names=tuple(names), targets=targets)
