"""Measure the points of a sweep on this machine, one after the other, as far as they are not known yet.

In:  a SweepPlan, a bench, records of earlier starts
Out: what the devices can do at most, then a record of every other point, each told as soon as it is there
Nothing here knows where records are kept, or on which of several machines it runs.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from modelhound.records import CeilingsMeasured, LatencyFailed, LatencyMeasured, LatencyPoint, Progress, Record, Watch
from modelhound.settings import LatencySettings
from modelhound.store import Memo
from modelhound.timing.axes import shuffle_points
from modelhound.timing.bench import Bench
from modelhound.timing.limits import Limits
from modelhound.timing.planning import SweepPlan

__all__ = ["find_limits", "settled", "sweep_points"]


def sweep_points(
    plan: SweepPlan,
    devices: Mapping[str, Sequence[str]],
    settings: LatencySettings,
    bench: Bench,
    *,
    known: Sequence[Record],
    tell: Callable[[Record], None],
    watch: Watch,
) -> int:
    """How many points were known, of those asked for."""
    _measure_ceilings(devices, bench, known, tell)
    limits = find_limits(plan, settings, bench)
    before = settled(known, settings.timeout, plan.stamps)
    order = shuffle_points(plan.points, limits.expected_bytes, seed=settings.seed)
    for record in (before[point] for point in order if point in before):
        limits.add(record)
    todo = [point for point in order if point not in before]
    for place, point in enumerate(todo):
        detail = f"{point.model} {point.shape_text} {point.precision} {point.device}"
        watch(Progress(task="timing", done=place, total=len(todo), detail=detail))
        candidate = plan.candidates[point.model]
        outcome = limits.refuse(point) or bench.measure(
            point, candidate, plan.costs[point.model, point.size], place=len(before) + place
        )
        outcome = msgspec.structs.replace(outcome, stamp=candidate.stamp)
        tell(outcome)
        limits.add(outcome)
    watch(Progress(task="timing", done=len(todo), total=len(todo)))
    return len(order) - len(todo)


def settled(
    known: Sequence[Record], timeout: float, stamps: Mapping[str, str]
) -> dict[LatencyPoint, LatencyMeasured | LatencyFailed]:
    """Points that need not be tried again: they have a time, or would fail once more. What was known of a network whose stamp
    is another by now does not count."""
    rows = [
        each
        for each in known
        if isinstance(each, LatencyMeasured | LatencyFailed) and each.stamp == stamps.get(each.model, "")
    ]
    found: dict[LatencyPoint, LatencyMeasured | LatencyFailed] = {
        each.point: each for each in rows if isinstance(each, LatencyFailed) and _is_hopeless(each, timeout)
    }
    return found | {each.point: each for each in rows if isinstance(each, LatencyMeasured)}


def _is_hopeless(row: LatencyFailed, timeout: float) -> bool:
    """Memory does not grow from one start to the next, but a point may be given more time."""
    if row.why == "timed out":
        return row.timeout_seconds is not None and timeout <= row.timeout_seconds
    return row.why == "out of memory"


def find_limits(plan: SweepPlan, settings: LatencySettings, bench: Bench) -> Limits:
    """What the devices of the plan can hold, and what ran out of memory before."""
    found = {device: bench.find_device(device) for device in dict.fromkeys(point.device for point in plan.points)}
    return Limits(
        plan.costs,
        {device: each.memory_bytes for device, each in found.items()},
        device_names={device: each.name for device, each in found.items()},
        stamps=plan.stamps,
        timeout=settings.timeout,
        memo=Memo("out-of-memory-compiled" if settings.compile else "out-of-memory"),
    )


def _measure_ceilings(
    devices: Mapping[str, Sequence[str]], bench: Bench, known: Sequence[Record], tell: Callable[[Record], None]
) -> None:
    bench.ceilings |= {(each.device, each.precision): each for each in known if isinstance(each, CeilingsMeasured)}
    for device, precisions in devices.items():
        for precision in precisions:
            if (device, precision) not in bench.ceilings:
                found = bench.measure_ceilings(device, precision)
                if found is not None:
                    tell(found)
