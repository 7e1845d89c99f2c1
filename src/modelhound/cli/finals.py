"""What `hound search --finals` adds to what a person sees."""

from typing import TYPE_CHECKING

from modelhound.analysis.wording import count_text, metric_interval_text, metric_text
from modelhound.cli.console import make_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.records import Finalist, FinalsAnswer, Ranking

__all__ = ["show_finals"]

_STATES = {"in": "to the end", "dropped": "dropped: had lost", "left behind": "left: budget", "failed": "failed"}


def show_finals(ranking: "Ranking", data: str, console: "Console") -> None:
    """The table of the finals, who won and how sure that is, what it took and how to go on."""
    finals = ranking.finals
    if finals is None:
        return
    console.print(_finals_table(finals))
    console.print(_verdict(finals, ranking, data), highlight=False)
    console.print(_cost_sentence(finals), highlight=False)
    if finals.read_back is not None:
        console.print(
            f"Go on from its checkpoint: hound train {data} --model {finals.read_back}", markup=False, highlight=False
        )


def _finals_table(finals: "FinalsAnswer") -> "Table":
    table = make_table(
        "finals>",
        "model",
        "so far>",
        "epochs>",
        f"after {finals.full_epochs} epochs>",
        "interval",
        "best>",
        "rate>",
        "raced",
    )
    for row in finals.finalists:
        shared = sum(each.place == row.place for each in finals.finalists) > 1
        table.add_row(
            f"{row.place}{'=' if shared else ' '}",
            row.model,
            "–" if row.score is None else metric_text(finals.metric, row.score),
            str(row.epochs),
            "–" if row.predicted is None else metric_text(finals.metric, row.predicted),
            "–" if row.interval is None else metric_interval_text(finals.metric, row.interval),
            f"{row.chance:.0%}",
            "–" if row.rate is None else f"{row.rate:.1g}",
            _STATES[row.state],
        )
    return table


def _verdict(finals: "FinalsAnswer", ranking: "Ranking", data: str) -> str:
    from rich.markup import escape

    if finals.verdict == "failed":
        return "[bold red]No finalist could be fine-tuned.[/bold red]"
    first = finals.finalists[0]
    rests = f"{first.epochs} of {finals.full_epochs} epochs of fine-tuning, tested on {first.num_items} items"
    if finals.verdict == "cannot tell":
        return (
            f"[bold]Cannot tell[/bold]: after {first.epochs} epochs of fine-tuning none of {len(finals.finalists)} finalists "
            f"tells the items of {escape(data)} better than guessing by how often each answer comes. Labels that are noise "
            "look like this; so do too few items."
        )
    expected = _expectation(finals, first)
    if finals.verdict == "won":
        return (
            f"[bold]{escape(first.model)}[/bold] wins the finals on {escape(data)}, the best with a chance of "
            f"{first.chance:.0%}: {expected}. This rests on {rests}."
        )
    tied = [row for row in finals.finalists if row.place == first.place]
    if len(tied) == 1:
        return (
            f"[bold]{escape(first.model)}[/bold] is ahead on {escape(data)} with a chance of {first.chance:.0%} to be the "
            f"best, which is not certain: {expected}. This rests on {rests}."
        )
    sizes = {row.model: row.num_parameters for row in ranking.models}
    smallest = min(tied, key=lambda row: sizes.get(row.model, 0))
    return (
        f"[bold]Cannot tell {len(tied)} finalists apart[/bold] on {escape(data)}: {escape(first.model)} is ahead with a "
        f"chance of {first.chance:.0%} to be the best ({expected}). The smallest of them is {escape(smallest.model)} "
        f"({count_text(sizes.get(smallest.model, 0))} parameters). This rests on {rests}."
    )


def _expectation(finals: "FinalsAnswer", row: "Finalist") -> str:
    if row.predicted is None or row.interval is None:
        return "nothing can be foretold of it"
    return (
        f"{metric_text(finals.metric, row.predicted)} [dim]({metric_interval_text(finals.metric, row.interval)}, "
        f"{finals.confidence:.0%} interval)[/dim] {finals.metric} expected after full fine-tuning"
    )


def _cost_sentence(finals: "FinalsAnswer") -> str:
    ended = {
        "certain": "They ended when the winner was certain.",
        "budget": "They ended with their budget; a larger --finals-budget goes on from here.",
        "finished": "They went on to their last rung.",
        "noise": "",
        "failed": "",
    }[finals.ended]
    share = finals.spent_seconds / finals.full_seconds if finals.full_seconds else 0.0
    return (
        f"Finals took {finals.spent_seconds:.1f} s of training, {share:.1%} of the {finals.full_seconds:.0f} s that "
        f"fine-tuning every model would take (budget {finals.budget_seconds:.0f} s). {ended}"
    ).rstrip()
