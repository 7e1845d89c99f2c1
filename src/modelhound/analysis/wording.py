"""Numbers, names and moments as a person reads them: in sentences, on pages and in a terminal.

In:  a number with a meaning, an interval, a size on an axis
Out: a few words
Nothing here knows what is claimed with them, or where they are shown.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from modelhound.settings import ACCURACY_SCORERS

__all__ = [
    "Axis",
    "all_models_text",
    "among_runs_text",
    "bytes_text",
    "count_text",
    "duration_text",
    "each_text",
    "guessing_text",
    "interval_text",
    "items_text",
    "list_text",
    "metric_interval_text",
    "metric_text",
    "moment_text",
    "number_text",
    "plural",
    "points_text",
    "score_text",
    "seconds_text",
    "seconds_texts",
    "share_text",
    "short_name",
    "size_text",
    "span_of_counts_text",
    "span_of_seconds_text",
    "times_text",
]

Axis = Literal["batch", "pixels", "tokens", "size"]

_EACH = {"batch": "item", "pixels": "pixel", "tokens": "token", "size": "unit"}
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_FAR_APART = 1000  # times
_MOST_NAME = 60  # characters
_TOGETHER = "\N{NO-BREAK SPACE}"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def seconds_text(seconds: float) -> str:
    """Three digits in the unit that suits: 4.12 ms, 1.00 s. A whole number was asked for, and is given whole: 60 s."""
    if seconds == 0:
        return "0 s"
    scale, unit = _unit_of(seconds)
    value = seconds / scale
    if math.isclose(value, round(value), rel_tol=1e-9):
        return f"{number_text(value)} {unit}"
    return f"{_with_decimals(float(f'{value:.3g}'), _decimals(value, 3))} {unit}"


def seconds_texts(values: Sequence[float]) -> list[str]:
    """Durations that are compared with each other: all in one unit and as finely, 0.66 s and 1.00 s.

    Where they lie so far apart that the shortest would be lost or the longest a row of noughts, each in its own.
    """
    known = [abs(value) for value in values if value]
    if not known or max(known) >= _FAR_APART * min(known):
        return [seconds_text(value) for value in values]
    scale, unit = _unit_of(max(known))
    decimals = max(_decimals(max(known) / scale, 3), min(3, _decimals(min(known) / scale, 2)))
    return [f"{_with_decimals(value / scale, decimals)} {unit}" for value in values]


def span_of_seconds_text(ends: tuple[float, float]) -> str:
    """8.18 – 8.28 ms: the unit once."""
    low, high = seconds_texts(ends)
    amount, _, unit = low.partition(" ")
    return f"{amount} – {high}" if unit == high.partition(" ")[2] else f"{low} – {high}"


def _unit_of(seconds: float) -> tuple[float, str]:
    return next((each for each in _UNITS if abs(seconds) >= 0.9995 * each[0]), _UNITS[-1])


def _decimals(value: float, digits: int) -> int:
    """With how many a number has so many digits, the leading noughts not counted."""
    return max(0, digits - 1 - math.floor(math.log10(float(f"{abs(value):.{digits}g}"))))


def _with_decimals(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}"


def number_text(value: float) -> str:
    """Three digits, and thousands apart, without an exponent where a person can do without: 50,200."""
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,}"


def items_text(value: float) -> str:
    """Three digits, and no part of an item: 3,530; 31."""
    return number_text(value if value >= 1000 else float(round(value)))


def bytes_text(num_bytes: float) -> str:
    """Three digits in the unit that suits: 4.12 GB."""
    scale, unit = next(((scale, unit) for scale, unit in _BYTE_UNITS if num_bytes >= 0.9995 * scale), (1.0, "B"))
    return f"{number_text(num_bytes / scale)} {unit}"


def share_text(value: float) -> str:
    """Two decimals: exponents, shares and ratios."""
    return f"{value + 0.0:.2f}" if round(value, 2) != 0 else "0.00"


def interval_text(interval: tuple[float, float]) -> str:
    """The interval of an exponent, a share or a ratio: [0.97, 1.03]."""
    return f"[{share_text(interval[0])}, {share_text(interval[1])}]"


def times_text(value: float) -> str:
    """How many times as fast or as slow: 2.31x, 12x."""
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def size_text(axis: Axis, size: float, interval: tuple[float, float] | None = None) -> str:
    """batch 6.02 [4, 9]; 50,176 pixels; 128 tokens. A whole number was asked for, and is given whole."""
    around = f" [{number_text(interval[0])}, {number_text(interval[1])}]" if interval else ""
    text = f"{size:,.0f}" if size == int(size) else number_text(size)
    return f"{axis} {text}{around}" if axis in ("batch", "size") else f"{text}{around} {axis}"


def each_text(axis: Axis) -> str:
    """What one more on the axis is: item, pixel, token."""
    return _EACH[axis]


def list_text(words: Sequence[str], *, most: int = 6) -> str:
    """a, b and c; and 12 more where the list is long."""
    shown = list(words[:most])
    if len(words) > most:
        return f"{', '.join(shown)} and {len(words) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def metric_text(metric: str, value: float) -> str:
    """84.6% of an accuracy, 0.846 of an R2."""
    return _share_of_variance_text(value) if metric == "R2" else f"{value:.1%}"


def metric_interval_text(metric: str, interval: tuple[float, float]) -> str:
    """81.4 – 87.6%."""
    low, high = interval
    if metric == "R2":
        return f"{_share_of_variance_text(low)} – {_share_of_variance_text(high)}"
    return f"{100 * low:.1f} – {high:.1%}"


def _share_of_variance_text(value: float) -> str:
    """0.846, and never a zero below zero."""
    return f"{round(value, 3) + 0.0:.3f}"


def points_text(metric: str, difference: float) -> str:
    """A difference of two scores: +2.4 points of an accuracy, +0.024 of an R2."""
    return f"{difference:+.3f}" if metric == "R2" else f"{100 * difference:+.1f}"


def score_text(metric: str, scorer: str, value: float | None) -> str:
    """Of any scorer: shares as percentages, the others as they are."""
    if value is None:
        return "–"
    return metric_text(metric, value) if scorer in ACCURACY_SCORERS else f"{value:.3f}"


def count_text(count: float) -> str:
    """4.7 M; a unit may be written right behind it."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= 0.99995 * size:  # what is written as 1000.0 of the unit below
            return f"{count / size:.1f}{_TOGETHER}{unit}"
    return number_text(count)


