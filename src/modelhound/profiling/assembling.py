"""A network that holds only the tensors it was given.

In:  a model reference, tensors by name
Out: a Network whose other tensors have a shape but no memory; enough to run the parts the tensors belong to
Nothing here knows files or items.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from modelhound.features import build_network
from modelhound.models import ModelRef, Network
from modelhound.settings import ModelSettings

__all__ = ["assemble", "build_usually", "move"]


def assemble(model: ModelRef, tensors: Mapping[str, Tensor], settings: ModelSettings, *, seed: int) -> Network:
    """The network without drawing random weights first: built without memory, then given its tensors."""
    with torch.device("meta"):
        network = build_network(model, None, settings, seed=seed)
    for name, tensor in tensors.items():
        _put(network.module, name, tensor)
    return network


def build_usually(model: ModelRef, tensors: Mapping[str, Tensor], settings: ModelSettings, *, seed: int) -> Network:
    """The same as most programs do it: random weights are drawn, and overwritten."""
    network = build_network(model, None, settings, seed=seed)
    network.module.load_state_dict(dict(tensors), strict=False)  # buffers that are not saved are among the tensors
    return network


def move(
    network: Network, names: Iterable[str], *, device: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    """Bring these tensors to the device, convolutions' weights in the order in memory given."""
    moved: dict[tuple[object, ...], Tensor] = {}
    for name in names:
        tensor = _get(network.module, name)
        place = (tensor.data_ptr(), tensor.shape)
        if place not in moved:
            order = layout if tensor.ndim == 4 else torch.preserve_format
            kind = dtype if tensor.is_floating_point() else tensor.dtype
            # the device converts faster than the host, and what is copied is what the file holds
            moved[place] = tensor.to(device).to(kind, memory_format=order)
        _put(network.module, name, moved[place])


def _get(module: nn.Module, name: str) -> Tensor:
    owner, _, leaf = name.rpartition(".")
    tensor: Any = getattr(module.get_submodule(owner), leaf)
    return tensor.detach() if isinstance(tensor, nn.Parameter) else tensor


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    """In place of what the module has under that name; assigning to .data could not leave the device without memory."""
    owner, _, leaf = name.rpartition(".")
    holder = module.get_submodule(owner)
    if leaf in holder._parameters:
        holder._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    else:
        holder._buffers[leaf] = tensor
