"""What the phases of one job take, as lines in the number of items.

In:  a profile of one configuration, with raw samples
Out: four lines, one for each group of phases that are cured by the same means, and the samples behind them
Nothing here imports torch, opens a file or reads a clock.

A job of n items costs  weights + (start of loading + n * loading) + (warm-up + n * forward) + scoring(n)  seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modelhound.records import ConfigurationProfiled, ScoringTimed

__all__ = ["GROUPS", "PHASES", "Line", "find_lines", "own_scorings", "seconds_at", "steady_samples"]

GROUPS: dict[str, tuple[str, ...]] = {
    "weights": ("read weights", "build model", "weights to device"),
    "data": ("wait for data", "data to device"),
    "forward": ("forward",),
    "score": ("score",),
}
"""What phases belong together: they are cured by the same means."""

PHASES = tuple(phase for phases in GROUPS.values() for phase in phases)
"""In the order in which a job meets them."""


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds at no items, and for each."""

    start: float
    slope: float


def seconds_at(record: ConfigurationProfiled, num_items: float) -> dict[str, float]:
    """Seconds of each group for another number of items, by the four lines."""
    return {group: line.start + line.slope * num_items for group, line in find_lines(record).items()}


def find_lines(record: ConfigurationProfiled) -> dict[str, Line]:
    """The four lines of one record, as measured."""
    weights = sum(map(record.seconds_of, GROUPS["weights"]))
    lines = {"weights": Line(weights, 0.0)}
    for group in ("data", "forward"):
        rate = float(np.mean(steady_samples(record, GROUPS[group])))
        lines[group] = Line(_start_seconds(record, GROUPS[group]), rate / record.batch)
    lines["score"] = _score_line(record)
    return lines


def _score_line(record: ConfigurationProfiled) -> Line:
    """Through what scoring fewer items took; never falling."""
    own = own_scorings(record)
    counts = [each.num_items for each in own]
    if len(set(counts)) < 2:
        return Line(record.seconds_of("score"), 0.0)
    medians = [record.num_heads * float(np.median(each.seconds)) for each in own]
    slope, start = np.polyfit(counts, medians, 1)
    if slope < 0:
        return Line(float(np.mean(medians)), 0.0)
    return Line(max(0.0, float(start)), float(slope))


def steady_samples(record: ConfigurationProfiled, phases: Sequence[str]) -> tuple[float, ...]:
    per_batch = [record.samples_of(phase)[record.num_warmup : record.num_batches] for phase in phases]
    return tuple(float(sum(each)) for each in zip(*(samples for samples in per_batch if samples), strict=True)) or (
        0.0,
    )


def _start_seconds(record: ConfigurationProfiled, phases: Sequence[str]) -> float:
    """What the phases took beyond so many batches at the steady rate: processes that start, kernels that are chosen."""
    steady = float(np.mean(steady_samples(record, phases)))
    return max(0.0, sum(map(record.seconds_of, phases)) - steady * record.num_batches)


def own_scorings(record: ConfigurationProfiled) -> list[ScoringTimed]:
    """Of the scorer and the number of classes that the job itself used, on any number of items."""
    if not record.scorings:
        return []
    first = record.scorings[0]
    return [each for each in record.scorings if each.scorer == first.scorer and each.num_classes == first.num_classes]
