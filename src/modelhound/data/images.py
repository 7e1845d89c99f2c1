"""Turn the bytes of any common image file into an upright 8-bit RGB image.

In:  the bytes of a JPEG, PNG, WebP, BMP, GIF, TIFF or PPM file
Out: a PIL image of mode RGB with its EXIF orientation applied, or UnreadableItemError with the reason
Nothing here knows where the bytes come from or what size a model wants.

How each kind becomes 8-bit RGB:
    alpha          put on white. Pictures with alpha are mostly cut-outs, logos and drawings made for a white page; and
                   dropping alpha would show whatever colour happens to lie hidden under the transparent parts
    16 bit         divided by 257, so that 65535 becomes 255; Pillow's own conversion clips everything above 255
    32-bit float   0..1 is stretched to 0..255, 0..255 is kept, anything else is stretched from its own range
    animation      the first frame
"""

import hashlib
import io
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from modelhound.data.jpeg_heads import read_head
from modelhound.data.source import UnreadableItemError

__all__ = ["IMAGE_SUFFIXES", "check_image", "decode_image", "image_size"]

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
"""What the names of image files end in, in lower case."""

# Not every format Pillow knows: a file called .jpg that is really PostScript would start Ghostscript.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

# A model's transform brings the shorter side to some 256 pixels, so a picture of 1 x 10000 would grow to 2 GB.
_MAX_SIDE_RATIO = 200

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_END_OF_JPEG, _MOST_BEHIND_END = b"\xff\xd9", 64  # some cameras and servers add a few bytes

_warnings_lock = threading.Lock()


def check_image(data: bytes) -> str:
    """A digest of the file, or UnreadableItemError.

    A JPEG with an ordinary head and an end is taken at its word: to decode it takes a hundred times as long, and what comes in
    between is seldom so broken that it cannot be decoded. All others are decoded.
    """
    if read_head(data) is None or _END_OF_JPEG not in data[-_MOST_BEHIND_END:]:
        decode_image(data, preview=True)
    return hashlib.sha256(data).hexdigest()


def decode_image(data: bytes, *, preview: bool = False) -> Image.Image:
    """The image in `data`. A preview may be smaller: all bytes are read, but JPEG spares itself most of the arithmetic."""
    if not data:
        raise UnreadableItemError("the file is empty")
    try:
        with _pillow_warnings():
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
        _check_shape(image.size)
        if preview:
            image.draft(None, (1, 1))
        image.load()
        return _to_rgb(_turn_upright(image))
    except UnreadableItemError:
        raise
    except Exception as error:  # on broken data decoders raise nearly anything: SyntaxError, struct.error, EOFError, …
        raise UnreadableItemError(_reason(error)) from error


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height as they are stored, or UnreadableItemError; only the head is looked at."""
    head = read_head(data)
    if head is not None:
        return head.size
    try:
        with _pillow_warnings(), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            return image.size
    except Exception as error:  # as above
        raise UnreadableItemError(_reason(error)) from error


@contextmanager
def _pillow_warnings() -> Iterator[None]:
    """Make Pillow's warning of a decompression bomb an error, and drop its others.

    Warning filters belong to the whole process, so only one thread at a time may change them and put them back.
    """
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _renew_lock() -> None:
    """A process forked while another thread decodes would wait for ever for a lock that nobody holds."""
    global _warnings_lock
    _warnings_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _check_shape(size: tuple[int, int]) -> None:
    short, long = sorted(size)
    if short < 1 or long > short * _MAX_SIDE_RATIO:
        raise UnreadableItemError(f"{size[0]} x {size[1]} pixels are too narrow for a picture")


def _turn_upright(image: Image.Image) -> Image.Image:
    try:
        with _pillow_warnings():
            orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # broken EXIF says nothing about the pixels, which are fine by now
        return image
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        image = Image.fromarray(_from_16_bit(np.asarray(image)))
    elif image.mode == "F":
        image = Image.fromarray(_from_float(np.asarray(image)))
    # "transparency" marks one colour, or palette entries, as transparent without a channel of their own
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = _on_white(image)
    rgb = image.convert("RGB")
    rgb.info = {}  # or somebody might apply the orientation a second time
    return rgb


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "La":
        image = image.convert("LA")
    with_alpha = image.convert("RGBA")
    white = Image.new("RGBA", with_alpha.size, "white")
    return Image.alpha_composite(white, with_alpha)


def _from_16_bit(values: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint8]:
    wide = np.clip(values.astype(np.int64), 0, 65535)  # mode I has 32 bits, of which files in practice use 16
    return ((wide + 128) // 257).astype(np.uint8)


def _from_float(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.uint8]:
    finite = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    return np.rint((finite - low) * (255 / (high - low if high > low else 1.0))).astype(np.uint8)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image of a known format, or its head is damaged"
    if isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError):
        return f"it has more than {Image.MAX_IMAGE_PIXELS} pixels, which may be a decompression bomb"
    if "truncated" in str(error).lower():  # worded differently for the head and the body of a file
        return "the file is truncated"
    return str(error) or type(error).__name__
