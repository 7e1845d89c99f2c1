"""Keep processes that share a store out of each other's way.

In:  a folder with keys, a lock and marks of living processes
Out: locks that the system takes back from the dead; which keys are in use; what may go, and its removal
Nothing here knows what a key holds.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import NamedTuple

__all__ = ["KeyFolder", "hold", "list_keys", "list_live", "make_mark", "remove_key", "remove_mark"]

_GONE = "gone-"
_NAME_LENGTH = 32
# Locks are held for moments. A process that was stopped while it held one must not hold up a search for ever.
_NUM_TRIES, _TRY_SECONDS = 1_000, 0.01


class KeyFolder(NamedTuple):
    """A key as the file system shows it."""

    name: str
    path: Path
    size_bytes: int
    used_at: int


@contextlib.contextmanager
def hold(path: Path, *, alone: bool = False) -> Iterator[None]:
    """Hold the lock of this file, alone or with others who do not need to be alone."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        for _ in range(_NUM_TRIES):
            if _try_lock(handle, alone=alone):
                break
            sleep(_TRY_SECONDS)
        else:
            raise TimeoutError(errno.ETIMEDOUT, f"another process holds {path.name!r} and does not let go of it")
        try:
            yield
        finally:
            fcntl.flock(
                handle, fcntl.LOCK_UN
            )  # a child forked meanwhile has the handle too: to close ours is not enough
    finally:
        os.close(handle)


def _try_lock(handle: int, *, alone: bool) -> bool:
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_mark(live: Path) -> tuple[int, Path]:
    """A file in which this process lists the keys it uses, locked until it dies. Only a holder of the store's lock may."""
    path = live / f"{os.getpid()}-{os.urandom(4).hex()}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle, path


def remove_mark(handle: int, path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends before the process that the mark stands for
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)


def list_live(live: Path, *, but: Path | None = None) -> set[str]:
    """Names of keys that living processes use, leaving out one mark. Only who holds the store's lock alone may."""
    names: set[str] = set()
    for path in live.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # a process that ends takes its mark away at any time
            handle = os.open(path, os.O_RDWR)
            try:
                if _try_lock(handle, alone=True):
                    path.unlink()  # its process is dead
                elif path != but:
                    names.update(path.read_text().split())
            finally:
                os.close(handle)
    return names


def list_keys(folder: Path) -> list[KeyFolder]:
    """Every key that is there, and what a kill left of one that was being removed."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            is_key = len(entry.name) == _NAME_LENGTH or entry.name.startswith(_GONE)
            with contextlib.suppress(FileNotFoundError):  # removed by another process while we look
                if is_key and entry.is_dir(follow_symlinks=False):
                    with os.scandir(entry) as files:
                        size_bytes = sum(file.stat().st_size for file in files)
                    used_at = 0 if entry.name.startswith(_GONE) else entry.stat().st_mtime_ns
                    path = Path(entry.path)
                    found.append(KeyFolder(name=entry.name, path=path, size_bytes=size_bytes, used_at=used_at))
    return found


def remove_key(key: KeyFolder) -> None:
    """Take the folder away in one step, then remove its files. Only who holds the store's lock alone may."""
    gone = key.path
    if not key.name.startswith(_GONE):
        gone = key.path.rename(key.path.with_name(_GONE + os.urandom(8).hex()))
    shutil.rmtree(gone)
