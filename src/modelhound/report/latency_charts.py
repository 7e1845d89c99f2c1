"""The charts of `hound latency`.

In:  points of a sweep, measured and failed, their laws, and the ceilings of the devices
Out: Charts with plain rows: time along each axis for images and for texts, with and without outliers; how much of the time a
     GPU waits; the roofline
Nothing here measures. Points are medians with intervals, thin lines the laws that were found, crosses points without a time.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from modelhound.analysis.latency import PointSummary, SweepLaw, summarise_points
from modelhound.analysis.laws import LEAST_SIZES, seconds_by_law
from modelhound.analysis.samples import median_of
from modelhound.records import CeilingsMeasured, LatencyFailed, LatencyMeasured, LatencyPoint
from modelhound.report.charts import Chart, Row, log_ticks
from modelhound.report.theme import LIGHT

if TYPE_CHECKING:
    import altair

__all__ = ["find_outliers", "latency_charts"]

Scale = Literal["log", "linear"]
AxisName = Literal["batch", "image", "sequence"]

_OUTLIER = 3.0  # times the median of its family
_LAW_POINTS = 40
_FAR = 8  # times the largest size with a time: a point without one that lies farther off would squeeze all others
_PANEL_WIDTH, _PANEL_HEIGHT = 300, 230
_LABELS = {"batch": "items in a batch", "image": "side of the images in pixels", "sequence": "tokens of a text"}
_WHAT = {"batch": "batch size", "image": "image size", "sequence": "sequence length"}
_FAMILIES = {"image": "networks of images", "text": "encoders of texts"}


def latency_charts(
    measured: Sequence[LatencyMeasured],
    *,
    failed: Sequence[LatencyFailed] = (),
    laws: Sequence[SweepLaw] = (),
    ceilings: Sequence[CeilingsMeasured] = (),
    scale: Scale = "log",
    leave_out: Sequence[str] | None = None,
) -> tuple[Chart, ...]:
    """All charts; `leave_out` names the models that a second chart of each kind does without, None finds the outliers."""
    charts: list[Chart] = []
    for axis, family in (("batch", "image"), ("batch", "text"), ("image", "image"), ("sequence", "text")):
        own = [record for record in measured if _family(record.point) == family]
        rows = _axis_rows(own, failed, laws, axis, family)  # type: ignore[arg-type]
        if not rows:
            continue
        names = _names(own)
        charts.append(_axis_chart(rows, axis, family, scale, "", names))
        outliers = find_outliers(own) if leave_out is None else tuple(leave_out)
        kept = tuple(row for row in rows if row["model"] not in outliers)
        if outliers and kept and len(kept) < len(rows):
            charts.append(_axis_chart(kept, axis, family, scale, ", ".join(outliers), names))
    for family in _FAMILIES:  # apart, since there are more models than colours otherwise
        own = [record for record in measured if _family(record.point) == family]
        waiting = _waiting_rows(own)
        if waiting:
            charts.append(_waiting_chart(waiting, family, _names(own)))
        if ceilings and own:
            charts.append(_roofline_chart(own, ceilings, family))
    return tuple(charts)


def find_outliers(measured: Sequence[LatencyMeasured]) -> tuple[str, ...]:
    """Models that are several times slower than the others of their family at the same sizes."""
    by_shape: dict[tuple[Any, ...], dict[str, float]] = {}
    for record in measured:
        point = record.point
        shape = (_family(point), point.batch, point.size, point.precision, point.device)
        by_shape.setdefault(shape, {})[point.model] = median_of(record.seconds)
    ratios: dict[str, list[float]] = {}
    for times in by_shape.values():
        for model, seconds in times.items():
            others = [other for name, other in times.items() if name != model]
            if others:
                ratios.setdefault(model, []).append(seconds / median_of(others))
    return tuple(sorted(model for model, found in ratios.items() if median_of(found) > _OUTLIER))


def _family(point: LatencyPoint) -> str:
    return "image" if point.image else "text"


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
        lines.setdefault((record.model, _setting(record.point, axis)), set()).add(_place(record.point, axis))
    tried = {line: set(places) for line, places in lines.items() if len(places) > 1}
    for each in failed:
        tried.get((each.model, _setting(each.point, axis)), set()).add(_place(each.point, axis))
    drawn = {line for line, places in tried.items() if len(places) >= LEAST_SIZES} or set(tried)
    rows: list[Row] = []
    for record, summary in zip(measured, summarise_points(measured, ()), strict=True):
        if (record.model, _setting(record.point, axis)) in drawn:
            rows.append(_point_row(record, summary, axis))
    for each in failed:
        line = (each.model, _setting(each.point, axis))
        within = line in drawn and _place(each.point, axis) <= _FAR * max(lines[line])
        if within and _family(each.point) == family:
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


def _setting(point: LatencyPoint, axis: AxisName) -> str:
    return f"{point.held_text(axis)}, {point.precision}, {point.device}"


def _law_setting(law: SweepLaw) -> str:
    return f"{law.held}, {law.precision}, {law.device}"


def _point_row(record: LatencyMeasured, summary: PointSummary, axis: AxisName) -> Row:
    low, high = summary.interval or (min(record.seconds), max(record.seconds))
    return {
        "model": record.model,
        "setting": _setting(record.point, axis),
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
    title = f"Latency of {_FAMILIES[family]} over {_WHAT[axis]}" + (f", without {without}" if without else "")
    return Chart(
        name=name,
        title=f"{title}: {settings.pop()}" if len(settings) == 1 else title,
        caption="Points are medians with their intervals, lines the laws that fit best. A flat beginning is a floor that does "
        "not depend on the work; crosses at the top are points without a time, out of memory or too slow.",
        data=tuple(rows),
        draw=_axis_drawing(axis, scale, rows, names),
    )


def _axis_drawing(axis: str, scale: Scale, rows: Sequence[Row], names: Sequence[str]) -> Callable[[Any], Any]:
    settings = sorted({str(row["setting"]) for row in rows}, key=_by_number)
    ticks_up = log_ticks(row.get("milliseconds") for row in rows)
    sizes = sorted({float(row["size"] or 0) for row in rows if row["what"] != "law"})

    def draw(data: Any) -> Any:
        import altair

        ticks = altair.Axis(values=sizes, labelOverlap=True)
        x = altair.X("size:Q", title=_LABELS[axis], axis=ticks, scale=altair.Scale(type=scale, nice=False, padding=12))
        y = altair.Y(
            "milliseconds:Q",
            title="time of one call in ms",
            scale=altair.Scale(type="log", nice=False, padding=14) if scale == "log" else altair.Scale(),
            axis=altair.Axis(values=ticks_up, format="~g") if scale == "log" else altair.Axis(),
        )
        colour = _colour(names)
        base = altair.Chart(data)
        law = base.transform_filter("datum.what == 'law'").mark_line(opacity=0.6, strokeWidth=1.5)
        bars = base.transform_filter("datum.what == 'measured'").mark_rule()
        dots = base.transform_filter("datum.what == 'measured'").mark_point(filled=True, size=45)
        crosses = base.transform_filter("datum.what == 'no time'").mark_point(shape="cross", angle=45, size=70)
        told = ["model:N", "setting:N", "size:Q", altair.Tooltip("milliseconds:Q", format=".3~g")]
        drawn = {
            "law": [law.encode(x=x, y=y, color=colour)],
            "measured": [
                bars.encode(x=x, y=altair.Y("low:Q"), y2="high:Q", color=colour),
                dots.encode(x=x, y=y, color=colour, tooltip=told),
            ],
            "no time": [
                crosses.encode(
                    x=x, y=altair.value(6), color=colour, tooltip=["model:N", "setting:N", "size:Q", "why:N"]
                )
            ],
        }
        there = {row["what"] for row in rows}  # Vega complains of a layer without rows
        layers = altair.layer(*(layer for what, them in drawn.items() if what in there for layer in them)).properties(
            height=_PANEL_HEIGHT
        )
        if len(settings) < 2:
            return layers
        panels = altair.Facet("setting:N", title=None, sort=settings)
        return layers.properties(width=_PANEL_WIDTH).facet(facet=panels, columns=2)

    return draw


def _by_number(setting: str) -> tuple[float | str, ...]:
    """Batch 2 before batch 16."""
    words = re.split(r"(\d+)", setting)
    return tuple(float(word) if place % 2 else word for place, word in enumerate(words))


def _names(measured: Sequence[LatencyMeasured]) -> list[str]:
    """Of all models, always in the same order, so that each keeps its colour from chart to chart."""
    return sorted({record.model for record in measured})


def _colour(names: Sequence[str]) -> "altair.Color":
    """Models by colour; their names without source and organisation, which take room and tell little here."""
    import altair

    legend = altair.Legend(labelExpr="replace(datum.label, regexp('^.*[:/]'), '')")
    return altair.Color("model:N", title="model", scale=altair.Scale(domain=list(names)), legend=legend)


def _waiting_rows(measured: Sequence[LatencyMeasured]) -> tuple[Row, ...]:
    """The share of the time in which a GPU waits, over the batch, for lines of two batches or more."""
    known = [record for record in measured if record.kernel_seconds is not None]
    batches: dict[tuple[str, str], set[int]] = {}
    for record in known:
        batches.setdefault((record.model, _setting(record.point, "batch")), set()).add(record.point.batch)
    return tuple(
        {
            "model": record.model,
            "setting": _setting(record.point, "batch"),
            "batch": record.point.batch,
            "waiting": max(0.0, 1 - (record.kernel_seconds or 0.0) / median_of(record.seconds)),
        }
        for record in known
        if len(batches[record.model, _setting(record.point, "batch")]) > 1
    )


def _waiting_chart(rows: Sequence[Row], family: str, names: Sequence[str]) -> Chart:
    def draw(data: Any) -> Any:
        import altair

        line = altair.Chart(data).mark_line(point=True)
        return (
            line.encode(
                x=altair.X("batch:Q", title=_LABELS["batch"], scale=altair.Scale(type="log", base=2)),
                y=altair.Y("waiting:Q", title="share of the time the GPU waits", scale=altair.Scale(domain=[0, 1])),
                color=_colour(names),
                tooltip=["model:N", "batch:Q", altair.Tooltip("waiting:Q", format=".0%")],
            )
            .properties(width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
            .facet(facet=altair.Facet("setting:N", title=None), columns=2)
        )

    return Chart(
        name=f"latency_waiting_{family}",
        title=f"How long the GPU waits for the host: {_FAMILIES[family]}",
        caption="Where it waits most of the time, a larger batch costs nothing: the call takes as long as the host needs to "
        "start its kernels. That is the floor of the latency.",
        data=tuple(rows),
        draw=draw,
    )


def _roofline_chart(measured: Sequence[LatencyMeasured], ceilings: Sequence[CeilingsMeasured], family: str) -> Chart:
    rows: list[Row] = []
    for record, summary in zip(measured, summarise_points(measured, ceilings), strict=True):
        if record.moved_bytes > 0 and record.flops > 0:
            rows.append(
                {
                    "model": record.model,
                    "setting": f"{record.point.precision}, {record.point.device}",
                    "what": "point",
                    "shape": record.point.shape_text,
                    "flops_per_byte": record.flops / record.moved_bytes,
                    "gigaflops": summary.flops_per_second * 1e-9,
                    "bound": summary.regime.bound,
                }
            )
    spread = [float(row["flops_per_byte"] or 1.0) for row in rows]
    for each in ceilings if spread else ():
        ridge = each.flops_per_second / each.bytes_per_second
        for intensity in sorted({min([*spread, ridge]) / 2, ridge, max([*spread, ridge]) * 2}):
            rate = min(each.flops_per_second, intensity * each.bytes_per_second)
            setting = f"{each.precision}, {each.device}"
            rows.append({"setting": setting, "what": "ceiling", "flops_per_byte": intensity, "gigaflops": rate * 1e-9})
    return Chart(
        name=f"latency_roofline_{family}",
        title=f"What holds each point up: the roofline of {_FAMILIES[family]}",
        caption="The line is the most this device was seen to do: bytes on the slope, FLOPs on the flat part. A point near the "
        "slope is bound by memory, near the flat part by computing, and far below both by something else, mostly launches.",
        data=tuple(rows),
        draw=lambda data: _draw_roofline(data, rows, _names(measured)),
    )


def _draw_roofline(data: Any, rows: Sequence[Row], names: Sequence[str]) -> "altair.FacetChart":
    import altair

    scale = altair.Scale(type="log", nice=False, padding=12)
    across, up = (
        altair.Axis(values=log_ticks(row[field] for row in rows), format="~g")
        for field in ("flops_per_byte", "gigaflops")
    )
    x = altair.X("flops_per_byte:Q", title="FLOPs for each byte moved", scale=scale, axis=across)
    y = altair.Y("gigaflops:Q", title="reached, in GFLOP/s", scale=scale, axis=up)
    base = altair.Chart(data)
    roof = base.transform_filter("datum.what == 'ceiling'").mark_line(strokeWidth=2, color=LIGHT.muted).encode(x=x, y=y)
    dots = base.transform_filter("datum.what == 'point'").mark_point(filled=True, size=35, opacity=0.8)
    drawn = dots.encode(
        x=x,
        y=y,
        color=_colour(names),
        shape=altair.Shape("bound:N", title="bound by", legend=altair.Legend(symbolFillColor=LIGHT.muted)),
        tooltip=["model:N", "shape:N", "bound:N", altair.Tooltip("gigaflops:Q", format=".3~g")],
    )
    panel = altair.layer(roof, drawn).properties(width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
    facets: altair.FacetChart = panel.facet(facet=altair.Facet("setting:N", title=None), columns=2)
    return facets
