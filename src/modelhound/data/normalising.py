"""From 8-bit pixels to the numbers that networks are fed with.

In:  uint8 [items, height, width, 3] on any device, and the mean and deviation that a network wants its input to have
Out: [items, 3, height, width] there
Nothing here reads or resizes images. On a CPU the arithmetic is that of timm's transform, to the last bit; elsewhere it is one
multiplication and addition.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from modelhound.data.preprocessing import Preprocessing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["normalise", "normalise_at_once"]

_NUM_CHANNELS = 3


def normalise(pixels: "Tensor", form: Preprocessing, dtype: "torch.dtype", layout: "torch.memory_format") -> "Tensor":
    """As this network wants its input, in this type and order in memory."""
    return (_normalise_exactly if pixels.device.type == "cpu" else normalise_at_once)(pixels, form, dtype, layout)


def _normalise_exactly(
    pixels: "Tensor", form: Preprocessing, dtype: "torch.dtype", layout: "torch.memory_format"
) -> "Tensor":
    """The arithmetic of timm's transform in its order; image by image, which stays in the CPU's cache."""
    import torch

    mean, std = torch.tensor(form.mean), torch.tensor(form.std)
    height, width = form.input_size
    images = torch.empty((len(pixels), _NUM_CHANNELS, height, width), dtype=dtype, memory_format=layout)
    if layout == torch.channels_last:  # as the pixels lie: a row is one long vector
        places, parts = images.permute(0, 2, 3, 1).view(len(pixels), height, -1), pixels.view(len(pixels), height, -1)
        mean, std = mean.repeat(width), std.repeat(width)
    else:
        places, parts = images, pixels.permute(0, 3, 1, 2)
        mean, std = mean.view(-1, 1, 1), std.view(-1, 1, 1)
    for place, part in zip(places, parts, strict=True):
        made = place if dtype == torch.float32 else torch.empty_like(place, dtype=torch.float32)
        made.copy_(part.contiguous()).div_(255).sub_(mean).div_(std)
        if made is not place:
            place.copy_(made)
    return images


def normalise_at_once(
    pixels: "Tensor", form: Preprocessing, dtype: "torch.dtype", layout: "torch.memory_format"
) -> "Tensor":
    """(x / 255 - mean) / std as one multiplication and addition in fp32, rounded once to `dtype`."""
    import torch

    scale, shift = _scale_and_shift(form.mean, form.std, str(pixels.device))
    images = torch.empty(
        (len(pixels), _NUM_CHANNELS, *form.input_size), dtype=dtype, device=pixels.device, memory_format=layout
    )
    return torch.addcmul(shift, pixels.permute(0, 3, 1, 2), scale, out=images)


@lru_cache(maxsize=64)
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: str) -> "tuple[Tensor, Tensor]":
    """On the device, once: to bring them there waits for everything that it has still to do."""
    import torch

    means, deviations = (torch.tensor(each, dtype=torch.float64).view(-1, 1, 1) for each in (mean, std))
    with torch.inference_mode(mode=False):  # whoever asks first does not decide for all others
        made = (1 / (255 * deviations)).float().to(device), (-means / deviations).float().to(device)
    if device != "cpu":
        torch.cuda.current_stream(device).synchronize()  # other streams will use them
    return made
