"""How much memory will a point need, after two smaller ones were seen?

In:  probes: what a point was expected to hold by its shapes alone, and what it did hold
Out: a line through them, and what any other point will need
Nothing here knows a device. What a network holds is its weights and, in proportion to the batch, its intermediate results; how
many of those a library holds at once, and what it takes for itself, is seen from two small points.
"""

from collections.abc import Sequence

import msgspec

__all__ = ["MemoryModel", "fit_memory"]

# How far above the limit a prediction must lie before a point is not tried, by the number of probes behind it.
_DOUBT = (2.0, 1.5, 1.1)
# Probes that are expected to hold nearly the same make no line: their difference is noise, and its slope anything.
_FAR_APART = 1.25


class MemoryModel(msgspec.Struct, frozen=True, kw_only=True):
    """bytes = fixed + factor x expected"""

    fixed_bytes: float
    factor: float
    num_probes: int

    def predict(self, expected_bytes: float) -> float:
        """What a point will need."""
        return self.fixed_bytes + self.factor * expected_bytes

    def is_hopeless(self, expected_bytes: float, limit_bytes: float) -> bool:
        """Whether it surely does not fit; from few probes only what is far beyond the limit is sure."""
        return self.predict(expected_bytes) > limit_bytes * _DOUBT[min(self.num_probes, len(_DOUBT) - 1)]


def fit_memory(weight_bytes: float, probes: Sequence[tuple[float, float]]) -> MemoryModel:
    """The line through the probes (expected, held) that lie farthest apart; where no two do, weights are what is fixed."""
    distinct = sorted(dict(probes).items())
    if not distinct or distinct[-1][0] <= _FAR_APART * distinct[0][0]:
        factor = 1.0
        if distinct and distinct[0][0] > 0:
            factor = max(1.0, (max(held for _, held in distinct) - weight_bytes) / distinct[0][0])
        return MemoryModel(fixed_bytes=weight_bytes, factor=factor, num_probes=min(1, len(distinct)))
    (small, held_small), (large, held_large) = distinct[0], distinct[-1]
    factor = max(0.0, (held_large - held_small) / (large - small))
    fixed = max(weight_bytes, held_large - factor * large)
    return MemoryModel(fixed_bytes=fixed, factor=factor, num_probes=len(distinct))
