"""What a tensor holds, in 64 characters.

In:  a tensor, or the safetensors files of a model
Out: a digest over shape, type and content: equal digests, equal tensors
Nothing here knows what a tensor is for.

Near-copies of a network hold mostly the same bytes in the same places. To compare these with the first of them takes an eighth
of the time of hashing them, so of the others only what differs is hashed.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from modelhound.models.tensor_files import TensorPlace, read_header

__all__ = ["TensorHasher", "hash_tensor"]

_COMPARED_BYTES = 1 << 20  # at once: each comparison is a turn at Python's lock


def hash_tensor(tensor: Tensor) -> str:
    """Over shape, type and content, whatever the order in memory."""
    plain = tensor.detach().cpu().contiguous()
    digest = _begin(tuple(plain.shape), plain.dtype)
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _First:
    """The first file that was seen with its header."""

    content: NDArray[np.uint8]
    digests: "Future[Mapping[str, str]]" = field(default_factory=Future)


class TensorHasher:
    """Hashes the files of many models; several threads may ask at once, and get in each other's way half as much as with
    tensors."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._firsts: dict[bytes, _First] = {}

    def hash_files(self, paths: Sequence[Path]) -> Mapping[str, str]:
        """Digests by name. None at all where a file cannot be understood: then whoever reads it meets what is wrong."""
        found: dict[str, str] = {}
        try:
            for path in paths:
                found |= self._hash_file(path)
        except (OSError, RuntimeError, ValueError):
            return {}
        return found

    def _hash_file(self, path: Path) -> Mapping[str, str]:
        content = _map(path)
        places = read_header(content.data)
        data_start = min((place.start for place in places.values()), default=0)
        own = _First(content)
        with self._alone:
            first = self._firsts.setdefault(content[:data_start].tobytes(), own)
        if first is not own:
            return self._hash_beside(first, content, places)
        try:
            digests = {name: _hash_bytes(content, place) for name, place in places.items()}
            own.digests.set_result(digests)
        except BaseException as error:
            own.digests.set_exception(error)  # or others would wait for ever
            raise
        return digests

    def _hash_beside(
        self, first: _First, content: NDArray[np.uint8], places: Mapping[str, TensorPlace]
    ) -> Mapping[str, str]:
        """Of a file whose tensors lie where those of the first lie."""
        same: list[str] = []
        other: dict[str, str] = {}
        for names in _side_by_side(places):
            part = slice(places[names[0]].start // 8 * 8, places[names[-1]].stop)  # where words begin
            if _are_equal(content[part], first.content[part]):
                same += names
            else:
                other |= {name: _hash_bytes(content, places[name]) for name in names}
        known = first.digests.result()  # asked for last: it may still be at it
        return other | {name: known[name] for name in same}


def _map(path: Path) -> NDArray[np.uint8]:
    """A file's bytes where they lie.

    The first file of every kind stays mapped. Python's own way would keep each of them open, and a process may have about a
    thousand files open.
    """
    num_bytes = path.stat().st_size
    if not num_bytes:
        raise ValueError("an empty file is none of tensors")
    content: NDArray[np.uint8] = torch.from_file(str(path), shared=False, size=num_bytes, dtype=torch.uint8).numpy()
    return content


def _side_by_side(places: Mapping[str, TensorPlace]) -> Iterator[list[str]]:
    """Tensors that follow one another in a file, some at a time."""
    together: list[str] = []
    for name in sorted(places, key=lambda each: (places[each].start, places[each].stop)):
        if together and places[name].stop - places[together[0]].start > _COMPARED_BYTES:
            yield together
            together = []
        together.append(name)
    if together:
        yield together


def _are_equal(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    whole = len(one) // 8 * 8  # in words of eight bytes: twice as fast as byte by byte
    return np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64)) and np.array_equal(
        one[whole:], other[whole:]
    )


def _hash_bytes(content: NDArray[np.uint8], place: TensorPlace) -> str:
    digest = _begin(place.shape, place.dtype)
    digest.update(content[place.start : place.stop].data)
    return digest.hexdigest()


def _begin(shape: tuple[int, ...], dtype: torch.dtype) -> "hashlib._Hash":
    return hashlib.sha256(f"{shape} {dtype}".encode())
