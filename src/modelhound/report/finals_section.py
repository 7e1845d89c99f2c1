"""Finals on the page of a search: who won, and every finalist.

In:  a FinalsAnswer, the models' sizes
Out: the answer as a sentence and in figures, a Section with a table
Nothing here draws or knows HTML.
"""

from modelhound.analysis.finals_wording import STATES, basis_sentence, chance_text, cost_sentence, headline_sentence
from modelhound.analysis.wording import duration_text, metric_interval_text, metric_text, number_text, short_name
from modelhound.records import Finalist, FinalsAnswer, Ranking
from modelhound.report.parts import Cell, Column, Figure, Section, Sentence, Strong, Table

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
        nobody = (
            "no finalist could be fine-tuned" if finals.verdict == "failed" else "no finalist is better than guessing"
        )
        return (Figure(question="Which model", value="cannot tell", note=nobody), took)
    raced = f"of {len(finals.finalists)} finalists, after {first.epochs} of {finals.full_epochs} epochs"
    figures = [
        Figure(question="Which model", value=short_name(first.model.partition(":")[2] or first.model, 36), note=raced),
        Figure(
            question="How sure", value=f"{chance_text(first.chance)} chance", note="to be the best of the finalists"
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
    after = f"after {finals.full_epochs} epochs"
    columns = (
        Column(name="model"),
        Column(name="place", is_number=True, note="= where several share it"),
        Column(name="so far", is_number=True, note=f"{finals.metric} of items it did not learn from"),
        Column(name="epochs", is_number=True, note="of fine-tuning behind it"),
        Column(name=after, is_number=True, note="foretold"),
        Column(name=f"{finals.confidence:.0%} interval", is_number=True),
        Column(name="chance", is_number=True, note="of being the best finalist"),
        Column(name="rate", is_number=True, note="the learning rate that suited it"),
        Column(name="time", is_number=True),
        Column(name="raced"),
    )
    places = [row.place for row in finals.finalists]
    rows = tuple(_row(row, finals, is_shared=places.count(row.place) > 1) for row in finals.finalists)
    return Section(
        name="finals",
        title="Finals",
        lead=f"The best by features, raced by short fine-tuning. {basis_sentence(finals)} {cost_sentence(finals)}",
        blocks=(Table(caption="Finalists", columns=columns, rows=rows),),
    )


def _row(row: Finalist, finals: FinalsAnswer, *, is_shared: bool) -> tuple[Cell, ...]:
    def metric(value: float | None) -> Cell:
        return Cell("–") if value is None else Cell(metric_text(finals.metric, value), value)

    interval = Cell("–")
    if row.interval is not None:
        interval = Cell(metric_interval_text(finals.metric, row.interval), row.interval[0])
    return (
        Cell(row.model),
        Cell(f"{row.place}{'=' if is_shared else ''}", row.place),
        metric(row.score),
        Cell(str(row.epochs), row.epochs),
        metric(row.predicted),
        interval,
        Cell(f"{row.chance:.0%}", row.chance),
        Cell("–") if row.rate is None else Cell(number_text(row.rate), row.rate),
        Cell(duration_text(row.seconds), row.seconds),
        Cell(STATES[row.state]),
    )
