"""What fine-tuning against searching found, in words: the same ones in a terminal, on a page and in an analysis.

In:  kinds of training and ways of searching, by the names that records have; seconds, and what an hour costs
Out: a few words
Nothing here knows where they are shown.
"""

from collections.abc import Iterable, Sequence

from modelhound.analysis.wording import number_text, seconds_text, seconds_texts
from modelhound.records import BreakevenFindings

__all__ = ["JOBS", "TRAININGS", "WAYS", "cost_text", "span_text"]

TRAININGS = {"full": "full fine-tuning", "head": "head only", "cached": "head, cached features"}
"""Kinds of training, the dearest first."""

JOBS = {**TRAININGS, "extract": "features alone"}
"""All that is timed of one model."""

WAYS = {"plain": "one after the other", "engine": "all together"}
"""How models are searched over."""


def span_text(low: float, high: float) -> str:
    """Seconds, or hours where they are many; both ends where they differ, and then in one unit."""
    if high < 3600:
        return _ends(seconds_texts((low, high)))
    return _ends(seconds_text(each) if each < 3600 else f"{number_text(each / 3600)} h" for each in (low, high))


def cost_text(findings: BreakevenFindings, *seconds: float) -> str:
    """The same in money and energy, where prices were given."""
    parts = []
    if findings.price_per_hour is not None:
        parts.append(f"{_ends_of_hours(seconds, findings.price_per_hour)} in money")
    if findings.watts is not None:
        parts.append(f"{_ends_of_hours(seconds, findings.watts)} Wh")
    return ", ".join(parts)


def _ends_of_hours(seconds: Sequence[float], each_hour: float) -> str:
    return _ends(number_text(each / 3600 * each_hour) for each in seconds)


def _ends(texts: Iterable[str]) -> str:
    """One text where both are the same."""
    return " to ".join(dict.fromkeys(texts))
