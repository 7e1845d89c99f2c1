"""Which kinds of JPEG a decoder gets right, found out on small ones that are made here.

In:  a function that decodes files
Out: the kinds (colour or grey, subsampling, baseline or progressive) that it decodes as Pillow does
Nothing here knows whose decoder it is, or believes it.
"""

import io
import warnings
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data.images import decode_image
from modelhound.data.jpeg_heads import JpegKind, read_head

__all__ = ["find_trusted"]

_PROBE_SIZES = ((160, 120), (97, 61), (47, 33))  # with odd ones: they end in the middle of a block

_Pixels = npt.NDArray[np.uint8]


def find_trusted(decode: Callable[[list[bytes]], list[_Pixels]], *, tolerance: float) -> frozenset[JpegKind]:
    """The kinds of JPEG that `decode` gives as Pillow does; none where it fails altogether."""
    trusted = set()
    for kind, files in _probes().items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of deprecation, by torchvision
                decoded = decode(list(files))
        except Exception:  # other people's compiled code on a machine nobody has seen
            continue
        if all(_differ(pixels, data) <= tolerance for pixels, data in zip(decoded, files, strict=True)):
            trusted.add(kind)
    return frozenset(trusted)


def _differ(pixels: _Pixels, data: bytes) -> float:
    plain = np.asarray(decode_image(data)).astype(np.int16)
    return float(np.abs(plain - pixels).mean()) if pixels.shape == plain.shape else 256.0


@lru_cache(maxsize=1)
def _probes() -> dict[JpegKind, tuple[bytes, ...]]:
    """Small JPEGs of every kind that is worth a fast decoder."""
    files: dict[JpegKind, tuple[bytes, ...]] = {}
    generator = np.random.default_rng(0)
    for width, height in _PROBE_SIZES:
        row, column = np.mgrid[0:height, 0:width]
        waves = [128 + 90 * np.sin(row / 29 + column / 43), 128 + 80 * np.cos(row / 57 - column / 37), row + column / 2]
        noise = generator.normal(0, 6, (height, width, 1))  # of brightness, as in photographs
        image = Image.fromarray((np.stack(waves, -1) + noise).clip(0, 255).astype(np.uint8))
        for mode, subsampling in (("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0)):
            for progressive in (False, True):
                file = io.BytesIO()
                image.convert(mode).save(file, "JPEG", quality=85, subsampling=subsampling, progressive=progressive)
                head = read_head(file.getvalue())
                assert head is not None  # made above, in the simplest way
                files[head.kind] = (*files.get(head.kind, ()), file.getvalue())
    return files
