"""Where the files of one tar archive lie, so that any of them can be read without unpacking.

In:  the path of an uncompressed tar file
Out: a ShardIndex: name, offset and size of every regular file in it, or a DataError that names the archive
Nothing here knows images or labels, and nothing is ever written: names that climb out of a folder stay mere names.
"""

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from modelhound.data.source import printable
from modelhound.errors import DataError

__all__ = ["Member", "ShardIndex", "index_shard", "sample_key", "shown"]

_BLOCK_BYTES = 512
_COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstandard", "unzstd"),
}


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file in an archive."""

    name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """What an archive holds."""

    members: tuple[Member, ...]
    num_special: int
    """Links, devices, pipes and sparse files: there is nothing to read in them, or not in one piece."""


def index_shard(path: Path) -> ShardIndex:
    """All regular files of the archive, in order. Only headers are read."""
    members: list[Member] = []
    num_special = 0
    try:
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            _check_plain(path, file.read(_BLOCK_BYTES))
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape") as archive:
                before = -1
                while (entry := archive.next()) is not None:
                    if entry.size < 0 or archive.offset <= before:  # some releases of Python would go round for ever
                        raise tarfile.ReadError("an entry leads back to one before it")
                    before = archive.offset
                    archive.members = []  # type: ignore[attr-defined]  # or it would keep every header: a shard can have 100 000
                    if entry.isreg() and not entry.issparse():
                        members.append(Member(entry.name, entry.offset_data, entry.size))
                    elif not entry.isdir():
                        num_special += 1
                end = archive.offset
            # tarfile takes a damaged header, and a file that just stops, for the end; a whole archive ends in zeros.
            file.seek(end)
            if file.read(_BLOCK_BYTES) != bytes(_BLOCK_BYTES):
                raise tarfile.ReadError("the end mark is missing")
    except tarfile.TarError as error:
        raise _damaged(path, members, num_bytes) from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(
            f"cannot read {printable(str(path))!r}: expected a tar file, but {reason.lower()}; check the path"
        ) from error
    return ShardIndex(members=tuple(members), num_special=num_special)


def sample_key(name: str) -> str:
    """What the files of one sample have in common: the path up to the first dot of the base name."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def shown(name: str) -> str:
    """A member's name fit for a terminal and a file: what cannot be printed is spelt out."""
    if name.isprintable():
        return name
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in printable(name)
    )


def _check_plain(path: Path, head: bytes) -> None:
    for magic, (kind, program) in _COMPRESSIONS.items():
        if head.startswith(magic):
            raise DataError(
                f"cannot use {printable(str(path))!r}: expected a tar file without compression, in which any item can be "
                f"reached at once, but this one is compressed by {kind}; unpack it first, by `{program}`"
            )
    if not head:
        raise DataError(f"cannot use {printable(str(path))!r}: expected a tar file, but it is empty; fetch it again")


def _damaged(path: Path, members: list[Member], num_bytes: int) -> DataError:
    begun = list(dict.fromkeys(sample_key(member.name) for member in members))
    # Whether the sample begun last has all its files cannot be known: those before it have.
    whole = f"the last whole sample in it is {shown(begun[-2])!r}" if len(begun) > 1 else "no sample in it is whole"
    return DataError(
        f"cannot use {printable(str(path))!r}: expected a whole tar file, but it is cut off or damaged somewhere in its "
        f"{num_bytes} bytes; {whole}; fetch or make it again"
    )
