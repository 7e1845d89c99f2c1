"""From a table, whatever file it lies in, to a Listing: which column is what, which rows have a label, what the targets are.

In:  a Table: the values of the first rows, and a way to read chosen columns from beginning to end
Out: a Listing of texts, pairs of texts or images, or a DataError that names columns and rows
Nothing here knows files. `columns` tells the columns apart, `labels` finds the task; both say by which rules.

Rows without a label (see `labels.tidy_label`) are left out and counted. Rows without a text stay in: the Reader finds them.
Items are called FILE:ROW. Image paths are relative to the folder of the table and must not lead out of it, unless absolute:
such a path is one that somebody wrote down for this machine. The table is read once and only the columns needed are kept.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelhound.data.source import DataRequest, Listing, Reader
from modelhound.data.sources.columns import Roles, Sample, find_roles
from modelhound.data.sources.folder import FileReader
from modelhound.data.sources.image_bytes import BytesReader
from modelhound.data.sources.labels import LabelColumn, encode_labels, tidy_label
from modelhound.data.sources.texts import TextReader
from modelhound.errors import DataError
from modelhound.records import ItemSkipped

__all__ = ["NUM_SAMPLED", "Chunk", "Table", "list_table"]

NUM_SAMPLED = 200
"""Rows that a Table shows before it is read: enough to tell texts from labels, little where rows hold images."""

_MAX_LISTED = 1000  # rows without label that are named one by one


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of chosen columns."""

    file: str
    """The name that items are called by."""

    rows: Iterable[int]
    """Their numbers in the file, from 1."""

    columns: Sequence[Sequence[Any]]
    """One per column that was asked for, in that order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Named columns in some file or files."""

    reference: str
    folder: Path
    """Where relative image paths start."""

    sample: Sample
    read: Callable[[Sequence[str]], Iterable[Chunk]]
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column -> names of the classes that its numbers stand for, where the table says so."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that have a label."""

    names: list[str] = field(default_factory=list)
    inputs: list[tuple[Any, ...]] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    skipped: list[ItemSkipped] = field(default_factory=list)


def list_table(table: Table, request: DataRequest) -> Listing:
    """All labelled rows, in order."""
    if not any(table.sample.values()):
        raise DataError(f"cannot use {table.reference!r}: expected rows, but it has none; check how it was made")
    roles = find_roles(table.reference, table.sample, request.columns)
    rows = _read_rows(table, roles)
    if not rows.names:
        raise DataError(
            f"cannot use {table.reference!r}: expected rows with a label, but column {roles.label!r} is empty in all of them; "
            "check the file, or name another column by --columns label=COLUMN"
        )
    labels = encode_labels(
        LabelColumn(
            reference=table.reference,
            name=roles.label,
            values=rows.labels,
            name_item=rows.names.__getitem__,
            class_names=table.class_names.get(roles.label),
        ),
        request.task,
    )
    return Listing(
        task=labels.task,
        class_names=labels.class_names,
        targets=labels.targets,
        item_names=tuple(rows.names),
        modality="image" if roles.image is not None else "text",
        reader=_image_reader(table, roles, rows, follow_links=request.follow_links)
        if roles.image is not None
        else _text_reader(table, roles, rows),
        skipped=tuple(rows.skipped),
    )


def _read_rows(table: Table, roles: Roles) -> _Rows:
    kept = _Rows()
    tidied: dict[str, Any] = {}  # equal labels become one object: a million short texts would be 50 MB
    named = roles.label in table.class_names
    num_unlabelled, file = 0, ""
    for chunk in table.read(roles.columns()):
        file = chunk.file
        *inputs, labels = chunk.columns
        for row, raw, *values in zip(chunk.rows, labels, *inputs, strict=True):
            if isinstance(raw, str):
                label = tidied[raw] if raw in tidied else tidied.setdefault(raw, tidy_label(raw))
            else:
                label = tidy_label(raw, named=named)
            if label is not None:
                kept.names.append(f"{file}:{row}")
                kept.inputs.append(tuple(values))
                kept.labels.append(label)
                continue
            num_unlabelled += 1
            if num_unlabelled <= _MAX_LISTED:
                kept.skipped.append(ItemSkipped(item=f"{file}:{row}", reason="it has no label"))
    if num_unlabelled > _MAX_LISTED:
        more = num_unlabelled - _MAX_LISTED
        kept.skipped.append(ItemSkipped(item=file, reason=f"{more} more rows have no label"))
    return kept


def _text_reader(table: Table, roles: Roles, rows: _Rows) -> TextReader:
    columns = (roles.text, roles.pair)
    for position, texts in enumerate(rows.inputs):
        if not all(type(text) is str for text in texts):
            rows.inputs[position] = tuple(
                _as_text(table, column, rows.names[position], text)
                for column, text in zip(columns, texts, strict=False)  # without a pair there is one text
            )
    return TextReader(tuple(rows.inputs))


def _as_text(table: Table, column: str | None, name: str, value: Any) -> str:
    if value is None:
        return ""  # the reader's check says that it is empty
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):  # some writers do not say that their bytes are text
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            pass
    raise DataError(
        f"cannot use column {column!r} of {table.reference!r} as text: expected texts, but {name} holds "
        f"{type(value).__name__}; name another by --columns text=COLUMN"
    )


def _image_reader(table: Table, roles: Roles, rows: _Rows, *, follow_links: bool) -> Reader:
    values = [_bytes_or_path(value) for (value,) in rows.inputs]
    if any(_is_file(value) for value in values):
        return BytesReader(tuple(value if _is_file(value) else b"" for value in values))
    paths = tuple(
        _checked_path(table, roles.image, name, value) for name, value in zip(rows.names, values, strict=True)
    )
    return FileReader(str(table.folder.absolute()), paths, follow_links=follow_links)


def _bytes_or_path(value: Any) -> Any:
    if isinstance(value, dict) and "bytes" in value:  # how Hugging Face stores an image
        return value["bytes"] if value["bytes"] is not None else value.get("path")
    return value


def _is_file(value: Any) -> bool:
    """Whether these are the bytes of a file, or something that gives them."""
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _checked_path(table: Table, column: str | None, name: str, value: Any) -> str:
    if value is None:
        return ""  # the folder itself, which the reader finds to be no file
    if not isinstance(value, str):
        raise DataError(
            f"cannot use column {column!r} of {table.reference!r} as image: expected paths or image files, but {name} holds "
            f"{type(value).__name__}; name another by --columns image=COLUMN"
        )
    path = os.path.normpath(value.strip()) if value.strip() else ""
    if path == ".." or path.startswith("../") or "\0" in path:
        raise DataError(
            f"cannot use {value!r} in {name} as image: expected a path below the folder of the table, or an absolute one; "
            "move the image there or write its whole path"
        )
    return path
