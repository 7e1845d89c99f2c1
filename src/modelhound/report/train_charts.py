"""Charts of training: where the time goes, how well and how fast it learns, what bounds it, how it scales.

In:  ModelTrained and RankTrained records, Verdicts and Scalings
Out: Charts, those for which there is something to show
Nothing here measures or concludes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modelhound.analysis.bounds import Verdict
from modelhound.analysis.scaling import Scaling
from modelhound.analysis.wording import list_text
from modelhound.records import ModelTrained, RankTrained
from modelhound.records.train import DATA_PHASES, STEP_PHASES
from modelhound.report.charts import SECONDS, Chart, Row, metric_axis, phase_bars, share_axis
from modelhound.report.scaling_charts import name_run, scaling_charts

if TYPE_CHECKING:
    import altair

__all__ = ["train_charts"]

_RARE = "evaluate, save checkpoint"
_TOGETHER = {
    "augment": "data to device",
    "logging": "other",
    "evaluate": _RARE,
    "save checkpoint": _RARE,
}
"""There are as many colours as phases are left; what is small or alike shares one."""

_PHASES = (
    "first batch",
    *(phase for phase in STEP_PHASES if phase not in (*_TOGETHER, "other")),
    *(_RARE, "other"),
)

_MOST_POINTS = 200
_MOST_TICKS = 20
_FREE = {
    "host batches": "loading for free",
    "device batches": "copies for free",
    "no all-reduce": "network for free",
}


def train_charts(
    trained: Sequence[ModelTrained],
    ranks: Sequence[RankTrained],
    *,
    verdicts: Sequence[Verdict] = (),
    scalings: Sequence[Scaling] = (),
) -> tuple[Chart, ...]:
    """All charts of one run folder, in reading order."""
    made = [
        _phases(ranks),
        _steps(ranks),
        _scores(trained),
        _losses(trained),
        _verdicts(verdicts),
        *scaling_charts(scalings),
        _telemetry(ranks),
    ]
    return tuple(chart for chart in made if chart is not None and chart.data)


def _phases(ranks: Sequence[RankTrained]) -> Chart:
    rows: list[Row] = []
    for rank in ranks:
        named = dict.fromkeys(_PHASES[:-1], 0.0)
        for each in rank.phases:
            phase = _TOGETHER.get(each.phase, each.phase)
            if phase in named:
                named[phase] += each.total
        named["other"] = max(0.0, rank.wall_seconds - sum(named.values()))
        rows += [
            {
                "rank": f"{name_run(rank.model, rank.num_ranks)}: rank {rank.rank}",
                "phase": phase,
                "order": _PHASES.index(phase),
                "seconds": spent,
                "share": spent / rank.wall_seconds,
            }
            for phase, spent in named.items()
            if spent > 0
        ]
    return Chart(
        name="train_phases",
        title="Where each rank's time goes",
        caption=(
            "Communication is what the backward pass does not hide, waiting for slower ranks included; augment counts as data "
            "to device, logging as other."
        ),
        data=tuple(rows),
        draw=lambda data: _draw_phases(data, rows),
    )


def _draw_phases(data: Any, rows: Sequence[Row]) -> "altair.TopLevelMixin":
    import altair

    used = [phase for phase in _PHASES if any(row["phase"] == phase for row in rows)]
    y = altair.Y("rank:N", title=None, sort=list(dict.fromkeys(str(row["rank"]) for row in rows)))
    return phase_bars(data, used, x=share_axis("share of the time"), y=y, names=["rank"])


def _steps(ranks: Sequence[RankTrained]) -> Chart:
    """The first rank's steps, some neighbours taken together where there are many."""
    rows: list[Row] = []
    for rank in ranks:
        phases = {each.phase: np.array(each.seconds) for each in rank.phases if len(each.seconds) == rank.num_steps}
        if rank.rank != 0 or not rank.num_steps or "forward" not in phases:  # a start may have had no steps left to do
            continue
        groups = np.array_split(np.arange(rank.num_steps), min(_MOST_POINTS, rank.num_steps))
        data = sum((phases[name] for name in DATA_PHASES if name in phases), np.zeros(rank.num_steps))
        for what, seconds in (("step", np.sum(list(phases.values()), axis=0)), ("data", data)):
            rows += [
                {
                    "run": name_run(rank.model, rank.num_ranks),
                    "what": what,
                    "step": int(group[0]) + 1,
                    "milliseconds": float(np.median(seconds[group])) * 1000,
                }
                for group in groups
            ]
    return Chart(
        name="train_steps",
        title="How long each step takes, and how much of it is waiting for data",
        caption="Of the first rank; medians of neighbouring steps where there are many.",
        data=tuple(rows),
        draw=lambda data: _draw_lines(data, "step:Q", "step", "milliseconds:Q", "milliseconds", dash="what:N"),
    )


