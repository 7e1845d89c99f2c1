"""Records as flat rows: one value per column, for tables and for export.

In:  records or answers of any verb, structured as they please
Out: rows of plain values; tables a person can read
Raw samples become their median and their number, or stay as they are for export. Nothing here knows what a column means, only
what its name says of its unit.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modelhound.analysis.wording import bytes_text, count_text, duration_text, number_text
from modelhound.records import to_plain
from modelhound.report.parts import Cell, Column, Table

__all__ = ["SENTENCE_KEYS", "Scalar", "find_sentences", "flat_row", "flat_rows_by_kind", "flat_table", "is_sentence"]

_MOST_KEYS = 16  # of a dictionary whose keys become columns
_MOST_COLUMNS = 24
_MOST_ABREAST = 12  # columns of a single row; more are easier to read one below the other
_CONCLUDING = ("conclusion", "verdict", "summary")
SENTENCE_KEYS = ("verdict", "verdicts", "sentence", "sentences", "advice", "explanation", "assumptions")

Scalar = str | float | int | bool | None


def flat_row(value: Mapping[str, Any], *, keep_samples: bool = False) -> dict[str, Scalar]:
    """Nested names joined by dots; samples as median and number, or with `keep_samples` as JSON, as are many names."""
    row: dict[str, Scalar] = {}
    for name, each in value.items():
        if isinstance(each, bytes) or name == "kind":
            continue
        if isinstance(each, Mapping):
            if len(each) <= _MOST_KEYS:
                row |= {f"{name}.{inner}": found for inner, found in flat_row(each, keep_samples=keep_samples).items()}
            elif keep_samples:
                row[name] = json.dumps(each, ensure_ascii=False)
        elif isinstance(each, list | tuple):
            row |= _flat_list(name, each, keep_samples=keep_samples)
        else:
            row[name] = each
    return row


def flat_rows_by_kind(records: Iterable[Any], *, keep_samples: bool = False) -> dict[str, list[dict[str, Scalar]]]:
    """Rows of every kind of record, in order of first appearance."""
    kinds: dict[str, list[dict[str, Scalar]]] = {}
    for record in records:
        plain = _without_bytes(record)
        kinds.setdefault(str(plain.get("kind", "record")), []).append(flat_row(plain, keep_samples=keep_samples))
    return kinds


def flat_table(caption: str, rows: Sequence[Mapping[str, Scalar | Cell]], *, in_order: bool = False) -> Table | None:
    """A table of rows, texts before numbers unless they come `in_order`; what is the same in all rows is said in the caption.

    A Cell is shown as it is, and always: it is a result. None where there is nothing to show.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    same = {
        name: rows[0].get(name)
        for name in names
        if len(rows) > 1 and len({row.get(name) for row in rows}) == 1 and not isinstance(rows[0].get(name), Cell)
    }
    shown = _without_repeats([name for name in names if name not in same], rows)[:_MOST_COLUMNS]
    if not shown:
        return None
    if not in_order:
        shown.sort(key=lambda name: not any(isinstance(row.get(name), str) for row in rows))  # names first
    if len(rows) == 1 and len(shown) > _MOST_ABREAST:
        cells = tuple((Cell(_title(name)), Cell(_text(name, rows[0].get(name)))) for name in shown)
        return Table(caption=caption, columns=(Column(name="what"), Column(name="value")), rows=cells)
    told = [f"{_title(name)} {_text(name, value)}" for name, value in same.items() if value not in (None, "", False)]
    columns = tuple(Column(name=_title(name), is_number=_is_number(row.get(name) for row in rows)) for name in shown)
    body = tuple(tuple(_cell(name, row.get(name)) for name in shown) for row in rows)
    said = f"{caption}. The same in all rows: {', '.join(told[:8])}." if told else caption
    return Table(caption=said, columns=columns, rows=body)


def find_sentences(value: Any, *, depth: int = 3) -> list[str]:
    """What an answer says in words, each sentence once; what it concludes comes first, and details deep inside not at all."""
    found: list[str] = []
    if isinstance(value, list):
        found = [text for each in value for text in find_sentences(each, depth=depth)]
    elif isinstance(value, Mapping) and depth:
        for name, each in sorted(value.items(), key=lambda named: not named[0].startswith(_CONCLUDING)):
            if name in SENTENCE_KEYS and isinstance(each, str):
                found.append(each)
            elif name in SENTENCE_KEYS and isinstance(each, list) and all(isinstance(one, str) for one in each):
                found.extend(each)
            else:
                found.extend(find_sentences(each, depth=depth - 1))
    return list(dict.fromkeys(text for text in found if is_sentence(text)))


def is_sentence(text: object) -> bool:
    """Whether it can be read by itself, unlike a word or a label."""
    return isinstance(text, str) and (len(text.split()) > 4 or (" " in text and text.endswith(".")))


def _without_bytes(record: Any) -> dict[str, Any]:
    """As JSON has it, but without packed numbers, which no table shows."""
    plain = to_plain(record)
    for name in getattr(record, "__struct_fields__", ()):
        value = getattr(record, name)
        packed = isinstance(value, bytes) or (
            isinstance(value, Mapping) and any(isinstance(each, bytes) for each in value.values())
        )
        if packed:
            plain.pop(name, None)
    return dict(plain)


def _flat_list(name: str, values: Sequence[Any], *, keep_samples: bool) -> dict[str, Scalar]:
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if values and name == "phases" and all(isinstance(each, Mapping) and "phase" in each for each in values):
        return {f"{each['phase']}.seconds": float(sum(each.get("seconds", ()))) for each in values}
    if keep_samples:
        return {name: json.dumps(values, ensure_ascii=False)}
    if numbers and len(numbers) == len(values):
        if len(values) == 2 and "interval" in name:
            return {f"{name}.low": numbers[0], f"{name}.high": numbers[1]}
        return {f"median.{name}": statistics.median(numbers), f"num.{name}": len(numbers)}
    if values and all(isinstance(each, str) for each in values):
        return {name: ", ".join(values)}
    return {f"num.{name}": len(values)} if values else {}


def _without_repeats(names: Sequence[str], rows: Sequence[Mapping[str, Scalar | Cell]]) -> list[str]:
    """Nested things often carry the name of what they belong to: texts that say what another column says are left out."""
    seen: set[tuple[Scalar | Cell, ...]] = set()
    kept = []
    for name in names:
        values = tuple(row.get(name) for row in rows)
        if values in seen and any(isinstance(value, str) for value in values):
            continue
        seen.add(values)
        kept.append(name)
    return kept


def _is_number(values: Iterable[Scalar | Cell]) -> bool:
    known = [value.sort_by if isinstance(value, Cell) else value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _cell(name: str, value: Scalar | Cell) -> Cell:
    if isinstance(value, Cell):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(_text(name, value), float(value) if is_number and value is not None else None)


def _text(name: str, value: Scalar | Cell) -> str:
    if isinstance(value, Cell):
        return value.text
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if value != value:  # NaN
        return "–"
    if name.startswith("num.") or name.startswith("num_"):
        return f"{value:,}" if isinstance(value, int) and value < 1e5 else count_text(value)
    if name.endswith("seconds") and not name.endswith("per_second"):
        return duration_text(value)
    if name.endswith("bytes"):
        return bytes_text(value)
    return (
        f"{value:,}"
        if isinstance(value, int) and abs(value) < 1e5
        else count_text(value)
        if abs(value) >= 1e5
        else number_text(value)
    )


def _title(name: str) -> str:
    return name.replace("num_", "").replace("num.", "samples of ").replace("_", " ").replace(".", " ")
