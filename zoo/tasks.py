"""The source tasks the zoo is trained on: drawn here, or taken from Fashion-MNIST's training split.

In:  a task's name, a seed and, for the garment tasks, the folder with Fashion-MNIST's training files
Out: a Task: uint8 images, labels and class names, the held-out images last; the same seed gives the same task
Nothing here knows of networks. Nothing here reads Fashion-MNIST's test split or draws a numeral: modelhound ships
images of that split and handwritten digits as *target* data, and a source must not have seen its target.
"""

import gzip
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
TURNS = ("0", "90", "180", "270")
SHAPES = (
    *("circle", "ellipse", "triangle", "square", "rectangle", "pentagon"),
    *("star", "cross", "crescent", "heart", "semicircle", "arrow"),
)

NUM_DRAWN = 16_000  # images drawn for each of glyphs, shapes and textures
GLYPH_PIXELS = 32
COLOUR_PIXELS = 40
MASK_PIXELS = 96  # shapes are drawn large once and scaled down when warped


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something to learn before seeing the target."""

    name: str
    images: Bytes  # [n, height, width, 1 or 3]
    labels: Labels
    class_names: tuple[str, ...]
    num_held_out: int  # the last images, never trained on
    may_flip: bool  # whether a mirrored image keeps its label


def make_task(name: str, *, seed: int, fashion: Path | None = None, limit: int | None = None) -> Task:
    """The task of this name; `limit` asks for fewer images, to try things out."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])  # one task's size must not change another's images
    if name in FASHION_TASKS:
        if fashion is None:
            raise SystemExit(
                f"cannot make task {name!r}: expected --fashion, the folder with train-images-idx3-ubyte.gz"
            )
        images, labels, names = FASHION_TASKS[name](*read_fashion(fashion), rng)
    elif name in DRAWN_TASKS:
        images, labels, names = DRAWN_TASKS[name](limit or NUM_DRAWN, rng)
    else:
        raise SystemExit(f"cannot make task {name!r}: expected one of {', '.join(TASKS)}")
    order = rng.permutation(len(images))[:limit]
    return Task(
        name=name,
        images=np.ascontiguousarray(images[order]),
        labels=labels[order],
        class_names=names,
        num_held_out=min(3000, len(order) // 8),
        may_flip=name not in ("rotation", "glyphs"),
    )


# --- from Fashion-MNIST's training split ---------------------------------------------------------------------------


def read_fashion(folder: Path) -> tuple[Bytes, Labels]:
    """The 60 000 training images, [n, 28, 28, 1], and their labels, from the two idx files."""
    raw_images = _read_idx(folder / "train-images-idx3-ubyte.gz", magic=2051, header_bytes=16)
    raw_labels = _read_idx(folder / "train-labels-idx1-ubyte.gz", magic=2049, header_bytes=8)
    return raw_images.reshape(-1, 28, 28, 1), raw_labels.astype(np.int64)


def _read_idx(path: Path, *, magic: int, header_bytes: int) -> Bytes:
    content = gzip.decompress(path.read_bytes())
    if int.from_bytes(content[:4], "big") != magic:
        raise SystemExit(f"cannot read {path.name!r}: expected an idx file that begins with {magic}")
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes)


def _garments(images: Bytes, labels: Labels, first: int) -> tuple[Bytes, Labels, tuple[str, ...]]:
    """Five of the ten classes, numbered from zero."""
    chosen = (labels >= first) & (labels < first + 5)
    return images[chosen], labels[chosen] - first, GARMENTS[first : first + 5]


def _garments_a(images: Bytes, labels: Labels, rng: np.random.Generator) -> tuple[Bytes, Labels, tuple[str, ...]]:
    return _garments(images, labels, 0)


def _garments_b(images: Bytes, labels: Labels, rng: np.random.Generator) -> tuple[Bytes, Labels, tuple[str, ...]]:
    return _garments(images, labels, 5)


def _rotation(images: Bytes, labels: Labels, rng: np.random.Generator) -> tuple[Bytes, Labels, tuple[str, ...]]:
    """By how much was the garment turned? Each image is used in one position, so held-out garments are new ones."""
    turns = rng.integers(0, 4, len(images))
    turned = images.copy()
    for turn in range(1, 4):
        turned[turns == turn] = np.rot90(images[turns == turn], turn, axes=(1, 2))
    return turned, turns.astype(np.int64), TURNS


