"""Files and folders that are there as a whole or not at all.

In:  a path and its content
Out: the old or the new content, whenever somebody looks; a StoreError that says what to do where the system refuses
Nothing here knows what is written.
"""

import contextlib
import errno
import glob
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from modelhound.errors import StoreError

__all__ = [
    "explain_write_errors",
    "flush_to_disk",
    "is_disk_full",
    "put_whole",
    "told_by_the_system",
    "write_file",
    "write_folder",
    "write_whole",
]

_MOST_OF_NAME_BYTES = 200  # what is added must fit into the 255 bytes of a name


def write_file(path: Path, content: bytes) -> None:
    """A file of results beside the records: there as a whole or not at all."""
    with explain_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """A new folder of results, such as a checkpoint: there with all that `fill` puts into it, or not at all."""
    unfinished = _unfinished(path)
    with explain_write_errors(path):
        for left in path.parent.glob(f"{glob.escape(unfinished.stem)}.*-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            fill(unfinished)
            for file in unfinished.rglob("*"):
                if file.is_file():
                    flush_to_disk(file)
            unfinished.rename(path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content and never a part."""
    with explain_write_errors(path):
        put_whole(path, content)


def put_whole(path: Path, content: bytes, *, to_disk: bool = True) -> None:
    """The same for whoever explains the system's errors; what can be made again need not wait for the disk."""
    unfinished = _unfinished(path)
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            if to_disk:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _unfinished(path: Path) -> Path:
    """Beside it, until all is there: a name that no other process or thread has."""
    kept = os.fsdecode(os.fsencode(path.name)[:_MOST_OF_NAME_BYTES])
    return path.with_name(f".{kept}.{os.getpid()}-{threading.get_ident()}")


def flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def explain_write_errors(
    path: Path, *, doing: str = "write", refused: str = "make it writable", kept: str = "finished models are kept"
) -> Iterator[None]:
    """What the system refuses, as a StoreError; `refused` is the advice where the disk is not full."""
    try:
        yield
    except OSError as error:
        advice = "free some space" if is_disk_full(error) else refused
        raise StoreError(
            f"cannot {doing} {str(path)!r}: {error.strerror or error}; {advice}, then start the same command again: {kept}"
        ) from error


@contextlib.contextmanager
def told_by_the_system() -> Iterator[None]:
    """A disk that is full, say, as the system's own error: safetensors and torch wrap it into errors of theirs."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\bos error (\d+)", str(error))
        if number is not None:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def is_disk_full(error: OSError) -> bool:
    """Or as full as this user may fill it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
