"""Charts of training on more and more ranks: how much faster it gets, and what the rest of their time is lost to.

In:  Scalings, one for each model
Out: Charts; without data where only one number of ranks was measured
Nothing here measures or concludes.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from modelhound.analysis.scaling import Scaling
from modelhound.analysis.wording import plural
from modelhound.report.charts import Chart, Row

if TYPE_CHECKING:
    import altair

__all__ = ["name_run", "scaling_charts"]

_CAUSES = ("efficiency", "data", "communication", "stragglers", "launch", "other")


def scaling_charts(scalings: Sequence[Scaling]) -> tuple[Chart, ...]:
    """Speed-ups, and what becomes of the ranks' time."""
    return _speedups(scalings), _lost(scalings)


def name_run(model: str, num_ranks: int) -> str:
    """How charts name one training."""
    return f"{model}, {plural(num_ranks, 'rank')}"


def _speedups(scalings: Sequence[Scaling]) -> Chart:
    rows: list[Row] = []
    for scaling in scalings:
        if len(scaling.points) < 2:
            continue
        rows += [
            {"model": scaling.model, "kind": "measured", "ranks": point.num_ranks, "speedup": point.speedup}
            for point in scaling.points
        ]
        if scaling.law is not None:
            most = 2 * scaling.points[-1].num_ranks
            fewest = scaling.points[0].num_ranks
            # as if so many scaled perfectly, which is what the points are relative to
            one = fewest * scaling.law.seconds_at(fewest)
            rows += [
                {
                    "model": scaling.model,
                    "kind": "fitted law",
                    "ranks": count,
                    "speedup": one / scaling.law.seconds_at(count),
                }
                for count in range(1, most + 1)
            ]
            rows += [
                {"model": scaling.model, "kind": "ideal", "ranks": count, "speedup": float(count)}
                for count in (1, most)
            ]
    return Chart(
        name="train_speedup",
        title="How much faster more ranks are than one",
        caption="; ".join(f"{each.model}: {each.sentence}" for each in scalings if each.law is not None),
        data=tuple(rows),
        draw=_draw_speedups,
    )


def _draw_speedups(data: Any) -> "altair.TopLevelMixin":
    import altair

    base = altair.Chart(data).encode(
        x=altair.X("ranks:Q", title="ranks", scale=altair.Scale(nice=False), axis=altair.Axis(tickMinStep=1)),
        y=altair.Y("speedup:Q", title="times as fast as one rank"),
        color=altair.Color("model:N", title=None, sort=None),
    )
    lines = (
        base.transform_filter("datum.kind != 'measured'")
        .mark_line()
        .encode(strokeDash=altair.StrokeDash("kind:N", title=None))
    )
    points = base.transform_filter("datum.kind == 'measured'").mark_point(filled=True, size=80)
    chart: altair.TopLevelMixin = altair.layer(lines, points)
    return chart


def _lost(scalings: Sequence[Scaling]) -> Chart:
    rows: list[Row] = [
        {
            "run": name_run(scaling.model, point.num_ranks),
            "cause": cause,
            "order": _CAUSES.index(cause),
            "share": max(0.0, share),
        }
        for scaling in scalings
        if len(scaling.points) > 1
        for point in scaling.points
        for cause, share in _shares(point.efficiency, point.losses)
    ]
    return Chart(
        name="train_efficiency",
        title="What becomes of the ranks' time as there are more of them",
        caption="Efficiency is the part that makes training faster; the rest is lost to its causes.",
        data=tuple(rows),
        draw=_draw_lost,
    )


def _shares(efficiency: float, losses: dict[str, float]) -> Iterator[tuple[str, float]]:
    yield "efficiency", efficiency
    yield from losses.items()


def _draw_lost(data: Any) -> "altair.TopLevelMixin":
    import altair

    chart: altair.TopLevelMixin = (
        altair.Chart(data)
        .mark_bar()
        .encode(
            x=altair.X("share:Q", title="share of the ranks' time", axis=altair.Axis(format="%")),
            y=altair.Y("run:N", title=None, sort=None),
            color=altair.Color("cause:N", title=None, sort=list(_CAUSES)),
            order=altair.Order("order:Q"),
            tooltip=["run:N", "cause:N", altair.Tooltip("share:Q", format=".1%")],
        )
    )
    return chart
