"""What a model wants its input to look like, and the transform that makes it so.

In:  a model's data configuration, as timm states it
Out: a Preprocessing, which is plain data, and from it timm's own evaluation transform
Nothing here knows a model or a data set. timm, and with it torch, is imported when a transform is made and not before.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import msgspec
from PIL import Image

from modelhound.compat import import_timm
from modelhound.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OwnTransform", "Preprocessing", "Transform", "Variant", "fraction_kept", "make_cut", "make_transform"]

Word = Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]
"""Part of the name of a folder, so that one from a stranger's file must not lead out of it."""

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
        for name in ("input_size", "mean", "std"):
            given: object = getattr(self, name)
            _check(name.replace("_", " "), given, isinstance(given, tuple | list), "a tuple of numbers")
            object.__setattr__(self, name, tuple(getattr(self, name)))  # of a list, which could not be a key
        _check("input size", self.input_size, min(self.input_size) >= 1, "a positive height and width")
        _check("interpolation", self.interpolation, self.interpolation in _INTERPOLATIONS, _one_of(_INTERPOLATIONS))
        _check("crop mode", self.crop_mode, self.crop_mode in _CROP_MODES, _one_of(_CROP_MODES))
        _check("crop fraction", self.crop_fraction, self.crop_fraction > 0, "a number above 0")
        _check("mean", self.mean, len(self.mean) == _NUM_CHANNELS, "one number for each of red, green and blue")
        _check("std", self.std, len(self.std) == _NUM_CHANNELS and min(self.std) > 0, "three numbers above 0")

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Self:
        """From what timm.data.resolve_model_data_config or resolve_data_config returns."""
        try:
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
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(
                f"cannot prepare images as configured: expected numbers for sizes, mean and std, but {error}; check the "
                "model's configuration"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnTransform:
    """A user's own way to make a tensor of an image; nothing about it can be shared with other models.

    Two are the same if their transform is the very same object: it may be of a class that cannot be compared or hashed.
    """

    transform: Transform
    """An RGB image in, a float32 tensor of shape (channels, height, width) out; it must pickle."""

    input_size: tuple[int, int]
    """Height and width of what comes out."""

    def make(self, image: Image.Image, name: str) -> "Tensor":
        """What becomes of the item of this name; where nothing does, the model is to blame and not the data: a ModelError."""
        try:
            return self.transform(image)
        except Exception as error:
            raise ModelError(
                f"cannot prepare {name!r}: expected its own transform to take any RGB image, but {type(error).__name__}: "
                f"{error}; mend the transform"
            ) from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OwnTransform):
            return NotImplemented
        return self.transform is other.transform and self.input_size == other.input_size

    def __hash__(self) -> int:
        return hash((id(self.transform), self.input_size))


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a Preprocessing that ends in pixels; what comes after it is arithmetic."""

    input_size: tuple[Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=1)]]
    interpolation: Word
    crop_fraction: float
    crop_mode: Word
    fill: tuple[int, int, int] | None
    """The colour around images that do not fill the square; None unless the crop mode is border."""

    @classmethod
    def of(cls, preprocessing: Preprocessing) -> Self:
        red, green, blue = (round(255 * value) for value in preprocessing.mean)  # as timm does
        return cls(
            input_size=preprocessing.input_size,
            interpolation=preprocessing.interpolation,
            crop_fraction=preprocessing.crop_fraction,
            crop_mode=preprocessing.crop_mode,
            fill=(red, green, blue) if preprocessing.crop_mode == "border" else None,
        )

    @classmethod
    def square(cls, side: int) -> Self:
        """For no model in particular: the shorter side brought to `side` pixels, the middle of the longer one kept."""
        return cls(input_size=(side, side), interpolation="bicubic", crop_fraction=1.0, crop_mode="center", fill=None)

    @property
    def name(self) -> str:
        """What its folder is called."""
        height, width = self.input_size
        fill = "" if self.fill is None else "-" + "".join(f"{value:02x}" for value in self.fill)
        return f"{height}x{width}-{self.interpolation}-{self.crop_fraction}-{self.crop_mode}{fill}"

    @property
    def item_bytes(self) -> int:
        return self.input_size[0] * self.input_size[1] * _NUM_CHANNELS


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


@lru_cache(maxsize=64)
def make_cut(variant: Variant) -> Callable[[Image.Image], Image.Image]:
    """timm's evaluation transform up to the pixels: an RGB image in, one of the variant's size out."""
    whole = import_timm().data.create_transform(
        input_size=(_NUM_CHANNELS, *variant.input_size),
        is_training=False,
        interpolation=variant.interpolation,
        crop_pct=variant.crop_fraction,
        crop_mode=variant.crop_mode,
        mean=tuple(value / 255 for value in variant.fill or (0, 0, 0)),
        normalize=False,
    )
    *steps, _ = whole.transforms  # the last makes a tensor of it

    def cut(image: Image.Image) -> Image.Image:
        for step in steps:
            image = step(image)
        return image

    return cut


def fraction_kept(crop: int, resize: int) -> float:
    """crop / resize, rounded so that dividing crop by it and cutting off what follows the point, as timm does, gives resize."""
    fraction = crop / resize
    while int(crop / fraction) < resize:
        fraction = math.nextafter(fraction, 0)
    return fraction


def _check(what: str, given: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ModelError(
            f"cannot prepare images with {what} {given!r}: expected {rule}, check the model's configuration"
        )


def _one_of(choices: tuple[str, ...]) -> str:
    return f"one of {', '.join(choices)}"
