"""Name and write the files of a report, each whole or not at all.

In:  a path and its content
Out: the file, with the folders above it
What is written here can be made again from the run folder at any time; results themselves are the business of `store`.
"""

import re
import zlib
from pathlib import Path

from modelhound.errors import RequestError
from modelhound.store import put_whole

__all__ = ["file_name", "write_file"]


_MOST_OF_NAME = 100  # characters; what stands before and behind it must fit into the 255 of a name


def file_name(text: str) -> str:
    """A part of a file's name that every system takes; of a long text its beginning and a checksum of all of it."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "data"
    return name if len(name) <= _MOST_OF_NAME else f"{name[:_MOST_OF_NAME]}-{zlib.crc32(text.encode()):08x}"


def write_file(path: Path, content: bytes) -> Path:
    """Replace the file so that a reader sees the old or the new content and never a part."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_whole(path, content, to_disk=False)
    except OSError as error:
        raise RequestError(
            f"cannot write {str(path)!r}: expected a file that can be made and written, but {error.strerror or error}; "
            "choose another place"
        ) from None
    return path
