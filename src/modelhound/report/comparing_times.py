"""What several runs of one verb took for the same things: two machines, two versions, a GPU and a CPU.

In:  runs of `latency`, `train` or `profile`, and their names
Out: a Section; None where they have nothing in common
Nothing here judges whether a difference is more than noise: `hound latency --compare` does.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from modelhound.analysis.job_lines import PHASES
from modelhound.analysis.newest import newest, newest_of_runs, newest_points
from modelhound.analysis.samples import median_of
from modelhound.analysis.wording import plural
from modelhound.records import ConfigurationProfiled, ModelTrained, RankTrained
from modelhound.report.charts import Chart, Row, log_ticks, phase_bars, share_axis
from modelhound.report.parts import Section
from modelhound.store import Run

__all__ = ["times_in_common"]

_MOST_MODELS = 24

Times = Mapping[tuple[str, str], float]
"""Seconds by model and by what it was measured at."""


def times_in_common(runs: Sequence[Run], names: Sequence[str]) -> Section | None:
    """How many times as fast as the first run the others are; of profiles, where the time of each goes."""
    verbs = {run.verb for run in runs}
    if verbs == {"profile"}:
        chart = _profile_chart(runs, names)
    elif verbs == {"latency"} or verbs == {"train"}:
        chart = _ratio_chart([_times_of(run) for run in runs], names)
    else:
        return None
    if chart is None:
        return None
    return Section(name="common", title="Models in common", blocks=(chart,))


def _times_of(run: Run) -> Times:
    if run.verb == "latency":
        measured, _ = newest_points(run.records)
        return {
            (point.model, f"{point.shape_text}, {point.precision}"): median_of(record.seconds)
            for point, record in measured.items()
        }
    trained = newest(run.of(ModelTrained), lambda each: (each.model, each.num_ranks))
    items: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for rank in newest_of_runs(run.of(RankTrained), trained):
        items.setdefault((rank.model, plural(rank.num_ranks, "rank")), []).append((rank.num_items, rank.wall_seconds))
    spent = {key: (max(each for _, each in own), sum(count for count, _ in own)) for key, own in items.items()}
    # a start that had no steps left to do went through no items
    return {key: seconds / num_items for key, (seconds, num_items) in spent.items() if num_items}


def _ratio_chart(times: Sequence[Times], names: Sequence[str]) -> Chart | None:
    rows: list[Row] = []
    first = times[0]
    common = list(dict.fromkeys(key[0] for own in times[1:] for key in own if key in first))
    shown = common[:_MOST_MODELS]
    for name, own in zip(names[1:], times[1:], strict=True):
        ratios: dict[str, list[float]] = {}
        for key, seconds in own.items():
            if key in first and key[0] in shown:
                ratios.setdefault(key[0], []).append(first[key] / max(seconds, 1e-12))
        rows += [
            {
                "model": model,
                "run": name,
                "ratio": math.exp(sum(map(math.log, found)) / len(found)),
                "low": min(found),
                "high": max(found),
                "points": len(found),
            }
            for model, found in ratios.items()
        ]
    if not rows:
        return None
    return Chart(
        name="compare_times",
        title=f"How many times as fast as {names[0]}",
        caption="Dots are geometric means over what both runs measured of a model, lines reach from the least to the most. "
        f"Right of 1 is faster.{_left_out_text(len(common))}",
        data=tuple(rows),
        draw=lambda data: _draw_ratios(data, rows, [name for name in names if any(row["run"] == name for row in rows)]),
    )


def _left_out_text(num_models: int) -> str:
    return f" Of {num_models:,} models the first {_MOST_MODELS} are drawn." if num_models > _MOST_MODELS else ""


def _draw_ratios(data: Any, rows: Sequence[Row], names: Sequence[str]) -> Any:
    import altair

    base = altair.Chart(data, height=altair.Step(22)).encode(
        y=altair.Y("model:N", sort=None, title=None),
        yOffset=altair.YOffset("run:N", sort=list(names)),
        color=altair.Color("run:N", scale=altair.Scale(domain=list(names)), title=None),
        tooltip=["run:N", "model:N", *(altair.Tooltip(f"{each}:Q", format=".3~g") for each in _TOLD), "points:Q"],
    )
    ticks = altair.Axis(format="~g", values=log_ticks(row[each] for row in rows for each in _TOLD))
    x = altair.X("low:Q", title="times as fast", scale=altair.Scale(type="log", nice=False, padding=12), axis=ticks)
    even = altair.Chart().mark_rule(strokeDash=[4, 3]).encode(x=altair.datum(1))
    lines = base.mark_rule(strokeWidth=2, opacity=0.5).encode(x=x, x2="high:Q")
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(x="ratio:Q")
    return altair.layer(even, lines, dots, data=data)


_TOLD = ("ratio", "low", "high")


def _profile_chart(runs: Sequence[Run], names: Sequence[str]) -> Chart | None:
    """Of whole models, and of the data set that comes first in each run."""
    found: dict[str, dict[str, ConfigurationProfiled]] = {}
    for run, name in zip(runs, names, strict=True):
        for record in newest(run.of(ConfigurationProfiled), lambda each: each.key):
            if record.form == "full":
                found.setdefault(record.model, {}).setdefault(name, record)
    common = {model: records for model, records in found.items() if len(records) > 1}
    rows: list[Row] = [
        {
            "model": model,
            "run": f"{name}: {record.device}",
            "phase": phase,
            "order": place,
            "seconds": record.seconds_of(phase),
            "share": record.seconds_of(phase) / record.wall_seconds,
        }
        for model, records in list(common.items())[:_MOST_MODELS]
        for name, record in records.items()
        for place, phase in enumerate(PHASES)
    ]
    if not rows:
        return None
    return Chart(
        name="compare_phases",
        title="Where the time of each model goes, run by run",
        caption="Of the whole model, as shares of its own job. What jobs took is in each run's own part below."
        + _left_out_text(len(common)),
        data=tuple(rows),
        draw=_draw_phases,
    )


def _draw_phases(data: Any) -> Any:
    import altair

    y = altair.Y("run:N", title=None, sort=None)
    panels = altair.Facet("model:N", title=None, sort=None, header=altair.Header(labelAnchor="start"))
    bars = phase_bars(data, PHASES, x=share_axis("share of the job"), y=y, names=["model", "run"])
    return bars.properties(width=250, height=altair.Step(18)).facet(facet=panels, columns=2)
