"""What a sweep found, put together: the result of `hound latency`, from a sweep just done or from a run folder.

In:  records of points, measured and failed; run folders
Out: a LatencyResult, with laws, hypotheses and JSON; a comparison of runs
Nothing here measures.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.comparison import Comparison, RunPoint, compare_runs
from modelhound.analysis.comparison import Run as ComparableRun
from modelhound.analysis.latency import (
    AnchorSet,
    HeldConclusion,
    PointSummary,
    SweepLaw,
    conclude_sweeps,
    find_laws,
    find_unrest,
    judge_prediction,
    summarise_points,
)
from modelhound.analysis.newest import newest_failures, newest_points
from modelhound.errors import RequestError
from modelhound.records import (
    CeilingsMeasured,
    Failure,
    LatencyFailed,
    LatencyMeasured,
    LatencyPoint,
    to_document,
    to_plain,
)
from modelhound.settings import LatencySettings
from modelhound.store import read_run
from modelhound.timing.pricing import PricedPoint

__all__ = [
    "LatencyAnswer",
    "LatencyPlan",
    "LatencyResult",
    "assemble_result",
    "compare_latency",
    "read_comparable",
    "read_latency",
]


_ROUNDED = {"none": "nothing", "convolutions": "convolutions", "all": "all products"}


class LatencyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the points, as the run folder keeps it."""

    laws: tuple[SweepLaw, ...]
    conclusions: tuple[HeldConclusion, ...]
    prediction: tuple[AnchorSet, ...]


class LatencyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one sweep and where to find what it rests on."""

    run: Path
    ceilings: tuple[CeilingsMeasured, ...]
    measured: tuple[LatencyMeasured, ...]
    """In the order of the request."""
    summaries: tuple[PointSummary, ...]
    """One for each of `measured`."""
    failed: tuple[LatencyFailed, ...]
    broken: tuple[Failure, ...]
    """Models that could not be run at all."""
    laws: tuple[SweepLaw, ...]
    conclusions: tuple[HeldConclusion, ...]
    prediction: tuple[AnchorSet, ...]
    notes: tuple[str, ...] = ()
    """What a person should know of all these times, in sentences."""
    num_resumed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The document that `hound latency --json` prints."""
        rows = [_point_json(record, row) for record, row in zip(self.measured, self.summaries, strict=True)]
        failed = [
            {
                **to_plain(each.point),
                "num_parameters": each.num_parameters,
                "failure": {"why": each.why, "tried": each.tried, "message": each.message},
            }
            for each in self.failed
        ]
        return {
            "run": str(self.run),
            "ceilings": to_document(self.ceilings),
            "notes": list(self.notes),
            "points": rows + failed,
            "failures": to_document(self.broken),
            "laws": [_law_json(law) for law in self.laws],
            "hypotheses": [
                {"device": each.device, "precision": each.precision, "held": each.held, **to_plain(each.conclusion)}
                for each in self.conclusions
            ],
            "prediction": [
                {"device": each.device, "precision": each.precision, **(to_plain(each.error) if each.error else {})}
                for each in self.prediction
            ],
        }


class LatencyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep will take."""

    priced: tuple[PricedPoint, ...]
    broken: tuple[Failure, ...]
    total_seconds: float
    basis: tuple[tuple[str, str, str], ...]
    """Device, precision, and in a sentence what its prices rest on."""

    def to_json(self) -> dict[str, Any]:
        """The document that `hound latency --explain --json` prints."""
        return {
            "seconds": self.total_seconds,
            "num_points": len(self.priced),
            "basis": [
                {"device": device, "precision": precision, "basis": why} for device, precision, why in self.basis
            ],
            "points": [
                {
                    **to_plain(each.point),
                    "flops": each.flops,
                    "call_seconds": each.call_seconds.seconds if each.call_seconds else None,
                    "interval": list(each.call_seconds.interval) if each.call_seconds else None,
                    "point_seconds": each.point_seconds,
                    "peak_memory_bytes": each.memory_bytes,
                    "refusal": each.refusal.message if each.refusal else None,
                }
                for each in self.priced
            ],
            "failures": to_document(self.broken),
        }


def assemble_result(
    path: Path,
    measured: Sequence[LatencyMeasured],
    failed: Sequence[LatencyFailed],
    ceilings: Sequence[CeilingsMeasured],
    broken: Sequence[Failure],
    *,
    margin: float,
) -> LatencyResult:
    """Laws, hypotheses and everything else that follows from the points."""
    summaries = summarise_points(measured, ceilings)
    laws = find_laws(measured, ceilings, margin=margin)
    return LatencyResult(
        run=path,
        ceilings=tuple(ceilings),
        measured=tuple(measured),
        summaries=summaries,
        failed=tuple(failed),
        broken=tuple(broken),
        laws=laws,
        conclusions=conclude_sweeps(laws),
        prediction=judge_prediction(measured),
        notes=find_unrest(measured, summaries),
    )


def read_latency(path: Path) -> LatencyResult:
    """What a run folder holds, finished or not; laws and hypotheses are found anew."""
    run = read_run(path)
    if run.verb != "latency":
        raise RequestError(
            f"cannot read {str(path)!r} as latencies: expected a run of `hound latency`, not of {run.verb}"
        )
    measured, failed = newest_points(run.records)
    return assemble_result(
        path,
        list(measured.values()),
        list(failed.values()),
        run.of(CeilingsMeasured),
        tuple(newest_failures(run.records)),
        margin=_margin_of(run.settings),
    )


def _margin_of(asked: Mapping[str, Any]) -> float:
    """What was asked for; the usual one where somebody wrote something else there."""
    margin = asked.get("margin")
    return float(margin) if isinstance(margin, int | float) and 0 < margin <= 1 else LatencySettings.margin


def read_comparable(path: Path) -> LatencyResult:
    """What a run folder holds, if it is something to compare with."""
    result = read_latency(path)
    if not result.measured and not result.failed:
        raise RequestError(f"cannot compare {str(path)!r}: expected at least one point in it, let it finish first")
    return result


def compare_latency(paths: Sequence[Path], *, limit: float = 0.05) -> Comparison:
    """Compare runs point by point with the first of them; slower by less than `limit` counts as the same."""
    results = [read_comparable(path) for path in paths]
    points = [
        [*(record.point for record in each.measured), *(record.point for record in each.failed)] for each in results
    ]
    # What each run has but one of (a device, a precision) is what is compared; what one run has several of tells points apart.
    tells_apart = {
        part
        for part in ("precision", "device")
        if any(len({getattr(each, part) for each in run}) > 1 for run in points)
    }
    comparable = [
        ComparableRun(
            name=_run_name(result.run, paths),
            points=tuple(
                [RunPoint(name=_point_name(each.point, tells_apart), seconds=each.seconds) for each in result.measured]
                + [RunPoint(name=_point_name(each.point, tells_apart), failure=each.why) for each in result.failed]
            ),
        )
        for result in results
    ]
    comparison = compare_runs(comparable[0], *comparable[1:], limit=limit)
    return msgspec.structs.replace(comparison, notes=_differences(results, [run.name for run in comparable]))


def _differences(results: Sequence[LatencyResult], names: Sequence[str]) -> tuple[str, ...]:
    """What else is not the same in two runs: how numbers are rounded, and how times are taken."""
    notes = []
    for name, result in zip(names[1:], results[1:], strict=True):
        for mine in result.ceilings:
            same = (
                each for each in results[0].ceilings if each.precision == mine.precision and each.tf32 and mine.tf32
            )
            for theirs in same:
                if theirs.tf32 != mine.tf32:
                    notes.append(
                        f"in {mine.precision} {names[0]} rounds {_ROUNDED[theirs.tf32 or '']} to TF32, "
                        f"{name} {_ROUNDED[mine.tf32 or '']}"
                    )
        conventions = [{record.convention for record in each.measured} for each in (results[0], result)]
        if conventions[0] != conventions[1] and all(conventions):
            notes.append(
                f"{names[0]} was sampled by {', '.join(sorted(conventions[0]))} rules, "
                f"{name} by {', '.join(sorted(conventions[1]))} rules"
            )
    return tuple(dict.fromkeys(notes))


def _run_name(path: Path, paths: Sequence[Path]) -> str:
    """The folder's name, or all of its path where two have the same name."""
    return path.name if len({each.name for each in paths}) == len(paths) else str(path)


def _point_name(point: LatencyPoint, tells_apart: set[str]) -> str:
    parts = [point.model, point.shape_text] + [str(getattr(point, part)) for part in sorted(tells_apart)]
    return " ".join(parts)


def _point_json(record: LatencyMeasured, row: PointSummary) -> dict[str, Any]:
    plain = to_document(record)
    samples = {"samples": plain.pop("seconds"), **plain.pop("point")}
    told = {key: value for key, value in to_plain(row).items() if key != "point"}
    return {**samples, **plain, **told, "seconds_are": "mean" if record.convention == "timm" else "median"}


def _law_json(law: SweepLaw) -> dict[str, Any]:
    answer = law.answer
    chosen = to_plain(answer.law.chosen) if answer.law.chosen else {}
    device = answer.device_law.exponent if answer.device_law else None
    return {
        "axis": law.axis,
        "model": law.model,
        "held": law.held,
        "precision": law.precision,
        "device": law.device,
        "form": chosen.get("form"),
        "parameters": chosen.get("parameters"),
        "exponent": answer.law.exponent.overall if answer.law.exponent else None,
        "interval": list(answer.law.exponent.overall_interval) if answer.law.exponent else None,
        "knee": answer.law.knee,
        "knee_interval": answer.law.knee_interval,
        "device_exponent": device.overall if device else None,
        "device_interval": list(device.overall_interval) if device else None,
        "candidates": [{"form": each.form, "aicc": each.aicc, "weight": each.weight} for each in answer.law.candidates],
        "sentence": answer.law.sentence,
        "hypothesis": {"name": answer.hypothesis.name, "verdict": answer.verdict, "sentence": answer.sentence},
    }
