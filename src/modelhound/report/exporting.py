"""Records as CSV and Parquet, for other programs.

In:  runs
Out: one file per kind of record and format, raw samples kept as JSON lists, but of phases what they took in all
Every row says which run it comes from. Packed numbers (one score per item) stay in the run folder.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelhound.errors import RequestError
from modelhound.report.flattening import flat_rows_by_kind
from modelhound.report.writing import write_file
from modelhound.store import Run

__all__ = ["export_records"]

_EXPORTS = ("csv", "parquet")
"""Formats that records can be exported to."""


def export_records(runs: Sequence[Run], folder: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """Write every kind of record in every format; the paths in order."""
    unknown = [each for each in formats if each not in _EXPORTS]
    if unknown:
        raise RequestError(f"cannot export records as {unknown[0]!r}: expected {' or '.join(_EXPORTS)}")
    kinds: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for kind, rows in flat_rows_by_kind(run.records, keep_samples=True).items():
            kinds.setdefault(kind, []).extend({"run": str(run.path), **row} for row in rows)
    paths = []
    for kind, rows in kinds.items():
        columns = list(dict.fromkeys(name for row in rows for name in row))
        for each in formats:
            content = _as_csv(columns, rows) if each == "csv" else _as_parquet(columns, rows)
            paths.append(write_file(folder / f"{kind}.{each}", content))
    return tuple(paths)


def _as_csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _as_parquet(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({name: _one_type([row.get(name) for row in rows]) for name in columns})
    content = io.BytesIO()
    parquet.write_table(table, content)
    return content.getvalue()


def _one_type(values: list[Any]) -> list[Any]:
    """A column has one type: whole numbers beside others become floats, and anything else beside texts a text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or kinds <= {int} or kinds <= {str}:
        return values
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]