# --- warped masks: letters and shapes ------------------------------------------------------------------------------


def _glyphs(num: int, rng: np.random.Generator) -> tuple[Bytes, Labels, tuple[str, ...]]:
    """Letters in either case. Many are blurred to a few pixels a side, as scans of small handwriting are."""
    masks = np.stack(
        [_letter(char, stroke) for upper in LETTERS for char in (upper, upper.lower()) for stroke in range(4)]
    )
    labels = rng.integers(0, len(LETTERS), num)
    ink = _warp(
        masks[labels * 8 + rng.integers(0, 8, num)],
        rng,
        pixels=GLYPH_PIXELS,
        zoom=rng.uniform(0.75, 1.15, (num, 1)) * rng.uniform(0.85, 1.15, (num, 2)),
        angle=rng.normal(0, 0.17, num),
        shear=0.25,
        perspective=0.15,
        bend=0.10,
        shift=0.12,
    )
    ink = _coarsen(ink, rng)
    background = rng.uniform(0, 0.3, (num, 1, 1))
    image = background + ink * rng.uniform(0.45, 0.7, (num, 1, 1)) / ink.max(axis=(1, 2), keepdims=True).clip(0.3)
    image = np.where(rng.random((num, 1, 1)) < 0.2, 1 - image, image)  # a few are dark on light
    image = image + rng.normal(0, 1, image.shape) * rng.uniform(0, 0.1, (num, 1, 1))
    return _to_bytes(image)[..., None], labels, LETTERS


def _letter(char: str, stroke: int) -> Floats:
    """One letter in the middle of a 64-pixel square, in the font that Pillow carries."""
    font = ImageFont.load_default(size=50)
    image = Image.new("L", (64, 64))
    left, top, right, bottom = font.getbbox(char, stroke_width=stroke)
    corner = (32 - (left + right) / 2, 32 - (top + bottom) / 2)
    ImageDraw.Draw(image).text(corner, char, fill=255, font=font, stroke_width=stroke)
    return np.asarray(image, dtype=np.float32) / 255


