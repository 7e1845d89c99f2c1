"""From raw samples of one time to its median and how sure that is.

In:  the samples in seconds, or a median with an interval somebody else computed
Out: the median, an interval of it, and its relative error
Nothing here knows what was timed.

A median has an exact interval without any assumption on the samples: each sample lies below the true median with probability
one half, so the number below follows a binomial, and two of the sorted samples bound the median. A few values measured one
after the other have none: theirs is Student's, wider by what one value tells of the next.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from modelhound.errors import RequestError

__all__ = ["check_seconds", "log_median_error", "median_interval", "median_of", "percentile_of", "series_interval"]

_CONFIDENCE = 0.95
_LEAST_BEYOND = 100  # samples beyond a percentile before it is told
_LEAST_FOR_ORDER = 6  # samples from which two of them can bound the median with 95 %
_LEAST_FOR_SPREAD = 3
_MOST_ALIKE = 0.9  # of neighbours: beyond, a few values would be worth less than one


def median_of(seconds: Sequence[float]) -> float:
    """The middle sample, which a few slow ones do not move."""
    return float(np.median(np.asarray(seconds, dtype=np.float64)))


def median_interval(seconds: Sequence[float]) -> tuple[float, float] | None:
    """Two samples between which the true median lies in 95 % of cases; None where there are too few samples to say."""
    ordered = sorted(seconds)
    lower = int(stats.binom.ppf((1 - _CONFIDENCE) / 2, len(ordered), 0.5))
    if lower < 1:
        return None
    return float(ordered[lower - 1]), float(ordered[len(ordered) - lower])


def percentile_of(seconds: Sequence[float], share: float) -> float | None:
    """The time that `share` of the samples stay below; None from fewer than 100 / (1 - share) samples, where it is noise."""
    if len(seconds) * (1 - share) < _LEAST_BEYOND * (1 - 1e-9):
        return None
    return float(np.quantile(np.asarray(seconds, dtype=np.float64), share))


def log_median_error(seconds: Sequence[float], interval: tuple[float, float] | None = None) -> float | None:
    """Standard error of the logarithm of the median, which is its relative error; None from fewer than three samples.

    A 95 % `interval` of the median is believed where there is one.
    """
    if interval is None and len(seconds) >= _LEAST_FOR_ORDER:
        interval = median_interval(seconds)
    if interval is not None:
        return math.log(interval[1] / interval[0]) / (2 * float(special.ndtri((1 + _CONFIDENCE) / 2)))
    return None if len(seconds) < _LEAST_FOR_SPREAD else _median_error(np.log(np.asarray(seconds, dtype=np.float64)))


def series_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Between which the true middle of values measured one after the other lies in 95 % of cases; None from fewer than three.

    Few values know their own spread badly (Student). What lasted from one value to the next, such as other work on the
    machine, makes them worth fewer: by the correlation of neighbours, which comes out 1 / n too low around their own mean.
    """
    series = np.asarray(values, dtype=np.float64)
    count = len(series)
    if count < _LEAST_FOR_SPREAD:
        return None
    off = series - series.mean()
    squares = float(off @ off)
    alike = min(_MOST_ALIKE, max(0.0, float(off[1:] @ off[:-1]) / squares + 1 / count)) if squares else 0.0
    wider = math.sqrt((1 + alike) / (1 - alike))
    reach = float(stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1)) * wider * _median_error(series)
    middle = float(np.median(series))
    return middle - reach, middle + reach


def _median_error(values: NDArray[np.float64]) -> float:
    """For normal errors a median is sqrt(pi / 2) times as uncertain as a mean."""
    return math.sqrt(math.pi / 2 / len(values)) * float(np.std(values, ddof=1))


def check_seconds(where: str, seconds: Sequence[float], interval: tuple[float, float] | None) -> None:
    """Refuse times that are not times."""
    if not seconds or not all(math.isfinite(value) and value > 0 for value in seconds):
        raise RequestError(
            f"cannot use the times at {where}: expected one or more positive numbers of seconds, got {_shorten(seconds)}"
        )
    if interval is not None and not (0 < interval[0] <= interval[1] < math.inf):
        raise RequestError(
            f"cannot use the interval {interval!r} at {where}: expected 0 < low <= high, leave it out where it is not known"
        )


def _shorten(seconds: Sequence[float]) -> str:
    wrong = [value for value in seconds if not (math.isfinite(value) and value > 0)]
    return repr(wrong[:3]) if wrong else "none"
