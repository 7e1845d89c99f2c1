"""Resize and crop images on the device that holds them, with Pillow's own filters.

In:  uint8 images of one size, and a Variant: the part of a Preprocessing that ends in pixels
Out: uint8 pixels [images, height, width, 3], as timm's transform on PIL images gives them
Nothing here decodes, and nothing here knows a data set.

To resize is to multiply by two matrices, one across and one down, that hold each output pixel's weights. They are computed as
Pillow computes them, down to the 22 bits that it keeps, for just those rows and columns that the crop leaves; and as in Pillow
the result of the first product is rounded to whole grey levels before the second. In fp64 the sums are exact and so is the
result, to the last bit (of the hamming filter nearly: its cosines are not Pillow's). Devices that are slow at fp64 work in
fp32, where a sum that is close to a half may go the other way: then some pixels differ by a grey level or two. A whole group
of images is two products, whatever its size.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from modelhound.data.preprocessing import Variant

__all__ = ["resize_and_crop"]

_Floats = npt.NDArray[np.float64]

_WEIGHT_BITS = 22
_DEVICE_BYTES = 64 << 20  # for matrices that may be wanted again
_MAX_WORK_BYTES = 1 << 29  # of the images as floating-point numbers: large enough to keep a device busy
# Compute capabilities: half as fast as at fp32, others a 32nd or less.
_QUICK_AT_FP64 = {(7, 0), (8, 0), (9, 0), (10, 0)}


def resize_and_crop(images: Tensor, variant: Variant, *, precision: torch.dtype | None = None) -> Tensor:
    """`images` are uint8 [images, 3, height, width]; the result lies where they do. Without `precision` the device decides."""
    precision = precision or _suitable_precision(images.device)
    num_images, num_channels, height, width = images.shape
    at_once = max(1, _MAX_WORK_BYTES // (num_channels * height * width * precision.itemsize))
    if num_images > at_once:
        parts = torch.split(images, at_once)
        return torch.cat([resize_and_crop(some, variant, precision=precision) for some in parts])
    plan = _plan(height, width, variant)
    down, first_row, last_row = _weights(plan.down, images.device, precision)
    across, first_column, last_column = _weights(plan.across, images.device, precision)
    part = images[:, :, first_row:last_row, first_column:last_column].to(precision)
    if plan.down_first:
        resized = _to_grey_levels(torch.matmul(_to_grey_levels(torch.matmul(down, part)), across.T))
    else:
        resized = _to_grey_levels(torch.matmul(down, _to_grey_levels(torch.matmul(part, across.T))))
    pixels = resized.to(torch.uint8).permute(0, 2, 3, 1)
    return pixels.contiguous() if plan.padding is None else _pad(pixels, plan.padding, variant)


@lru_cache(maxsize=16)
def _suitable_precision(device: torch.device) -> torch.dtype:
    if device.type == "cpu" or torch.cuda.get_device_capability(device) in _QUICK_AT_FP64:
        return torch.float64
    return torch.float32


def _to_grey_levels(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255)


def _pad(pixels: Tensor, padding: tuple[int, int, int, int], variant: Variant) -> Tensor:
    top, bottom, left, right = padding
    fill = _fill(variant.fill or (0, 0, 0), pixels.device)
    height, width = variant.input_size
    padded = fill.expand(len(pixels), height, width, 3).contiguous()
    padded[:, top : height - bottom, left : width - right] = pixels
    return padded


@lru_cache(maxsize=16)
def _fill(colour: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(colour, dtype=torch.uint8, device=device)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Resize `num_in` pixels to `num_out`, of which `count` from `first` on are kept."""

    num_in: int
    num_out: int
    first: int
    count: int
    interpolation: str


@dataclass(frozen=True, slots=True)
class _Plan:
    down: _Axis
    across: _Axis
    down_first: bool
    padding: tuple[int, int, int, int] | None
    """Rows above and below, columns to the left and right."""


@lru_cache(maxsize=4096)
def _plan(height: int, width: int, variant: Variant) -> _Plan:
    """What timm's evaluation transform does to an image of this size."""
    wanted_height, wanted_width = variant.input_size
    scaled = math.floor(wanted_height / variant.crop_fraction), math.floor(wanted_width / variant.crop_fraction)
    new_height, new_width, interpolation = _resized(height, width, scaled, variant)
    top, bottom, first_row, num_rows = _cut(new_height, wanted_height)
    left, right, first_column, num_columns = _cut(new_width, wanted_width)
    return _Plan(
        _Axis(height, new_height, first_row, num_rows, interpolation),
        _Axis(width, new_width, first_column, num_columns, interpolation),
        0 < height - new_height > 2 * (width - new_width) and _pillow_may_go_down_first(),
        (top, bottom, left, right) if any((top, bottom, left, right)) else None,
    )


def _resized(height: int, width: int, scaled: tuple[int, int], variant: Variant) -> tuple[int, int, str]:
    if variant.crop_mode == "squash":
        return *scaled, variant.interpolation
    ratios = height / scaled[0], width / scaled[1]
    if variant.crop_mode == "border":
        return round(height / max(ratios)), round(width / max(ratios)), variant.interpolation
    if scaled[0] != scaled[1]:  # here timm does not pass the interpolation on, and its default is bilinear
        return round(height / min(ratios)), round(width / min(ratios)), "bilinear"
    short = scaled[0]
    if width <= height:
        return int(short * height / width), short, variant.interpolation
    return short, int(short * width / height), variant.interpolation