def _scores(trained: Sequence[ModelTrained]) -> Chart:
    rows: list[Row] = [
        {"run": name_run(run.model, run.num_ranks), "epoch": each.epoch, "score": each.score}
        for run in trained
        for each in run.epochs
    ]
    metric = trained[0].metric if trained else "score"
    return Chart(
        name="train_scores",
        title=f"{metric.capitalize()} on the test items after each epoch",
        caption="Where lines of one model differ, so did the effective batch: every rank adds its own.",
        data=tuple(rows),
        draw=lambda data: _draw_scores(data, metric, rows),
    )


def _losses(trained: Sequence[ModelTrained]) -> Chart:
    rows: list[Row] = []
    for run in trained:
        losses = np.array(run.losses)
        for group in np.array_split(np.arange(len(losses)), max(1, min(_MOST_POINTS, len(losses)))):
            if len(group):
                rows.append(
                    {
                        "run": name_run(run.model, run.num_ranks),
                        "step": int(group[0]) + 1,
                        "loss": float(losses[group].mean()),
                    }
                )
    return Chart(
        name="train_losses",
        title="The loss of the training items, step by step",
        caption="Over the items of all ranks; means of neighbouring steps where there are many.",
        data=tuple(rows),
        draw=lambda data: _draw_lines(data, "step:Q", "step", "loss:Q", "loss"),
    )


def _draw_lines(
    data: Any, x: str, x_title: str, y: str, y_title: str, *, dash: str | None = None
) -> "altair.TopLevelMixin":
    import altair

    form = SECONDS if x_title == "seconds" else "~s"
    encoded = {
        "x": altair.X(
            x, title=x_title, axis=altair.Axis(tickMinStep=0 if x_title == "seconds" else 1, tickCount=10, format=form)
        ),
        "y": altair.Y(
            y,
            title=y_title,
            scale=altair.Scale(zero=dash is not None),
            axis=altair.Axis(format=".0%") if y == "share:Q" else altair.Axis(),
        ),
        "color": altair.Color("run:N", title=None, sort=None),
    }
    if dash is not None:
        encoded["strokeDash"] = altair.StrokeDash(dash, title=None, sort=None)
    chart: altair.TopLevelMixin = altair.Chart(data).mark_line().encode(**encoded)
    return chart


def _draw_scores(data: Any, metric: str, rows: Sequence[Row]) -> "altair.TopLevelMixin":
    """Whole epochs, and room around scores that are all the same: an axis of one number has no ticks."""
    import altair

    last = max((int(str(row["epoch"])) for row in rows), default=1)
    scores = [float(str(row["score"])) for row in rows]
    is_flat = bool(scores) and max(scores) - min(scores) < 1e-6
    scale = (
        altair.Scale(zero=False, domain=[min(scores) - 0.05, min(scores) + 0.05])
        if is_flat
        else altair.Scale(zero=False, padding=10)  # or a dot at 0% would lie on the labels of the axes
    )
    whole = (
        altair.Axis(values=list(range(1, last + 1)), format="d") if last <= _MOST_TICKS else altair.Axis(tickMinStep=1)
    )
    chart: altair.TopLevelMixin = (
        altair.Chart(data)
        .mark_line(point=True)
        .encode(
            x=altair.X("epoch:Q", title="epoch", axis=whole, scale=altair.Scale(zero=False, nice=False, padding=10)),
            y=altair.Y("score:Q", title=metric, scale=scale, axis=metric_axis(metric)),
            color=altair.Color("run:N", title=None, sort=None),
        )
    )
    return chart


