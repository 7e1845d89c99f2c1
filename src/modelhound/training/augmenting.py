"""Random changes to images that leave their class alone, a batch at a time on its device.

In:  normalised images, and where they stand among the items of all ranks in this step
Out: images of the same shape
Nothing here knows the data set. What becomes of an item depends on the seed, the step and its place in the step only, so two
ranks with half a batch each see just what one rank with the whole batch sees. All changes of place are one resampling.
"""

import math

import torch
import torch.nn.functional as F

from modelhound.settings import RecipeSettings
from modelhound.training.layout import image_layout

__all__ = ["Augmentation", "choose_augmentation"]

_LEAST_AREA, _MOST_STRETCH = 0.6, 1.15
_CONTRAST, _BRIGHTNESS = 0.3, 0.3
_PATCH_SIDE = 0.3  # of the image's, at most
_NUM_DRAWS = 10


def choose_augmentation(recipe: RecipeSettings, modality: str) -> str:
    """What auto means."""
    if recipe.augment == "auto":
        return "crop" if modality == "image" and recipe.mode != "cached" else "none"
    return recipe.augment


class Augmentation:
    """Draws and applies the changes of each step."""

    def __init__(self, kind: str, *, seed: int, batch: int, rank: int, num_ranks: int) -> None:
        self.kind = kind
        self._seed, self._batch, self._rank, self._num_ranks = seed, batch, rank, num_ranks
        self._generator = torch.Generator()

    def __call__(self, images: torch.Tensor, step: int) -> torch.Tensor:
        if self.kind == "none":
            return images
        draws = self._draw(step)[: len(images)]
        if images.is_cuda:
            draws = draws.pin_memory().to(images.device, non_blocking=True)  # or the host would wait for the device
        images = _resample(images, draws, mirror=self.kind in ("flip", "strong"))
        return _disturb(images, draws) if self.kind == "strong" else images

    def _draw(self, step: int) -> torch.Tensor:
        """Uniform numbers for the items of all ranks, of which this one takes its own."""
        self._generator.manual_seed((self._seed << 32) ^ step)
        everybody = torch.rand((self._num_ranks * self._batch, _NUM_DRAWS), generator=self._generator)
        return everybody[self._rank * self._batch : (self._rank + 1) * self._batch]


def _resample(images: torch.Tensor, draws: torch.Tensor, *, mirror: bool) -> torch.Tensor:
    """A random part of each image, stretched to the whole."""
    area = _LEAST_AREA + (1 - _LEAST_AREA) * draws[:, 0]
    stretch = torch.exp((2 * draws[:, 1] - 1) * math.log(_MOST_STRETCH))
    width = (area * stretch).sqrt().clamp_max(1.0)
    height = (area / stretch).sqrt().clamp_max(1.0)
    sign = torch.where(draws[:, 4] < 0.5, -1.0, 1.0) if mirror else torch.ones_like(width)
    places = torch.zeros((len(images), 2, 3), device=images.device)
    places[:, 0, 0], places[:, 0, 2] = width * sign, (2 * draws[:, 2] - 1) * (1 - width)
    places[:, 1, 1], places[:, 1, 2] = height, (2 * draws[:, 3] - 1) * (1 - height)
    grid = F.affine_grid(places, list(images.shape), align_corners=False).to(images.dtype)
    sampled = F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return sampled.contiguous(memory_format=image_layout(sampled.device.type))


def _disturb(images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Other contrast and brightness, and a patch of each image blank."""
    column = (-1, 1, 1, 1)
    contrast = 1 + _CONTRAST * (2 * draws[:, 5] - 1).view(column)
    brightness = _BRIGHTNESS * (2 * draws[:, 6] - 1).view(column)
    images = images * contrast + brightness
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device).view(1, 1, -1, 1) / height
    columns = torch.arange(width, device=images.device).view(1, 1, 1, -1) / width
    side = (_PATCH_SIDE * draws[:, 7]).view(column)
    top, left = (draws[:, 8].view(column) * (1 - side)), (draws[:, 9].view(column) * (1 - side))
    inside = (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)
    return images.masked_fill(inside, 0.0)  # normalised: about the mean colour
