"""Records as lines of a file, each with a checksum.

In:  records
Out: lines; and the records of a file, without whatever was damaged or cut off
Nothing here knows what a record means, but what cannot be read back is not written: JSON has no NaN and no infinity.
"""

import contextlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from modelhound.errors import StoreError
from modelhound.records import AnyRecord, Record
from modelhound.store.files import explain_write_errors

__all__ = [
    "NOT_WHAT_WE_WROTE",
    "cut_half_written_line",
    "encode_numbers",
    "make_line",
    "read_counted",
    "read_records",
]

# A damaged byte may also be no UTF-8, and a stranger's file nested deeper than the parser goes.
NOT_WHAT_WE_WROTE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    crc: str
    record: msgspec.Raw


def make_line(record: Record) -> bytes:
    """What `read_records` makes this very record of."""
    body = encode_numbers(record)
    return msgspec.json.encode(_Line(crc=_checksum(body), record=msgspec.Raw(body))) + b"\n"


def encode_numbers(value: msgspec.Struct) -> bytes:
    """As JSON; NaN and infinity would become null, where a number is expected later, so they are refused."""
    body = msgspec.json.encode(value)
    found = _find_no_number(value, "") if b"null" in body else None
    if found is not None:
        name = type(value).__name__
        raise StoreError(
            f"cannot keep {name}{_of_what(value)}: expected finite numbers, but {found}; this is a mistake in modelhound, "
            "please report it"
        )
    return body


def _find_no_number(value: object, place: str) -> str | None:
    """Where the first number stands that is none, such as scores.ridge."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{place} is {value}"
    parts: Iterator[tuple[object, object]] = iter(())
    if isinstance(value, msgspec.Struct):
        parts = ((name, getattr(value, name)) for name in value.__struct_fields__)
    elif isinstance(value, dict):
        parts = iter(value.items())
    elif isinstance(value, tuple | list):
        parts = iter(enumerate(value))
    found = (_find_no_number(each, f"{place}.{name}" if place else str(name)) for name, each in parts)
    return next((each for each in found if each is not None), None)


def _of_what(value: msgspec.Struct) -> str:
    return f" of {value.model}" if isinstance(getattr(value, "model", None), str) else ""  # type: ignore[attr-defined]


def read_records(path: Path) -> Iterator[AnyRecord]:
    yield from _records_in(_read(path))


def read_counted(path: Path) -> tuple[tuple[AnyRecord, ...], int]:
    """The records, and how many whole lines are none: both as of one moment, since the file may grow."""
    content = _read(path)
    records = tuple(_records_in(content))
    return records, max(0, content.count(b"\n") - len(records))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(
            f"cannot read {str(path)!r}: {error.strerror or error}; delete the folder or choose another --run"
        ) from error


def _records_in(content: bytes) -> Iterator[AnyRecord]:
    for text in content.split(b"\n"):
        with contextlib.suppress(*NOT_WHAT_WE_WROTE):
            line = msgspec.json.decode(text, type=_Line)
            if line.crc == _checksum(bytes(line.record)):
                yield msgspec.json.decode(line.record, type=AnyRecord)


def cut_half_written_line(path: Path) -> None:
    """A kill in mid-write leaves a line without its end; the next record must not be glued to it."""
    if not path.exists():
        return
    with explain_write_errors(path), path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def _checksum(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"
