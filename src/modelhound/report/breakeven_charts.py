"""The charts of fine-tuning against searching.

In:  BreakevenFindings
Out: Charts with plain rows: seconds of each job by number of items; time of a search by number of models against what the
     trainings take, in seconds and where prices were given in money and energy
Nothing here measures.
"""

from collections.abc import Sequence
from typing import Any, cast

from modelhound.analysis.breakeven_wording import JOBS, WAYS
from modelhound.analysis.wording import plural
from modelhound.records import BreakEvenCount, BreakevenFindings
from modelhound.report.charts import COLOURS, SECONDS, Chart, Row, log_ticks
from modelhound.report.theme import HALOS
from modelhound.report.writing import file_name

__all__ = ["breakeven_charts"]

_SEARCHES = {way: f"search, {words}" for way, words in WAYS.items()}
_POINTS = tuple(round(10 ** (step / 8), 3) for step in range(0, 33))
_MOST_TICKS = 20


def breakeven_charts(findings: BreakevenFindings) -> tuple[Chart, ...]:
    """All charts; those in money and energy where prices were given."""
    charts = [_times_chart(findings)]
    units: list[tuple[str, str, float]] = [("seconds", "seconds", 1.0)]
    if findings.price_per_hour is not None:
        units.append(("money", "money", findings.price_per_hour / 3600))
    if findings.watts is not None:
        units.append(("energy", "watt-hours", findings.watts / 3600))
    for model in dict.fromkeys(each.model for each in findings.counts):
        own = [each for each in findings.counts if each.model == model]
        largest = max(each.num_items for each in own)
        shown = [each for each in own if each.num_items == largest]
        charts += [_models_chart(shown, unit, title, factor) for unit, title, factor in units]
    return (*charts, *([_search_chart(findings)] if findings.ways else []))


def _times_chart(findings: BreakevenFindings) -> Chart:
    """Seconds of each job against the number of items."""
    rows: tuple[Row, ...] = tuple(
        {"model": row.model, "items": row.num_items, "job": JOBS[job], "seconds": seconds}
        for row in findings.rows
        for job, seconds in row.seconds.items()
    )
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    epochs = findings.rows[0].num_epochs if findings.rows else 0
    return Chart(
        name="breakeven_times",
        title=f"What {plural(epochs, 'epoch')} of training {'takes' if epochs == 1 else 'take'}, and extracting features once",
        caption="The distance between two lines is how many times as long one job takes: the axes are logarithmic.",
        data=rows,
        draw=lambda data: _draw_times(data, models, rows),
    )


def _draw_times(data: Any, models: Sequence[str], rows: Sequence[Row]) -> Any:
    import altair

    jobs = list(JOBS.values())
    return (
        altair.Chart(data)
        .mark_line(point=True)
        .encode(
            x=altair.X("items:Q", title="items", scale=altair.Scale(type="log", nice=False, padding=10),
                       axis=altair.Axis(format=",d", values=sorted({int(row["items"] or 0) for row in rows}))),
            y=altair.Y("seconds:Q", title="seconds", scale=altair.Scale(type="log", nice=False, padding=10),
                       axis=altair.Axis(format="~g", values=log_ticks(row["seconds"] for row in rows))),
            color=altair.Color("job:N", title=None, scale=altair.Scale(domain=jobs, range=list(COLOURS[: len(jobs)]))),
            tooltip=["model:N", "items:Q", "job:N", altair.Tooltip("seconds:Q", format=SECONDS)],
        )
        .properties(width=250, height=200)
        .facet(
            facet=altair.Facet("model:N", title=None, sort=list(models), header=altair.Header(labelAnchor="start")),
            columns=2,
        )
    )  # fmt: skip


def _search_chart(findings: BreakevenFindings) -> Chart:
    """How the time of a search grows with the number of models: what was measured, and the lines through it."""
    rows: list[Row] = []
    for way in findings.ways:
        spent = zip(way.num_models, way.seconds, strict=True)
        rows += [
            {"what": _SEARCHES[way.way], "models": count, "seconds": each, "kind": "measured"} for count, each in spent
        ]
        rows += [
            {
                "what": _SEARCHES[way.way],
                "models": count,
                "seconds": way.start_seconds + way.seconds_per_model * count,
                "kind": "line",
            }
            for count in (0, max(way.num_models))
        ]
    return Chart(
        name="breakeven_search",
        title="How the time of a search grows with the number of models",
        caption="Dots were measured; the steeper a line, the more each further model costs.",
        data=tuple(rows),
        draw=lambda data: _draw_search(data, max((max(way.num_models) for way in findings.ways), default=1)),
    )


