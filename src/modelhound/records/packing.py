"""Records and settings as plain values, and many numbers as few bytes."""

import contextlib
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.errors import StoreError
from modelhound.records.run import Record

if TYPE_CHECKING:
    import numpy

__all__ = ["pack_items", "to_document", "to_plain", "unpack_items"]

_MOST_BYTES = 400_000_000


def pack_items(values: "numpy.ndarray") -> bytes:
    """One number per item as bytes: right-or-wrong scores of many items shrink to almost nothing."""
    return zlib.compress(values.astype("<f4").tobytes())


def unpack_items(packed: bytes) -> "numpy.ndarray":
    """The float32 array that `pack_items` was given."""
    import numpy

    unpacker, content = zlib.decompressobj(), b""
    with contextlib.suppress(zlib.error):
        content = unpacker.decompress(packed, _MOST_BYTES)
    # not packed, cut off, or made by a stranger, who can make a gigabyte of a megabyte
    if not unpacker.eof or len(content) % 4:
        raise StoreError(
            f"cannot read a record: expected the scores of at most {_MOST_BYTES // 4} items, do not trust it"
        )
    return numpy.frombuffer(content, dtype="<f4")


def to_plain(value: object) -> Any:
    """The dicts, lists, strings and numbers that JSON holds, of any record or settings."""
    return msgspec.to_builtins(value, enc_hook=_path_as_text)


_FOR_THE_RECORD_FILE = ("stamp",)


def to_document(value: object) -> Any:
    """The same for whoever reads `--json`: without what records have only to be told apart in their file."""
    if isinstance(value, msgspec.Struct):
        left_out = _FOR_THE_RECORD_FILE if isinstance(value, Record) else ()
        return {name: to_document(getattr(value, name)) for name in value.__struct_fields__ if name not in left_out}
    if isinstance(value, dict):
        return {name: to_document(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_document(each) for each in value]
    return to_plain(value)


def _path_as_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
