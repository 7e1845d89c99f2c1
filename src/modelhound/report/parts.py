"""What a page is made of, as plain data: sentences, figures, tables, charts, trees, pictures, commands.

In:  whatever a page builder has to say
Out: a Page, which `page` turns into HTML and `markdown` into Markdown
Nothing here knows HTML, Markdown or records. Every text is plain text: what looks like markup is shown as it is.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from modelhound.report.charts import Chart

__all__ = [
    "Block",
    "Branch",
    "Cell",
    "ChartPair",
    "Column",
    "Commands",
    "Figure",
    "Gallery",
    "Page",
    "Picture",
    "Remarks",
    "Section",
    "Sentence",
    "Strong",
    "Table",
    "Tree",
    "plain_text",
]


class Strong(str):
    """Words of a sentence that stand out."""

    __slots__ = ()


Sentence: TypeAlias = tuple[str, ...]
"""Pieces of one sentence, some of them Strong."""


def plain_text(sentence: Sentence) -> str:
    """The sentence without emphasis."""
    return "".join(sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number that answers one question."""

    question: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    is_number: bool = False
    note: str = ""
    """What it means, where the name does not say it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a person reads, and what the column is sorted by (the text itself where that is None)."""

    text: str
    sort_by: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows that can be sorted and filtered."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_shown: int = 25
    """Rows to begin with; the others are one press away."""
    is_folded: bool = False
    """Only the caption is seen until it is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPair:
    """Two charts that belong side by side where there is room."""

    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One node of a tree."""

    label: str
    note: str = ""
    share: float = 0.0
    """Of the whole, from 0 to 1, drawn as a bar."""
    children: "tuple[Branch, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Something nested, to open and close."""

    caption: str
    branches: tuple[Branch, ...]
    is_folded: bool = False
    """Only the caption is seen until it is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A small picture or a short text, with words below it."""

    title: str
    note: str = ""
    content: bytes = b""
    """Of an image file; empty for a text."""
    content_type: str = "image/png"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Pictures side by side."""

    caption: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Command lines to copy: what each does, and the line."""

    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remarks:
    """Sentences one below the other."""

    sentences: tuple[Sentence, ...]


Block: TypeAlias = Chart | ChartPair | Table | Tree | Gallery | Commands | Remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a page, with a name that can be linked to."""

    name: str
    """Small letters and hyphens."""
    title: str
    lead: str = ""
    """What to take from it, in a sentence or two."""
    blocks: tuple[Block, ...]
    is_folded: bool = False
    """Only the title is seen until it is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The answer first, then what it rests on."""

    title: str
    """Of the browser's tab."""
    kicker: str
    """What was asked, when and where, in a few words."""
    answer: Sentence
    sentences: tuple[Sentence, ...] = ()
    """Below the answer."""
    figures: tuple[Figure, ...] = ()
    next_steps: tuple[tuple[str, str], ...] = ()
    """What to do now, the likeliest first, each with its command line."""
    sections: tuple[Section, ...] = ()
    is_running: bool = False
    charts: tuple[Chart, ...] = field(init=False)
    """All of them, in order."""

    def __post_init__(self) -> None:
        found: list[Chart] = []
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Chart):
                    found.append(block)
                elif isinstance(block, ChartPair):
                    found.extend(block.charts)
        object.__setattr__(self, "charts", tuple(found))
