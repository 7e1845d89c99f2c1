"""Where the time of several models together went.

In:  records of models
Out: seconds by phase
Nothing here knows what a phase is.
"""

from collections.abc import Sequence

from modelhound.records import ModelMeasured

__all__ = ["total_phases"]


def total_phases(measured: Sequence[ModelMeasured]) -> dict[str, float]:
    """Seconds per phase over these models, and what the phases leave over as "other"."""
    totals: dict[str, float] = {}
    for record in measured:
        for phase, seconds in record.totals().items():
            totals[phase] = totals.get(phase, 0.0) + seconds
    other = totals.pop("other", 0.0)
    return {**totals, "other": max(0.0, other)}  # which stands last
