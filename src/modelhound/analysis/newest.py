"""Of what a run folder holds several times, the records that count.

In:  records in the order in which they were written, by starts that were stopped and by those that went on
Out: the newest of each thing that was measured
Nothing here knows who wrote them. Commands and pages ask the same functions, so that they tell the same.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from modelhound.records import (
    BlocksMeasured,
    Failure,
    LatencyFailed,
    LatencyMeasured,
    LatencyPoint,
    ModelTrained,
    OperatorsProfiled,
    PairFailed,
    RankTrained,
    Record,
    RunStarted,
)

__all__ = ["newest", "newest_failures", "newest_of_runs", "newest_pairs_failed", "newest_points"]

One = TypeVar("One")
OfRun = TypeVar("OfRun", RankTrained, BlocksMeasured, OperatorsProfiled)


def newest(records: Iterable[One], key: Callable[[One], Hashable]) -> list[One]:
    """The last record of each key, in the order in which keys came first."""
    return list({key(each): each for each in records}.values())


def newest_points(
    records: Iterable[Record],
) -> tuple[dict[LatencyPoint, LatencyMeasured], dict[LatencyPoint, LatencyFailed]]:
    """Every point of a sweep as it was seen last: those with a time, and those without.

    One that has a time is tried again only where its network is another by now.
    """
    rows = newest(
        (each for each in records if isinstance(each, LatencyMeasured | LatencyFailed)), lambda each: each.point
    )
    measured = {each.point: each for each in rows if isinstance(each, LatencyMeasured)}
    return measured, {each.point: each for each in rows if isinstance(each, LatencyFailed)}


def newest_of_runs(records: Iterable[OfRun], trained: Sequence[ModelTrained]) -> list[OfRun]:
    """The newest record of each rank of these training runs.

    One that was killed after its last step has none to tell of when it is started again: the record before counts.
    """
    found: dict[tuple[str, int, int], OfRun] = {}
    for each in records:
        key = (each.model, each.num_ranks, getattr(each, "rank", 0))
        if key not in found or getattr(each, "num_steps", None) != 0:
            found[key] = each
    wanted = {(run.model, run.num_ranks) for run in trained}
    return [each for (model, num_ranks, _), each in found.items() if (model, num_ranks) in wanted]


def newest_failures(records: Iterable[Record]) -> list[Failure]:
    """Of every model those of the last start that had to do with it: what failed is tried again by every start."""
    num_starts = 0
    last: dict[str, int] = {}
    found: dict[str, list[Failure]] = {}
    for each in records:
        num_starts += isinstance(each, RunStarted)
        model: str | None = getattr(each, "model", None)
        if model is None:
            continue
        if last.get(model) != num_starts:
            last[model], found[model] = num_starts, []
        if isinstance(each, Failure):
            found[model].append(each)
    return [failure for of_model in found.values() for failure in of_model]


def newest_pairs_failed(records: Iterable[Record]) -> list[PairFailed]:
    """Those of the last start, for the same reason; which pairs it tries is its own affair."""
    found: list[PairFailed] = []
    for each in records:
        if isinstance(each, RunStarted):
            found = []
        elif isinstance(each, PairFailed):
            found.append(each)
    return found
