"""What a model wants its input to look like, and the transform that makes it so.

In:  a model's data configuration, as timm states it
Out: a Preprocessing, which is plain data, and from it timm's own evaluation transform
Nothing here knows a model or a data set. timm, and with it torch, is imported when a transform is made and not before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

from PIL import Image

from modelhound.compat import import_timm
from modelhound.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OwnTransform", "Preprocessing", "Transform", "make_transform"]

Transform = Callable[[Image.Image], "Tensor"]

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
_CROP_MODES = ("center", "squash", "border")
_NUM_CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """Resize, crop and normalise, in the way a model was trained to see images.

    A model fed with another one's preprocessing gives worse features, which changes ranks.
    """

    input_size: tuple[int, int]
    """Height and width in pixels."""

    interpolation: str

    crop_fraction: float
    """The part of the resized image's side that remains after cropping; 1.0 cuts nothing off."""

    crop_mode: str
    """center: keep the aspect and cut the longer side; squash: stretch; border: keep all and fill up with the mean."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _check("input size", self.input_size, min(self.input_size) >= 1, "a positive height and width")
        _check("interpolation", self.interpolation, self.interpolation in _INTERPOLATIONS, _one_of(_INTERPOLATIONS))
        _check("crop mode", self.crop_mode, self.crop_mode in _CROP_MODES, _one_of(_CROP_MODES))
        _check("crop fraction", self.crop_fraction, self.crop_fraction > 0, "a number above 0")
        _check("mean", self.mean, len(self.mean) == _NUM_CHANNELS, "one number for each of red, green and blue")
        _check("std", self.std, len(self.std) == _NUM_CHANNELS and min(self.std) > 0, "three numbers above 0")

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Self:
        """From what timm.data.resolve_model_data_config or resolve_data_config returns."""
        num_channels, height, width = config["input_size"]
        _check("number of input channels", num_channels, num_channels == _NUM_CHANNELS, "3, for RGB images")
        return cls(
            input_size=(int(height), int(width)),
            interpolation=str(config["interpolation"]),
            crop_fraction=float(config["crop_pct"]),
            crop_mode=str(config["crop_mode"]),
            mean=tuple(float(value) for value in config["mean"]),
            std=tuple(float(value) for value in config["std"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTransform:
    """A user's own way to make a tensor of an image; nothing about it can be shared with other models."""

    transform: Transform
    """An RGB image in, a float32 tensor of shape (channels, height, width) out; it must pickle."""

    input_size: tuple[int, int]
    """Height and width of what comes out."""


@lru_cache(maxsize=64)
def make_transform(preprocessing: Preprocessing | OwnTransform) -> Transform:
    """timm's evaluation transform: an RGB image in, a float32 tensor of shape (3, height, width) out."""
    if isinstance(preprocessing, OwnTransform):
        return preprocessing.transform
    timm = import_timm()
    return cast(
        Transform,
        timm.data.create_transform(
            input_size=(_NUM_CHANNELS, *preprocessing.input_size),
            is_training=False,
            interpolation=preprocessing.interpolation,
            mean=preprocessing.mean,
            std=preprocessing.std,
            crop_pct=preprocessing.crop_fraction,
            crop_mode=preprocessing.crop_mode,
        ),
    )


def _check(what: str, given: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ModelError(
            f"cannot prepare images with {what} {given!r}: expected {rule}, check the model's configuration"
        )


def _one_of(choices: tuple[str, ...]) -> str:
    return f"one of {', '.join(choices)}"
