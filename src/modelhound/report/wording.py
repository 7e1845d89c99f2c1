"""Numbers and moments as a person reads them on a page.

In:  a number with a meaning
Out: a few characters
Nothing here knows where the number comes from.
"""

from modelhound.analysis.wording import number_text, seconds_text
from modelhound.settings import ACCURACY_SCORERS

__all__ = [
    "bytes_text",
    "count_text",
    "duration_text",
    "metric_interval_text",
    "metric_text",
    "moment_text",
    "number_text",
    "plural",
    "points_text",
    "score_text",
    "seconds_text",
    "short_name",
]

_MOST_NAME = 60  # characters
_NARROW_SPACE = "\N{NO-BREAK SPACE}"


def metric_text(metric: str, value: float) -> str:
    """84.6 % of an accuracy, 0.846 of an R2."""
    return f"{value:.3f}" if metric == "R2" else f"{value:.1%}".replace("%", f"{_NARROW_SPACE}%")


def metric_interval_text(metric: str, interval: tuple[float, float]) -> str:
    """81.4 – 87.6 %."""
    low, high = interval
    if metric == "R2":
        return f"{low:.3f} – {high:.3f}"
    return f"{100 * low:.1f} – {100 * high:.1f}{_NARROW_SPACE}%"


def points_text(metric: str, difference: float) -> str:
    """A difference of two scores: +2.4 points of an accuracy, +0.024 of an R2."""
    return f"{difference:+.3f}" if metric == "R2" else f"{100 * difference:+.1f}"


def score_text(metric: str, scorer: str, value: float | None) -> str:
    """Of any scorer: shares as percentages, the others as they are."""
    if value is None:
        return "–"
    return metric_text(metric, value) if scorer in ACCURACY_SCORERS else f"{value:.3f}"


def count_text(count: float) -> str:
    """4.7 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.1f}{_NARROW_SPACE}{unit}"
    return number_text(count)


def bytes_text(count: float) -> str:
    """4.7 GB."""
    text = count_text(count)
    return f"{text}B" if text[-1].isalpha() else f"{text}{_NARROW_SPACE}B"


def duration_text(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 5 min: as long as people can picture it."""
    if abs(seconds) < 120:
        return seconds_text(seconds).replace(" ", _NARROW_SPACE)
    whole = round(seconds)
    hours, minutes, left = whole // 3600, whole % 3600 // 60, whole % 60
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
    return text.replace(" ", _NARROW_SPACE)


def moment_text(at: str) -> str:
    """2026-03-01 12:30 UTC, from ISO."""
    return f"{at[:16].replace('T', ' ')} UTC" if len(at) >= 16 else at


def plural(count: int, one: str, many: str | None = None) -> str:
    """1 model, 2 models."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def short_name(name: str, most: int = _MOST_NAME) -> str:
    """A name that fits; its two ends say most."""
    return name if len(name) <= most else f"{name[: most * 2 // 3]}…{name[-(most // 3) :]}"