def _coarsen(images: Floats, rng: np.random.Generator) -> Floats:
    """Reduce about half of the images to 8 to 20 pixels a side and blow them up again."""
    coarse = images.copy()
    resolution = rng.choice([0, 8, 10, 14, 20], len(images), p=[0.45, 0.2, 0.15, 0.1, 0.1])
    for side in (8, 10, 14, 20):
        chosen = torch.from_numpy(images[resolution == side])[:, None]
        small = F.interpolate(chosen, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
        large = F.interpolate(small, size=images.shape[1:], mode="bilinear", align_corners=False)
        coarse[resolution == side] = large[:, 0].numpy()
    return coarse


def _shapes(num: int, rng: np.random.Generator) -> tuple[Bytes, Labels, tuple[str, ...]]:
    """Filled or outlined shapes of any colour, size and direction on a shaded, noisy ground of another colour."""
    masks = np.stack([style for name in SHAPES for style in _shape_styles(name)])
    num_styles = len(masks) // len(SHAPES)
    labels = rng.integers(0, len(SHAPES), num)
    ink = _warp(
        masks[labels * num_styles + rng.integers(0, num_styles, num)],
        rng,
        pixels=COLOUR_PIXELS,
        zoom=np.repeat(rng.uniform(1.0, 2.0, (num, 1)), 2, axis=1),  # circles must not turn into ellipses
        angle=rng.uniform(0, 2 * math.pi, num),
        shear=0.05,
        perspective=0.1,
        bend=0.02,
        shift=0.4,
    )
    return _paint(ink, rng, shade=0.25, noise=0.12), labels, SHAPES


def _shape_styles(name: str) -> list[Floats]:
    """The shape filled, with a thick outline and with a thin one."""
    size = MASK_PIXELS
    image = Image.new("L", (size, size))
    draw = ImageDraw.Draw(image)
    _draw_shape(draw, name, size / 2, size * 0.36)
    if name == "crescent":
        draw.ellipse((size * 0.32, size * 0.1, size * 0.92, size * 0.7), fill=0)
    outlines = [ImageChops.subtract(image, image.filter(ImageFilter.MinFilter(width))) for width in (9, 13)]
    return [np.asarray(style, dtype=np.float32) / 255 for style in (image, *outlines)]


def _draw_shape(draw: ImageDraw.ImageDraw, name: str, middle: float, radius: float) -> None:
    def ring(corners: int, *radii: float) -> list[tuple[float, float]]:
        """Points around the middle, the first at the top, at these radii in turn."""
        angles = [2 * math.pi * corner / corners - math.pi / 2 for corner in range(corners)]
        lengths = [radius * radii[corner % len(radii)] for corner in range(corners)]
        return [(middle + r * math.cos(a), middle + r * math.sin(a)) for r, a in zip(lengths, angles, strict=True)]

    def at(points: str) -> list[tuple[float, float]]:
        """Points written as "x,y x,y" in units of the radius."""
        pairs = (point.split(",") for point in points.split())
        return [(middle + radius * float(x), middle + radius * float(y)) for x, y in pairs]

    polygons = {
        "triangle": ring(3, 1.1),
        "square": ring(4, 1.1),
        "rectangle": at("-1.1,-.5 1.1,-.5 1.1,.5 -1.1,.5"),
        "pentagon": ring(5, 1),
        "star": ring(10, 1.15, 0.48),
        "cross": at("-.33,-1 .33,-1 .33,-.33 1,-.33 1,.33 .33,.33 .33,1 -.33,1 -.33,.33 -1,.33 -1,-.33 -.33,-.33"),
        "heart": at("-.95,-.25 .95,-.25 .7,.3 0,1.05 -.7,.3"),
        "arrow": at("0,-1.1 .8,-.1 .3,-.1 .3,1 -.3,1 -.3,-.1 -.8,-.1"),
    }
    if name in polygons:
        draw.polygon(polygons[name], fill=255)
    ovals = {"circle": "-1,-1 1,1", "crescent": "-1,-1 1,1", "ellipse": "-1.1,-.6 1.1,.6"}
    if name in ovals:
        draw.ellipse(at(ovals[name]), fill=255)
    if name == "semicircle":
        draw.pieslice(at("-1.1,-.7 1.1,1.5"), 180, 360, fill=255)
    if name == "heart":
        draw.ellipse(at("-1,-.85 .06,.2"), fill=255)
        draw.ellipse(at("-.06,-.85 1,.2"), fill=255)


def _warp(
    masks: Floats,
    rng: np.random.Generator,
    *,
    pixels: int,
    zoom: NDArray[np.float64],  # above 1 makes the drawing smaller
    angle: NDArray[np.float64],
    shear: float,
    perspective: float,
    bend: float,
    shift: float,
) -> Floats:
    """Look at each mask through a random perspective and a slightly bent glass."""
    num = len(masks)
    axis = torch.linspace(-1, 1, pixels)
    y, x = (part.reshape(1, pixels, pixels) for part in torch.meshgrid(axis, axis, indexing="ij"))

    def draw(spread: float) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(-spread, spread, (num, 1, 1)).astype(np.float32))

    depth = 1 + draw(perspective) * x + draw(perspective) * y
    x, y = x / depth + draw(shift), y / depth + draw(shift)
    x, y = x + draw(shear) * y, y + draw(shear / 2) * x
    cosine, sine = (torch.from_numpy(f(angle).astype(np.float32)).reshape(num, 1, 1) for f in (np.cos, np.sin))
    x, y = cosine * x - sine * y, sine * x + cosine * y
    factor = torch.from_numpy(zoom.astype(np.float32)).reshape(num, 2, 1, 1)
    knots = torch.from_numpy(rng.normal(0, bend, (num, 2, 4, 4)).astype(np.float32))
    bent = F.interpolate(knots, size=(pixels, pixels), mode="bicubic", align_corners=True)
    grid = torch.stack([x * factor[:, 0] + bent[:, 0], y * factor[:, 1] + bent[:, 1]], dim=-1)
    source = torch.from_numpy(masks)[:, None]
    if masks.shape[1] > 2 * pixels:  # sampling a large mask at few points would leave jagged edges
        source = F.avg_pool2d(source, 2)
    return F.grid_sample(source, grid, mode="bilinear", align_corners=False)[:, 0].numpy()


