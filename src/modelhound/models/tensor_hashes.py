"""What a tensor holds, in 64 characters.

In:  a tensor, or the safetensors files of a model
Out: a digest over shape, type and content: equal digests, equal tensors
Nothing here knows what a tensor is for.
"""

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from modelhound.models.tensor_files import read_header

__all__ = ["hash_files", "hash_tensor"]


def hash_tensor(tensor: Tensor) -> str:
    """Over shape, type and content, whatever the order in memory."""
    plain = tensor.detach().cpu().contiguous()
    digest = _begin(tuple(plain.shape), plain.dtype)
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_files(paths: Sequence[Path]) -> Mapping[str, str]:
    """The same for every tensor in these files, straight from their bytes: several threads at once get in each other's way
    half as much as with tensors. None at all where a file cannot be understood: then whoever reads it meets what is wrong."""
    found: dict[str, str] = {}
    try:
        for path in paths:
            found |= _hash_file(path)
    except (OSError, ValueError):
        return {}
    return found


def _hash_file(path: Path) -> dict[str, str]:
    digests = {}
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
    ):
        for name, place in read_header(view).items():
            digest = _begin(place.shape, place.dtype)
            with view[place.start : place.stop] as part:
                digest.update(part)
            digests[name] = digest.hexdigest()
    return digests


def _begin(shape: tuple[int, ...], dtype: torch.dtype) -> "hashlib._Hash":
    return hashlib.sha256(f"{shape} {dtype}".encode())
