"""The page of a search: which model, how sure, how fast, why; then everything it rests on.

In:  a search's run, finished or not
Out: a Page
Sections appear where their records do. Nothing here draws or knows HTML.
"""

from collections.abc import Callable, Sequence

from modelhound.analysis.search_tables import TextColumn, ranking_columns, time_text
from modelhound.analysis.wording import bytes_text, count_text, duration_text, metric_text, number_text, plural
from modelhound.records import ItemMap, ModelDropped, ModelMeasured, PlanMade, Ranking, Timeline
from modelhound.report import search_charts as charts
from modelhound.report.common_sections import command_section, failure_section, kicker, machine_section
from modelhound.report.finals_section import finals_section
from modelhound.report.next_steps import after_search, best_model
from modelhound.report.parts import Block, Cell, ChartPair, Page, Section, Table
from modelhound.report.search_answer import answer_sentence, key_figures, supporting_sentences
from modelhound.report.search_exhibits import hardest_gallery, map_chart, plan_tree, timeline_chart
from modelhound.report.search_view import SearchView, view_search, was_run
from modelhound.report.tables import text_table
from modelhound.store import Run

__all__ = ["search_page"]

_MOST_PLANS = 6  # of a race with many rungs, the last
_READ_FIRST = ("model", "rank", "score", "interval", "params", "time", "items/s", "by size")


def search_page(run: Run) -> Page:
    """The whole page."""
    view = view_search(run)
    return Page(
        title=f"{best_model(view.ranking) or ('No answer' if run.answer else 'No answer yet')} · {view.data} · modelhound",
        kicker=kicker(run),
        answer=answer_sentence(view),
        sentences=supporting_sentences(view),
        figures=key_figures(view),
        next_steps=after_search(view),
        sections=_sections(view),
        is_running=run.answer is None,
    )


def _ranking_table(ranking: Ranking, measured: Sequence[ModelMeasured], dropped: Sequence[ModelDropped] = ()) -> Table:
    """All models, those that left the race at the end; what most people look for comes first."""
    columns = ranking_columns(ranking) | _columns_of_records(ranking, measured)
    order = dict.fromkeys((*_READ_FIRST, *columns))
    return text_table(
        "All models, best first",
        {name: columns[name] for name in order},
        more_rows=[_dropped_row(ranking.metric, each) for each in dropped],
    )


def _columns_of_records(ranking: Ranking, measured: Sequence[ModelMeasured]) -> dict[str, TextColumn]:
    """What the ranking itself does not hold."""
    records = {record.model: record for record in measured}
    found = [records.get(row.model) for row in ranking.models]
    speeds = [
        ranking.num_items / max(row.seconds, 1e-9) if record is None or was_run(record) else None
        for row, record in zip(ranking.models, found, strict=True)
    ]
    memory = [float(record.peak_memory_bytes) if record else None for record in found]
    features = [float(record.num_features) if record else None for record in found]
    return {
        "items/s": _number_column(speeds, number_text, "scoring included"),
        "memory": _number_column(
            memory, bytes_text, "the most held while it and all beside it ran: of the GPU, else of the whole process"
        ),
        "features": _number_column(features, lambda value: f"{value:,.0f}", "numbers for each item"),
    }


def _number_column(values: Sequence[float | None], text: Callable[[float], str], note: str) -> TextColumn:
    texts = tuple("–" if value is None else text(value) for value in values)
    return TextColumn(texts=texts, values=tuple(values), note=note)


def _dropped_row(metric: str, dropped: ModelDropped) -> dict[str, Cell]:
    speed = dropped.num_items / max(dropped.seconds, 1e-9)
    return {
        "model": Cell(dropped.model),
        "rank": Cell("dropped"),
        "score": Cell(metric_text(metric, dropped.score), dropped.score),
        "interval": Cell(f"on {dropped.num_items:,} items"),
        "params": Cell(count_text(dropped.num_parameters), dropped.num_parameters),
        "time": Cell(time_text(dropped.seconds), dropped.seconds),
        "items/s": Cell(number_text(speed), speed),
    }


