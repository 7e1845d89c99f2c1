"""The answer of a verb in numbers: rows that a table shows, with the names that its terminal output has.

In:  what a verb found
Out: caption -> rows of plain values; what a name says of its unit is how `flattening` writes it
Nothing here computes anything but shares of what it is given.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from modelhound.analysis.breakeven_wording import JOBS, WAYS
from modelhound.analysis.certainty import test_interval
from modelhound.analysis.search_tables import time_text
from modelhound.analysis.wording import (
    bytes_text,
    duration_text,
    interval_text,
    items_text,
    metric_interval_text,
    metric_text,
    plural,
    seconds_texts,
    share_text,
    span_of_seconds_text,
)
from modelhound.report.flattening import Scalar
from modelhound.report.parts import Cell

if TYPE_CHECKING:
    from modelhound.analysis.bounds import Verdict
    from modelhound.analysis.latency import PointSummary, SweepLaw
    from modelhound.analysis.scaling import Scaling
    from modelhound.records import (
        BreakevenFindings,
        KindAnswer,
        LatencyPoint,
        ModelTrained,
        ProfileFindings,
        RankTrained,
    )

__all__ = ["Numbers", "breakeven_numbers", "latency_numbers", "loader_numbers", "profile_numbers", "train_numbers"]

Numbers: TypeAlias = Mapping[str, Sequence[Mapping[str, Scalar | Cell]]]


def latency_numbers(points: "Sequence[PointSummary]", laws: "Sequence[SweepLaw]") -> Numbers:
    return {
        "What each sweep says": [
            {
                "model": each.model,
                "axis": each.axis,
                "held": each.held,
                "precision": each.precision,
                "device": each.device,
                "hypothesis": each.answer.hypothesis.name,
                "verdict": each.answer.verdict,
                "exponent": _ratio(each.answer.law.exponent.overall, "") if each.answer.law.exponent else None,
                "interval": interval_text(each.answer.law.exponent.overall_interval)
                if each.answer.law.exponent
                else None,
            }
            for each in laws
        ],
        "Every point": [
            {
                "model": each.point.model,
                "shape": each.point.shape_text,
                "precision": each.point.precision,
                "device": each.point.device,
                "median": _time(each.median_seconds),
                "interval": span_of_seconds_text(each.interval) if each.interval else None,
                "samples": each.num_samples,
                "items/s": each.items_per_second,
                "GFLOP/s": each.flops_per_second * 1e-9,
                "bound by": each.regime.short_text,
            }
            for each in sorted(points, key=lambda each: _order(each.point))
        ],
    }


def _order(point: "LatencyPoint") -> tuple[str, str, str, int, int]:
    return point.model, point.precision, point.device, point.size, point.batch


def loader_numbers(kinds: "Sequence[KindAnswer]") -> Numbers:
    return {
        "Regret of pairs": [
            {
                "items": kind.kind,
                "pair": f"{row.batch} x {row.workers}",
                "mean regret": _percent(row.mean),
                "interval": " – ".join(f"{end:.1%}" for end in row.interval) if row.interval else None,
                "worst": _percent(row.worst),
                "worst model": row.worst_model,
                "within 2%": _percent(row.chance_within, 0),
                "measured": f"{row.num_measured} of {len(kind.models)}",
                "remark": "fails"
                if row.mean is None
                else "recommended"
                if place == 0
                else "as good"
                if row.as_good
                else "",
            }
            for kind in kinds
            for place, row in enumerate(kind.regret)
        ],
        "Models": [
            {
                "items": kind.kind,
                "model": row.model,
                "best alone": f"{row.batch} x {row.workers}",
                "time": Cell(f"{row.seconds:.2f} s", row.seconds),
                "with the pair": Cell(f"{row.recommended_seconds:.2f} s", row.recommended_seconds),
                "regret": _percent(row.regret),
                "bound by": ", ".join(row.bounds),
                "cores needed": Cell(f"{row.num_cores_needed:.1f}", row.num_cores_needed),
                "loading for free": Cell(f"{row.speedup_if_free:.1f}x faster", row.speedup_if_free),
            }
            for kind in kinds
            for row in kind.models
        ],
    }


def train_numbers(
    trained: "Sequence[ModelTrained]",
    ranks: "Sequence[RankTrained]",
    verdicts: "Sequence[Verdict]",
    scalings: "Sequence[Scaling]",
) -> Numbers:
    bounds = {(each.model, each.num_ranks): each for each in verdicts}
    rows: list[Mapping[str, Scalar | Cell]] = []
    for run in trained:
        own = [each for each in ranks if (each.model, each.num_ranks) == (run.model, run.num_ranks)]
        seconds, num_items = max((each.wall_seconds for each in own), default=0.0), sum(each.num_items for each in own)
        held = float(max((each.peak_memory_bytes for each in own), default=0))
        interval, verdict = test_interval(run), bounds.get((run.model, run.num_ranks))
        rows.append(
            {
                "model": run.model,
                "ranks": run.num_ranks,
                "score": Cell(metric_text(run.metric, run.score), run.score),
                "interval": None if interval is None else Cell(metric_interval_text(run.metric, interval), interval[0]),
                "top-5": _percent(run.top5),
                "loss": Cell(f"{run.losses[-1]:.3f}", run.losses[-1]) if run.losses else None,
                "epochs": len(run.epochs),
                "batch": run.batch,
                "params": run.num_trained_parameters,
                "items/s": num_items / seconds if num_items and seconds else None,
                "memory": Cell(bytes_text(held), held),
                "time": Cell(time_text(run.wall_seconds), run.wall_seconds),
                "bound": verdict.bound if verdict else None,
            }
        )
    points: list[Mapping[str, Scalar | Cell]] = [
        {
            "model": scaling.model,
            "ranks": point.num_ranks,
            "time of an item": _time(point.seconds_per_item),
            "times as fast": _ratio(point.speedup),
            "efficiency": _percent(point.efficiency, 0),
            **{f"lost to {cause}": _percent(share, 0) for cause, share in point.losses.items()},
        }
        for scaling in scalings
        if len(scaling.points) > 1
        for point in scaling.points
    ]
    return {"Runs": rows, "More ranks": points}


def profile_numbers(findings: "ProfileFindings") -> Numbers:
    return {
        "What takes longest": [
            {
                "model": each.model,
                "layers": each.configuration,
                "where": f"{each.data} on {each.device}",
                "bottleneck": each.bottleneck,
                **{name: _time(seconds) for name, seconds in each.seconds.items()},
                "with it for free": Cell(
                    f"{share_text(each.speedups[each.bottleneck])}x {interval_text(each.interval)}",
                    each.speedups[each.bottleneck],
                ),
            }
            for each in findings.bottlenecks
        ],
        "Where that changes": [
            {
                "model": each.model,
                "layers": each.configuration,
                "where": f"{each.data} on {each.device}",
                "moves": f"{each.before} → {each.after}",
                "from items": Cell(items_text(each.num_items), each.num_items),
                "is": "measured" if each.is_measured else "extrapolated",
            }
            for each in findings.moves
        ],
        "What running less saves": [
            {
                "model": each.model,
                "layers": each.configuration,
                "where": f"{each.data} on {each.device}",
                "by FLOPs": _ratio(each.predicted),
                "forward": Cell(f"{each.forward:.2f}x {interval_text(each.forward_interval)}", each.forward),
                "end to end": Cell(
                    f"{each.end_to_end:.2f}x {interval_text(each.end_to_end_interval)}", each.end_to_end
                ),
            }
            for each in findings.savings
        ],
    }


def breakeven_numbers(findings: "BreakevenFindings") -> Numbers:
    return {
        "From how many models on searching takes longer": [
            {
                "model": each.model,
                "items": each.num_items,
                "scenario": each.scenario,
                "searched": WAYS.get(each.way, each.way),
                "models": Cell(f"above {each.num_models:,}", each.num_models),
                "interval": Cell(f"{each.interval[0]:,} – {each.interval[1]:,}", each.interval[0]),
                "training": _time(each.training_seconds),
                "each model": _time(each.search_seconds_per_model),
            }
            for each in findings.counts
        ],
        "What each job takes, and how many times as long as extracting features": [
            {
                "model": row.model,
                "items": row.num_items,
                "epochs": row.num_epochs,
                **{
                    JOBS.get(job, job): _job(text, seconds, row.ratios.get(job))
                    for (job, seconds), text in zip(
                        row.seconds.items(), seconds_texts([*row.seconds.values()]), strict=True
                    )
                },
            }
            for row in findings.rows
        ],
        "How the time of a search grows": [
            {
                "searched": WAYS.get(way.way, way.way),
                "start": _time(way.start_seconds),
                "each model": _time(way.seconds_per_model),
                "interval": span_of_seconds_text(way.interval),
                "measured up to": Cell(plural(max(way.num_models, default=0), "model"), max(way.num_models, default=0)),
            }
            for way in findings.ways
        ],
    }


def _percent(share: float | None, digits: int = 1) -> Cell | None:
    return None if share is None else Cell(f"{share:.{digits}%}", share)


def _time(seconds: float) -> Cell:
    return Cell(duration_text(seconds), seconds)


def _ratio(value: float, unit: str = "x") -> Cell:
    return Cell(f"{share_text(value)}{unit}", value)


def _job(text: str, seconds: float, ratio: float | None) -> Cell:
    """With how many times as long it takes as extracting features."""
    return Cell(text + ("" if ratio is None else f" ({ratio:.1f}x)"), seconds)
