"""Open a table's file, or say why it cannot be opened or is not text.

In:  a reference that is the path of a file
Out: its path once it is known to be a file with something in it; its text, from UTF-8 or from UTF-16 or 32 with a mark
Nothing here knows what a table is.
"""

import codecs
import difflib
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from modelhound.data.source import printable
from modelhound.errors import DataError, system_reason

__all__ = ["find_file", "has_suffix", "local_path", "open_text", "readable"]

_MARKS = (  # UTF-32 first: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
_NUM_SHOWN = 3


def has_suffix(reference: str, suffixes: tuple[str, ...]) -> bool:
    """Whether the name ends so, in either case."""
    return reference.lower().endswith(suffixes)


def local_path(reference: str) -> Path:
    """The path, with ~ for a home."""
    return Path(os.path.expanduser(reference))  # noqa: PTH111 - Path.expanduser raises where no such user exists


def find_file(reference: str, form: str) -> Path:
    """The path of a regular file that is not empty and may be read; `form` is what it should be, for messages."""
    path = local_path(reference)
    with readable(reference, form):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a path with a zero byte
            raise DataError(
                f"cannot open data {reference!r}: expected {form}, there is no such path; {_suggest(path)}"
            ) from error
        if stat.S_ISDIR(status.st_mode):
            raise DataError(
                f"cannot open data {reference!r}: expected {form}, but it is a folder; give one of the files in it"
            )
        if not stat.S_ISREG(status.st_mode):  # reading from a named pipe would wait for ever, and never twice
            raise DataError(
                f"cannot open data {reference!r}: expected {form}, but it is a pipe or device; save its content to a file first"
            )
        if status.st_size == 0:
            raise DataError(f"cannot use {reference!r}: expected {form}, but it is empty; check how it was made")
        with path.open("rb"):
            pass  # permission is checked here, so that nobody else has to
    return path


def _suggest(path: Path) -> str:
    try:
        beside = {each.name.lower(): str(each) for each in path.parent.iterdir() if not each.name.startswith(".")}
    except (OSError, ValueError):
        beside = {}
    close = difflib.get_close_matches(path.name.lower(), beside, n=_NUM_SHOWN)
    return (
        f"did you mean {' or '.join(repr(printable(beside[name])) for name in close)}?" if close else "check the path"
    )


@contextmanager
def readable(reference: str, form: str) -> Iterator[None]:
    """Turn whatever the file system refuses into a DataError."""
    try:
        yield
    except PermissionError as error:
        raise DataError(
            f"cannot read {reference!r}: expected permission to, but there is none; change its permissions or start as a "
            "user who may read it"
        ) from error
    except OSError as error:
        why = system_reason(error)
        raise DataError(f"cannot read {reference!r}: expected {form}, but {why}; check the path") from error


@contextmanager
def open_text(reference: str, path: Path, newline: str) -> Iterator[TextIO]:
    """The file as text, without its byte order mark; what is no text is a DataError as soon as it is read."""
    with path.open("rb") as file:
        head = file.read(4)
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")
    try:
        with readable(reference, "a text file"), path.open(encoding=encoding, newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataError(_not_text(reference, path, encoding)) from error


def _not_text(reference: str, path: Path, encoding: str) -> str:
    if encoding not in ("utf-8", "utf-8-sig"):
        return (
            f"cannot read {reference!r}: expected {encoding.upper()}, by the mark at its start, but some of it is not; "
            "save it as UTF-8"
        )
    line, column, byte = _first_bad_byte(path)
    target = path.with_name(f"{path.stem}-utf8{path.suffix}")
    command = f"iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(str(path))} > {shlex.quote(str(target))}"
    return (
        f"cannot read {reference!r}: expected UTF-8, but byte {column} of line {line} is 0x{byte:02X}; if the file comes from "
        f"Windows, convert it by: {command} (for other origins put its encoding for WINDOWS-1252)"
    )


def _first_bad_byte(path: Path) -> tuple[int, int, int]:
    """Line and place in the line, both from 1, and the byte that is not UTF-8. No byte of a longer character is a newline."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return number, error.start + 1, line[error.start]
    raise DataError(f"cannot read {str(path)!r}: expected it to stay as it is, but it changed; start again")
