"""The charts of a profile.

In:  profiles of configurations and what follows from them
Out: Charts with plain rows: seconds and shares per phase, how the bottleneck moves with items, what running less saves
Nothing here measures. One pair of bar charts for every data set and device, so that a CPU and a GPU stand side by side in one
report and never in one chart: their seconds are worlds apart.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelhound.analysis.job_lines import GROUPS, PHASES, seconds_at
from modelhound.analysis.wording import span_of_counts_text
from modelhound.records import ConfigurationProfiled, ProfileFindings
from modelhound.report.charts import COLOURS, Chart, Row, log_ticks, phase_bars, share_axis
from modelhound.report.theme import LIGHT
from modelhound.report.writing import file_name

if TYPE_CHECKING:
    import altair

__all__ = ["place_names", "profile_charts"]

_GROUP_COLOURS = dict(zip(GROUPS, (COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3]), strict=True))
_CURVE_COUNTS = tuple(round(10 ** (step / 4)) for step in range(0, 21))
_MOST_CURVES = 12
_FORMS = ("full", "part", "joint", "apart")


def profile_charts(
    records: Sequence[ConfigurationProfiled], findings: ProfileFindings, *, item_counts: Sequence[int] = ()
) -> tuple[Chart, ...]:
    """All charts, for every data set and device in turn."""
    records = _in_reading_order(records)
    charts: list[Chart] = []
    for place, name in place_names(records).items():
        here = [record for record in records if (record.data, record.device) == place]
        charts += _phase_charts(here, name)
        full = [record for record in here if record.form == "full"] or here
        charts.append(_crossover_chart(full, findings, name))
        if item_counts:
            charts.append(_counts_chart(full, item_counts, name))
        if any((each.data, each.device) == place for each in findings.savings):
            charts.append(_saving_chart(findings, *place, name))
    return tuple(charts)


def _in_reading_order(records: Sequence[ConfigurationProfiled]) -> list[ConfigurationProfiled]:
    """Whole models first, then fewer and fewer layers, joint models last; jobs were run in no order of meaning."""
    places = list(dict.fromkeys((record.data, record.device, record.model) for record in records))
    return sorted(
        records,
        key=lambda each: (
            places.index((each.data, each.device, each.model)),
            _FORMS.index(each.form),
            -each.num_layers_run,
            each.configuration,
        ),
    )


def _phase_charts(records: Sequence[ConfigurationProfiled], name: str) -> list[Chart]:
    """Stacked and normalised bars per phase, a row of bars for every model."""
    first = records[0]
    items = span_of_counts_text((each.num_items for each in records), "item")
    batch = span_of_counts_text(each.batch for each in records)
    where = f"{first.data} on {first.device}, {items} in batches of {batch}"
    rows: list[Row] = []
    for record in records:
        seconds = {phase: record.seconds_of(phase) for phase in PHASES}
        seconds["other"] = max(0.0, record.wall_seconds - sum(seconds.values()))
        rows += [
            {
                "model": _short(record.model),
                "configuration": record.configuration,
                "phase": phase,
                "order": place,
                "seconds": spent,
                "share": spent / record.wall_seconds,
            }
            for place, (phase, spent) in enumerate(seconds.items())
        ]
    order = list(dict.fromkeys(record.configuration for record in records))
    cold = "from the disk" if first.cold else "from the page cache"
    return [
        Chart(
            name=f"profile_seconds_{name}",
            title=f"Where the time goes: {where}",
            caption=f"Seconds per phase of one job from the file of weights to the score; weights are read {cold}."
            + (" Each model has a scale of its own." if len(_models_of(rows)) > 1 else ""),
            data=tuple(rows),
            draw=lambda data: _draw_bars(data, _models_of(rows), order, "seconds", "seconds, end to end"),
        ),
        Chart(
            name=f"profile_shares_{name}",
            title=f"The same as shares of each job: {where}",
            caption="The longest stretch of a bar is what to speed up first.",
            data=tuple(rows),
            draw=lambda data: _draw_bars(data, _models_of(rows), order, "share", "share of the job"),
        ),
    ]


def _draw_bars(data: Any, models: Sequence[str], order: Sequence[str], field: str, title: str) -> Any:
    import altair

    x = share_axis(title) if field == "share" else altair.X("seconds:Q", title=title, axis=altair.Axis(tickCount=5))
    y = altair.Y("configuration:N", title=None, sort=list(order))
    return (
        phase_bars(data, [*PHASES, "other"], x=x, y=y, names=["model", "configuration"])
        .properties(width=250, height={"step": 15})
        .facet(facet=_by_model(models), columns=2)
        .resolve_scale(x="independent" if field == "seconds" else "shared")
    )


def _crossover_chart(records: Sequence[ConfigurationProfiled], findings: ProfileFindings, name: str) -> Chart:
    """Seconds of weights, data, forward and score as items grow."""
    first = records[0]
    shown = list(records[:_MOST_CURVES])
    rows: list[Row] = []
    depends = False
    for record in shown:
        measured = record.num_items
        points = [(count, count > measured) for count in _CURVE_COUNTS] + [(measured, False), (measured, True)]
        for count, extrapolated in sorted(points):
            rows += [
                {
                    "model": _short(record.model),
                    "items": count,
                    "group": group,
                    "seconds": max(spent, 1e-5),
                    "extrapolated": extrapolated,
                    "move": None,
                }
                for group, spent in seconds_at(record, count).items()
            ]
        moves = [
            each
            for each in findings.moves
            if (each.model, each.configuration, each.data, each.device)
            == (record.model, record.configuration, record.data, record.device)
        ]
        rows += [
            {
                "model": _short(record.model),
                "items": each.num_items,
                "group": each.after,
                "seconds": max(seconds_at(record, each.num_items)[each.after], 1e-5),
                "extrapolated": not each.is_measured,
                "move": f"{each.before} → {each.after}",
            }
            for each in moves
            if each.num_items <= _CURVE_COUNTS[-1]
        ]
        depends = depends or bool(moves)
    return Chart(
        name=f"profile_crossover_{name}",
        title=f"What takes longest {'depends on' if depends else 'is the same whatever'} the number of items: "
        f"{first.data} on {first.device}",
        caption="The highest line is the bottleneck; dots are where it changes. Beyond "
        f"{span_of_counts_text((each.num_items for each in shown), 'item')}, dashed, the lines are extrapolated.",
        data=tuple(rows),
        draw=lambda data: _draw_crossover(data, rows),
    )


def _draw_crossover(data: Any, rows: Sequence[Row]) -> Any:
    import altair

    across, up = (log_ticks(row[field] for row in rows) for field in ("items", "seconds"))
    scale = altair.Scale(type="log", nice=False)
    axis_x = altair.X("items:Q", title="items", scale=scale, axis=altair.Axis(format="~s", values=across))
    axis_y = altair.Y("seconds:Q", title="seconds", scale=scale, axis=altair.Axis(format="~g", values=up))
    colour = altair.Color(
        "group:N", title=None, scale=altair.Scale(domain=list(_GROUP_COLOURS), range=list(_GROUP_COLOURS.values()))
    )
    curves = altair.Chart(data).transform_filter("datum.move === null")
    layers = [
        curves.transform_filter(f"{'!' if solid else ''}datum.extrapolated")
        .mark_line(strokeDash=[1, 0] if solid else [4, 3])
        .encode(x=axis_x, y=axis_y, color=colour)
        for solid in (True, False)
    ]
    dots = (
        altair.Chart(data)
        .transform_filter("datum.move !== null")
        .mark_point(size=90, filled=True, stroke=LIGHT.text, strokeWidth=1.2)
        .encode(
            x=axis_x, y=axis_y, color=colour, tooltip=["model:N", "move:N", altair.Tooltip("items:Q", format=",.3~r")]
        )
    )
    return (
        altair.layer(*layers, dots, data=data)
        .properties(width=250, height=170)
        .facet(facet=_by_model(_models_of(rows)), columns=2)
    )


def _counts_chart(records: Sequence[ConfigurationProfiled], item_counts: Sequence[int], name: str) -> Chart:
    """Shares at the numbers of items that were asked for."""
    first = records[0]
    rows: list[Row] = []
    for record in records:
        for count in sorted({*item_counts, record.num_items}):
            spent = seconds_at(record, count)
            total = sum(spent.values())
            rows += [
                {
                    "model": _short(record.model),
                    "items": f"{count:,}" + ("*" if count > record.num_items else ""),
                    "count": count,
                    "group": group,
                    "order": place,
                    "seconds": seconds,
                    "share": seconds / total,
                }
                for place, (group, seconds) in enumerate(spent.items())
            ]
    return Chart(
        name=f"profile_items_{name}",
        title=f"Shares of the time by number of items: {first.data} on {first.device}",
        caption="What is paid once loses weight as items grow."
        + (" * extrapolated." if any(str(row["items"]).endswith("*") for row in rows) else ""),
        data=tuple(rows),
        draw=lambda data: _draw_counts(data, _models_of(rows)),
    )


def _draw_counts(data: Any, models: Sequence[str]) -> Any:
    import altair

    return (
        altair.Chart(data)
        .mark_bar()
        .encode(
            x=share_axis("share of the job"),
            y=altair.Y("items:N", title="items", sort=altair.EncodingSortField("count", order="ascending")),
            color=altair.Color(
                "group:N",
                title=None,
                scale=altair.Scale(domain=list(_GROUP_COLOURS), range=list(_GROUP_COLOURS.values())),
            ),
            order=altair.Order("order:Q"),
            tooltip=["model:N", "items:N", "group:N", altair.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=220, height={"step": 16})
        .facet(facet=_by_model(models), columns=2)
    )


def _saving_chart(findings: ProfileFindings, data: str, device: str, name: str) -> Chart:
    """Predicted by multiplications, measured in the forward pass, measured end to end."""
    rows: list[Row] = []
    for each in findings.savings:
        if (each.data, each.device) != (data, device):
            continue
        measured = (
            ("predicted by FLOPs", each.predicted, None),
            ("forward, measured", each.forward, each.forward_interval),
            ("end to end, measured", each.end_to_end, each.end_to_end_interval),
        )
        rows += [
            {
                "model": _short(each.model),
                "configuration": each.configuration,
                "what": what,
                "speedup": value,
                "low": interval[0] if interval else None,
                "high": interval[1] if interval else None,
            }
            for what, value, interval in measured
        ]
    order = list(dict.fromkeys(str(row["configuration"]) for row in rows))
    return Chart(
        name=f"profile_savings_{name}",
        title=f"What running fewer layers, or a trunk once, saves: {data} on {device}",
        caption="Last layers against the full model, joint models against the same models run apart; times faster. Where the "
        "measured value stays behind the prediction, something else than multiplying costs time.",
        data=tuple(rows),
        draw=lambda drawn: _draw_savings(drawn, rows, order),
    )


def _draw_savings(data: Any, rows: Sequence[Row], order: Sequence[str]) -> Any:
    import altair

    what = ["predicted by FLOPs", "forward, measured", "end to end, measured"]
    base = altair.Chart(data).encode(
        y=altair.Y("configuration:N", title=None, sort=list(order)),
        yOffset=altair.YOffset("what:N", sort=what),
        color=altair.Color("what:N", title=None, sort=what),
    )
    scale = altair.Scale(type="log", nice=False, padding=12)
    ticks = altair.Axis(format="~g", values=log_ticks(row["speedup"] for row in rows))
    dots = base.mark_point().encode(
        x=altair.X(
            "speedup:Q",
            title="times faster",
            scale=scale,
            axis=ticks,
        ),
        tooltip=["model:N", "configuration:N", "what:N", altair.Tooltip("speedup:Q", format=".2f")],
    )
    lines = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    return (
        altair.layer(lines, dots, data=data)
        .properties(width=220, height={"step": 9})
        .facet(facet=_by_model(_models_of(rows)), columns=2)
    )


def _by_model(models: Sequence[str]) -> "altair.Facet":
    """One panel per model, in the order asked for."""
    import altair

    return altair.Facet("model:N", title=None, sort=list(models), header=altair.Header(labelAnchor="start"))


def _models_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["model"]) for row in rows))


def _short(model: str) -> str:
    """Without what everybody knows."""
    return model.removeprefix("timm:").removeprefix("hf:")


def place_names(records: Sequence[ConfigurationProfiled]) -> dict[tuple[str, str], str]:
    """How the files of charts end, by data set and device, in the order in which these come.

    Folders of the same name are numbered, or the picture of one would take the place of the other's.
    """
    names: dict[tuple[str, str], str] = {}
    taken: list[str] = []
    for data, device in dict.fromkeys((record.data, record.device) for record in records):
        name = f"{_slug(data)}_{_slug(device)}"
        taken.append(name)
        number = taken.count(name)
        names[data, device] = name if number == 1 else f"{name}_{number}"
    return names


def _slug(text: str) -> str:
    return file_name(text.rstrip("/").rpartition("/")[2])
