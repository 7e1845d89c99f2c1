"""Data sets of Hugging Face's `datasets` library: a folder that it saved, an .arrow file, or one from the hub by name.

In:  hf:NAME or hf:ORG/NAME, with :CONFIG behind it where the data set has several; or the path of such a folder or file
Out: a Listing by way of `tables`, or a DataError
Nothing here knows which column is what. `datasets` is an optional extra and is imported when it is needed and not before; what
it downloads, it keeps where it and huggingface_hub are told to (HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN).

--split takes one part; without it, train, or the only part there is. No code of a data set is ever run: `datasets` 4 and later
cannot, and earlier ones do not unless told to. Rows are called SPLIT:ROW. Images stay in the memory-mapped file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from modelhound.data.source import DataRequest, Listing, printable
from modelhound.data.sources.parquet_table import names_of_classes
from modelhound.data.sources.table_files import find_file, has_suffix, local_path
from modelhound.data.sources.tables import NUM_SAMPLED, Chunk, Table, list_table
from modelhound.errors import DataError

__all__ = ["HubDatasetSource"]

_PREFIX = "hf:"
_SAVED_FILES = ("dataset_dict.json", "dataset_info.json")  # of save_to_disk: several parts, or one
_CHUNK_ROWS = 8192
_NUM_SHOWN = 20


class HubDatasetSource:
    """Claims hf:…, folders made by save_to_disk, and names that end in .arrow."""

    form = "a Hugging Face data set, hf:ORG/NAME[:CONFIG] or one saved on disk"
    options = frozenset({"columns", "task", "split"})

    def claims(self, reference: str) -> bool:
        return reference.startswith(_PREFIX) or has_suffix(reference, (".arrow",)) or _is_saved(reference)

    def list_items(self, reference: str, request: DataRequest) -> Listing:
        datasets = _import_datasets(reference)
        if reference.startswith(_PREFIX):
            found, folder = _load_by_name(datasets, reference), Path()
        elif _is_saved(reference):
            found, folder = _load_folder(datasets, reference), local_path(reference)
        else:
            path = find_file(reference, "an Arrow file")
            found, folder = _load_file(datasets, reference, path), path.parent
        part, name = _choose_split(datasets, reference, found, request)
        return list_table(_open_table(reference, part, name, folder), request)


def _is_saved(reference: str) -> bool:
    try:
        return any((local_path(reference) / name).is_file() for name in _SAVED_FILES)
    except (OSError, ValueError):
        return False


def _import_datasets(reference: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"cannot open data {reference!r}: expected the package datasets to be installed, but {error}; "
            "run pip install 'modelhound[datasets]'"
        ) from error
    datasets.disable_progress_bars()  # only the command itself writes to the terminal
    datasets.logging.set_verbosity_error()
    module: ModuleType = datasets
    return module


def _load_by_name(datasets: ModuleType, reference: str) -> Any:
    name, _, config = reference.removeprefix(_PREFIX).partition(":")
    if not name or name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise DataError(
            f"cannot open data {reference!r}: expected hf:NAME or hf:ORG/NAME, perhaps with :CONFIG; for a path leave hf: out"
        )
    if Path(name).exists():
        raise DataError(
            f"cannot open data {reference!r}: expected a data set of the hub, but there is a path {name!r} here, which "
            "datasets would read instead; start from another folder, or leave hf: out to use what lies there"
        )
    try:
        return datasets.load_dataset(name, config or None)
    except Exception as error:  # the network, the hub's answers, somebody's files: errors of a dozen packages
        raise DataError(
            f"cannot open data {reference!r}: expected a data set of the hub that can be loaded, but {_why(error)}; check the "
            "name, the network and, where it is gated, HF_TOKEN"
        ) from error


def _load_folder(datasets: ModuleType, reference: str) -> Any:
    try:
        return datasets.load_from_disk(str(local_path(reference)))
    except Exception as error:  # missing and cut files come out as errors of pyarrow, json and datasets
        raise DataError(
            f"cannot read {reference!r}: expected a whole data set as save_to_disk writes it, but {_why(error)}; save or copy "
            "it again"
        ) from error


def _load_file(datasets: ModuleType, reference: str, path: Path) -> Any:
    try:
        return datasets.Dataset.from_file(str(path))
    except Exception as error:
        raise DataError(
            f"cannot read {reference!r}: expected a whole Arrow file in the streaming format, but {_why(error)}; save it by "
            "datasets, or as Parquet"
        ) from error


def _why(error: Exception) -> str:
    """In one line; without the numbers of the system's errors, whose words stand beside them."""
    said = re.sub(r"\[errno \d+\] ", "", str(error), flags=re.IGNORECASE)
    return " ".join(f"{type(error).__name__}: {said}".split())[:300].rstrip(".")


