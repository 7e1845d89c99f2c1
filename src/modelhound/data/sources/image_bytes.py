"""Images whose files are at hand as bytes, in memory or in a memory-mapped file.

In:  the bytes of one image file per item
Out: a Reader
Nothing here knows where the bytes come from.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from PIL import Image

from modelhound.data.images import check_image, decode_image

__all__ = ["BytesReader"]


@dataclass(frozen=True, slots=True, eq=False)
class BytesReader:
    """One image file per item, still encoded."""

    files: tuple[Any, ...]
    """bytes, or what gives its bytes without a copy, such as a part of a memory-mapped file; it must pickle."""

    @property
    def in_memory(self) -> bool:
        return False  # the bytes are, but decoding them is the work that processes can share

    def select(self, positions: Sequence[int]) -> Self:
        return type(self)(tuple(self.files[position] for position in positions))

    def stamp(self, position: int) -> str:
        return hashlib.sha256(self.files[position]).hexdigest()

    def check(self, position: int) -> str:
        return check_image(self.read_bytes(position))

    def read(self, position: int) -> Image.Image:
        return decode_image(self.read_bytes(position))

    def read_bytes(self, position: int) -> bytes:
        """The file itself, for whoever decodes many at once."""
        return bytes(self.files[position])
