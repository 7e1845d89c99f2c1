"""How the charts of a search are drawn.

In:  the rows that `search_charts` makes, as altair takes them
Out: altair charts without theme
Nothing here computes anything.
"""

from collections.abc import Sequence
from typing import Any, cast

from modelhound.report.charts import SECONDS, metric_axis, phase_bars, share_axis
from modelhound.report.theme import COLOURS, GREY, HALOS, LIGHT

__all__ = [
    "BEATEN",
    "DROPPED",
    "FINISHED",
    "FIRST",
    "FRONT",
    "LOST",
    "OTHERS",
    "WON",
    "draw_agreement",
    "draw_finals",
    "draw_front",
    "draw_phases",
    "draw_race",
    "draw_ranking",
    "draw_remaining",
    "draw_total",
    "title_of",
]

FIRST, OTHERS = "shares rank 1", "clearly worse by features"
WON, LOST = "first in the finals", "behind"
FRONT, BEATEN = "not beaten", "beaten"
FINISHED, DROPPED = "measured on all items", "left the race"


def draw_ranking(data: Any, metric: str) -> Any:
    import altair

    base = _by_place(data, [FIRST, OTHERS]).encode(tooltip=["model:N", "rank:Q", *_score_tooltips(metric)])
    low = altair.X("low:Q", title=title_of(metric), scale=altair.Scale(zero=False), axis=metric_axis(metric, ticks=8))
    return base.mark_rule(strokeWidth=3, opacity=0.45).encode(x=low, x2="high:Q") + base.mark_circle(
        size=90, opacity=1
    ).encode(x="score:Q")


def draw_finals(data: Any, metric: str) -> Any:
    import altair

    told = ["model:N", *_score_tooltips(metric), _format_tooltip("so_far", "so far", metric)]
    base = _by_place(data, [WON, LOST]).encode(tooltip=[*told, altair.Tooltip("chance:Q", format=".0%")])
    low = altair.X("low:Q", title=title_of(metric), scale=altair.Scale(zero=False), axis=metric_axis(metric, ticks=8))
    crosses = base.mark_point(shape="cross", angle=45, size=60, filled=True)
    return (
        base.mark_rule(strokeWidth=3, opacity=0.45).encode(x=low, x2="high:Q")
        + crosses.encode(x="so_far:Q")
        + base.mark_circle(size=90, opacity=1).encode(x="score:Q")
    )


def _by_place(data: Any, groups: Sequence[str]) -> Any:
    """Models one below the other, the first of two groups in colour."""
    import altair

    return altair.Chart(data, height=altair.Step(24)).encode(
        y=altair.Y("model:N", sort=altair.EncodingSortField("place", op="min"), title=None),
        color=altair.Color("group:N", scale=altair.Scale(domain=groups, range=[COLOURS[0], GREY]), title=None),
    )


def draw_front(
    data: Any,
    metric: str,
    name: str,
    title: str,
    *,
    step: Any,
    ticks: Sequence[float],
    sides: Sequence[str],
    has_beaten: bool,
    is_crowded: bool,
) -> Any:
    """Layers only for what there is: Vega complains of one without rows."""
    import altair

    colour = altair.Color("is:N", scale=altair.Scale(domain=[FRONT, BEATEN], range=[COLOURS[0], GREY]), title=None)
    base = altair.Chart(data).encode(
        x=altair.X(
            f"{name}:Q",
            scale=altair.Scale(type="log", nice=False, padding=24),
            title=title,
            axis=altair.Axis(format="~s", values=list(ticks)),
        ),
        y=altair.Y(
            "score:Q", scale=altair.Scale(zero=False, padding=16), title=title_of(metric), axis=metric_axis(metric)
        ),
    )
    tooltip = ["model:N", "rank:Q", *_score_tooltips(metric), altair.Tooltip(f"{name}:Q", title=title, format=",.3~s")]
    front = base.transform_filter(f"datum.is === '{FRONT}'")
    beaten = base.transform_filter(f"datum.is === '{BEATEN}'")
    dots: dict[str, Any] = {"size": 16, "opacity": 0.45} if is_crowded else {"size": 70, "opacity": 0.85}
    labels = [
        front.transform_filter(f"datum.side === '{side}'")
        .mark_text(align=cast(Any, side), dy=-12, dx={"left": -4, "center": 0, "right": 4}[side], **halo)
        .encode(text="label:N")
        for side in sides
        for halo in HALOS
    ]
    return altair.layer(
        *([beaten.mark_circle(**dots).encode(color=colour, tooltip=tooltip)] if has_beaten else ()),
        front.mark_line(interpolate=step, opacity=0.5, color=COLOURS[0]),
        front.mark_circle(size=80, opacity=1).encode(color=colour, tooltip=tooltip),
        *labels,
    )


