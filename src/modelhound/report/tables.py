"""Columns of texts -> a Table whose first column is the name of what each row is about.

In:  columns as `analysis` makes them, in the order they are to be read in
Out: a Table
Nothing here knows what a column means.
"""

from collections.abc import Mapping, Sequence

from modelhound.analysis.search_tables import TextColumn
from modelhound.report.parts import Cell, Column, Table

__all__ = ["text_table"]


def text_table(
    caption: str, columns: Mapping[str, TextColumn], *, more_rows: Sequence[Mapping[str, Cell]] = ()
) -> Table:
    """A row for each text of the columns, then `more_rows`, which may not know every column."""
    num_rows = max((len(each.texts) for each in columns.values()), default=0)
    rows = [
        tuple(Cell(each.texts[place].rstrip(), each.values[place]) for each in columns.values())
        for place in range(num_rows)
    ]
    rows += [tuple(row.get(name, Cell("–")) for name in columns) for row in more_rows]
    heads = tuple(
        Column(name=name, is_number=each.is_number or any(value is not None for value in each.values), note=each.note)
        for name, each in columns.items()
    )
    return Table(caption=caption, columns=heads, rows=tuple(rows))
