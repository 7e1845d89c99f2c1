"""The charts of `hound latency`.

In:  points of a sweep, measured and failed, their laws, and the ceilings of the devices
Out: Charts with plain rows: time along each axis for images and for texts, with and without outliers, and why it is so
Nothing here measures. Points are medians with intervals, thin lines the laws that were found, crosses points without a time.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from modelhound.analysis.latency import PointSummary, SweepLaw, summarise_points
from modelhound.analysis.laws import LEAST_SIZES, seconds_by_law
from modelhound.analysis.samples import median_of
from modelhound.records import CeilingsMeasured, LatencyFailed, LatencyMeasured, LatencyPoint
from modelhound.report.charts import Chart, Row, log_ticks
from modelhound.report.latency_causes import cause_charts
from modelhound.report.latency_panels import (
    BATCH_LABEL,
    FAMILIES,
    AxisName,
    colour_models,
    family_of,
    in_panels,
    names_of,
    setting_of,
)

__all__ = ["find_outliers", "latency_charts"]

Scale = Literal["log", "linear"]

_OUTLIER = 3.0  # times the median of its family
_LAW_POINTS = 40
_FAR = 8  # times the largest size with a time: a point without one that lies farther off would squeeze all others
_LABELS = {"batch": BATCH_LABEL, "image": "side of the images in pixels", "sequence": "tokens of a text"}
_WHAT = {"batch": "batch size", "image": "image size", "sequence": "sequence length"}


def latency_charts(
    measured: Sequence[LatencyMeasured],
    *,
    failed: Sequence[LatencyFailed] = (),
    laws: Sequence[SweepLaw] = (),
    ceilings: Sequence[CeilingsMeasured] = (),
    scale: Scale = "log",
) -> tuple[Chart, ...]:
    """All charts; where models are far slower than the others, a second chart of each kind does without them."""
    charts: list[Chart] = []
    for axis, family in (("batch", "image"), ("batch", "text"), ("image", "image"), ("sequence", "text")):
        own = [record for record in measured if family_of(record.point) == family]
        rows = _axis_rows(own, failed, laws, axis, family)  # type: ignore[arg-type]
        if not rows:
            continue
        names = names_of(own)
        charts.append(_axis_chart(rows, axis, family, scale, "", names))
        outliers = find_outliers(own)
        kept = tuple(row for row in rows if row["model"] not in outliers)
        if outliers and kept and len(kept) < len(rows):
            charts.append(_axis_chart(kept, axis, family, scale, ", ".join(outliers), names))
    for family in FAMILIES:  # apart, since there are more models than colours otherwise
        charts += cause_charts([each for each in measured if family_of(each.point) == family], ceilings, family)
    return tuple(charts)


def find_outliers(measured: Sequence[LatencyMeasured]) -> tuple[str, ...]:
    """Models that are several times slower than the others of their family at the same sizes."""
    by_shape: dict[tuple[Any, ...], dict[str, float]] = {}
    for record in measured:
        point = record.point
        shape = (family_of(point), point.batch, point.size, point.precision, point.device)
        by_shape.setdefault(shape, {})[point.model] = median_of(record.seconds)
    ratios: dict[str, list[float]] = {}
    for times in by_shape.values():
        for model, seconds in times.items():
            others = [other for name, other in times.items() if name != model]
            if others:
                ratios.setdefault(model, []).append(seconds / median_of(others))
    return tuple(sorted(model for model, found in ratios.items() if median_of(found) > _OUTLIER))


def _axis_rows(
    measured: Sequence[LatencyMeasured],
    failed: Sequence[LatencyFailed],
    laws: Sequence[SweepLaw],
    axis: AxisName,
    family: str,
) -> tuple[Row, ...]:
    """Points of lines that were swept, and the laws through them; where none was, of those with two sizes."""
    lines: dict[tuple[str, str], set[int]] = {}
    for record in measured:
        lines.setdefault((record.model, setting_of(record.point, axis)), set()).add(_place(record.point, axis))
    tried = {line: set(places) for line, places in lines.items() if len(places) > 1}
    for each in failed:
        tried.get((each.model, setting_of(each.point, axis)), set()).add(_place(each.point, axis))
    drawn = {line for line, places in tried.items() if len(places) >= LEAST_SIZES} or set(tried)
    rows: list[Row] = []
    for record, summary in zip(measured, summarise_points(measured, ()), strict=True):
        if (record.model, setting_of(record.point, axis)) in drawn:
            rows.append(_point_row(record, summary, axis))
    for each in failed:
        line = (each.model, setting_of(each.point, axis))
        within = line in drawn and _place(each.point, axis) <= _FAR * max(lines[line])
        if within and family_of(each.point) == family:
            rows.append(
                {
                    "model": each.model,
                    "setting": line[1],
                    "size": _place(each.point, axis),
                    "what": "no time",
                    "why": each.why,
                }
            )
    for law in laws:
        if law.axis == axis and (law.model, _law_setting(law)) in drawn:
            rows += _law_rows(law)
    return tuple(rows)


def _place(point: LatencyPoint, axis: AxisName) -> int:
    return point.batch if axis == "batch" else point.size


def _law_setting(law: SweepLaw) -> str:
    return f"{law.held}, {law.precision}, {law.device}"


def _point_row(record: LatencyMeasured, summary: PointSummary, axis: AxisName) -> Row:
    low, high = summary.interval or (min(record.seconds), max(record.seconds))
    return {
        "model": record.model,
        "setting": setting_of(record.point, axis),
        "size": _place(record.point, axis),
        "what": "measured",
        "milliseconds": 1e3 * summary.median_seconds,
        "low": 1e3 * low,
        "high": 1e3 * high,
    }


def _law_rows(law: SweepLaw) -> list[Row]:
    """The chosen law between the smallest and the largest size, drawn over sides where its own sizes are pixels."""
    found = law.answer.law
    if found.chosen is None or found.smallest is None or found.largest is None:
        return []
    ratio = found.largest / found.smallest
    sizes = [found.smallest * ratio ** (place / (_LAW_POINTS - 1)) for place in range(_LAW_POINTS)]
    times = seconds_by_law(found.chosen, sizes)
    return [
        {
            "model": law.model,
            "setting": _law_setting(law),
            "size": math.sqrt(size) if law.axis == "image" else size,
            "what": "law",
            "milliseconds": 1e3 * seconds,
        }
        for size, seconds in zip(sizes, times, strict=True)
    ]


def _axis_chart(rows: Sequence[Row], axis: str, family: str, scale: Scale, without: str, names: Sequence[str]) -> Chart:
    name = f"latency_{axis}_{family}" + ("_without_outliers" if without else "")
    settings = {row["setting"] for row in rows}
    title = f"Latency of {FAMILIES[family]} over {_WHAT[axis]}" + (f", without {without}" if without else "")
    there = {row["what"] for row in rows}
    lines = (
        ", lines the laws that fit best. A flat beginning is a floor that does not depend on the work"
        if "law" in there
        else ""
    )
    crosses = "; crosses at the top are points without a time, out of memory or too slow" if "no time" in there else ""
    return Chart(
        name=name,
        title=f"{title}: {settings.pop()}" if len(settings) == 1 else title,
        caption=f"Points are medians with their intervals{lines}{crosses}.",
        data=tuple(rows),
        draw=lambda data: _draw_axis(data, axis, scale, rows, names),
    )


def _draw_axis(data: Any, axis: str, scale: Scale, rows: Sequence[Row], names: Sequence[str]) -> Any:
    import altair

    sizes = sorted({float(row["size"] or 0) for row in rows if row["what"] != "law"})
    ticks = altair.Axis(values=sizes, labelOverlap=True)
    x = altair.X("size:Q", title=_LABELS[axis], axis=ticks, scale=altair.Scale(type=scale, nice=False, padding=12))
    up = altair.Axis(values=log_ticks(row.get("milliseconds") for row in rows), format="~g")
    y = altair.Y(
        "milliseconds:Q",
        title="time of one call in ms",
        scale=altair.Scale(type="log", nice=False, padding=14) if scale == "log" else altair.Scale(),
        axis=up if scale == "log" else altair.Axis(),
    )
    colour = colour_models(names, rows)
    base = altair.Chart(data)
    law = base.transform_filter("datum.what == 'law'").mark_line(opacity=0.6, strokeWidth=1.5)
    bars = base.transform_filter("datum.what == 'measured'").mark_rule()
    dots = base.transform_filter("datum.what == 'measured'").mark_point(filled=True, size=45)
    crosses = base.transform_filter("datum.what == 'no time'").mark_point(shape="cross", angle=45, size=70)
    told = ["model:N", "setting:N", "size:Q", altair.Tooltip("milliseconds:Q", format=".3~g")]
    why = ["model:N", "setting:N", "size:Q", "why:N"]
    drawn = {
        "law": [law.encode(x=x, y=y, color=colour)],
        "measured": [
            bars.encode(x=x, y=altair.Y("low:Q"), y2="high:Q", color=colour),
            dots.encode(x=x, y=y, color=colour, tooltip=told),
        ],
        "no time": [crosses.encode(x=x, y=altair.value(6), color=colour, tooltip=why)],
    }
    there = {row["what"] for row in rows}  # Vega complains of a layer without rows
    return in_panels(altair.layer(*(layer for what, them in drawn.items() if what in there for layer in them)), rows)
