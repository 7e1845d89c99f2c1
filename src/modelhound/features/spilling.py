"""Intermediate outputs that wait on disk.

In:  tensors, one per batch
Out: the same tensors, later
Nothing here knows what they are. Files have no name, so that nothing is left of them however the process ends.
"""

import contextlib
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Protocol

import torch
from torch import Tensor

from modelhound.store import cache_folder

__all__ = ["InMemory", "Kept", "OnDisk", "Scratch"]


class Kept(Protocol):
    """The outputs of one step, batch by batch."""

    def put(self, tensor: Tensor) -> None: ...

    def get(self, number: int) -> Tensor: ...


class InMemory:
    """Outputs that stay where they are."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def put(self, tensor: Tensor) -> None:
        self._tensors.append(tensor)

    def get(self, number: int) -> Tensor:
        return self._tensors[number]


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    num_bytes: int
    dtype: torch.dtype
    shape: Sequence[int]
    is_channels_last: bool


class Scratch:
    """A file without a name, as long as the disk has room.

    A process may have about a thousand files open: whoever keeps something of each of many models shares one of these.
    """

    def __init__(self) -> None:
        self._end = 0
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # no folder can be made there: memory may do
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - lives as long as this
            weakref.finalize(self, self._file.close)

    def write(self, tensor: Tensor) -> int | None:
        """Where its bytes begin; None where there is no room for them."""
        if self._file is None:
            return None
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        try:
            self._file.seek(self._end)
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError:  # the disk is full: memory may still do
            return None
        start = self._end
        self._end += len(data)
        return start

    def read(self, start: int, num_bytes: int) -> Tensor:
        """These bytes."""
        assert self._file is not None
        buffer = torch.empty(num_bytes, dtype=torch.uint8)
        view = buffer.numpy().data
        self._file.seek(start)
        read = 0
        while read < num_bytes:
            count = self._file.readinto(view[read:])  # type: ignore[attr-defined]
            if not count:
                raise OSError("the file of intermediate outputs was cut off")
            read += count
        return buffer


class OnDisk:
    """Outputs in a file, its own or one that others write to as well; what does not fit there stays in memory."""

    def __init__(self, device: str, scratch: Scratch | None = None) -> None:
        self._device, self._scratch = device, scratch or Scratch()
        self._places: list[_Place | Tensor] = []

    def put(self, tensor: Tensor) -> None:
        is_channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        plain = tensor.permute(0, 2, 3, 1) if is_channels_last else tensor
        start = self._scratch.write(plain.detach().cpu())
        if start is None:
            self._places.append(tensor)
        else:
            self._places.append(_Place(start, plain.nbytes, plain.dtype, tuple(plain.shape), is_channels_last))

    def get(self, number: int) -> Tensor:
        place = self._places[number]
        if isinstance(place, Tensor):
            return place
        buffer = self._scratch.read(place.start, place.num_bytes)
        made = buffer.view(place.dtype).reshape(*place.shape).to(self._device)
        return made.permute(0, 3, 1, 2) if place.is_channels_last else made