def _cut(size: int, wanted: int) -> tuple[int, int, int, int]:
    """Padding before and after, then the first of the pixels that are kept and how many they are."""
    if size < wanted:
        return (wanted - size) // 2, (wanted - size + 1) // 2, 0, size
    return 0, 0, round((size - wanted) / 2), wanted


@lru_cache(maxsize=1)
def _pillow_may_go_down_first() -> bool:
    """Since version 13 Pillow resizes down before across where the height shrinks by more than twice what the width does."""
    picture = np.random.default_rng(0).integers(0, 256, (40, 9), dtype=np.uint8)
    down, across = _Axis(40, 7, 0, 7, "bicubic"), _Axis(9, 12, 0, 12, "bicubic")
    between = (picture @ _all_weights(across).T + 0.5).clip(0, 255.9).astype(np.uint8)
    across_first = (_all_weights(down) @ between + 0.5).clip(0, 255.9).astype(np.uint8)
    return not np.array_equal(
        np.asarray(Image.fromarray(picture).resize((12, 7), Image.Resampling.BICUBIC)), across_first
    )


def _weights(axis: _Axis, device: torch.device, precision: torch.dtype) -> tuple[Tensor, int, int]:
    """[kept pixels, input pixels from first to last], and these two: the others have no weight."""
    weights, first, last = _weights_on_host(axis, precision)
    return (weights if device.type == "cpu" else _on_device.bring(weights, device)), first, last


@lru_cache(maxsize=512)
def _weights_on_host(axis: _Axis, precision: torch.dtype) -> tuple[Tensor, int, int]:
    weights = _all_weights(axis)
    used = np.flatnonzero(weights.any(0))
    first, last = int(used[0]), int(used[-1]) + 1
    kept = torch.from_numpy(weights[:, first:last].copy()).to(precision)  # 22 bits fit into fp32 too
    return kept, first, last


class _OnDevice:
    """Copies on a device of matrices that others hold, as far as few bytes reach: those used longest ago make room."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._held_bytes = limit_bytes, 0
        self._copies: OrderedDict[tuple[int, str, int], tuple[Tensor, Tensor]] = OrderedDict()
        self._alone = threading.Lock()

    def bring(self, matrix: Tensor, device: torch.device) -> Tensor:
        # one for each stream: what is copied on one need not be there yet for another
        key = id(matrix), str(device), torch.cuda.current_stream(device).cuda_stream
        with self._alone:
            if key in self._copies:
                self._copies.move_to_end(key)
                return self._copies[key][1]
            copy = matrix.pin_memory().to(device, non_blocking=True)
            self._copies[key] = matrix, copy  # the matrix too: as long as it lives, its number is its own
            self._held_bytes += copy.nbytes
            while self._held_bytes > self._limit_bytes and len(self._copies) > 1:
                _, (_, dropped) = self._copies.popitem(last=False)
                self._held_bytes -= dropped.nbytes
            return copy


_on_device = _OnDevice(_DEVICE_BYTES)


def _all_weights(axis: _Axis) -> _Floats:
    """[kept pixels, input pixels]"""
    scale = axis.num_in / axis.num_out
    inputs = np.arange(axis.num_in)
    if axis.interpolation == "nearest":
        # step by step, as Pillow does, so that errors add up in the same way
        places = np.add.accumulate(np.array([0.5 * scale, *[scale] * (axis.num_out - 1)])).astype(np.int64)
        kept = places[axis.first : axis.first + axis.count, None]
        nearest: _Floats = (inputs == np.minimum(kept, axis.num_in - 1)).astype(np.float64)
        return nearest
    centres = (np.arange(axis.first, axis.first + axis.count) + 0.5) * scale
    kernel, reach = _KERNELS[axis.interpolation]
    stretch = max(scale, 1.0)  # when shrinking, so that no input pixel is left out
    first = np.maximum((centres - reach * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + reach * stretch + 0.5).astype(np.int64), axis.num_in)
    within = (inputs >= first[:, None]) & (inputs < last[:, None])
    weights = np.where(within, kernel((inputs - centres[:, None] + 0.5) / stretch), 0.0)
    weights /= weights.sum(1, keepdims=True)
    unit = float(1 << _WEIGHT_BITS)
    rounded: _Floats = np.trunc(weights * unit + np.copysign(0.5, weights)) / unit
    return rounded


def _triangle(x: _Floats) -> _Floats:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _box(x: _Floats) -> _Floats:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _hamming(x: _Floats) -> _Floats:
    return np.where(np.abs(x) < 1, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0.0)


def _cubic(x: _Floats) -> _Floats:
    """Keys' cubic convolution with a = -0.5."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: _Floats) -> _Floats:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


_KERNELS: dict[str, tuple[Callable[[_Floats], _Floats], float]] = {
    "box": (_box, 0.5),
    "bilinear": (_triangle, 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
