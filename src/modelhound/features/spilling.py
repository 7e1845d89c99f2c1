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

__all__ = ["InMemory", "Kept", "OnDisk"]


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


class OnDisk:
    """Outputs in one file, as long as the disk has room; what does not fit stays in memory."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._places: list[_Place | Tensor] = []
        self._end = 0
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # no folder can be made there: memory may do
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - lives as long as this
            weakref.finalize(self, self._file.close)

    def put(self, tensor: Tensor) -> None:
        if self._file is None:
            self._places.append(tensor)
            return
        is_channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        plain = tensor.permute(0, 2, 3, 1) if is_channels_last else tensor
        data = plain.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        try:
            self._file.seek(self._end)
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError:  # the disk is full: memory may still do
            self._places.append(tensor)
            return
        self._places.append(_Place(self._end, len(data), tensor.dtype, tuple(plain.shape), is_channels_last))
        self._end += len(data)

    def get(self, number: int) -> Tensor:
        place = self._places[number]
        if isinstance(place, Tensor):
            return place
        assert self._file is not None
        buffer = torch.empty(place.num_bytes, dtype=torch.uint8)
        view = buffer.numpy().data
        self._file.seek(place.start)
        read = 0
        while read < place.num_bytes:
            count = self._file.readinto(view[read:])  # type: ignore[attr-defined]
            if not count:
                raise OSError("the file of intermediate outputs was cut off")
            read += count
        made = buffer.view(place.dtype).reshape(*place.shape).to(self._device)
        return made.permute(0, 3, 1, 2) if place.is_channels_last else made
