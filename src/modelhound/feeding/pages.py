"""Which files lie behind a data set, and whether they lie in memory.

In:  a Dataset
Out: its files; the same files dropped from, or brought into, the system's page cache
Nothing here times anything. Data that live in memory or are fetched from elsewhere have no files, and no cold start either.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from modelhound.data import Dataset
from modelhound.data.sources.folder import FileReader
from modelhound.data.sources.prepared import PreparedReader

__all__ = ["count_bytes", "files_of", "forget_pages", "touch_pages"]

_PIECE_BYTES = 1 << 22


def files_of(dataset: Dataset) -> tuple[Path, ...]:
    """The files that items are read from, as far as they are known; none for data without files."""
    reader = dataset.reader
    if isinstance(reader, FileReader):
        return tuple(Path(reader.root, path) for path in reader.paths)
    if isinstance(reader, PreparedReader):
        return tuple(
            Path(stored.path(reader.folder, shard))
            for stored in reader.variants
            for shard in range(stored.num_shards(reader.num_stored))
        )
    path = Path(dataset.name)
    try:
        return (path,) if path.is_file() else ()
    except (OSError, ValueError):
        return ()


def count_bytes(files: Sequence[Path]) -> int:
    """Of all files together; one that is gone has none."""
    return sum(path.stat().st_size for path in files if path.is_file())


def forget_pages(files: Sequence[Path]) -> bool:
    """Drop what the page cache holds of the files; False where the system does not take such advice."""
    if not hasattr(os, "posix_fadvise") or not files:
        return False
    for path in files:
        try:
            with path.open("rb") as file:
                os.fsync(file.fileno())  # pages that are not on the disk yet would stay
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            return False
    return True


def touch_pages(files: Sequence[Path]) -> None:
    """Read the files once, so that they lie in the page cache as far as it can hold them."""
    for path in files:
        try:
            with path.open("rb", buffering=0) as file:
                while file.read(_PIECE_BYTES):
                    pass
        except OSError:
            continue  # whoever reads the item will say so
