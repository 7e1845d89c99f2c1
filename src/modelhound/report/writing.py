"""Write a file of a report, whole or not at all.

In:  a path and its content
Out: the file, with the folders above it
What is written here can be made again from the run folder at any time; results themselves are the business of `store`.
"""

import contextlib
import os
from pathlib import Path

from modelhound.errors import RequestError

__all__ = ["write_file"]


def write_file(path: Path, content: bytes) -> Path:
    """Replace the file so that a reader sees the old or the new content and never a part."""
    unfinished = path.with_name(f".{path.name[:100]}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
    except OSError as error:
        raise RequestError(
            f"cannot write {str(path)!r}: expected a file that can be made and written, but {error.strerror or error}; "
            "choose another place"
        ) from None
    return path
