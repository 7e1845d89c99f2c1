"""What `hound search --finals` adds to what a person sees."""

from typing import TYPE_CHECKING

from modelhound.analysis.finals_wording import STATES, basis_sentence, cost_sentence, verdict_sentence
from modelhound.analysis.wording import metric_interval_text, metric_text
from modelhound.cli.console import make_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.records import FinalsAnswer, Ranking
    from modelhound.settings import SearchSettings

__all__ = ["show_finals"]


def show_finals(ranking: "Ranking", settings: "SearchSettings", console: "Console") -> None:
    """The table of the finals, who won and how sure that is, what it took and how to go on."""
    from rich.markup import escape

    finals = ranking.finals
    if finals is None:
        return
    console.print(_finals_table(finals))
    sizes = {row.model: row.num_parameters for row in ranking.models}
    strong, rest = verdict_sentence(finals, settings.data, sizes)
    console.print(f"[bold]{escape(strong)}[/bold]{escape(rest)} {basis_sentence(finals)}".rstrip(), highlight=False)
    console.print(cost_sentence(finals), markup=False, highlight=False)
    if finals.read_back is not None:
        from modelhound.records import to_plain
        from modelhound.report.commands import command_to_train

        command = command_to_train(to_plain(settings), finals.read_back)
        console.print(f"Go on from its checkpoint: {command}", markup=False, highlight=False, soft_wrap=True)


def _finals_table(finals: "FinalsAnswer") -> "Table":
    after = f"after {finals.full_epochs} epochs"
    table = make_table("finals>", "model", "so far>", "epochs>", f"{after}>", "interval", "best>", "rate>", "raced")
    for row in finals.finalists:
        is_shared = sum(each.place == row.place for each in finals.finalists) > 1
        table.add_row(
            f"{row.place}{'=' if is_shared else ' '}",
            row.model,
            "–" if row.score is None else metric_text(finals.metric, row.score),
            str(row.epochs),
            "–" if row.predicted is None else metric_text(finals.metric, row.predicted),
            "–" if row.interval is None else metric_interval_text(finals.metric, row.interval),
            f"{row.chance:.0%}",
            "–" if row.rate is None else f"{row.rate:.1g}",
            STATES[row.state],
        )
    return table
