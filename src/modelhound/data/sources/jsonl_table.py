"""A file of JSON objects: one per line, or all in one array.

In:  the path of a .jsonl, .ndjson or .json file
Out: a Listing by way of `tables`, or a DataError with the line
Nothing here knows which column is what.

The columns are the keys of all objects, in the order of their first appearance; where an object lacks a key, its value is null.
Rows are called by their line, or by their place in the array. Python's NaN, which is no JSON, is read as what it means.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from modelhound.data.source import DataRequest, Listing, printable
from modelhound.data.sources.table_files import find_file, has_suffix, open_text
from modelhound.data.sources.tables import NUM_SAMPLED, Chunk, Table, list_table
from modelhound.errors import DataError

__all__ = ["JsonSource"]

_SUFFIXES = (".jsonl", ".ndjson", ".json")
_CHUNK_ROWS = 20_000
_NOT_JSON = ("NaN", "Infinity")

_Row = tuple[int, dict[str, Any]]


class JsonSource:
    """Claims names that end in .jsonl, .ndjson or .json."""

    form = "a JSONL file"
    options = frozenset({"columns", "task"})

    def claims(self, reference: str) -> bool:
        return has_suffix(reference, _SUFFIXES)

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        path = find_file(reference, self.form)
        return list_table(_open_table(reference, path), request)


def _open_table(reference: str, path: Path) -> Table:
    whole = _read_array(reference, path) if _is_array(reference, path) else None

    def rows() -> Iterator[_Row]:
        return _read_lines(reference, path) if whole is None else iter(whole)

    def read(names: Sequence[str]) -> Iterator[Chunk]:
        each = rows()
        while block := list(islice(each, _CHUNK_ROWS)):
            columns = [[row.get(name) for _, row in block] for name in names]
            yield Chunk(printable(path.name), [line for line, _ in block], columns)

    first: list[dict[str, Any]] = []
    keys: dict[str, None] = {}
    for _, row in rows():
        if len(first) < NUM_SAMPLED:
            first.append(row)
        if not row.keys() <= keys.keys():
            keys.update(dict.fromkeys(row))
    if not first:
        raise DataError(
            f"cannot use {reference!r}: expected {JsonSource.form}, but it holds no objects; check how it was made"
        )
    sample = {key: [row.get(key) for row in first] for key in keys}
    return Table(reference=reference, folder=path.parent, sample=sample, read=read)


def _is_array(reference: str, path: Path) -> bool:
    with open_text(reference, path, newline="\n") as file:
        first = next((line for line in file if line.strip()), "")
    return first.lstrip().startswith("[")


def _read_lines(reference: str, path: Path) -> Iterator[_Row]:
    with open_text(reference, path, newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            try:
                row = _decode(line)
            except ValueError as error:
                raise DataError(
                    f"cannot read line {number} of {reference!r}: expected a JSON object, but {_why(error)}; write each object "
                    "on a line of its own, or all of them in one array"
                ) from error
            yield number, _object(reference, f"line {number}", row)


def _read_array(reference: str, path: Path) -> list[_Row]:
    with open_text(reference, path, newline="\n") as file:
        text = file.read()
    try:
        rows = _decode(text)
    except ValueError as error:
        raise DataError(
            f"cannot read {reference!r}: expected an array of JSON objects, but {_why(error)}{_line_of(error, text)}; "
            "check how it was made"
        ) from error
    return [(number, _object(reference, f"item {number}", row)) for number, row in enumerate(rows, start=1)]


def _decode(text: str) -> Any:
    """The value, or a ValueError of one of the two parsers."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        if any(word in text for word in _NOT_JSON):
            return _decode_loosely(text)
        raise
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _decode_loosely(text: str) -> Any:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except UnicodeEncodeError as error:  # json takes it, msgspec and whoever writes texts down do not
        raise ValueError("it holds half of a character, an unpaired surrogate") from error
    return found


def _object(reference: str, where: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(
            f"cannot read {where} of {reference!r}: expected a JSON object with the names of the columns as keys, but it is "
            f'{msgspec.json.encode(row).decode()[:40]}; write it like {{"text": "…", "label": "…"}}'
        )
    return row


def _why(error: ValueError) -> str:
    """The parser's own words, less its full stop and less places in bytes where there is only one line."""
    return re.sub(r"(: line \d+ column \d+)?\s*\((?:byte|char) \d+\)", "", str(error)).rstrip(".").lower()


def _line_of(error: ValueError, text: str) -> str:
    place = re.search(r"\(byte (\d+)\)", str(error))
    if place is None:
        return f" in its last line, {text.count(chr(10)) + 1}"
    return f" in line {text.encode('utf-8', 'surrogatepass')[: int(place[1])].count(10) + 1}"
