"""Finals on the page of a search: who won, and every finalist.

In:  a FinalsAnswer, the models' sizes
Out: the answer as a sentence and in figures, a Section with a chart and a table
Nothing here draws or knows HTML.
"""

from modelhound.analysis.finals_wording import basis_sentence, cost_sentence, headline_sentence, no_winner_text
from modelhound.analysis.search_tables import finals_columns, short_chance_text
from modelhound.analysis.wording import duration_text, metric_interval_text, metric_text, short_name
from modelhound.records import FinalsAnswer, Ranking
from modelhound.report.parts import Figure, Section, Sentence, Strong
from modelhound.report.search_charts import finals_chart
from modelhound.report.tables import text_table

__all__ = ["finals_figures", "finals_section", "finals_sentence"]


def finals_sentence(finals: FinalsAnswer, data: str) -> Sentence:
    """The answer, where finals were held."""
    strong, rest = headline_sentence(finals, data)
    return (Strong(strong), rest)


def finals_figures(finals: FinalsAnswer) -> tuple[Figure, ...]:
    """Which model, how sure, what to expect, what it took."""
    share = finals.spent_seconds / finals.full_seconds if finals.full_seconds else 0.0
    took = Figure(
        question="What it took",
        value=duration_text(finals.spent_seconds),
        note=f"of training, {share:.1%} of what fine-tuning every model would take",
    )
    first = finals.finalists[0] if finals.finalists else None
    if finals.winner is None or first is None:
        return (Figure(question="Which model", value="cannot tell", note=no_winner_text(finals)), took)
    raced = f"of {len(finals.finalists)} finalists, after {first.num_epochs} of {finals.full_epochs} epochs"
    figures = [
        Figure(question="Which model", value=short_name(first.model.partition(":")[2] or first.model, 36), note=raced),
        Figure(
            question="How sure",
            value=f"{short_chance_text(first.chance)} chance",
            note="to be the best of the finalists",
        ),
    ]
    if first.predicted is not None and first.interval is not None:
        interval = metric_interval_text(finals.metric, first.interval)
        figures.append(
            Figure(
                question="What to expect",
                value=metric_text(finals.metric, first.predicted),
                note=f"{finals.metric} after full fine-tuning ({interval}, {finals.confidence:.0%} interval)",
            )
        )
    return (*figures, took)


def finals_section(ranking: Ranking) -> Section | None:
    """Every finalist; None where no finals were held."""
    finals = ranking.finals
    if finals is None:
        return None
    columns, chart = finals_columns(finals), finals_chart(finals)
    order = ["model", *(name for name in columns if name != "model")]
    table = text_table("Finalists", {name: columns[name] for name in order})
    return Section(
        name="finals",
        title="Finals",
        lead=f"The best by features, raced by short fine-tuning. {basis_sentence(finals)} {cost_sentence(finals)}",
        blocks=(table,) if chart is None else (chart, table),
    )