def _choose_split(datasets: ModuleType, reference: str, found: Any, request: DataRequest) -> tuple[Any, str]:
    """One part of a data set, and its name."""
    if isinstance(found, datasets.Dataset):
        name = str(found.split) if found.split is not None else ""
        if request.split is not None and request.split != name:
            told = f"it is {name!r} alone" if name else "it has no parts"
            raise DataError(
                f"cannot find {request.part_text(request.split)} of {reference!r}: expected one of its parts, but {told}; "
                f"leave {request.split_option or '--test'} out"
            )
        return found, name or printable(Path(reference).name)
    parts: Mapping[str, Any] = found
    wanted = request.split or ("train" if "train" in parts or len(parts) != 1 else next(iter(parts)))
    if wanted not in parts:
        there = ", ".join(list(parts)[:_NUM_SHOWN])
        raise DataError(
            f"cannot find {request.part_text(wanted)} of {reference!r}: expected one of its parts, {there}; choose by --split"
        )
    return parts[wanted], wanted


def _open_table(reference: str, part: Any, name: str, folder: Path) -> Table:
    # As Arrow, so that an image stays the bytes that are stored: the library itself would decode it.
    stored = part.with_format("arrow")
    columns: list[str] = part.column_names
    first = stored[:NUM_SAMPLED]

    def read(wanted: Sequence[str]) -> Iterator[Chunk]:
        chosen = part.select_columns(list(wanted)).with_format("arrow")
        start = 1
        try:
            for batch in chosen.iter(_CHUNK_ROWS):
                stop = start + batch.num_rows
                yield Chunk(name, range(start, stop), [_values(batch.column(each)) for each in wanted])
                start = stop
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
            raise DataError(
                f"cannot read {reference!r}: expected whole rows, but {_why(error)} after {name}:{start - 1}; save or download "
                "it again"
            ) from error

    return Table(
        reference=reference,
        folder=folder,
        sample={column: first.column(column).to_pylist() for column in columns},
        read=read,
        class_names=names_of_classes(part.features.arrow_schema.metadata),
    )


def _values(column: Any) -> list[Any]:
    """The values as Python's, but the bytes of images as views of where they lie: a data set may be larger than memory."""
    kind = column.type
    if "bytes" not in [kind.field(place).name for place in range(kind.num_fields)]:
        values: list[Any] = column.to_pylist()
        return values
    rows: list[Any] = []
    for chunk in column.chunks:
        paths = chunk.field("path").to_pylist() if kind.get_field_index("path") >= 0 else [None] * len(chunk)
        views = _views(chunk.field("bytes"))
        rows += [{"bytes": view, "path": path} for view, path in zip(views, paths, strict=True)]
    return rows


def _views(files: Any) -> list[Any]:
    """The elements of an Arrow array of bytes without a copy, which asking for them one by one would make; None for none."""
    _, offsets, content = files.buffers()
    if offsets is None or content is None:
        return [None] * len(files)
    width = np.dtype(np.int64 if str(files.type).startswith("large") else np.int32)
    edges = np.frombuffer(offsets, width)[files.offset : files.offset + len(files) + 1].tolist()
    there = files.is_valid().to_pylist()
    return [
        content.slice(start, stop - start) if valid else None
        for start, stop, valid in zip(edges, edges[1:], there, strict=False)  # one more edge than elements
    ]
