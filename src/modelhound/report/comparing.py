"""Several runs on one page.

In:  two or more runs, of one verb or of several
Out: a Page: what each found side by side, the models they have in common, then each run by itself, folded
Nothing here measures: only what the runs hold is compared, and where they ran on different machines the page says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from modelhound.analysis.phases import total_phases
from modelhound.analysis.ranking import rank_agreement
from modelhound.analysis.search_tables import time_text
from modelhound.analysis.search_wording import tau_text
from modelhound.analysis.wording import list_text, metric_interval_text, metric_text, moment_text, plural
from modelhound.records import RunStarted
from modelhound.report.charts import Chart, Row, log_ticks, metric_axis
from modelhound.report.common_sections import setting_text
from modelhound.report.comparing_times import times_in_common
from modelhound.report.next_steps import best_model
from modelhound.report.parts import (
    Block,
    Cell,
    ChartPair,
    Column,
    Commands,
    Page,
    Remarks,
    Section,
    Sentence,
    Strong,
    Table,
)
from modelhound.report.search_drawing import title_of
from modelhound.report.search_view import SearchView, view_search, was_run
from modelhound.store import Run

__all__ = ["comparison_page"]

_MOST_MODELS = 24
_MOST_TOLD = 6
_ALWAYS = ("run", "answer", "score", "interval")
_TOLD_ELSEWHERE = ("data", "run", "device")  # in columns of their own
_DIFFERS = "differs in"


def comparison_page(runs: Sequence[Run], build: Callable[[Run], Page]) -> Page:
    """All runs; `build` makes the page of one."""
    names = _names(runs)
    views = [view_search(run) for run in runs if run.verb == "search"]
    all_search = len(views) == len(runs)
    pages = [build(run) for run in runs]
    blocks: list[Block] = [_overview(runs, names, views if all_search else ())]
    if not all_search and len({run.verb for run in runs}) == 1:
        blocks += _figures(pages, names)
    sections = [Section(name="overview", title="Side by side", lead=_machines_differ(runs), blocks=tuple(blocks))]
    if all_search:
        sections += _common_models(views, names)
    else:
        sections += [section for section in (times_in_common(runs, names),) if section is not None]
    sections += [_one_run(page, names[place - 1], place) for place, page in enumerate(pages, start=1)]
    return Page(
        title=f"{plural(len(runs), 'run')} compared · modelhound",
        kicker="hound report · " + ", ".join(dict.fromkeys(f"hound {run.verb}" for run in runs)),
        answer=_answer(views if all_search else (), runs),
        sentences=tuple(
            (Strong(name), ": ", *page.answer) for name, page in zip(names[:_MOST_TOLD], pages, strict=False)
        ),
        sections=tuple(sections),
        is_running=any(run.answer is None for run in runs),
    )


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names, with their number where two are the same."""
    names = [run.path.name or str(run.path) for run in runs]
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, start=1)]


def _answer(views: Sequence[SearchView], runs: Sequence[Run]) -> Sentence:
    winners = [best for view in views if (best := best_model(view.ranking))]
    if winners and len(winners) == len(runs):
        if len(set(winners)) == 1:
            return (Strong(winners[0]), f" is the best in {_all_text(len(runs))} runs.")
        most = max(dict.fromkeys(winners), key=winners.count)
        tried = sum(most in _models_of(view) for view in views)
        if winners.count(most) == tried > 1:
            return (Strong(most), f" is the best in {_all_text(tried)} runs that measured it, of {len(runs)}.")
        if winners.count(most) > 1:
            return (Strong(most), f" is the best in {winners.count(most)} of {len(runs)} runs; the others disagree.")
        return (f"Each of the {len(runs)} runs has another best model.",)
    return (f"{plural(len(runs), 'run')} side by side.",)


def _all_text(count: int) -> str:
    return "both" if count == 2 else f"all {count:,}"


def _models_of(view: SearchView) -> set[str]:
    return {row.model for row in view.ranking.models} | {each.model for each in view.dropped}


def _figures(pages: Sequence[Page], names: Sequence[str]) -> list[Table]:
    """What stands on top of each page, one below the other."""
    questions = list(dict.fromkeys(figure.question for page in pages for figure in page.figures))
    if not questions:
        return []
    rows = []
    for name, page in zip(names, pages, strict=True):
        values = {figure.question: figure.value for figure in page.figures}
        rows.append((Cell(name), *(Cell(values.get(question, "–")) for question in questions)))
    columns = (Column(name="run"), *(Column(name=question) for question in questions))
    return [Table(caption="The figures of each run", columns=columns, rows=tuple(rows))]