def draw_race(data: Any, metric: str) -> Any:
    import altair

    return (
        altair.Chart(data)
        .mark_circle(size=60, opacity=0.75)
        .encode(
            x=altair.X("items:Q", title="items it was judged on", axis=altair.Axis(format=",d", tickMinStep=1)),
            y=altair.Y(
                "score:Q", title=title_of(metric), scale=altair.Scale(zero=False, padding=12), axis=metric_axis(metric)
            ),
            color=altair.Color(
                "outcome:N",
                scale=altair.Scale(domain=[FINISHED, DROPPED], range=[COLOURS[0], COLOURS[1]]),
                title=None,
            ),
            tooltip=[
                "model:N",
                "outcome:N",
                altair.Tooltip("items:Q", format=",d"),
                _format_tooltip("score", "score", metric),
                altair.Tooltip("chance:Q", title="chance it had", format=".2%"),
            ],
        )
    )


def draw_remaining(data: Any) -> Any:
    import altair

    return (
        altair.Chart(data)
        .mark_area(interpolate="step-after", line={"strokeWidth": 2, "color": COLOURS[0]}, fillOpacity=0.18)
        .encode(
            x=altair.X("items:Q", title="items", axis=altair.Axis(format=",d", tickMinStep=1)),
            y=altair.Y("models:Q", title="models", scale=altair.Scale(zero=True), axis=altair.Axis(tickMinStep=1)),
            tooltip=[altair.Tooltip("items:Q", format=",d"), altair.Tooltip("models:Q", format=",d")],
        )
    )


def draw_phases(data: Any, phases: list[str], field: str) -> Any:
    import altair

    seconds = altair.X("seconds:Q", title="seconds", axis=altair.Axis(format=SECONDS))
    x = seconds if field == "seconds" else share_axis("share of its time")
    y = altair.Y("model:N", sort=altair.EncodingSortField("seconds", op="sum", order="descending"), title=None)
    return phase_bars(data, phases, x=x, y=y, names=["model"]).properties(height=altair.Step(20))


def draw_total(data: Any, phases: list[str]) -> Any:
    return phase_bars(data, phases, x=share_axis(None)).properties(height=36)


def draw_agreement(data: Any, names: list[str]) -> Any:
    import altair

    base = altair.Chart(data, height=altair.Step(34), width=altair.Step(64)).encode(
        x=altair.X("second:N", sort=names, title=None, axis=altair.Axis(labelAngle=-35, orient="top")),
        y=altair.Y("first:N", sort=names, title=None),
        tooltip=["first:N", "second:N", altair.Tooltip("tau:Q", title="Kendall's tau", format="+.2f")],
    )
    shade = altair.Color(
        "tau:Q",
        title="Kendall's tau",
        scale=altair.Scale(domain=[-1, 1], domainMid=0),
        legend=None,
    )
    return base.mark_rect().encode(color=shade) + base.mark_text(fontSize=11).encode(
        text=altair.Text("tau:Q", format="+.2f"),
        color=altair.condition("abs(datum.tau) > 0.8", altair.value(LIGHT.background), altair.value(LIGHT.text)),
    )


def _format_tooltip(field: str, title: str, metric: str) -> Any:
    import altair

    return altair.Tooltip(f"{field}:Q", title=title, format=".3f" if metric == "R2" else ".1%")


def _score_tooltips(metric: str) -> list[Any]:
    return [
        _format_tooltip("score", "score", metric),
        _format_tooltip("low", "from", metric),
        _format_tooltip("high", "to", metric),
    ]


def title_of(metric: str) -> str:
    return metric if metric == "R2" else metric.capitalize()
