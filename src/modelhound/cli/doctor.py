"""`hound doctor`."""

from typing import TYPE_CHECKING

from modelhound.cli.app import DONE, Json
from modelhound.cli.console import bars, make_table, open_console, print_json

if TYPE_CHECKING:
    from modelhound.verbs.doctor import Diagnosis


def doctor(*, json: Json = False) -> int:
    """Check this machine and say what will be slow or broken."""
    with bars() as watch:
        from modelhound.verbs.doctor import doctor as visit

        diagnosis = visit(watch=watch)
    if json:
        print_json(diagnosis.to_json())
    else:
        _show_diagnosis(diagnosis)
    return DONE


def _show_diagnosis(diagnosis: "Diagnosis") -> None:
    from rich.markup import escape

    styles = {"good": "green", "slow": "yellow", "broken": "bold red", "note": "cyan"}
    table = make_table("what", "", "found", "what to do")
    for check in diagnosis.checks:
        verdict = f"[{styles[check.verdict]}]{check.verdict}[/]"
        table.add_row(check.name, verdict, escape(check.finding), escape(check.advice))
    open_console().print(table)
