"""Some items of a data set, ready for a model.

In:  what a loader made of the items: images or pixels of images, or the tensors of texts; and their targets
Out: a Batch, whose inputs come to a device as the model wants them
Nothing here reads items. Pixels are bytes, a quarter of the memory of the images that become of them: between processes, into
pinned memory and to a GPU that is what takes time.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Self

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
        return inputs if self.form is None else _normalise(inputs, self.form)

    def pin_memory(self) -> Self:
        """What torch's DataLoader calls."""
        inputs = self.inputs
        pinned = (
            {name: each.pin_memory() for name, each in inputs.items()}
            if isinstance(inputs, dict)
            else inputs.pin_memory()
        )
        return replace(self, inputs=pinned, targets=self.targets.pin_memory())


def _normalise(pixels: "Tensor", form: Preprocessing) -> "Tensor":
    """The arithmetic of timm's transform, in its order. Bytes of one pixel lie together, and so do the numbers: that is the
    order in memory that a GPU's convolutions like best."""
    whole, mean, std = _constants(form.mean, form.std, str(pixels.device))
    return pixels.permute(0, 3, 1, 2).to(mean.dtype).div_(whole).sub_(mean).div_(std)


@lru_cache(maxsize=64)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: str) -> "tuple[Tensor, Tensor, Tensor]":
    """On the device, once: each copy of a number would wait for it. 255 too, by which torch would multiply inversely."""
    import torch

    with torch.inference_mode(False):  # whoever asks first, they serve training too
        whole = torch.full((1,), 255.0, device=device)
        means, deviations = (torch.tensor(each, device=device).view(-1, 1, 1) for each in (mean, std))
    return whole, means, deviations