# --- textures ------------------------------------------------------------------------------------------------------


def _textures(num: int, rng: np.random.Generator) -> tuple[Bytes, Labels, tuple[str, ...]]:
    """Patterns without an object: the network has to look at statistics, not at outlines."""
    labels = np.sort(rng.integers(0, len(PATTERNS), num))  # in order, so that each pattern is drawn in one go
    counts = np.bincount(labels, minlength=len(PATTERNS))
    drawn = [pattern(count, rng) for pattern, count in zip(PATTERNS.values(), counts, strict=True)]
    field = np.concatenate(drawn).astype(np.float32)
    return _paint(field, rng, shade=0.15, noise=0.10), labels, tuple(PATTERNS)


def _lattice(num: int, rng: np.random.Generator, *, least: float = 3, most: float = 8) -> tuple[Floats, Floats]:
    """Coordinates in periods, turned and shifted at random: between `least` and `most` periods across the image."""
    axis = np.linspace(-0.5, 0.5, COLOUR_PIXELS, dtype=np.float32)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    angle = rng.uniform(0, 2 * math.pi, (num, 1, 1))
    periods = np.exp(rng.uniform(math.log(least), math.log(most), (num, 1, 1)))
    u = periods * (np.cos(angle) * x - np.sin(angle) * y) + rng.random((num, 1, 1))
    v = periods * (np.sin(angle) * x + np.cos(angle) * y) + rng.random((num, 1, 1))
    return u.astype(np.float32), v.astype(np.float32)


def _wave(phase: Floats) -> Floats:
    return 0.5 + 0.5 * np.sin(2 * math.pi * phase)


def _edge(value: Floats, sharpness: float = 12) -> Floats:
    """1 where the value is positive, 0 where it is not, with a soft step between."""
    return (1 / (1 + np.exp(-np.clip(sharpness * value, -30, 30)))).astype(np.float32)


def _spectrum(num: int, rng: np.random.Generator, slope: float) -> Floats:
    """Noise whose amplitude falls with frequency to the power of `slope`, scaled to 0..1."""
    fy = np.fft.fftfreq(COLOUR_PIXELS)[:, None]
    fx = np.fft.rfftfreq(COLOUR_PIXELS)[None]
    frequency = np.hypot(fy, fx)
    frequency[0, 0] = 1  # the mean is set below
    slopes = slope + rng.uniform(-0.15, 0.15, (num, 1, 1))
    shaped = np.fft.rfft2(rng.normal(0, 1, (num, COLOUR_PIXELS, COLOUR_PIXELS))) / frequency**slopes
    field = np.fft.irfft2(shaped, s=(COLOUR_PIXELS, COLOUR_PIXELS))
    low, high = (np.quantile(field, q, axis=(1, 2), keepdims=True) for q in (0.02, 0.98))
    return ((field - low) / (high - low)).clip(0, 1).astype(np.float32)


def _grating(num: int, rng: np.random.Generator) -> Floats:
    return _wave(_lattice(num, rng)[0])


def _stripes(num: int, rng: np.random.Generator) -> Floats:
    return _edge(rng.uniform(0.2, 0.4, (num, 1, 1)).astype(np.float32) - np.abs(_lattice(num, rng)[0] % 1 - 0.5), 30)


def _checkers(num: int, rng: np.random.Generator) -> Floats:
    u, v = _lattice(num, rng, least=2, most=5)
    return _edge(np.sin(2 * math.pi * u) * np.sin(2 * math.pi * v))


def _dots(num: int, rng: np.random.Generator) -> Floats:
    u, v = _lattice(num, rng)
    return _edge(rng.uniform(0.25, 0.38, (num, 1, 1)).astype(np.float32) - np.hypot(u % 1 - 0.5, v % 1 - 0.5), 30)


def _rings(num: int, rng: np.random.Generator) -> Floats:
    u, v = _lattice(num, rng)
    return _wave(np.hypot(u - rng.uniform(-1, 1, (num, 1, 1)), v - rng.uniform(-1, 1, (num, 1, 1))))