def duration_text(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 5 min: as long as people can picture it."""
    if abs(seconds) < 120:
        return seconds_text(seconds).replace(" ", _TOGETHER)
    whole = round(seconds)
    hours, minutes, left = whole // 3600, whole % 3600 // 60, whole % 60
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
    return text.replace(" ", _TOGETHER)


def moment_text(at: str) -> str:
    """2026-03-01 12:30 UTC, from ISO."""
    return f"{at[:16].replace('T', ' ')} UTC" if len(at) >= 16 else at


def plural(count: int, one: str, many: str | None = None) -> str:
    """1 model, 2 models."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def span_of_counts_text(counts: Iterable[int], one: str = "", many: str | None = None) -> str:
    """1 batch, 40 batches; 8 to 64 batches where they differ; without a noun only the numbers."""
    found = sorted(counts)
    low, high = found[0], found[-1]
    span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    noun = one if high == 1 or not one else many or f"{one}s"
    return f"{span} {noun}".rstrip()


def all_models_text(count: int) -> str:
    """The model, both models, all 6 models."""
    return {1: "the model", 2: "both models"}.get(count, f"all {count:,} models")


def among_runs_text(scores: Sequence[float]) -> str:
    """What the run with the highest of these scores is among them; of several that are equally good the fastest is meant."""
    equal = scores.count(max(scores))
    if equal > 1:
        return f", the fastest of {equal} runs with that score"
    return f", the best of {len(scores)} runs" if len(scores) > 1 else ""


def guessing_text(metric: str, score: float, interval: tuple[float, float] | None, guess: float) -> str:
    """What to know of a score that, at the low end of its interval, is no better than guessing; empty where it is."""
    if (interval[0] if interval else score) > guess:
        return ""
    return f"Guessing by how often each answer comes cannot be told from that ({metric_text(metric, guess)})."


def short_name(name: str, most: int = _MOST_NAME) -> str:
    """A name that fits; its two ends say most."""
    return name if len(name) <= most else f"{name[: most * 2 // 3]}…{name[-(most // 3) :]}"
