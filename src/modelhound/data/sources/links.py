"""Links that lead out of a data folder.

In:  the folder that a person named, and a path below it
Out: whether what lies there is somewhere else in truth
Nothing here opens a file. A data set from a stranger may hold links to whatever the user may read, and what is read ends up in
reports; so a link out of the folder is not followed unless the user says so.
"""

import os
from functools import lru_cache

__all__ = ["LEADS_OUT", "leads_out"]

LEADS_OUT = "it is a link that leads out of the data folder, add --follow-links if you trust it"


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
    top = _real(root)
    return real != top and not real.startswith(top.rstrip(os.sep) + os.sep)


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    """Where a folder is in truth; asked once for all the items in it."""
    return os.path.realpath(folder)
