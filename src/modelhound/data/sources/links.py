"""Links that lead out of a data folder.

In:  the folder that a person named, and a path below it
Out: whether what lies there is somewhere else in truth; a handle of a file that is not
Nothing here reads a file. A data set from a stranger may hold links to whatever the user may read, and what is read ends up in
reports; so a link out of the folder is not followed unless the user says so.
"""

import errno
import os
from functools import lru_cache

from modelhound.data.source import UnreadableItemError

__all__ = ["leads_out", "open_inside"]

_LEADS_OUT = "it is a link that leads out of the data folder, add --follow-links if you trust it"

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # not to wait for a named pipe that nobody writes to
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_inside(root: str, path: str, *, follow_links: bool) -> int:
    """A handle for reading the file `path`, below `root` unless it is absolute or links may be followed."""
    whole = os.path.join(root, path)  # noqa: PTH118 - a Path for every item would cost as much as the call
    if follow_links or path[:1] == "/":
        return os.open(whole, _READ)
    if not _NO_LINK or not _is_inside(root, whole[: whole.rfind("/")]):
        if leads_out(root, path):
            raise UnreadableItemError(_LEADS_OUT)
        return os.open(whole, _READ)
    # The usual file is asked for once. Threads that read many files spend their time waiting for Python's lock, which every
    # question to the system lets go of.
    try:
        return os.open(whole, _READ | _NO_LINK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    if leads_out(root, path):
        raise UnreadableItemError(_LEADS_OUT)
    return os.open(whole, _READ)


def leads_out(root: str, path: str) -> bool:
    """Whether the relative `path` below `root` leads elsewhere; an absolute one is no link but somebody's word."""
    if os.path.isabs(path):  # noqa: PTH117 - called for every item, and a Path costs more than the rest
        return False
    folder, name = os.path.split(os.path.join(root, path))  # noqa: PTH118
    real = _real(folder)
    try:
        if os.path.islink(os.path.join(folder, name)):  # noqa: PTH118, PTH114
            real = os.path.realpath(os.path.join(folder, name))  # noqa: PTH118
    except ValueError:  # a zero byte in a name; whoever opens it will say so
        return False
    return not _lies_below(_real(root), real)


@lru_cache(maxsize=4096)
def _is_inside(root: str, folder: str) -> bool:
    return _lies_below(_real(root), _real(folder))


def _lies_below(top: str, real: str) -> bool:
    return real == top or real.startswith(top.rstrip(os.sep) + os.sep)


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    """Where a folder is in truth; asked once for all the items in it."""
    return os.path.realpath(folder)
