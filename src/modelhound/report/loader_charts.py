"""The charts of `hound loader`.

In:  its answer, and the runs that were made for real
Out: Charts with plain rows, for each kind of items: time over workers with the batch fixed, time over the batch with the
     workers fixed, both for each model as a heat map, the regret of every pair, the best pair by length of the run, sub-times
Nothing here measures. Points that were composed and not run are drawn hollow.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelhound.analysis.wording import plural
from modelhound.records import FeedMeasured, KindAnswer, LoaderAnswer
from modelhound.report.charts import SECONDS, Chart, Row, log_ticks, phase_bars
from modelhound.report.theme import HALOS, LIGHT

if TYPE_CHECKING:
    import altair

__all__ = ["loader_charts"]

_MOST_MODELS = 12
_MOST_BARS = 40
_MOST_WORDS = 6  # beside each other in a panel
_NEXT_TO_NOTHING = 0.005
_SUB_TIMES = ("first batch", "wait for data", "data to device", "forward", "other")
_PANEL_WIDTH, _PANEL_HEIGHT, _COLUMNS = 190, 150, 3


def loader_charts(answer: LoaderAnswer, runs: Sequence[FeedMeasured] = ()) -> tuple[Chart, ...]:
    """All charts, for every kind of items in turn."""
    charts: list[Chart] = []
    for kind in answer.kinds:
        if not kind.seconds:
            continue
        where = f"{kind.kind} items of {answer.data} on {answer.device}, runs of {kind.num_items:,} items"
        if any(each.seconds is not None for each in kind.seconds):
            charts += [_fixed_batch(kind, where), _fixed_workers(kind, where), _fixed_model(kind, where)]
        if kind.recommended is not None:  # otherwise no pair works with all models, and none has a mean over them
            charts.append(_regret(kind, where))
        if kind.lengths:
            charts.append(_run_length(kind, where))
        own = [run for run in runs if run.item_kind == kind.kind]
        if own:
            charts.append(_sub_times(kind, own, answer))
    return tuple(charts)


def _rows(kind: KindAnswer) -> tuple[Row, ...]:
    """One row for each model and pair that works; of many models some, from the fastest to the slowest."""
    by_speed = sorted(kind.models, key=lambda each: each.seconds)
    names = [each.model for each in by_speed] or list(dict.fromkeys(each.model for each in kind.seconds))
    if len(names) > _MOST_MODELS:
        names = [names[place * (len(names) - 1) // (_MOST_MODELS - 1)] for place in range(_MOST_MODELS)]
    best: dict[str, float] = {}
    for each in kind.seconds:
        if each.seconds is not None:
            best[each.model] = min(best.get(each.model, each.seconds), each.seconds)
    return tuple(
        {
            "model": each.model,
            "batch": each.batch,
            "workers": each.workers,
            "seconds": each.seconds,
            "regret": each.seconds / best[each.model] - 1,
            "label": _longer_text(each.seconds / best[each.model] - 1),
            "how": "measured" if each.measured else "composed",
            "batch_panel": f"batch {each.batch}",
            "workers_panel": plural(each.workers, "worker"),
        }
        for each in kind.seconds
        if each.seconds is not None and each.model in names
    )


def _longer_text(regret: float) -> str:
    """Against the best pair: best, +18%, 5.9x."""
    if regret < _NEXT_TO_NOTHING:
        return "best"
    return f"+{regret:.0%}" if regret < 1 else f"{1 + regret:.1f}x"


def _fixed_batch(kind: KindAnswer, where: str) -> Chart:
    return Chart(
        name=f"loader_{kind.kind}_fixed_batch",
        title=f"Time over workers, one panel for each batch size: {where}",
        caption="A line is a model. Where it stops falling, more workers bring nothing. Hollow points were composed, not run.",
        data=_rows(kind),
        draw=lambda data: _draw_lines(data, "workers", "batch", "workers"),
    )


def _fixed_workers(kind: KindAnswer, where: str) -> Chart:
    return Chart(
        name=f"loader_{kind.kind}_fixed_workers",
        title=f"Time over the batch size, one panel for each number of workers: {where}",
        caption="A line is a model. Large batches delay the first batch; small ones cost calls. Hollow points were composed.",
        data=_rows(kind),
        draw=lambda data: _draw_lines(data, "batch", "workers", "batch size"),
    )


def _draw_lines(data: Any, along: str, panel: str, title: str) -> "altair.TopLevelMixin":
    import altair

    x = altair.X(f"{along}:O", title=title, axis=altair.Axis(labelAngle=0))
    y = altair.Y("seconds:Q", title="seconds, end to end", scale=altair.Scale(type="log", nice=False, padding=8))
    colour = altair.Color("model:N", title=None, legend=altair.Legend(labelLimit=260))
    lines = altair.Chart().mark_line().encode(x=x, y=y, color=colour)
    points = (
        altair.Chart()
        .mark_point(size=36, filled=False, strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            color=colour,
            fill=altair.condition(
                "datum.how == 'measured'", altair.Color("model:N", legend=None), altair.value("transparent")
            ),
            tooltip=["model:N", "batch:O", "workers:O", altair.Tooltip("seconds:Q", format=SECONDS), "how:N"],
        )
    )
    layered = altair.layer(lines, points, data=data).properties(width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
    panels = altair.Facet(f"{panel}_panel:N", title=None, sort=altair.EncodingSortField(field=panel, op="min"))
    drawn: altair.TopLevelMixin = layered.facet(facet=panels, columns=_COLUMNS)
    return drawn


def _fixed_model(kind: KindAnswer, where: str) -> Chart:
    return Chart(
        name=f"loader_{kind.kind}_fixed_model",
        title=f"Both at once, one panel for each model: {where}",
        caption="How much longer a pair takes than the best one of the model: the nearer its colour to the page's, the better.",
        data=(rows := _rows(kind)),
        draw=lambda data: _draw_model_panels(data, has_words=len({row["workers"] for row in rows}) <= _MOST_WORDS),
    )


def _draw_model_panels(data: Any, *, has_words: bool) -> "altair.TopLevelMixin":
    """With numbers in the cells, where these are wide enough."""
    import altair

    base = _pairs_by_regret(data, altair.Tooltip("model:N"), altair.Tooltip("seconds:Q", format=SECONDS))
    panels = altair.Facet("model:N", title=None, header=altair.Header(labelLimit=_PANEL_WIDTH))
    layers = [base.mark_rect(), *([_words(base, size=10)] if has_words else [])]
    squares = altair.layer(*layers).properties(width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
    drawn: altair.TopLevelMixin = squares.facet(facet=panels, columns=_COLUMNS)
    return drawn


def _pairs_by_regret(data: Any, *more: "altair.Tooltip") -> "altair.Chart":
    """Batch over workers, the regret as colour. Light is good; beyond twice the time it does not matter how bad."""
    import altair

    return altair.Chart(data).encode(
        x=altair.X("workers:O", title="workers", axis=altair.Axis(labelAngle=0)),
        y=altair.Y("batch:O", title="batch size", sort="descending"),
        color=altair.Color(
            "regret:Q",
            title="longer than the best pair",
            scale=altair.Scale(type="sqrt", domain=[0, 1], clamp=True),
            legend=altair.Legend(format="%"),
        ),
        tooltip=["batch:O", "workers:O", altair.Tooltip("regret:Q", format=".1%"), "how:N", *more],
    )


def _words(base: "altair.Chart", *, size: int) -> "altair.Chart":
    """The label of each cell, in what can be read on its colour."""
    import altair

    words: altair.Chart = base.mark_text(fontSize=size).encode(
        text="label:N",
        color=altair.condition("datum.regret > 0.3", altair.value(LIGHT.background), altair.value(LIGHT.text)),
    )
    return words


def _regret(kind: KindAnswer, where: str) -> Chart:
    rows: list[Row] = [
        {
            "batch": each.batch,
            "workers": each.workers,
            "regret": each.mean,
            "label": "fails" if each.mean is None else f"{each.mean:.1%}" if each.mean < 1 else f"{each.mean:.0%}",
            "mark": "recommended" if place == 0 else "as good within noise" if each.as_good else "",
            "how": f"measured with {each.num_measured} of {len(kind.models)} models",
        }
        for place, each in enumerate(kind.regret)
    ]
    best = kind.regret[0]
    return Chart(
        name=f"loader_{kind.kind}_regret",
        title=f"Mean regret over {plural(len(kind.models), 'model')}: {where}",
        caption=(
            "How much longer models take with a pair than each with its best one, on average. "
            f"{best.batch} x {best.workers} is recommended (thick frame); thin frames are as good within noise."
        ),
        data=tuple(rows),
        draw=_draw_regret,
    )


def _draw_regret(data: Any) -> "altair.TopLevelMixin":
    import altair

    base = _pairs_by_regret(data, altair.Tooltip("mark:N"))
    squares = base.mark_rect()
    words = _words(base, size=12)
    frames = (
        base.transform_filter("datum.mark != ''")
        .mark_rect(filled=False, stroke=LIGHT.text)
        .encode(
            color=altair.value(LIGHT.text),
            strokeWidth=altair.condition("datum.mark == 'recommended'", altair.value(3), altair.value(1)),
        )
    )
    drawn: altair.TopLevelMixin = (squares + words + frames).properties(height=altair.Step(38))
    return drawn


def _run_length(kind: KindAnswer, where: str) -> Chart:
    recommended = kind.recommended
    pair = "" if recommended is None else f"{recommended.batch} x {recommended.workers}"
    rows: list[Row] = []
    for each in kind.lengths:
        best = f"{each.batch} x {each.workers}"
        rows.append(
            {
                "items": each.num_items,
                "regret": each.recommended_regret,
                "shown": min(each.recommended_regret, 1.0),
                "best": best,
                "word": best if not rows or rows[-1]["best"] != best else "",
                "seconds": each.seconds,
            }
        )
    depends = len({row["best"] for row in rows}) > 1
    said = (
        "The best pair depends on the length of the run"
        if depends
        else "One pair is the best at every length of the run"
    )
    return Chart(
        name=f"loader_{kind.kind}_run_length",
        title=f"{said}: {where.partition(', runs')[0]}",
        caption=f"Words are the best pair from that length on; the height is what {pair} loses against it, cut at 100%.",
        data=tuple(rows),
        draw=lambda data: _draw_run_length(data, log_ticks(row["items"] for row in rows)),
    )


def _draw_run_length(data: Any, ticks: Sequence[float]) -> "altair.TopLevelMixin":
    import altair

    base = altair.Chart(data).encode(
        x=altair.X(
            "items:Q",
            title="items in the run",
            scale=altair.Scale(type="log", nice=False, padding=20),
            axis=altair.Axis(format=",d", values=list(ticks)),
        ),
        y=altair.Y(
            "shown:Q",
            title="regret of the recommended pair",
            # Room below the dots at nothing, or they would lie on the labels of the axis, and for words above the highest.
            scale=altair.Scale(type="sqrt", domain=[-0.02, 1.3], nice=False),
            axis=altair.Axis(format="%", values=[0, 0.05, 0.2, 0.4, 0.6, 0.8, 1]),
        ),
        tooltip=[
            "items:Q",
            "best:N",
            altair.Tooltip("regret:Q", format=".1%"),
            altair.Tooltip("seconds:Q", format=SECONDS),
        ],
    )
    line = base.mark_line(strokeDash=[4, 3], opacity=0.6)
    points = base.mark_circle(size=90, opacity=1).encode(color=altair.Color("best:N", title="best pair"))
    words = [base.mark_text(dy=-14, **halo).encode(text="word:N") for halo in HALOS]
    drawn: altair.TopLevelMixin = altair.layer(line, *words, points).properties(height=240)
    return drawn


def _sub_times(kind: KindAnswer, runs: Sequence[FeedMeasured], answer: LoaderAnswer) -> Chart:
    """Mean over repeats; of many runs those with the pairs that are best."""
    order = {(row.batch, row.workers): place for place, row in enumerate(kind.regret)}
    grouped: dict[tuple[str, int, int], list[FeedMeasured]] = {}
    for run in sorted(runs, key=lambda each: (order.get((each.batch, each.workers), len(order)), each.model)):
        grouped.setdefault((run.model, run.batch, run.workers), []).append(run)
    rows: list[Row] = []
    for (model, batch, workers), same in list(grouped.items())[:_MOST_BARS]:
        spent = {phase: sum(_seconds_of(run, phase) for run in same) / len(same) for phase in _SUB_TIMES}
        whole = max(sum(spent.values()), 1e-12)
        rows += [
            {
                "model": model,
                "pair": f"{batch} x {workers}",
                "phase": phase,
                "order": place,
                "seconds": seconds,
                "share": seconds / whole,
            }
            for place, (phase, seconds) in enumerate(spent.items())
        ]
    pairs = list(dict.fromkeys(str(row["pair"]) for row in rows))
    return Chart(
        name=f"loader_{kind.kind}_sub_times",
        title=f"Where the time of the runs went: {kind.kind} items of {answer.data} on {answer.device}",
        caption="Only runs that were made for real, best pairs first. Other is starting and stopping workers, and Python.",
        data=tuple(rows),
        draw=lambda data: _draw_sub_times(data, pairs),
    )


def _seconds_of(run: FeedMeasured, phase: str) -> float:
    if phase == "first batch":
        return run.first_batch_seconds
    if phase == "wait for data":
        return run.seconds_of(phase) - run.first_batch_seconds
    return run.other_seconds if phase == "other" else run.seconds_of(phase)


def _draw_sub_times(data: Any, pairs: Sequence[str]) -> "altair.TopLevelMixin":
    import altair

    x = altair.X("seconds:Q", title="seconds, end to end", axis=altair.Axis(tickCount=8))
    y = altair.Y("pair:N", sort=list(pairs), title="batch x workers")
    drawn: altair.TopLevelMixin = (
        phase_bars(data, _SUB_TIMES, x=x, y=y, names=["model", "pair"])
        .properties(width=520, height=altair.Step(14))
        .facet(facet=altair.Facet("model:N", title=None, header=altair.Header(labelAnchor="start")), columns=1)
        .resolve_scale(y="independent")
    )
    return drawn
