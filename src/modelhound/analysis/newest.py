"""Of what a run folder holds several times, the records that count.

In:  records in the order in which they were written, by starts that were stopped and by those that went on
Out: the newest of each thing that was measured
Nothing here knows who wrote them. Commands and pages ask the same functions, so that they tell the same.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from modelhound.records import (
    BlocksMeasured,
    LatencyFailed,
    LatencyMeasured,
    LatencyPoint,
    ModelTrained,
    OperatorsProfiled,
    RankTrained,
    Record,
)

__all__ = ["newest", "newest_of_runs", "newest_points"]

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
