"""Every figure of the pages stands in the file of results that the page names: nothing is quoted that was not measured.

A figure is a number in digits outside code. It is held by a file that its paragraph names, or its section where the paragraph
names none: by the same number there, or by one that rounds to it. Numbers that are no measurements (defaults, versions, exit
codes) are listed here, with the words around them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
SETTLED = {
    "README.md": (
        *("Python 3.11", "16 bit", "0 done", "2 the request", "1 anything else", "130 interrupted", "(5 unless told)"),
        *("(1 %)", "20 GB at most", "5% or 0.05"),
    ),
    "docs/mission.md": (
        *("ResNet-18, 50 and 152", "last 50 %, 25 %, 3 and 1 layers", "of 1000, 100 and 2 classes", "50 batches after"),
        *("100, 1000, 4000 items", "22 and 125 models", "91 s to 83-125 h", "250-300 h", "| 1, 2 and 4 devices"),
        "128 x 12 and 256 x 2",
    ),
    "docs/trust.md": (
        *("(24 at most)", "up to 1,000 images", "(20 epochs)", "a chance of 95 %", "default 13 %", "below 15 %"),
        *("a 90 % interval", "tau near 1"),
    ),
    "docs/decisions/0002-libraries.md": ("0.05 and 0.9 MB", "30 MB"),
    "docs/decisions/0004-one-record-file.md": ("2 000 right-or-wrong values",),
    "docs/decisions/0008-a-search-is-a-race.md": (
        *(
            "(5 unless told)",
            "more than 2 K models",
            "(1 %)",
            "100 items",
            "5 of every class",
            "at most 4 % of draws at a risk of 2 %",
        ),
    ),
    "docs/decisions/0009-finals-by-short-training.md": (
        "9 and 3 times the usual",
        "of 1 000 items is trained on some 20 000 items",
    ),
}
"""Page -> what it says of itself and not of a measurement."""

_NUMBER = re.compile(r"(?<![\w.\-])\d+(?:[ ,]\d{3})*(?:\.\d+)?(?!\w|\.\d)")


def sections(text: str) -> Iterator[str]:
    """What stands below each heading, without code that is shown as a block."""
    return iter(re.split(r"^#.*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE))


def paragraphs(section: str) -> Iterator[str]:
    for each in re.split(r"\n\s*\n|\n(?=- |\d\. |\| )", section):
        yield re.sub(r"^\s*\d\. ", "", each)


def results_named_in(text: str) -> list[Path]:
    named = re.findall(r"benchmarks/results/[\w./]+\w", text)
    found = [ROOT / name for name in named]
    return [file for path in found for file in ([path] if path.is_file() else path.glob("*.md"))]


def figures_of(text: str) -> list[str]:
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    return _NUMBER.findall(text)


def value(figure: str) -> float:
    return float(re.sub(r"[ ,]", "", figure))


def is_held(figure: str, measured: set[float]) -> bool:
    places = len(figure.partition(".")[2])
    return any(round(each, places) == value(figure) for each in measured)


def figures_without_a_result(page: Path) -> list[str]:
    text = page.read_text()
    for words in SETTLED.get(str(page.relative_to(ROOT)), ()):
        text = re.sub(r"\s+".join(map(re.escape, words.split())), " ", text)  # wherever a line of the page ends
    missing = []
    for section in sections(text):
        for paragraph in paragraphs(section):
            files = results_named_in(paragraph) or results_named_in(section)
            measured = {value(each) for file in files for each in _NUMBER.findall(file.read_text())}
            told = " ".join(paragraph.split())
            missing += [f"{each} in: {told}" for each in figures_of(paragraph) if not is_held(each, measured)]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_stands_in_the_results_that_the_page_names(page: Path) -> None:
    assert figures_without_a_result(page) == []


def test_a_figure_that_nobody_measured_is_found() -> None:
    held = {18.9, 1000.0, 0.37}
    assert is_held("19", held)
    assert is_held("0.4", held)
    assert is_held("1,000", held)
    assert not is_held("20", held)
    assert not is_held("0.38", held)
