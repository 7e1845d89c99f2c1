"""Charts of why calls take as long as they do: how much of the time a GPU waits for the host, and the roofline.

In:  points of a sweep that belong to one family, and the ceilings of the devices
Out: Charts with plain rows; none where the records do not tell
Nothing here measures or concludes.
"""

from collections.abc import Sequence
from typing import Any

from modelhound.analysis.latency import fastest_beyond, summarise_points
from modelhound.analysis.laws import LEAST_SIZES
from modelhound.analysis.samples import median_of
from modelhound.records import CeilingsMeasured, LatencyMeasured
from modelhound.report.charts import Chart, Row, log_ticks
from modelhound.report.latency_panels import BATCH_LABEL, FAMILIES, colour_models, in_panels, names_of, setting_of
from modelhound.report.theme import LIGHT

__all__ = ["cause_charts"]


def cause_charts(
    measured: Sequence[LatencyMeasured], ceilings: Sequence[CeilingsMeasured], family: str
) -> tuple[Chart, ...]:
    """Both charts of one family, those for which there is something to show."""
    names = names_of(measured)
    made = (_waiting_chart(_waiting_rows(measured), family, names), _roofline_chart(measured, ceilings, family, names))
    return tuple(chart for chart in made if chart.data)


def _waiting_rows(measured: Sequence[LatencyMeasured]) -> tuple[Row, ...]:
    """The share of the time in which a GPU waits, over the batch, of lines that were swept; where none was, of two batches."""
    known = [record for record in measured if record.kernel_seconds is not None]
    batches: dict[tuple[str, str], set[int]] = {}
    for record in known:
        batches.setdefault((record.model, setting_of(record.point, "batch")), set()).add(record.point.batch)
    pairs = {line for line, found in batches.items() if len(found) > 1}
    drawn = {line for line in pairs if len(batches[line]) >= LEAST_SIZES} or pairs
    return tuple(
        {
            "model": record.model,
            "setting": setting_of(record.point, "batch"),
            "batch": record.point.batch,
            "waiting": max(0.0, 1 - (record.kernel_seconds or 0.0) / median_of(record.seconds)),
        }
        for record in known
        if (record.model, setting_of(record.point, "batch")) in drawn
    )


def _waiting_chart(rows: Sequence[Row], family: str, names: Sequence[str]) -> Chart:
    return Chart(
        name=f"latency_waiting_{family}",
        title=f"How long the GPU waits for the host: {FAMILIES[family]}",
        caption="Where it waits most of the time, a larger batch costs nothing: the call takes as long as the host needs to "
        "start its kernels. That is the floor of the latency.",
        data=tuple(rows),
        draw=lambda data: _draw_waiting(data, rows, names),
    )


def _draw_waiting(data: Any, rows: Sequence[Row], names: Sequence[str]) -> Any:
    import altair

    sizes = sorted({float(row["batch"] or 0) for row in rows})
    x = altair.X(
        "batch:Q",
        title=BATCH_LABEL,
        scale=altair.Scale(type="log", nice=False, padding=12),
        axis=altair.Axis(values=sizes, labelOverlap=True),
    )
    y = altair.Y(
        "waiting:Q",
        title="share of the time the GPU waits",
        scale=altair.Scale(domain=[0, 1]),
        axis=altair.Axis(format=".0%"),
    )
    told = ["model:N", "setting:N", "batch:Q", altair.Tooltip("waiting:Q", format=".0%")]
    line = altair.Chart(data).mark_line(point=True)
    return in_panels(line.encode(x=x, y=y, color=colour_models(names, rows), tooltip=told), rows)


def _roofline_chart(
    measured: Sequence[LatencyMeasured], ceilings: Sequence[CeilingsMeasured], family: str, names: Sequence[str]
) -> Chart:
    rows = _roofline_rows(measured, ceilings) if ceilings else ()
    return Chart(
        name=f"latency_roofline_{family}",
        title=f"What holds each point up: the roofline of {FAMILIES[family]}",
        caption="The line is the most this device was seen to do: bytes on the slope, FLOPs on the flat part. A point near the "
        "slope is bound by memory, near the flat part by computing. Far below both, less than half of either, it is bound by "
        "neither: by launches where the device waits for the host, else by kernels that use little of the device.",
        data=rows,
        draw=lambda data: _draw_roofline(data, rows, names),
    )


def _roofline_rows(measured: Sequence[LatencyMeasured], ceilings: Sequence[CeilingsMeasured]) -> tuple[Row, ...]:
    summaries = summarise_points(measured, ceilings)
    rows: list[Row] = [
        {
            "model": record.model,
            "setting": f"{record.point.precision}, {record.point.device}",
            "what": "point",
            "shape": record.point.shape_text,
            "flops_per_byte": record.flops / record.moved_bytes,
            "flops_per_second": summary.flops_per_second,
            "bound": summary.regime.bound,
        }
        for record, summary in zip(measured, summaries, strict=True)
        if record.moved_bytes > 0 and record.flops > 0
    ]
    spread = [float(row["flops_per_byte"] or 1.0) for row in rows]
    settings = {row["setting"] for row in rows}
    for each in ceilings:
        setting = f"{each.precision}, {each.device}"
        if setting not in settings:
            continue
        most = fastest_beyond(summaries, each) or each.flops_per_second
        ridge = most / each.bytes_per_second
        rows += [
            {
                "setting": setting,
                "what": "ceiling",
                "flops_per_byte": intensity,
                "flops_per_second": min(most, intensity * each.bytes_per_second),
            }
            for intensity in sorted({min([*spread, ridge]) / 2, ridge, max([*spread, ridge]) * 2})
        ]
    return tuple(rows)


def _draw_roofline(data: Any, rows: Sequence[Row], names: Sequence[str]) -> Any:
    import altair

    scale = altair.Scale(type="log", nice=False, padding=12)
    across, up = (
        altair.Axis(values=log_ticks(row[field] for row in rows), format=form)
        for field, form in (("flops_per_byte", "~g"), ("flops_per_second", "~s"))
    )
    x = altair.X("flops_per_byte:Q", title="FLOPs for each byte moved", scale=scale, axis=across)
    y = altair.Y("flops_per_second:Q", title="reached, in FLOP/s", scale=scale, axis=up)
    base = altair.Chart(data)
    roof = base.transform_filter("datum.what == 'ceiling'").mark_line(strokeWidth=2, color=LIGHT.muted).encode(x=x, y=y)
    dots = base.transform_filter("datum.what == 'point'").mark_point(filled=True, size=35, opacity=0.8)
    drawn = dots.encode(
        x=x,
        y=y,
        color=colour_models(names, rows),
        shape=altair.Shape(
            "bound:N", title="bound by", legend=altair.Legend(symbolFillColor=LIGHT.muted, orient="bottom")
        ),
        tooltip=[
            "model:N",
            "shape:N",
            "bound:N",
            altair.Tooltip("flops_per_second:Q", title="FLOP/s", format=".3~s"),
        ],
    )
    return in_panels(altair.layer(roof, drawn), rows)