def _draw_search(data: Any, most: int) -> Any:
    import altair

    names = list(_SEARCHES.values())
    colour = altair.Color("what:N", title=None, scale=altair.Scale(domain=names, range=list(COLOURS[: len(names)])))
    whole = altair.Axis(values=list(range(most + 1)), format="d") if most <= _MOST_TICKS else altair.Axis(tickMinStep=1)
    x = altair.X("models:Q", title="models searched over", axis=whole)
    y = altair.Y("seconds:Q", title="seconds")
    base = altair.Chart(data)
    lines = base.transform_filter("datum.kind === 'line'").mark_line(opacity=0.6).encode(x=x, y=y, color=colour)
    dots = (
        base.transform_filter("datum.kind === 'measured'")
        .mark_point(size=80, filled=True)
        .encode(x=x, y=y, color=colour, tooltip=["what:N", "models:Q", altair.Tooltip("seconds:Q", format=SECONDS)])
    )
    return altair.layer(lines, dots, data=data).properties(height=240)


def _models_chart(counts: Sequence[BreakEvenCount], unit: str, title: str, factor: float) -> Chart:
    """Lines of searching that rise with the number of models, and the trainings they cross."""
    first = counts[0]
    rows: list[Row] = []
    for way, per_model in {each.way: each.search_seconds_per_model for each in counts}.items():
        rows += [
            {
                "what": _SEARCHES[way],
                "models": count,
                "value": count * per_model * factor,
                "kind": "search",
                "label": None,
            }
            for count in _POINTS
        ]
    for scenario, seconds in {each.scenario: each.training_seconds for each in counts}.items():
        rows += [
            {
                "what": f"training, {scenario}",
                "models": end,
                "value": seconds * factor,
                "kind": "training",
                "label": None,
            }
            for end in (_POINTS[0], _POINTS[-1])
        ]
    for each in counts:
        crossing = each.training_seconds / each.search_seconds_per_model
        least = min(1.0, crossing)  # where not one model can be searched over: a logarithmic axis has no room for none
        rows.append(
            {
                "what": _SEARCHES[each.way],
                "models": crossing,
                "value": each.training_seconds * factor,
                "low": max(least, each.interval[0]),
                "high": max(least, each.interval[1]),
                "kind": "break-even",
                "label": f"{each.num_models:,}",
            }
        )
    return Chart(
        name=f"breakeven_models_{unit}_{file_name(first.model)}",
        title=f"{first.model} on {first.num_items:,} items: from how many models on searching costs more"
        + ("" if unit == "seconds" else f", in {title}"),
        caption="Dots are break-even counts with their intervals; right of a dot the search takes longer than that training.",
        data=tuple(rows),
        draw=lambda data: _draw_models(data, title, rows),
    )


def _draw_models(data: Any, title: str, rows: Sequence[Row]) -> Any:
    import altair

    order = list(dict.fromkeys(str(row["what"]) for row in rows))
    colour = altair.Color("what:N", title=None, sort=order, scale=altair.Scale(domain=order, range=list(COLOURS)))
    x = altair.X(
        "models:Q",
        title="models searched over",
        scale=altair.Scale(type="log", nice=False),
        axis=altair.Axis(format=",~g", values=log_ticks(row["models"] for row in rows)),
    )
    y = altair.Y(
        "value:Q",
        title=title,
        scale=altair.Scale(type="log", nice=False),
        axis=altair.Axis(format=",~g", values=log_ticks(row["value"] for row in rows)),
    )
    base = altair.Chart(data)
    lines = base.transform_filter("datum.kind === 'search'").mark_line().encode(x=x, y=y, color=colour)
    levels = (
        base.transform_filter("datum.kind === 'training'").mark_line(strokeDash=[6, 4]).encode(x=x, y=y, color=colour)
    )
    crossings = base.transform_filter("datum.kind === 'break-even'")
    spans = crossings.mark_rule(strokeWidth=5, opacity=0.35).encode(x=altair.X("low:Q"), x2="high:Q", y=y, color=colour)
    dots = crossings.mark_point(size=80).encode(x=x, y=y, color=colour, tooltip=["what:N", "label:N"])
    is_plain = f"datum.what === '{_SEARCHES['plain']}'"
    words = crossings.encode(
        x=x, y=y, text="label:N", color=colour
    )  # one count to the left of its dot, the other to the right
    labels = [
        words.transform_filter(which).mark_text(dy=dy, dx=dx, align=cast(Any, align), fontWeight=600, **halo)
        for halo in HALOS
        for which, dy, dx, align in ((is_plain, 14, 6, "left"), (f"!({is_plain})", -12, -6, "right"))
    ]
    return altair.layer(lines, levels, spans, dots, *labels, data=data).properties(height=320)