def _wood(num: int, rng: np.random.Generator) -> Floats:
    """Year rings cut lengthwise: stripes that wander."""
    u, v = _lattice(num, rng, least=3, most=6)
    return 0.75 * _wave(u + 0.15 * v + 1.5 * _spectrum(num, rng, 2.2)) + 0.25 * _spectrum(num, rng, 0.8)


def _bricks(num: int, rng: np.random.Generator) -> Floats:
    u, v = _lattice(num, rng, least=3, most=6)
    across = (u / 2 + 0.5 * (np.floor(v) % 2)) % 1
    joint = np.minimum(np.minimum(across, 1 - across) * 2, np.minimum(v % 1, 1 - v % 1))
    return _edge(joint - 0.1, 30)


def _cells(num: int, rng: np.random.Generator) -> Floats:
    """Voronoi cells: bright inside, dark where the two nearest centres are equally far."""
    centres = rng.uniform(-0.6, 0.6, (num, 1, 1, 24, 2)).astype(np.float32)
    axis = np.linspace(-0.5, 0.5, COLOUR_PIXELS, dtype=np.float32)
    y, x = np.meshgrid(axis, axis, indexing="ij")
    fields = []
    for part in np.array_split(centres, max(1, num // 100)):  # all at once would take half a gigabyte
        distance = np.hypot(x[..., None] - part[..., 0], y[..., None] - part[..., 1])
        nearest = np.partition(distance, 1, axis=-1)
        fields.append(_edge(nearest[..., 1] - nearest[..., 0] - 0.03, 60))
    return np.concatenate(fields)


def _weave(num: int, rng: np.random.Generator) -> Floats:
    u, v = _lattice(num, rng, least=2, most=5)
    over = _edge(np.sin(2 * math.pi * u) * np.sin(2 * math.pi * v))
    return over * _wave(3 * u) + (1 - over) * _wave(3 * v)


PATTERNS: dict[str, Callable[[int, np.random.Generator], Floats]] = {
    "grating": _grating,
    "stripes": _stripes,
    "checkers": _checkers,
    "dots": _dots,
    "rings": _rings,
    "wood": _wood,
    "bricks": _bricks,
    "cells": _cells,
    "weave": _weave,
    "white noise": lambda num, rng: _spectrum(num, rng, 0.0),
    "pink noise": lambda num, rng: _spectrum(num, rng, 1.0),
    "brown noise": lambda num, rng: _spectrum(num, rng, 2.0),
}


# --- colour --------------------------------------------------------------------------------------------------------


def _paint(field: Floats, rng: np.random.Generator, *, shade: float, noise: float) -> Bytes:
    """Colour a field from 0 to 1 with two random colours that differ in brightness, then add shading and noise."""
    num, height, width = field.shape
    dark = rng.uniform(0, 0.55, (num, 1, 1, 3))
    light = (dark + rng.uniform(0.2, 0.7, (num, 1, 1, 3))).clip(0, 1)
    swap = rng.random((num, 1, 1, 1)) < 0.5
    ground, ink = np.where(swap, light, dark), np.where(swap, dark, light)
    image = (ground + (ink - ground) * field[..., None]).astype(np.float32)
    slope = rng.uniform(-shade, shade, (num, 2)).astype(np.float32)
    rows, columns = np.linspace(-1, 1, height, dtype=np.float32), np.linspace(-1, 1, width, dtype=np.float32)
    image += (slope[:, :1, None] * rows[None, :, None] + slope[:, 1:, None] * columns[None, None])[..., None]
    strength = rng.uniform(0, noise, (num, 1, 1, 1)).astype(np.float32)
    image += strength * rng.standard_normal(image.shape, dtype=np.float32)
    return _to_bytes(image)


def _to_bytes(images: NDArray[np.floating]) -> Bytes:
    return (images * 255).round().clip(0, 255).astype(np.uint8)


FASHION_TASKS = {"garments_a": _garments_a, "garments_b": _garments_b, "rotation": _rotation}
DRAWN_TASKS = {"glyphs": _glyphs, "shapes": _shapes, "textures": _textures}
TASKS = (*FASHION_TASKS, *DRAWN_TASKS)