def _overview(runs: Sequence[Run], names: Sequence[str], views: Sequence[SearchView]) -> Table:
    columns = [
        Column(name="run"),
        Column(name="verb"),
        Column(name="data"),
        Column(name="asked at"),
        Column(name="device"),
    ]
    columns += [Column(name="machine"), Column(name="answer"), Column(name=_DIFFERS)]
    if views:
        columns += [Column(name="score", is_number=True), Column(name="interval", is_number=True)]
        columns += [Column(name="items", is_number=True), Column(name="model time", is_number=True)]
    rows = []
    differing = _differing_settings(runs)
    for place, run in enumerate(runs):
        started = run.of(RunStarted)
        machine = started[-1].machine if started else None
        cells = [
            Cell(names[place]),
            Cell(run.verb),
            Cell(str(run.settings.get("data") or "–")),
            Cell(moment_text(run.at)),
            Cell(started[-1].device if started else "–"),
            Cell((machine.gpus[0] if machine.gpus else machine.cpu) if machine else "–"),
            Cell(run.headline or "not finished"),
            Cell(
                ", ".join(f"{name.replace('_', ' ')} {setting_text(run.settings[name])}" for name in differing) or "–"
            ),
        ]
        rows.append((*cells, *(_search_cells(views[place]) if views else ())))
    same = [
        place
        for place, column in enumerate(columns)
        if column.name not in _ALWAYS and len({row[place].text for row in rows}) == 1
    ]
    told = ", ".join(f"{columns[place].name} {rows[0][place].text}" for place in same if rows[0][place].text != "–")
    kept = [place for place in range(len(columns)) if place not in same]
    return Table(
        caption=f"What each run found. The same in all: {told}." if told else "What each run found",
        columns=tuple(columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in rows),
    )


def _differing_settings(runs: Sequence[Run]) -> list[str]:
    """Names of what all these runs were asked, and not all in the same way."""
    first, *others = [run.settings for run in runs]
    return [
        name
        for name, value in first.items()
        if name not in _TOLD_ELSEWHERE
        and all(name in other for other in others)
        and any(other[name] != value for other in others)
    ]


def _search_cells(view: SearchView) -> tuple[Cell, ...]:
    ranking = view.ranking
    if not ranking.models:
        return (Cell("–"),) * 4
    best = next((row for row in ranking.models if row.model == best_model(ranking)), ranking.models[0])
    seconds = sum(total_phases(view.measured).values())
    return (
        Cell(metric_text(ranking.metric, best.score), best.score),
        Cell(metric_interval_text(ranking.metric, best.interval), best.interval[0]),
        Cell(f"{ranking.num_items:,}", ranking.num_items),
        Cell(time_text(seconds), seconds),
    )


def _machines_differ(runs: Sequence[Run]) -> str:
    machines = {(start.machine.cpu, start.machine.gpus, start.device) for run in runs for start in run.of(RunStarted)}
    if len(machines) < 2:
        return ""
    return "The runs come from different machines or devices: scores can be compared, and times only as what those machines do."


def _common_models(views: Sequence[SearchView], names: Sequence[str]) -> list[Section]:
    """Scores and speed of the models that at least two runs measured."""
    scores = [{row.model: row for row in view.ranking.models} for view in views]
    counts: dict[str, int] = {}
    for each in scores:
        for model in each:
            counts[model] = counts.get(model, 0) + 1
    common = [model for model, count in counts.items() if count > 1]
    if not common:
        return []
    metrics = {
        view.ranking.metric for view, each in zip(views, scores, strict=True) if any(model in each for model in common)
    }
    common.sort(key=lambda model: -max(each[model].score for each in scores if model in each))
    rows: list[Row] = []
    for name, view, each in zip(names, views, scores, strict=True):
        for model in common[:_MOST_MODELS]:
            if model in each:
                speed = view.ranking.num_items / max(each[model].seconds, 1e-9)
                low, high = each[model].interval
                record = next((one for one in view.measured if one.model == model), None)
                known = speed if record is None or was_run(record) else None
                rows.append(
                    {"model": model, "run": name, "score": each[model].score, "low": low, "high": high, "speed": known}
                )
    order = common[:_MOST_MODELS]
    charts = [_score_chart(rows, names, order, *metrics)] if len(metrics) == 1 else []
    timed = [row for row in rows if row["speed"] is not None]
    if timed:
        charts.append(_speed_chart(timed, names, order))
    pair = (ChartPair(charts=tuple(charts)),) if charts else ()
    agreement = _agreement_remarks(scores, names)
    left_out = len(common) - len(order)
    lead = f"{plural(len(common), 'model was', 'models were')} measured by more than one run" + (
        f"; the best {len(order)} are drawn." if left_out else "."
    )
    if len(metrics) > 1:
        lead += f" Scores are not drawn: {list_text(sorted(metrics))} do not go on one axis."
    return [Section(name="common", title="Models in common", lead=lead, blocks=(*pair, *agreement))]


