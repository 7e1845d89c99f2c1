"""What a sweep will take, before it runs.

In:  points and their costs; what was learnt of the device in earlier runs, or else what it can do at most
Out: the time of every point with an interval, and of the whole sweep
Nothing here times a network. What finished runs learnt is remembered by device, precision, version of torch and whether torch
compiled the networks: the times of their points, and the ceilings that were seen just before, since the one is read in units of
the other.
"""

import contextlib
import importlib.metadata
from collections.abc import Mapping, Sequence

import msgspec

from modelhound.analysis.prediction import (
    LEAST_ANCHORS,
    Anchor,
    PredictedTime,
    PredictionError,
    Predictor,
    fit_predictor,
    leave_one_model_out,
    predict_seconds,
)
from modelhound.records import CeilingsMeasured, Cost, LatencyFailed, LatencyPoint
from modelhound.settings import LatencySettings
from modelhound.store import Memo
from modelhound.timing.bench import least_seconds_of
from modelhound.timing.limits import Limits

__all__ = ["Learnt", "PricedPoint", "price_points", "recall", "remember"]

_MEMO = "learnt-of-devices"
_MOST_ANCHORS = 200
# Where nothing was ever timed on a device: what networks commonly reach of its ceilings, and what starting a kernel takes.
_COMPUTE_SHARE, _MEMORY_SHARE, _KERNEL_SECONDS = 0.4, 0.5, 6e-6
_GUESS_FACTOR = 3.0  # such a guess may be wrong by this in either direction
_OVERHEAD_SECONDS = 0.4


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one device in one precision."""

    ceilings: CeilingsMeasured
    anchors: tuple[Anchor, ...] = ()

    @property
    def num_models(self) -> int:
        return len({anchor.model for anchor in self.anchors})


class PricedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point before it is measured."""

    point: LatencyPoint
    flops: float
    call_seconds: PredictedTime | None
    """Of one call; None for a point that will not be tried."""
    point_seconds: float
    """To measure it: building, warming up, sampling."""
    memory_bytes: float
    refusal: LatencyFailed | None


def remember(learnt: Learnt, *, is_compiled: bool) -> None:
    """Keep what a run learnt of a device, in place of what was known before."""
    if learnt.num_models >= LEAST_ANCHORS:
        step = -(-len(learnt.anchors) // _MOST_ANCHORS)
        kept = msgspec.structs.replace(learnt, anchors=learnt.anchors[::step])
        key = _key(learnt.ceilings.device_name, learnt.ceilings.precision, is_compiled=is_compiled)
        Memo(_MEMO).note(key, msgspec.to_builtins(kept))


def recall(device_name: str, precision: str, *, is_compiled: bool) -> Learnt | None:
    """What is known of a device; None where nothing is."""
    fact = Memo(_MEMO).look_up(_key(device_name, precision, is_compiled=is_compiled))
    with contextlib.suppress(msgspec.ValidationError):  # an older version may have kept something else
        return None if fact is None else msgspec.convert(fact, Learnt)
    return None


def price_points(
    points: Sequence[LatencyPoint],
    costs: Mapping[tuple[str, int], Cost],
    learnt: Mapping[tuple[str, str], Learnt],
    limits: Limits,
    settings: LatencySettings,
) -> tuple[tuple[PricedPoint, ...], dict[tuple[str, str], PredictionError | None]]:
    """The price of every point, and how well the predictor of each device and precision does; None where it is a guess."""
    predictors: dict[tuple[str, str], Predictor | None] = {}
    errors: dict[tuple[str, str], PredictionError | None] = {}
    for key, each in learnt.items():
        predictors[key] = fit_predictor(each.anchors) if each.num_models >= LEAST_ANCHORS else None
        errors[key] = leave_one_model_out(each.anchors) if each.num_models > LEAST_ANCHORS else None
    priced = []
    for point in points:
        key = (point.device, point.precision)
        refusal = limits.refuse(point)
        cost = costs[point.model, point.size]
        ceilings = learnt[key].ceilings if key in learnt else None
        seconds = None if refusal else _predict(point, cost, predictors.get(key), ceilings)
        priced.append(
            PricedPoint(
                point=point,
                flops=point.batch * cost.flops,
                call_seconds=seconds,
                point_seconds=_point_seconds(seconds.seconds, settings) if seconds else 0.0,
                memory_bytes=limits.memory_model(point).predict(limits.expected_bytes(point)),
                refusal=refusal,
            )
        )
    return tuple(priced), errors


def _key(device_name: str, precision: str, *, is_compiled: bool) -> str:
    return f"{device_name} {precision} torch {importlib.metadata.version('torch')}{' compiled' if is_compiled else ''}"


def _predict(
    point: LatencyPoint, cost: Cost, predictor: Predictor | None, ceilings: CeilingsMeasured | None
) -> PredictedTime | None:
    flops, activations = max(1.0, point.batch * cost.flops), max(1.0, point.batch * cost.activation_bytes)
    if ceilings is None:
        return None
    compute, memory, reorder = least_seconds_of(point, cost, ceilings)
    if predictor is not None:
        return predict_seconds(
            predictor,
            flops=flops,
            activation_bytes=activations * point.width,
            num_kernels=max(1, cost.num_kernels),
            compute_seconds=compute,
            memory_seconds=memory,
            reorder_seconds=reorder,
        )
    work = compute / _COMPUTE_SHARE + memory / _MEMORY_SHARE
    guess = max(cost.num_kernels * _KERNEL_SECONDS, work)
    return PredictedTime(seconds=guess, interval=(guess / _GUESS_FACTOR, guess * _GUESS_FACTOR), confidence=0.9)


def _point_seconds(call: float, settings: LatencySettings) -> float:
    """A first call, warm-up, and samples until the interval is point.width or the budget is spent."""
    if settings.sampling == "timm":
        return 51 * call + _OVERHEAD_SECONDS
    warm_up = max(0.15, min(2 * call, 0.3))
    sampling = max(3 * call, min(20 * call, settings.seconds))
    return min(settings.timeout, call + max(warm_up, call) + sampling + _OVERHEAD_SECONDS)
