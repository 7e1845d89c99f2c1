"""From the points of a sweep to what they say: medians, regimes, laws, hypotheses, and how well times can be predicted.

In:  records of points, measured and failed; ceilings of the devices
Out: a summary of every point; a SweepLaw with its hypothesis for every line of points along one axis; conclusions; errors of
     prediction
Nothing here measures. A line is what one model gives along one axis while all else is held.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from modelhound.analysis.hypotheses import Answer, Conclusion, answer_hypothesis, conclude, hypothesis_of
from modelhound.analysis.laws import LEAST_SIZES, SweepPoint
from modelhound.analysis.prediction import LEAST_ANCHORS, Anchor, PredictionError, leave_one_model_out
from modelhound.analysis.roofline import Ceilings, Regime, find_regime
from modelhound.analysis.samples import check_seconds, median_interval, median_of, percentile_of
from modelhound.analysis.wording import Axis, plural, seconds_text, size_text, times_text
from modelhound.errors import RequestError
from modelhound.records import CeilingsMeasured, LatencyMeasured, LatencyPoint

__all__ = [
    "AnchorSet",
    "HeldConclusion",
    "PointSummary",
    "SweepLaw",
    "anchors_of",
    "conclude_sweeps",
    "fastest_beyond",
    "find_laws",
    "find_unrest",
    "judge_prediction",
    "summarise_points",
]

_PERCENTILES = (0.9, 0.95, 0.99)
_REST = 1.25  # a host whose own time for the same work differs by more than this from point to point is restless
_LEAST_ALIKE = 4
_MANY = 0.3  # of the points
_FALL = 0.15  # of the time: kernels chosen for another size may be a little quicker, and no machine is quite at rest

AxisName = Literal["batch", "image", "sequence"]
_AXES: tuple[tuple[AxisName, Axis], ...] = (("batch", "batch"), ("image", "pixels"), ("sequence", "tokens"))


class PointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One point in a few numbers."""

    point: LatencyPoint
    median_seconds: float
    interval: tuple[float, float] | None
    mean_seconds: float
    """By the host's clock, as timm's convention has it."""
    num_samples: int
    percentiles: dict[str, float]
    """Only those that the number of samples supports."""
    items_per_second: float
    flops_per_second: float
    host_seconds: float | None
    """Until all work is handed over, in the median."""
    launch_seconds: float | None
    """In which the device waits: the time of the call less that of its kernels."""
    regime: Regime


class SweepLaw(msgspec.Struct, frozen=True, kw_only=True):
    """What one line of points says: its law and the answer to the hypothesis along its axis."""

    axis: AxisName
    model: str
    precision: str
    device: str
    held: str
    """What stays the same along the line, such as "batch 8"."""
    answer: Answer