def _agreement_remarks(scores: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[Remarks, ...]:
    sentences: list[Sentence] = []
    for first in range(len(scores)):
        for second in range(first + 1, len(scores)):
            both = [model for model in scores[first] if model in scores[second]]
            tau = rank_agreement(
                [scores[first][model].score for model in both], [scores[second][model].score for model in both]
            )
            if tau is not None:
                told = f" agree on the order of {plural(len(both), 'model')} by Kendall's tau = {tau_text(tau)}."
                sentences.append((Strong(names[first]), " and ", Strong(names[second]), told))
    return (Remarks(sentences=tuple(sentences[:10])),) if sentences else ()


def _score_chart(rows: Sequence[Row], names: Sequence[str], order: Sequence[str], metric: str) -> Chart:
    def draw(data: Any) -> Any:
        import altair

        base = altair.Chart(data, height=altair.Step(14)).encode(
            y=altair.Y("model:N", sort=list(order), title=None),
            yOffset=altair.YOffset("run:N", sort=list(names)),
            color=altair.Color("run:N", scale=altair.Scale(domain=list(names)), title=None),
            tooltip=[
                "run:N",
                "model:N",
                *(altair.Tooltip(f"{each}:Q", format=".3f") for each in ("score", "low", "high")),
            ],
        )
        low = altair.X(
            "low:Q", title=title_of(metric), scale=altair.Scale(zero=False), axis=metric_axis(metric, ticks=6)
        )
        dots = base.mark_point(filled=True, size=80, opacity=1).encode(
            x="score:Q", shape=altair.Shape("run:N", scale=altair.Scale(domain=list(names)), title=None)
        )
        return base.mark_rule(strokeWidth=2, opacity=0.4).encode(x=low, x2="high:Q") + dots

    return Chart(
        name="compare_scores",
        title=f"{title_of(metric)} of models in common",
        caption="One mark per run, lines are intervals.",
        data=tuple(rows),
        draw=draw,
    )


def _speed_chart(rows: Sequence[Row], names: Sequence[str], order: Sequence[str]) -> Chart:
    def draw(data: Any) -> Any:
        import altair

        return (
            altair.Chart(data, height=altair.Step(14))
            .mark_point(filled=True, size=80, opacity=1)
            .encode(
                y=altair.Y("model:N", sort=list(order), title=None),
                yOffset=altair.YOffset("run:N", sort=list(names)),
                x=altair.X(
                    "speed:Q",
                    title="items per second",
                    scale=altair.Scale(type="log", nice=False, padding=16),
                    axis=altair.Axis(format="~s", values=log_ticks(row["speed"] for row in rows)),
                ),
                color=altair.Color("run:N", scale=altair.Scale(domain=list(names)), title=None),
                shape=altair.Shape("run:N", scale=altair.Scale(domain=list(names)), title=None),
                tooltip=["run:N", "model:N", altair.Tooltip("speed:Q", title="items per second", format=",.3~s")],
            )
        )

    return Chart(
        name="compare_speed",
        title="Speed of models in common",
        caption="One mark per run, scoring included; none where features were remembered. To the right is faster.",
        data=tuple(rows),
        draw=draw,
    )


def _one_run(page: Page, name: str, place: int) -> Section:
    """A run's own page as one folded section."""
    blocks: list[Block] = [Remarks(sentences=(page.answer, *page.sentences))]
    for section in page.sections:
        blocks += [_renamed(block, place) for block in section.blocks if not isinstance(block, Commands)]
    return Section(name=f"run-{place}", title=name, lead=page.kicker, blocks=tuple(blocks), is_folded=True)


def _renamed(block: Block, place: int) -> Block:
    """Charts of several runs on one page need names of their own."""
    if isinstance(block, Chart):
        return replace(block, name=f"run{place}_{block.name}")
    if isinstance(block, ChartPair):
        return ChartPair(charts=tuple(replace(chart, name=f"run{place}_{chart.name}") for chart in block.charts))
    return block