def _verdicts(verdicts: Sequence[Verdict]) -> Chart:
    rows: list[Row] = [
        {
            "run": name_run(verdict.model, verdict.num_ranks),
            "what": _FREE[gain.condition],
            "speedup": gain.speedup,
            "low": gain.interval[0],
            "high": gain.interval[1],
        }
        for verdict in verdicts
        for gain in verdict.gains
    ]
    return Chart(
        name="train_verdicts",
        title="How much faster a step is with one part of it for free",
        caption=_say_verdicts(verdicts),
        data=tuple(rows),
        draw=_draw_verdicts,
    )


def _say_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Of one run the whole sentence; of several what bounds each."""
    if len(verdicts) == 1:
        return verdicts[0].sentence
    runs: dict[str, list[str]] = {}
    for each in verdicts:
        runs.setdefault(each.bound, []).append(name_run(each.model, each.num_ranks))
    said = "; ".join(f"{bound}: {list_text(names, most=3)}" for bound, names in runs.items())
    return f"{said[:1].upper()}{said[1:]}."


def _draw_verdicts(data: Any) -> "altair.TopLevelMixin":
    import altair

    base = altair.Chart(data).encode(y=altair.Y("run:N", title=None, sort=None), yOffset="what:N")
    scale = altair.Scale(zero=False)
    times = altair.X("low:Q", title="times as fast; 1 brings nothing", scale=scale, axis=altair.Axis(tickCount=8))
    nothing = altair.Chart().mark_rule(strokeDash=[4, 3]).encode(x=altair.datum(1))
    bars = base.mark_rule(strokeWidth=2).encode(x=times, x2="high:Q", color=altair.Color("what:N", title=None))
    points = base.mark_point(filled=True, size=80).encode(
        x=altair.X("speedup:Q", scale=scale),
        color="what:N",
        tooltip=[
            "run:N",
            "what:N",
            *(altair.Tooltip(f"{each}:Q", format=".2f") for each in ("speedup", "low", "high")),
        ],
    )
    chart: altair.TopLevelMixin = altair.layer(nothing, bars, points, data=data)
    return chart


def _telemetry(ranks: Sequence[RankTrained]) -> Chart:
    rows: list[Row] = []
    for rank in ranks:
        if rank.rank != 0 or len(rank.telemetry) < 2:
            continue
        for sample in rank.telemetry[:: max(1, len(rank.telemetry) // _MOST_POINTS)]:
            num_cores = len(sample.cpu_shares)
            found = {
                "GPU": sample.gpu_share,
                "cores, this rank": sample.process_cpu_share / num_cores if num_cores else None,
                "cores, whole machine": float(np.mean(sample.cpu_shares)) if num_cores else None,
            }
            rows += [
                {
                    "run": name_run(rank.model, rank.num_ranks),
                    "what": what,
                    "seconds": sample.at_seconds,
                    "share": value,
                }
                for what, value in found.items()
                if value is not None
            ]
    return Chart(
        name="train_machine",
        title="How busy the machine was",
        caption="Share of all cores that the first rank and everything on the machine kept busy, and of its GPU where there is "
        "one. Where the two lines of cores are far apart, something else ran here.",
        data=tuple(rows),
        draw=lambda data: _draw_lines(data, "seconds:Q", "seconds", "share:Q", "busy share", dash="what:N"),
    )
