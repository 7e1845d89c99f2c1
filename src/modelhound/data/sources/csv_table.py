"""A CSV or TSV file: texts or image paths with their labels.

In:  the path of a .csv or .tsv file in UTF-8 (or UTF-16 or 32 with a mark), the first row of which names the columns
Out: a Listing by way of `tables`, or a DataError with the line
Nothing here knows which column is what.

Columns are separated by comma, semicolon, tab or |: whichever cuts the first lines into equally many fields as the first one,
and into the most of them. Fields may stand in double quotes, with quotes inside doubled or behind a backslash; where neither
reading fits a file with tabs, quotes are ordinary characters. The whole file is gone through once to be sure of that, and once
more to read it. Rows are called by the line on which they start.
"""

import csv
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from modelhound.data.source import DataRequest, Listing, printable
from modelhound.data.sources.columns import is_usual_name
from modelhound.data.sources.table_files import find_file, has_suffix, open_text
from modelhound.data.sources.tables import NUM_SAMPLED, Chunk, Table, list_table
from modelhound.errors import DataError

if TYPE_CHECKING:
    from _csv import Reader

__all__ = ["CsvSource"]

_SUFFIXES = (".csv", ".tsv")
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a |"}
_NUM_SNIFFED_LINES = 500
_CHUNK_ROWS = 20_000
_MAX_HEADER_CHARACTERS = 100
_OFTEN = 20  # a value is frequent if it takes more than one in so many rows
_NUMBER = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How a file is cut into fields."""

    separator: str
    quotes: str
    """doubled, escaped or none."""

    def read(self, lines: Iterable[str]) -> "Reader":
        csv.field_size_limit(sys.maxsize)  # of the whole process, and 131072 characters unless somebody says otherwise
        return csv.reader(
            lines,
            delimiter=self.separator,
            quoting=csv.QUOTE_NONE if self.quotes == "none" else csv.QUOTE_MINIMAL,
            escapechar="\\" if self.quotes == "escaped" else None,
            strict=True,  # or a stray quote would swallow the rows up to the next one
        )


class CsvSource:
    """Claims names that end in .csv or .tsv."""

    form = "a CSV or TSV file"
    options = frozenset({"columns", "task"})

    def claims(self, reference: str) -> bool:
        return has_suffix(reference, _SUFFIXES)

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        path = find_file(reference, self.form)
        return list_table(_open_table(reference, path, request.columns), request)


def _open_table(reference: str, path: Path, asked: Mapping[str, str]) -> Table:
    with open_text(reference, path, newline="") as file:
        lines = list(islice(file, _NUM_SNIFFED_LINES))
    if "\0" in "".join(lines[:1]):
        raise DataError(_zero_byte(reference, 1))
    dialect = _settle_quotes(reference, path, _sniff(reference, lines))
    sample = _first_rows(reference, path, dialect)
    header = _name_columns(reference, sample[0])
    _check_header(reference, sample, asked)
    if len(sample) == 1:
        raise DataError(
            f"cannot use {reference!r}: expected rows below its header, but there are none; check how it was made"
        )

    def read(names: Sequence[str]) -> Iterator[Chunk]:
        places = [header.index(name) for name in names]
        with _rows(reference, path, dialect) as rows:
            next(rows)
            while block := list(islice(rows, _CHUNK_ROWS)):
                columns = [[row[place] for _, row in block] for place in places]
                yield Chunk(printable(path.name), [line for line, _ in block], columns)

    by_column = {name: [row[place] for row in sample[1:]] for place, name in enumerate(header)}
    return Table(reference=reference, folder=path.parent, sample=by_column, read=read)


def _zero_byte(reference: str, line: int) -> str:
    return (
        f"cannot read {reference!r}: expected text, but line {line} holds a zero byte; if the file is UTF-16 without a mark, "
        "convert it by iconv -f UTF-16LE -t UTF-8, else make it again"
    )


def _sniff(reference: str, lines: Sequence[str]) -> _Dialect:
    """The dialect that cuts most of these lines into as many fields as the first, and into the most."""
    ranked: list[tuple[float, int, _Dialect]] = []
    for separator in _SEPARATORS:
        for quotes in ("doubled", "escaped", "none") if separator == "\t" else ("doubled", "escaped"):
            dialect = _Dialect(separator, quotes)
            share, width = _fit(dialect, lines)
            if width > 1:
                ranked.append((share, width, dialect))
    if not ranked:
        first = next((line.strip() for line in lines if line.strip()), "")
        raise DataError(
            f"cannot use {reference!r}: expected a header with two or more columns, separated by "
            f"{' or '.join(_SEPARATORS.values())}, but the first line is {_short(first)}; give the items a column "
            "of labels, and name all columns in the first line"
        )
    return max(ranked, key=lambda each: each[:2])[2]  # of equals the first


def _fit(dialect: _Dialect, lines: Sequence[str]) -> tuple[float, int]:
    """Which share of the rows is as wide as the first, halved where reading broke off, and how wide that is."""
    widths: list[int] = []
    broken = False
    try:
        for row in dialect.read(lines):
            if row:
                widths.append(len(row))
    except csv.Error as error:
        # The last row may go on beyond these lines.
        broken = len(lines) < _NUM_SNIFFED_LINES or "unexpected end" not in str(error)
    if not widths:
        return 0.0, 0
    share = sum(width == widths[0] for width in widths) / len(widths)
    return (share / 2 if broken else share), widths[0]


def _settle_quotes(reference: str, path: Path, sniffed: _Dialect) -> _Dialect:
    """The sniffed dialect if the whole file can be read by it, else one with other quotes that can."""
    others = ("doubled", "escaped", "none") if sniffed.separator == "\t" else ("doubled", "escaped")
    faults: list[DataError] = []
    for quotes in dict.fromkeys((sniffed.quotes, *others)):
        dialect = _Dialect(sniffed.separator, quotes)
        try:
            with _rows(reference, path, dialect) as rows:
                deque(rows, maxlen=0)
        except DataError as fault:
            faults.append(fault)
        else:
            return dialect
    raise faults[0]


def _first_rows(reference: str, path: Path, dialect: _Dialect) -> list[list[str]]:
    with _rows(reference, path, dialect) as rows:
        return [row for _, row in islice(rows, 1 + NUM_SAMPLED)]


@contextmanager
def _rows(reference: str, path: Path, dialect: _Dialect) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """All rows, header included, with the line on which they start; whatever is wrong with one is a DataError."""
    with open_text(reference, path, newline="") as file:
        yield _cut(reference, dialect, file)


def _cut(reference: str, dialect: _Dialect, file: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    reader = dialect.read(_without_zeros(reference, file))
    line, width = 1, 0
    try:
        for row in reader:
            if row and len(row) != (width or len(row)):
                raise DataError(
                    f"cannot read line {line} of {reference!r}: expected {width} fields as in the header, but there are "
                    f"{len(row)}; put texts that hold {_SEPARATORS[dialect.separator]} or a line break into double quotes"
                )
            if row:  # a blank line is no row
                width = len(row)
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end" in str(error):
            why = "a double quote opens a field there that is never closed; close it"
        else:
            why = "a double quote closes a field before its end; write quotes inside a field twice"
        raise DataError(
            f"cannot read line {line} of {reference!r}: expected fields separated by {_SEPARATORS[dialect.separator]}, "
            f"but {why}"
        ) from error


def _without_zeros(reference: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise DataError(_zero_byte(reference, number))
        yield line


def _name_columns(reference: str, first: Sequence[str]) -> list[str]:
    """The names in the header; a column without one, such as the row numbers that pandas writes, is called unnamed N."""
    names = [name.strip() or f"unnamed {place}" for place, name in enumerate(first, start=1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"cannot use {reference!r}: expected a name of its own for every column, but there are several called "
            f"{', '.join(map(repr, twice[:3]))}; rename them in the first line"
        )
    return names


def _check_header(reference: str, rows: Sequence[Sequence[str]], asked: Mapping[str, str]) -> None:
    """Refuse a first row that is data: with a value that comes often below, or, where no name in it is a usual one, with one
    that comes again at all, a number, or a sentence."""
    first = [name.strip() for name in rows[0]]
    if set(asked.values()) & set(first):
        return
    usual = any(is_usual_name(name) for name in first if name)
    for place, name in enumerate(first):
        num_again = sum(row[place].strip() == name for row in rows[1:]) if name else 0
        often = num_again * _OFTEN > len(rows)  # the first of many messages may be labelled spam, which is a usual name
        if often or (not usual and (num_again or _NUMBER.fullmatch(name) or len(name) > _MAX_HEADER_CHARACTERS)):
            raise DataError(
                f"cannot use {reference!r}: expected the names of the columns in its first line, but {_short(name)} there "
                "looks like data; add a line such as " + _shown_header(rows)
            )


def _shown_header(rows: Sequence[Sequence[str]]) -> str:
    lengths = [sum(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    longest = lengths.index(max(lengths))
    rest = iter(["label", *(f"column{number}" for number in range(2, len(lengths)))])
    return ",".join("text" if place == longest else next(rest) for place in range(len(lengths)))


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text[:58]) + " …"
