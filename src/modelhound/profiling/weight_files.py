"""A model's tensors in a file, and reading them back: all or some, from the disk or from memory.

In:  tensors by name, a path
Out: a safetensors file; the tensors asked for, read to their last byte
Nothing here knows networks or reads a clock. What lies in the system's page cache is read from memory, however it is asked
for, so whoever times reading must say which of the two it was: `forget` drops a file from the page cache, looks whether it is
really gone and says so.
"""

import ctypes
import json
import mmap
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from modelhound.errors import StoreError, system_reason
from modelhound.store import told_by_the_system

__all__ = ["forget", "perturbed", "read_all", "read_some", "write_tensors"]

_ALIASES = "aliases"
_MOSTLY = 0.05  # of a file's pages may stay in memory: some systems read ahead or keep what is being looked at


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> int:
    """Write the file, whole or not at all, down to the disk; the number of bytes."""
    owners: dict[tuple[object, ...], str] = {}
    aliases: dict[str, str] = {}
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        owner = owners.setdefault(place, name) if tensor.numel() else name
        if owner == name:
            kept[name] = tensor.detach().contiguous().clone()
        else:
            aliases[name] = owner  # one tensor under two names, such as a tied embedding
    unfinished = path.with_name(f".{path.name}")
    try:
        with told_by_the_system():
            save_file(kept, unfinished, metadata={_ALIASES: json.dumps(aliases)})
        _flush(unfinished)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise StoreError(
            f"cannot write weights to {str(path)!r}: {system_reason(error)}; free some space, or set MODELHOUND_CACHE to "
            "another disk"
        ) from error
    return path.stat().st_size


def read_some(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """These tensors, in memory of their own: a mapped file would be read later, in somebody else's time."""
    found: dict[str, Tensor] = {}
    with safe_open(path, framework="pt") as file:
        aliases: dict[str, str] = json.loads(file.metadata()[_ALIASES])
        for name in names:
            owner = aliases.get(name, name)
            if owner not in found:
                found[owner] = file.get_tensor(owner).clone()
            found[name] = found[owner]
    return {name: found[name] for name in names}


def forget(paths: Iterable[Path]) -> bool:
    """Drop the files from the page cache; whether they are gone, so that the next to read them reads the disk."""
    if not hasattr(os, "posix_fadvise") or sys.platform != "linux":
        return False
    gone = True
    for path in paths:
        try:
            _flush(path)  # what is not yet on the disk cannot be dropped
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            gone = gone and _share_in_memory(path) <= _MOSTLY
        except OSError:
            return False
    return gone


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _share_in_memory(path: Path) -> float:
    """Which part of a file lies in the page cache, as the system tells."""
    size = path.stat().st_size
    if not size:
        return 0.0
    num_pages = -(-size // mmap.PAGESIZE)
    held = (ctypes.c_ubyte * num_pages)()
    library = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            failed = library.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), held)
        finally:
            del first  # or the map could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "cannot tell what is in the page cache")
    return sum(page & 1 for page in held) / num_pages


def read_all(path: Path) -> dict[str, Tensor]:
    """Every tensor of the file by every name it has."""
    with safe_open(path, framework="pt") as file:
        names = [*file.keys(), *json.loads(file.metadata()[_ALIASES])]
    return read_some(path, names)


def perturbed(tensors: Mapping[str, Tensor], names: Collection[str], *, seed: int) -> dict[str, Tensor]:
    """The same tensors, those named with other values: what another training of the last layers would have made of them."""
    generator = torch.Generator().manual_seed(seed)
    changed: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if name in names and id(tensor) not in changed and tensor.is_floating_point():
            changed[id(tensor)] = tensor.detach() * (1 + 0.01 * torch.rand((), generator=generator).item())
    return {name: changed.get(id(tensor), tensor) for name, tensor in tensors.items()}
