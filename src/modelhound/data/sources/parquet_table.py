"""A Parquet file, or a folder of Parquet files.

In:  the path of a .parquet file, or of a folder with such files in it
Out: a Listing by way of `tables`, or a DataError with the file
Nothing here knows which column is what. pyarrow is imported when the first file is opened and not before.

The files of a folder are one table, in the order of their names. Where they begin with train, test, … as in data sets of the
Hugging Face hub (train-00000-of-00003.parquet), --split takes those of one part; of several parts it is train unless another is
named. Rows are called by their place in their file. Class names are taken from what Hugging Face writes into a file's head.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound.data.source import DataRequest, Listing, printable
from modelhound.data.sources.table_files import find_file, has_suffix, local_path
from modelhound.data.sources.tables import NUM_SAMPLED, Chunk, Table, list_table
from modelhound.errors import DataError

if TYPE_CHECKING:
    import pyarrow.parquet

__all__ = ["ParquetSource", "names_of_classes"]

_SUFFIXES = (".parquet", ".pq")
_SPLITS = ("train", "validation", "valid", "val", "dev", "test", "eval", "unsupervised")
_CHUNK_ROWS = 8192
# A dozen bytes can stand for any number of equal rows. Rows that differ take more than a tenth of a byte each.
_MOST_ROWS_PER_BYTE, _FEW_ROWS = 10, 1_000_000
_MOST_GROWTH, _LITTLE_BYTES = 200, 1 << 30


class ParquetSource:
    """Claims names that end in .parquet, and folders that hold such files."""

    form = "a Parquet file or a folder of them"
    options = frozenset({"columns", "task", "split"})

    def claims(self, reference: str) -> bool:
        return has_suffix(reference, _SUFFIXES) or bool(_files_in(local_path(reference)))

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        files = _files_in(local_path(reference)) or [find_file(reference, self.form)]
        files = _choose_split(reference, files, request)
        for file in files:
            find_file(str(file), "a Parquet file")
        return list_table(_open_table(reference, files), request)


def _files_in(folder: Path) -> list[Path]:
    """The Parquet files in a folder, sorted; none where it is not one."""
    try:
        found = [
            each for each in folder.iterdir() if has_suffix(each.name, _SUFFIXES) and not each.name.startswith(".")
        ]
    except (OSError, ValueError):
        return []
    return sorted(found)


def _choose_split(reference: str, files: Sequence[Path], request: DataRequest) -> list[Path]:
    parts: dict[str, list[Path]] = {}
    for file in files:
        for name in _SPLITS:
            if file.name.startswith((f"{name}-", f"{name}.", f"{name}_")):
                parts.setdefault(name, []).append(file)
    if request.split is None and len(parts) < 2:
        return list(files)
    wanted = request.split or "train"
    if wanted not in parts:
        there = ", ".join(parts) or "of which there are none"
        raise DataError(f"cannot find {request.part_text(wanted)} of {reference!r}: expected one of its parts, {there}")
    return parts[wanted]


def _open_table(reference: str, files: Sequence[Path]) -> Table:
    sample: dict[str, list[Any]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for path in files:  # the first that has rows: some programs write parts without any
        with _opened(reference, path) as file:
            sample = _first_rows(reference, file)
            names = names_of_classes(file.schema_arrow.metadata)
        if any(sample.values()):
            break

    def read(columns: Sequence[str]) -> Iterator[Chunk]:
        for path in files:
            yield from _read_file(reference, path, columns)

    return Table(reference=reference, folder=files[0].parent, sample=sample, read=read, class_names=names)


@contextmanager
def _opened(reference: str, path: Path) -> "Iterator[pyarrow.parquet.ParquetFile]":
    import pyarrow
    import pyarrow.parquet

    try:
        with path.open("rb") as file:
            opened = pyarrow.parquet.ParquetFile(file)
            _check_no_bomb(reference, opened.metadata, path.stat().st_size)
            yield opened
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        where = printable(path.name) if str(path) != reference else "it"
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise DataError(
            f"cannot read {reference!r}: expected a whole Parquet file, but {where} is cut short or damaged ({reason}); "
            "copy or download it again"
        ) from error


def _check_no_bomb(reference: str, head: "pyarrow.parquet.FileMetaData", num_bytes: int) -> None:
    grown = sum(head.row_group(number).total_byte_size for number in range(head.num_row_groups))
    if (head.num_rows > _FEW_ROWS and head.num_rows > _MOST_ROWS_PER_BYTE * num_bytes) or (
        grown > _LITTLE_BYTES and grown > _MOST_GROWTH * num_bytes
    ):
        raise DataError(
            f"cannot use {reference!r}: expected rows that its {num_bytes} bytes can hold, but it claims {head.num_rows} rows "
            f"and {grown} bytes, which may be a decompression bomb; do not trust it"
        )


def _first_rows(reference: str, file: "pyarrow.parquet.ParquetFile") -> dict[str, list[Any]]:
    names = file.schema_arrow.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"cannot use {reference!r}: expected a name of its own for every column, but there are several called "
            f"{twice[0]!r}; rename them"
        )
    batch = next(file.iter_batches(NUM_SAMPLED), None)
    return {name: batch.column(name).to_pylist() if batch is not None else [] for name in names}


def _read_file(reference: str, path: Path, columns: Sequence[str]) -> Iterator[Chunk]:
    with _opened(reference, path) as file:
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise DataError(
                f"cannot use {reference!r}: expected column {missing[0]!r} in all of its files, but {printable(path.name)!r} "
                "lacks it; give the files that belong together a folder of their own"
            )
        start = 1
        for batch in file.iter_batches(_CHUNK_ROWS, columns=list(columns)):
            stop = start + batch.num_rows
            yield Chunk(printable(path.name), range(start, stop), [batch.column(name).to_pylist() for name in columns])
            start = stop


def names_of_classes(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """Column -> class names, from what Hugging Face's datasets write into the schema of their files."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        found = {column: _names_in(feature) for column, feature in features.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):  # somebody else's files: most have none
        return {}
    return {column: names for column, names in found.items() if names}


def _names_in(feature: Any) -> tuple[str, ...]:
    """Of a class label, or of a list of class labels."""
    if isinstance(feature, list):  # how older versions write a list
        return _names_in(feature[0]) if feature else ()
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature.get("names") or ()))
    return _names_in(feature.get("feature"))
