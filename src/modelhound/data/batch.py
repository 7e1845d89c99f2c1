"""Some items of a data set, ready for a model.

In:  what a loader made of the items: images or pixels of images, or the tensors of texts; and their targets
Out: a Batch, whose inputs come to a device as the model wants them
Nothing here reads items. Pixels are bytes, a quarter of the memory of the images that become of them: between processes, into
pinned memory and to a GPU that is what takes time.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from modelhound.data.normalising import normalise
from modelhound.data.preprocessing import Preprocessing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some items, ready for a model."""

    inputs: "Tensor | dict[str, Tensor]"
    """Images [items, 3, height, width], or the named tensors of a text encoder, [items, tokens] each."""

    targets: "Tensor"
    num_truncated: int = 0
    """How many of the texts were longer than the model takes."""

    form: Preprocessing | None = None
    """Where the inputs are pixels, bytes of shape [items, height, width, 3]: what `inputs_on` is to make of them."""

    def __len__(self) -> int:
        return len(self.targets)

    def inputs_on(self, device: "str | torch.device") -> "Tensor | dict[str, Tensor]":
        """The inputs, copied to `device` while the host goes on, where they are pinned; pixels are normalised there."""
        if isinstance(self.inputs, dict):
            return {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}
        inputs = self.inputs.to(device, non_blocking=True)
        if self.form is None:
            return inputs
        import torch

        # bytes of one pixel lie together: as they come is the order in memory that a GPU's convolutions like best
        return normalise(inputs, self.form, torch.float32, torch.channels_last)

    def pin_memory(self) -> Self:
        """What torch's DataLoader calls."""
        inputs = self.inputs
        pinned = (
            {name: each.pin_memory() for name, each in inputs.items()}
            if isinstance(inputs, dict)
            else inputs.pin_memory()
        )
        return replace(self, inputs=pinned, targets=self.targets.pin_memory())
