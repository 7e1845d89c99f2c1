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
        for samples in record.phases:
            totals[samples.phase] = totals.get(samples.phase, 0.0) + samples.total
    totals["other"] = max(0.0, sum(record.wall_seconds for record in measured) - sum(totals.values()))
    return totals