def _sections(view: SearchView) -> tuple[Section, ...]:
    notes = [(record.model, note) for record in view.measured for note in record.notes]
    found = (
        finals_section(view.ranking),
        _ranking_section(view),
        _front_section(view),
        _race_section(view),
        _time_section(view),
        _plan_section(view),
        _agreement_section(view),
        _items_section(view),
        failure_section(view.run, notes=notes),
        machine_section(view.run),
        command_section(view.run, more=after_search(view)),
    )
    return tuple(section for section in found if section is not None)


def _ranking_section(view: SearchView) -> Section | None:
    ranking = view.ranking
    if not ranking.models:
        return None
    how = " and ".join(ranking.rests_on)
    return Section(
        name="ranking",
        title="Ranking",
        lead=f"The score is the {ranking.metric} of {how}, over {plural(ranking.num_items, 'item')} that all models answered; "
        f"intervals are {ranking.confidence:.0%}."
        + ("" if ranking.finals is None else " The finals came after it and may order its first models otherwise."),
        blocks=(charts.ranking_chart(ranking), _ranking_table(ranking, view.measured, view.dropped)),
    )


def _front_section(view: SearchView) -> Section | None:
    if len(view.ranking.models) < 2:
        return None
    found = charts.speed_chart(view.ranking, view.measured), charts.size_chart(view.ranking)
    drawn = tuple(chart for chart in found if chart is not None)
    if not drawn:
        return None
    pair = ChartPair(charts=drawn)
    return Section(
        name="trade-offs", title="Speed and size", lead="What a smaller or faster model costs.", blocks=(pair,)
    )


def _race_section(view: SearchView) -> Section | None:
    if not view.dropped:
        return None
    chance = max(each.chance for each in view.dropped)
    pair = ChartPair(
        charts=(charts.race_chart(view.ranking, view.dropped), charts.remaining_chart(view.ranking, view.dropped))
    )
    return Section(
        name="race",
        title="The race",
        lead=f"{plural(len(view.dropped), 'model')} left early; none had a chance of more than {chance:.1%} of being among the "
        f"best {view.dropped[0].top}. With --exhaustive, all are measured to the end.",
        blocks=(pair,),
    )


def _time_section(view: SearchView) -> Section | None:
    if not view.measured:
        return None
    if not any(was_run(record) for record in view.measured):
        lead = "No features had to be made: those of all models are remembered from earlier searches. --fresh makes them again."
        if view.ranking.finals is not None:
            lead += f" Fine-tuning the finalists took {duration_text(view.ranking.finals.spent_seconds)}."
        return Section(name="time", title="Where the time went", lead=lead, blocks=())
    blocks: list[Block] = [
        charts.total_chart(view.measured),
        ChartPair(charts=charts.phase_charts(view.measured)),
    ]
    timelines = view.run.of(Timeline)
    if timelines:
        blocks.append(timeline_chart(timelines[-1]))
    return Section(name="time", title="Where the time went", blocks=tuple(blocks))


def _plan_section(view: SearchView) -> Section | None:
    plans = view.run.of(PlanMade)
    if not plans:
        return None
    seconds, alone = sum(plan.seconds for plan in plans), sum(plan.seconds_alone for plan in plans)
    saved = 1 - seconds / alone if alone > 0 else 0.0
    lead = "What models have in common is run once. "
    lead += (
        f"Predicted: {duration_text(seconds)} instead of {duration_text(alone)} one by one, {saved:.0%} less."
        if saved >= 0.01
        else "These models have next to nothing in common."
    )
    largest = max(plans, key=lambda plan: plan.seconds)
    return Section(
        name="plan",
        title="The plan",
        lead=lead,
        blocks=tuple(plan_tree(plan, is_folded=plan is not largest) for plan in plans[-_MOST_PLANS:]),
    )


def _agreement_section(view: SearchView) -> Section | None:
    chart = charts.agreement_chart(view.ranking)
    if chart is None:
        return None
    return Section(
        name="scorers",
        title="Do the scorers agree?",
        lead="Where they do not, the ranking depends on the scorer, and the finer differences in it mean little.",
        blocks=(chart,),
    )


def _items_section(view: SearchView) -> Section | None:
    maps = view.run.of(ItemMap)
    if not maps:
        return None
    return Section(
        name="items",
        title="The items",
        blocks=(map_chart(maps[-1]), hardest_gallery(maps[-1])) if maps[-1].hardest else (map_chart(maps[-1]),),
    )
