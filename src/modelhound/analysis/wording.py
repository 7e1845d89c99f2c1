"""Numbers as a person reads them, for the sentences of this room.

In:  a number, an interval, a size on an axis
Out: a few words
Nothing here knows what is claimed with them.
"""

from collections.abc import Sequence
from typing import Literal

__all__ = [
    "Axis",
    "bytes_text",
    "each_text",
    "interval_text",
    "list_text",
    "number_text",
    "seconds_text",
    "share_text",
    "size_text",
]

Axis = Literal["batch", "pixels", "tokens", "size"]

_EACH = {"batch": "item", "pixels": "pixel", "tokens": "token", "size": "unit"}
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def seconds_text(seconds: float) -> str:
    """Three digits in the unit that suits: 4.12 ms."""
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if abs(seconds) >= 0.9995 * scale), _UNITS[-1])
    return f"{number_text(seconds / scale)} {unit}"


def number_text(value: float) -> str:
    """Three digits, and thousands apart, without an exponent where a person can do without: 50,200."""
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,}"


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
