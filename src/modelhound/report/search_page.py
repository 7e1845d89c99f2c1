"""The page of a search: which model, how sure, how fast, why; then everything it rests on.

In:  a search's run, finished or not
Out: a Page
Sections appear where their records do. Nothing here draws or knows HTML.
"""

from collections.abc import Sequence

from modelhound.analysis.wording import (
    bytes_text,
    count_text,
    duration_text,
    metric_interval_text,
    metric_text,
    number_text,
    plural,
    score_text,
)
from modelhound.records import ItemMap, ModelDropped, ModelMeasured, PlanMade, RankedModel, Ranking, Timeline
from modelhound.report import search_charts as charts
from modelhound.report.commands import command_to_train
from modelhound.report.common_sections import command_section, failure_section, kicker, machine_section
from modelhound.report.finals_section import finals_section
from modelhound.report.parts import Block, Cell, ChartPair, Column, Page, Section, Table
from modelhound.report.search_answer import answer_sentence, key_figures, supporting_sentences
from modelhound.report.search_view import SearchView, view_search, was_run
from modelhound.report.search_views import hardest_gallery, map_chart, plan_tree, timeline_chart
from modelhound.store import Run

__all__ = ["ranking_table", "search_page"]

_MOST_PLANS = 6  # of a race with many rungs, the last


def search_page(run: Run) -> Page:
    """The whole page."""
    view = view_search(run)
    best = _best_model(view.ranking)
    return Page(
        title=f"{best or 'No answer'} · {view.data} · modelhound",
        kicker=kicker(run),
        answer=answer_sentence(view),
        sentences=supporting_sentences(view),
        figures=key_figures(view),
        next_step=("Fine-tune it", command_to_train(run.settings, best)) if best else None,
        sections=_sections(view),
        is_running=run.answer is None,
    )


def _best_model(ranking: Ranking) -> str | None:
    """The first, or who won the finals; None where nobody can be told."""
    if ranking.finals is not None:
        return ranking.finals.winner
    return ranking.models[0].model if ranking.models else None


def ranking_table(ranking: Ranking, measured: Sequence[ModelMeasured], dropped: Sequence[ModelDropped] = ()) -> Table:
    """All models, those that left the race at the end."""
    records = {record.model: record for record in measured}
    scorers = list(dict.fromkeys(name for row in ranking.models for name in row.scores))
    columns = (
        Column(name="model"),
        Column(name="rank", is_number=True, note="= where several share it"),
        Column(name="score", is_number=True),
        Column(name=f"{ranking.confidence:.0%} interval", is_number=True),
        *(Column(name=name, is_number=True) for name in scorers),
        Column(name="parameters", is_number=True),
        Column(name="features", is_number=True),
        Column(name="time", is_number=True, note="its share of the search"),
        Column(name="items/s", is_number=True),
        Column(name="memory", is_number=True, note="the most held while it ran"),
        Column(name="rank by size", is_number=True, note="the control: largest first"),
    )
    rows = [_ranking_row(row, records.get(row.model), ranking, scorers) for row in ranking.models]
    empty = (Cell("–"),) * len(scorers)
    for each in dropped:
        rows.append(
            (
                Cell(each.model),
                Cell("dropped"),
                Cell(metric_text(ranking.metric, each.score), each.score),
                Cell(f"on {each.num_items:,} items"),
                *empty,
                Cell(count_text(each.num_parameters), each.num_parameters),
                Cell("–"),
                Cell(duration_text(each.seconds), each.seconds),
                Cell(number_text(each.num_items / max(each.seconds, 1e-9)), each.num_items / max(each.seconds, 1e-9)),
                Cell("–"),
                Cell("–"),
            )
        )
    return Table(caption="All models, best first", columns=columns, rows=tuple(rows))


def _ranking_row(
    row: RankedModel, record: ModelMeasured | None, ranking: Ranking, scorers: Sequence[str]
) -> tuple[Cell, ...]:
    speed = ranking.num_items / max(row.seconds, 1e-9) if record is None or was_run(record) else None
    return (
        Cell(row.model),
        Cell(f"{row.rank}{'=' if row.tied else ''}", row.rank),
        Cell(metric_text(ranking.metric, row.score), row.score),
        Cell(metric_interval_text(ranking.metric, row.interval), row.interval[0]),
        *(Cell(score_text(ranking.metric, name, row.scores.get(name)), row.scores.get(name)) for name in scorers),
        Cell(count_text(row.num_parameters), row.num_parameters),
        Cell(f"{record.num_features:,}", record.num_features) if record else Cell("–"),
        Cell(duration_text(row.seconds), row.seconds),
        Cell("–" if speed is None else number_text(speed), speed),
        Cell(bytes_text(record.peak_memory_bytes), record.peak_memory_bytes) if record else Cell("–"),
        Cell(str(row.size_rank), row.size_rank),
    )


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
        _commands(view),
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
        lead=f"The score is the {ranking.metric} of {how}, over {plural(ranking.num_items, 'item')} that all models answered.",
        blocks=(charts.ranking_chart(ranking), ranking_table(ranking, view.measured, view.dropped)),
    )


def _front_section(view: SearchView) -> Section | None:
    if len(view.ranking.models) < 2:
        return None
    speed, size = charts.speed_chart(view.ranking, view.measured), charts.size_chart(view.ranking)
    pair = ChartPair(charts=(size,) if speed is None else (speed, size))
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


def _commands(view: SearchView) -> Section:
    best = _best_model(view.ranking)
    more = [("Fine-tune the best", command_to_train(view.run.settings, best))] if best else []
    return command_section(view.run, more=more)