class HeldConclusion(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis over all models, with all else the same."""

    precision: str
    device: str
    held: str
    conclusion: Conclusion


class AnchorSet(msgspec.Struct, frozen=True, kw_only=True):
    """All times on one device in one precision, and how well each model is predicted from the others."""

    device: str
    precision: str
    anchors: tuple[Anchor, ...]
    error: PredictionError | None
    """None where there are too few models."""


def summarise_points(
    records: Sequence[LatencyMeasured], ceilings: Iterable[CeilingsMeasured]
) -> tuple[PointSummary, ...]:
    """A summary of each, in the same order; of times and ceilings that cannot be, a RequestError."""
    ceilings = tuple(ceilings)
    _check(records, ceilings)
    disturbed = {
        point
        for axis, _ in _AXES
        for line in _lines(records, axis).values()
        for point in _find_disturbed([each for each in line if _has_enough_samples(each)], axis)
    }
    known = _best_ceilings([each for each in records if _has_enough_samples(each)], ceilings)
    rows = (_summarise(record, known.get((record.point.device, record.point.precision))) for record in records)
    return tuple(_without_verdict(row, disturbed) for row in rows)


def _check(records: Sequence[LatencyMeasured], ceilings: Sequence[CeilingsMeasured]) -> None:
    for record in records:
        check_seconds(f"{record.model}, {record.point.shape_text}", record.seconds, None)
    for each in ceilings:
        rates = (each.flops_per_second, each.bytes_per_second, *each.kind_flops_per_second.values())
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise RequestError(
                f"cannot use the ceilings of {each.device} in {each.precision}: expected positive numbers, measure them again"
            )


def find_laws(
    records: Sequence[LatencyMeasured], ceilings: Iterable[CeilingsMeasured] = (), *, margin: float, seed: int = 0
) -> tuple[SweepLaw, ...]:
    """One law for every line with enough sizes."""
    bandwidths = {(each.device, each.precision): each.bytes_per_second for each in ceilings}
    found = []
    for axis, unit in _AXES:
        for (model, held, precision, device), line in _lines(records, axis).items():
            if len({_place(record.point, axis) for record in line}) < LEAST_SIZES:
                continue
            sure = [record for record in line if _has_enough_samples(record)]
            robust = len(sure) > LEAST_SIZES + 2
            answer = answer_hypothesis(
                hypothesis_of(unit, model),
                [_sweep_point(record, axis, bandwidths.get((device, precision))) for record in sure],
                model=model,
                margin=margin,
                robust=robust,
                doubt=_few_text(line, sure, axis) or _doubt(sure, axis, unit, robust=robust),
                seed=seed,
            )
            found.append(SweepLaw(axis=axis, model=model, precision=precision, device=device, held=held, answer=answer))
    return tuple(found)


def _has_enough_samples(record: LatencyMeasured) -> bool:
    """Whether its median has an interval: without one nobody knows how sure it is, and nothing is concluded from it."""
    return median_interval(record.seconds) is not None


def _few_text(line: Sequence[LatencyMeasured], sure: Sequence[LatencyMeasured], axis: AxisName) -> str:
    """Where too few sizes are left without those that were sampled too little."""
    num_sure = len({_place(record.point, axis) for record in sure})
    if num_sure >= LEAST_SIZES:
        return ""
    few = len(line) - len(sure)
    return (
        f"{few} of {plural(len(line), 'point')} {'was' if few == 1 else 'were'} sampled too few times to say how sure their "
        "medians are; give them more --seconds"
    )


def _find_disturbed(line: Sequence[LatencyMeasured], axis: AxisName) -> dict[LatencyPoint, LatencyMeasured]:
    """Points of one line that took clearly longer than a larger one, with the quickest such: it was not the network alone."""
    found = {}
    quickest: LatencyMeasured | None = None
    for record in sorted(line, key=lambda each: _place(each.point, axis), reverse=True):
        seconds = median_of(record.seconds)
        if quickest is not None and seconds > (1 + _FALL) * median_of(quickest.seconds):
            found[record.point] = quickest
        if quickest is None or seconds < median_of(quickest.seconds):
            quickest = record
    return found


def _doubt(line: Sequence[LatencyMeasured], axis: AxisName, unit: Axis, *, robust: bool) -> str:
    """Why no law should be told of these points; empty where one may be. Of many, a robust fit passes over one far off."""
    disturbed = _find_disturbed(line, axis)
    if not disturbed or (robust and len(disturbed) == 1):
        return ""
    seconds = {record.point: median_of(record.seconds) for record in line}
    worst = max(disturbed, key=lambda point: seconds[point] / median_of(disturbed[point].seconds))
    told = " to ".join(
        f"{seconds_text(seconds[point])} at {size_text(unit, _place(point, axis))}"
        for point in (worst, disturbed[worst].point)
    )
    return (
        f"times fall with a growing size, from {told}; other work on the machine may be why, or kernels that are quicker "
        "there: measure again, with more --seconds"
    )


def _find_restless(records: Sequence[LatencyMeasured]) -> tuple[str, ...]:
    """Devices without a clock of their own on which calls of one and the same point took very different times."""
    spreads: dict[str, list[float]] = {}
    for record in records:
        if not record.host_seconds and _has_enough_samples(record):
            low, high = np.quantile(record.seconds, (0.25, 0.75))
            spreads.setdefault(record.point.device, []).append(float(high / low))
    sentences = []
    for device, ratios in spreads.items():
        restless = [ratio for ratio in ratios if ratio > _REST]
        if len(restless) > _MANY * len(ratios):
            sentences.append(
                f"calls on {device} scattered: at {len(restless)} of {plural(len(ratios), 'point')} a slow quarter of the "
                f"same calls took {times_text(float(np.median(restless)))} or more of what a quick quarter took; other work on "
                "the machine does that, so measure again when it has nothing else to do"
            )
    return tuple(sentences)


def find_unrest(records: Sequence[LatencyMeasured], rows: Sequence[PointSummary]) -> tuple[str, ...]:
    """Whether the host was restless, a sentence for each device: points that wait for it and hand over the same show that."""
    alike: dict[tuple[str, str, str, int], list[float]] = {}
    for record, row in zip(records, rows, strict=True):
        if row.regime.bound == "launch" and row.host_seconds is not None:
            key = (record.point.device, record.model, record.point.precision, record.num_kernels)
            alike.setdefault(key, []).append(row.host_seconds)
    spreads: dict[str, list[tuple[float, str, float, float]]] = {}
    for (device, model, precision, _), seconds in alike.items():
        if len(seconds) >= _LEAST_ALIKE:
            low, high = (float(value) for value in np.quantile(seconds, (0.1, 0.9)))
            spreads.setdefault(device, []).append((high / low, f"{model} in {precision}", low, high))
    sentences = []
    for device, found in spreads.items():
        ratio, name, low, high = sorted(found)[len(found) // 2]
        if ratio > _REST:
            sentences.append(
                f"the host of {device} was restless: to hand over the same operators of {name} took it "
                f"{seconds_text(low)} at some points and {seconds_text(high)} at others, and times bound by launches are no "
                "surer than that; a host with nothing else to do, or a single core for it (taskset), would help"
            )
    return (*sentences, *_find_restless(records))


def conclude_sweeps(laws: Sequence[SweepLaw]) -> tuple[HeldConclusion, ...]:
    """One conclusion for each hypothesis, device, precision and whatever was held."""
    groups: dict[tuple[str, str, str, str], list[Answer]] = {}
    lines: dict[tuple[str, ...], int] = {}
    for law in laws:
        lines[law.axis, law.model, law.device, law.precision] = (
            lines.get((law.axis, law.model, law.device, law.precision), 0) + 1
        )
    for law in laws:
        answer, held = law.answer, law.held
        if law.axis == "batch":  # each family has its own size, and they are judged together
            held = ""
            if lines[law.axis, law.model, law.device, law.precision] > 1:
                answer = msgspec.structs.replace(answer, model=f"{law.model} ({law.held})")
        groups.setdefault((answer.hypothesis.name, law.device, law.precision, held), []).append(answer)
    return tuple(
        HeldConclusion(precision=precision, device=device, held=held, conclusion=conclude(answers))
        for (_, device, precision, held), answers in sorted(groups.items(), key=lambda group: group[0])
    )


def anchors_of(records: Iterable[LatencyMeasured]) -> dict[tuple[str, str], tuple[Anchor, ...]]:
    """What can be learnt from: (device, precision) -> anchors."""
    found: dict[tuple[str, str], list[Anchor]] = {}
    for record in records:
        if record.flops > 0 and record.activation_bytes > 0:
            anchor = Anchor(
                model=record.model,
                setting=record.point.shape_text,
                flops=record.flops,
                activation_bytes=record.activation_bytes,
                seconds=median_of(record.seconds),
                num_kernels=record.num_kernels,
                compute_seconds=record.compute_seconds,
                memory_seconds=record.memory_seconds,
                reorder_seconds=record.reorder_seconds,
            )
            found.setdefault((record.point.device, record.point.precision), []).append(anchor)
    return {key: tuple(anchors) for key, anchors in found.items()}


def judge_prediction(records: Iterable[LatencyMeasured]) -> tuple[AnchorSet, ...]:
    """How far off each model is when predicted from the others, on every device and in every precision."""
    return tuple(
        AnchorSet(
            device=device,
            precision=precision,
            anchors=anchors,
            error=leave_one_model_out(anchors) if len({anchor.model for anchor in anchors}) > LEAST_ANCHORS else None,
        )
        for (device, precision), anchors in anchors_of(records).items()
    )


def _best_ceilings(
    records: Sequence[LatencyMeasured], measured: Iterable[CeilingsMeasured]
) -> dict[tuple[str, str], Ceilings]:
    """The most a device was seen to do; a network may reach more than what was measured for the purpose."""
    best: dict[tuple[str, str], Ceilings] = {}
    for each in measured:
        seen = Ceilings(
            flops_per_second=each.flops_per_second,
            bytes_per_second=each.bytes_per_second,
            kinds=each.kind_flops_per_second,
        )
        passed = [
            record.flops / median_of(record.seconds) / seen.mix(record.flops_by_kind)
            for record in records
            if (record.point.device, record.point.precision) == (each.device, each.precision)
        ]
        factor = max([1.0, *passed])
        best[each.device, each.precision] = Ceilings(
            flops_per_second=factor * seen.flops_per_second,
            bytes_per_second=seen.bytes_per_second,
            kinds={kind: factor * rate for kind, rate in seen.kinds.items()},
        )
    return best


def fastest_beyond(rows: Iterable[PointSummary], measured: CeilingsMeasured) -> float | None:
    """The FLOP/s that a network reached beyond what was measured as its device's ceiling; None where none did.

    Shares are of what was reached then: see `_best_ceilings`.
    """
    here = (measured.device, measured.precision)
    sure = [row for row in rows if (row.point.device, row.point.precision) == here and row.interval is not None]
    reached = max((row.flops_per_second for row in sure), default=0.0)
    return reached if reached > measured.flops_per_second else None


def _without_verdict(row: PointSummary, disturbed: set[LatencyPoint]) -> PointSummary:
    """A time nobody can trust tells of no ceiling; that a device waits for its host shows in shares of the same calls."""
    if row.interval is None:
        why = f"cannot be told: {plural(row.num_samples, 'sample')} say too little, give it more --seconds"
    elif row.point in disturbed and row.regime.bound != "launch":
        why = "cannot be told: it took longer than a larger size, measure it again"
    else:
        return row
    regime = msgspec.structs.replace(row.regime, bound="unknown", share=None, sentence=why)
    return msgspec.structs.replace(row, regime=regime)


def _summarise(record: LatencyMeasured, ceilings: Ceilings | None) -> PointSummary:
    median = median_of(record.seconds)
    host = median_of(record.host_seconds) if record.host_seconds else None
    if ceilings is not None:  # what this network could reach: not all operators have the same ceiling
        ceilings = msgspec.structs.replace(ceilings, flops_per_second=ceilings.mix(record.flops_by_kind))
    percentiles = {f"p{round(100 * share)}": percentile_of(record.seconds, share) for share in _PERCENTILES}
    return PointSummary(
        point=record.point,
        median_seconds=median,
        interval=median_interval(record.seconds),
        mean_seconds=math.fsum(record.wall_seconds or record.seconds) / len(record.seconds),
        num_samples=len(record.seconds),
        percentiles={name: value for name, value in percentiles.items() if value is not None},
        items_per_second=record.point.batch / median,
        flops_per_second=record.flops / median,
        host_seconds=host,
        launch_seconds=None if record.kernel_seconds is None else max(0.0, median - record.kernel_seconds),
        regime=find_regime(
            median,
            flops=record.flops,
            moved_bytes=record.moved_bytes,
            ceilings=ceilings,
            host_seconds=host,
            device_seconds=record.kernel_seconds,
        ),
    )


def _lines(
    records: Iterable[LatencyMeasured], axis: AxisName
) -> dict[tuple[str, str, str, str], list[LatencyMeasured]]:
    lines: dict[tuple[str, str, str, str], list[LatencyMeasured]] = {}
    for record in records:
        point = record.point
        if (axis == "image" and point.image is None) or (axis == "sequence" and point.tokens is None):
            continue
        lines.setdefault((point.model, point.held_text(axis), point.precision, point.device), []).append(record)
    return lines


def _place(point: LatencyPoint, axis: AxisName) -> int:
    """Where a point lies along the axis: items, pixels or tokens."""
    if axis == "batch":
        return point.batch
    return point.size**2 if axis == "image" else point.size


def _sweep_point(record: LatencyMeasured, axis: AxisName, bytes_per_second: float | None) -> SweepPoint:
    return SweepPoint(
        size=float(_place(record.point, axis)),
        seconds=record.seconds,
        host_seconds=median_of(record.host_seconds) if record.host_seconds else None,
        device_seconds=record.kernel_seconds,
        weight_seconds=record.weight_bytes / bytes_per_second if bytes_per_second else None,
        num_kernels=record.num_kernels,
        flops=record.flops,
    )
