"""What a sweep will take, before it runs.

In:  points and their costs; what was learnt of the device in earlier runs, or else what it can do at most
Out: the time of every point with an interval, and of the whole sweep
Nothing here times a network. Anchors of finished runs are remembered by device, precision and version of torch.
"""

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

__all__ = ["PricedPoint", "price_points", "recall_anchors", "remember_anchors"]

_MOST_ANCHORS = 200
# Where nothing was ever timed on a device: what networks commonly reach of its ceilings, and what starting a kernel takes.
_COMPUTE_SHARE, _MEMORY_SHARE, _KERNEL_SECONDS = 0.4, 0.5, 6e-6
_GUESS_FACTOR = 3.0  # such a guess may be wrong by this in either direction
_OVERHEAD_SECONDS = 0.4


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


def remember_anchors(device_name: str, precision: str, anchors: Sequence[Anchor]) -> None:
    """Keep what a run learnt of a device, in place of what was known before."""
    if len({anchor.model for anchor in anchors}) >= LEAST_ANCHORS:
        step = -(-len(anchors) // _MOST_ANCHORS)
        plain = [msgspec.to_builtins(anchor) for anchor in anchors[::step]]
        Memo("anchors").note(_key(device_name, precision), plain)


def recall_anchors(device_name: str, precision: str) -> tuple[Anchor, ...]:
    """What is known of a device; none where nothing is."""
    return msgspec.convert(Memo("anchors").look_up(_key(device_name, precision)) or (), tuple[Anchor, ...])


def price_points(
    points: Sequence[LatencyPoint],
    costs: Mapping[tuple[str, int], Cost],
    ceilings: Mapping[tuple[str, str], CeilingsMeasured],
    limits: Limits,
    settings: LatencySettings,
) -> tuple[tuple[PricedPoint, ...], dict[tuple[str, str], PredictionError | None]]:
    """The price of every point, and how well the predictor of each device and precision does; None where it is a guess."""
    predictors: dict[tuple[str, str], Predictor | None] = {}
    errors: dict[tuple[str, str], PredictionError | None] = {}
    for key, each in ceilings.items():
        anchors = recall_anchors(each.device_name, each.precision)
        num_models = len({anchor.model for anchor in anchors})
        predictors[key] = fit_predictor(anchors) if num_models >= LEAST_ANCHORS else None
        errors[key] = leave_one_model_out(anchors) if num_models > LEAST_ANCHORS else None
    priced = []
    for point in points:
        key = (point.device, point.precision)
        refusal = limits.refuse(point)
        cost = costs[point.model, point.size]
        seconds = None if refusal else _predict(point, cost, predictors.get(key), ceilings.get(key))
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


def _key(device_name: str, precision: str) -> str:
    return f"{device_name} {precision} torch {importlib.metadata.version('torch')}"


def _predict(
    point: LatencyPoint, cost: Cost, predictor: Predictor | None, ceilings: CeilingsMeasured | None
) -> PredictedTime | None:
    flops, activations = max(1.0, point.batch * cost.flops), max(1.0, point.batch * cost.activation_bytes)
    narrow = 0.5 if point.precision in ("bf16", "fp16") else 1.0
    if ceilings is None:
        return None
    if predictor is not None:
        compute, memory = least_seconds_of(point, cost, ceilings)
        return predict_seconds(
            predictor,
            flops=flops,
            activation_bytes=activations * narrow,
            num_kernels=max(1, cost.num_kernels),
            compute_seconds=compute,
            memory_seconds=memory,
        )
    moved = (point.batch * cost.moved_bytes + cost.weights_read) * narrow
    work = flops / ceilings.flops_per_second / _COMPUTE_SHARE + moved / ceilings.bytes_per_second / _MEMORY_SHARE
    guess = max(cost.num_kernels * _KERNEL_SECONDS, work)
    return PredictedTime(seconds=guess, interval=(guess / _GUESS_FACTOR, guess * _GUESS_FACTOR), confidence=0.9)


def _point_seconds(call: float, settings: LatencySettings) -> float:
    """A first call, warm-up, and samples until the interval is narrow or the budget is spent."""
    if settings.sampling == "timm":
        return 51 * call + _OVERHEAD_SECONDS
    warm_up = max(0.15, min(2 * call, 0.3))
    sampling = max(3 * call, min(20 * call, settings.seconds))
    return min(settings.timeout, call + max(warm_up, call) + sampling + _OVERHEAD_SECONDS)
