"""What `hound search --finals` adds to what a person sees.

In:  a Ranking with the answer of its finals
Out: a table and sentences on the screen
Nothing here words them: pages say the same, by `analysis`.
"""

from typing import TYPE_CHECKING

from modelhound.analysis.finals_wording import basis_sentence, cost_sentence, verdict_sentence
from modelhound.analysis.search_tables import finals_columns
from modelhound.cli.console import make_fitting_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.records import FinalsAnswer, Ranking
    from modelhound.settings import SearchSettings

__all__ = ["show_finals"]


def show_finals(ranking: "Ranking", settings: "SearchSettings", console: "Console") -> None:
    """The table of the finals, who won and how sure that is, and what it took."""
    from rich.markup import escape

    finals = ranking.finals
    if finals is None:
        return
    console.print(_finals_table(finals, console))
    sizes = {row.model: row.num_parameters for row in ranking.models}
    strong, rest = verdict_sentence(finals, settings.data, sizes)
    console.print(f"[bold]{escape(strong)}[/bold]{escape(rest)} {basis_sentence(finals)}".rstrip(), highlight=False)
    console.print(cost_sentence(finals), markup=False, highlight=False)


def _finals_table(finals: "FinalsAnswer", console: "Console") -> "Table":
    """As many columns as fit; who, how sure and what to expect to the last."""
    columns = {f"{name}{'>' if each.is_number else ''}": each.texts for name, each in finals_columns(finals).items()}
    left_out: list[set[str]] = [set()]
    for name in ("time>", "rate>", "epochs>", "raced", "so far>"):
        left_out.append(left_out[-1] | {name})
    return make_fitting_table(console, columns, left_out)
