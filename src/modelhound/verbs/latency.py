"""`latency`: how fast are these networks, how does that grow with batch, image and sequence, and why?

In:  LatencySettings
Out: a LatencyResult and a run folder that holds every sample behind it; or, before anything runs, what that will take
How points are measured is the business of `timing`, what follows from them that of `analysis`. A point that cannot be measured
is a row like any other. Whatever is finished is in the run folder at once, so that the same request goes on where it stopped.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.latency import anchors_of
from modelhound.analysis.newest import newest_points
from modelhound.analysis.prediction import LEAST_ANCHORS
from modelhound.analysis.wording import plural
from modelhound.errors import RequestError
from modelhound.meter import utc_now
from modelhound.records import (
    CeilingsMeasured,
    Record,
    Watch,
    silent,
    to_plain,
)
from modelhound.settings import LatencySettings
from modelhound.settings.checks import make_settings, name_all
from modelhound.store import RunFolder, default_run_path, open_run
from modelhound.timing import (
    Bench,
    LatencyAnswer,
    LatencyPlan,
    LatencyResult,
    Learnt,
    Place,
    SweepPlan,
    assemble_result,
    compare_latency,
    find_devices,
    find_limits,
    open_place,
    plan_sweep,
    price_points,
    read_comparable,
    read_latency,
    recall,
    remember,
)

__all__ = [
    "LatencyPlan",
    "LatencyResult",
    "compare_latency",
    "explain_latency",
    "latency",
    "read_comparable",
    "read_latency",
    "run_latency",
]


def latency(models: str | Sequence[str] = ("auto",), *, watch: Watch = silent, **options: Any) -> LatencyResult:
    """Time `models`; `options` are those of `hound latency`, the fields of LatencySettings."""
    settings = make_settings(LatencySettings, "time models", models=name_all(models), **options)
    return run_latency(settings, watch=watch)


def run_latency(settings: LatencySettings, *, watch: Watch = silent) -> LatencyResult:
    """Do what `settings` ask for."""
    with open_place(settings, watch=watch) as place:
        plan = place.plan(watch)
        identity = _identity(settings, place.names)
        path = settings.run or default_run_path(
            "latency", _short_name(plan), {**identity, "points": [to_plain(point) for point in plan.points]}
        )
        with open_run(path, verb="latency", at=utc_now(), settings=to_plain(settings), identity=identity) as run:
            num_resumed = place.sweep(plan, run.read(Record), run.append, watch)
            result = _conclude(path, plan, _ceilings(run, place), run, settings, num_resumed, place.notes)
            run.write_answer(
                LatencyAnswer(laws=result.laws, conclusions=result.conclusions, prediction=result.prediction),
                headline=_headline(result),
            )
    anchors = anchors_of(result.measured)
    for each in result.ceilings:
        learnt = Learnt(ceilings=each, anchors=anchors.get((each.device, each.precision), ()))
        remember(learnt, is_compiled=settings.compile)
    return result


def explain_latency(settings: LatencySettings, *, watch: Watch = silent) -> LatencyPlan:
    """Price the sweep that `settings` ask for; no network is run, but a device nothing is known of shows what it can do."""
    if settings.on != "local":
        raise RequestError(f"cannot use --explain with --on {settings.on}: expected --on local, leave one of them out")
    devices = find_devices(settings)
    with Bench(settings) as bench:
        plan = plan_sweep(settings, devices, bench, watch=watch)
        learnt = {
            (device, precision): known
            for device, precisions in devices.items()
            for precision in precisions
            if (known := _learn(device, precision, bench, is_compiled=settings.compile)) is not None
        }
        priced, errors = price_points(plan.points, plan.costs, learnt, find_limits(plan, settings, bench), settings)
    basis = []
    for (device, precision), error in errors.items():
        rests = (
            "what this device can do at most, which may be wrong by a factor of three: earlier runs on it are asked once they "
            f"have timed more than {LEAST_ANCHORS} networks"
        )
        basis.append((device, precision, f"earlier runs on this device: {error.sentence}" if error else rests))
    return LatencyPlan(
        priced=priced,
        broken=plan.broken,
        total_seconds=sum(each.point_seconds for each in priced),
        basis=tuple(basis),
    )


def _learn(device: str, precision: str, bench: Bench, *, is_compiled: bool) -> Learnt | None:
    """What earlier runs know of the device, or else the most it can do."""
    known = recall(bench.find_device(device).name, precision, is_compiled=is_compiled)
    if known is not None:
        return known
    seen = bench.measure_ceilings(device, precision)
    return None if seen is None else Learnt(ceilings=seen)


def _identity(settings: LatencySettings, names: Mapping[str, str]) -> dict[str, Any]:
    """Whatever decides the numbers; models and sizes may grow from one start to the next."""
    return {
        "weights": settings.weights,
        "sampling": settings.sampling,
        "seconds": settings.seconds,
        "width": settings.width,
        "compile": settings.compile,
        "memory": settings.memory,
        "arch": settings.arch,
        "devices": dict(names),
        "seed": settings.seed,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _short_name(plan: SweepPlan) -> str:
    names = list(plan.candidates)
    return names[0].partition(":")[2].replace("/", "-") if len(names) == 1 else f"{len(names)}-models"


def _ceilings(run: RunFolder, place: Place) -> tuple[CeilingsMeasured, ...]:
    """Of each device and precision, in the order of the devices."""
    found = {(each.device, each.precision): each for each in run.read(CeilingsMeasured)}
    order = list(place.devices)
    return tuple(sorted(found.values(), key=lambda each: order.index(each.device) if each.device in order else -1))


def _conclude(
    path: Path,
    plan: SweepPlan,
    ceilings: Sequence[CeilingsMeasured],
    run: RunFolder,
    settings: LatencySettings,
    num_resumed: int,
    notes: Sequence[str],
) -> LatencyResult:
    """Everything asked for that the folder holds now; what it holds besides belongs to other requests."""
    measured, failed = newest_points(run.read(Record))
    result = assemble_result(
        path,
        [measured[point] for point in plan.points if point in measured],
        [failed[point] for point in plan.points if point in failed],
        ceilings,
        plan.broken,
        margin=settings.margin,
    )
    return msgspec.structs.replace(result, notes=(*notes, *result.notes), num_resumed=num_resumed)


def _headline(result: LatencyResult) -> str:
    told = ", ".join(dict.fromkeys(f"{each.conclusion.name} {each.conclusion.verdict}" for each in result.conclusions))
    failed = f", {len(result.failed)} without a time" if result.failed else ""
    return f"{plural(len(result.measured), 'point')}{failed}" + (f"; {told}" if told else "")
