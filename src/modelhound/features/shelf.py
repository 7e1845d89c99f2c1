"""Weights on the device: each distinct tensor once, as long as there is room.

In:  a Specimen and the names of some of its tensors, which lie on the host
Out: the same tensors as the device and its module want them
Nothing here knows when they are needed; whoever does may fetch them ahead, from another thread.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from modelhound.features.staging import staging_for
from modelhound.features.workshop import Specimen

__all__ = ["Shelf", "copied_bytes", "filled", "install", "remove"]

_Key = tuple[str, str, str]


class Shelf:
    """Tensors used longest ago make room for new ones; those that somebody still holds live on with them."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._alone = threading.Lock()
        self._tensors: OrderedDict[_Key, Tensor] = OrderedDict()
        self._held_bytes = 0
        self._limit_bytes: float = float("inf")

    def limit(self, limit_bytes: float) -> None:
        """Hold at most so many bytes from now on."""
        with self._alone:
            self._limit_bytes = limit_bytes
            self._make_room()

    def let_go(self) -> None:
        """Of all it holds."""
        with self._alone:
            self._tensors.clear()
            self._held_bytes = 0

    def fetch(self, specimen: Specimen, names: Sequence[str]) -> dict[str, Tensor]:
        """Tensors by name, ready to be used on any stream."""
        keys = {name: (specimen.blueprint.anatomy.architecture, name, specimen.digests[name]) for name in names}
        found = {name: self._find(key) for name, key in keys.items()}
        missing = [name for name, tensor in found.items() if tensor is None]
        if missing and specimen.files is not None:
            specimen.files.check_whole()
        with self._alone:
            self._make_room(self._coming_bytes(specimen, missing))
        for name, tensor in zip(missing, self._make(specimen, missing), strict=True):
            is_copy = tensor.data_ptr() != specimen.tensors[name].data_ptr()
            if is_copy:  # one that is used where it lies takes no room here
                self._put(keys[name], tensor)
            found[name] = tensor
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _coming_bytes(self, specimen: Specimen, names: Sequence[str]) -> int:
        if self._device == "cpu":
            return copied_bytes(specimen, names)
        return sum(specimen.blueprint.templates[name].nbytes for name in names)

    def _make(self, specimen: Specimen, names: Sequence[str]) -> list[Tensor]:
        """As the module wants them; on a device beside its other work."""
        own = [specimen.tensors[name] for name in names]
        templates = [specimen.blueprint.templates[name] for name in names]
        if self._device == "cpu":
            return [_as_wanted(tensor, template) for tensor, template in zip(own, templates, strict=True)]
        return staging_for(self._device).bring(own, templates) if own else []

    def _find(self, key: _Key) -> Tensor | None:
        with self._alone:
            if key in self._tensors:
                self._tensors.move_to_end(key)
            return self._tensors.get(key)

    def _put(self, key: _Key, tensor: Tensor) -> None:
        with self._alone:
            if key not in self._tensors:
                self._tensors[key] = tensor
                self._held_bytes += tensor.nbytes
                self._make_room()

    def _make_room(self, coming_bytes: int = 0) -> None:
        while self._held_bytes + coming_bytes > self._limit_bytes and self._tensors:
            _, dropped = self._tensors.popitem(last=False)
            self._held_bytes -= dropped.nbytes


def copied_bytes(specimen: Specimen, names: Sequence[str]) -> int:
    """What fetching these takes on the host; those that can be used where they lie, such as in a mapped file, take nothing."""
    blueprint = specimen.blueprint
    return sum(
        blueprint.templates[name].nbytes
        for name in names
        if not _is_ready(specimen.tensors[name], blueprint.templates[name])
    )


def install(specimen: Specimen, tensors: Mapping[str, Tensor]) -> None:
    """Put tensors from the shelf into the module of the model's architecture."""
    slots = specimen.blueprint.slots
    for name, tensor in tensors.items():
        if tensor.is_cuda:  # made on another stream: its memory must not be given away while this one reads it
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        slots[name].data = tensor


def remove(specimen: Specimen, tensors: Mapping[str, Tensor]) -> None:
    """Take them out again, so that their memory is free as soon as the shelf lets go of them."""
    slots = specimen.blueprint.slots
    for name in tensors:
        slots[name].data = slots[name].new_empty(0)


@contextlib.contextmanager
def filled(specimen: Specimen, shelf: Shelf) -> Iterator[None]:
    """With all tensors of the model in its module, which is empty before and afterwards."""
    tensors = shelf.fetch(specimen, specimen.blueprint.used)
    install(specimen, tensors)
    try:
        yield
    finally:
        remove(specimen, tensors)


def _as_wanted(tensor: Tensor, template: Tensor) -> Tensor:
    """The tensor in the slot's type and order in memory: other orders would call other kernels."""
    if _is_ready(tensor, template):
        return tensor.detach().as_strided(template.shape, template.stride())
    return torch.empty_like(template, device="cpu").copy_(tensor)


def _is_ready(tensor: Tensor, template: Tensor) -> bool:
    """Whether the numbers lie as they are wanted; how far apart those of a side of one are does not matter (1 x 1 kernels)."""
    if (tensor.device.type, tensor.dtype, tensor.shape) != ("cpu", template.dtype, template.shape):
        return False
    sides = zip(tensor.shape, tensor.stride(), template.stride(), strict=True)
    return all(length == 1 or own == wanted for length, own, wanted in sides)
