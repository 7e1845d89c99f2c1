"""Texts, or pairs of texts, that are already in memory.

In:  one tuple of texts per item
Out: a Reader
Nothing here knows where the texts come from or how they will be cut into tokens.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from modelhound.data.source import UnreadableItemError

__all__ = ["TextReader"]


@dataclass(frozen=True, slots=True, eq=False)
class TextReader:
    """One text per item, or two where a task is about pairs."""

    texts: tuple[tuple[str, ...], ...]

    @property
    def in_memory(self) -> bool:
        return True

    def select(self, positions: Sequence[int]) -> Self:
        return type(self)(tuple(self.texts[position] for position in positions))

    def stamp(self, position: int) -> str:
        return hashlib.sha256("\0".join(self.texts[position]).encode("utf-8", "surrogatepass")).hexdigest()

    def check(self, position: int) -> str:
        texts = self.texts[position]
        for place, text in enumerate(texts):
            if not text.strip():
                which = "the text" if len(texts) == 1 else ("the first text", "the second text")[place]
                raise UnreadableItemError(f"{which} is empty")
        return self.stamp(position)

    def read(self, position: int) -> tuple[str, ...]:
        return self.texts[position]
