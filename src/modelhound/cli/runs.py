"""`hound runs`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from modelhound.cli.app import DONE, Json
from modelhound.cli.console import make_fitting_table, open_console, print_json
from modelhound.errors import RequestError

if TYPE_CHECKING:
    from modelhound.store import RunSummary

_IN_MOST_NAMES = ("data", "verb")
_LEFT_OUT: tuple[tuple[str, ...], ...] = (
    (),
    ("models>",),
    _IN_MOST_NAMES,
    (*_IN_MOST_NAMES, "models>"),
    (*_IN_MOST_NAMES, "models>", "failed>"),
    (*_IN_MOST_NAMES, "models>", "failed>", "asked at"),
)
"""What a narrower terminal does without, one after the other, so that no name is broken: it could not be copied."""

_MOST_OF_DATA = 30  # characters; of a longer path its last part
_UNFINISHED = "(unfinished: start the same command again)"
_DAMAGED = "(damaged: nobody knows what was asked, delete the folder)"


Root = Annotated[Path, Parameter(group=Group("Runs", sort_key=1), help="The folder that holds the run folders.")]


def runs(root: Root = Path("runs"), *, json: Json = False) -> int:
    """List earlier runs, newest first."""
    from modelhound.store import DEFAULT_ROOT, list_runs

    if not root.is_dir() and root != DEFAULT_ROOT:
        raise RequestError(f"cannot list runs in {str(root)!r}: expected a folder that holds run folders")
    from rich.markup import escape

    found = list_runs(root)
    if json:
        print_json({"runs": [_to_document(each) for each in found]})
        return DONE
    if not found:
        open_console().print(f"No runs in {root} yet. Begin with: hound search fashion", markup=False, soft_wrap=True)
        return DONE
    console = open_console()
    columns = {
        "run": [each.run for each in found],
        "verb": [escape(each.verb) for each in found],
        "asked at": [escape(each.at[:16].replace("T", "\N{NO-BREAK SPACE}")) for each in found],
        "data": [escape(_short(each.data)) for each in found],
        "models>": [str(each.num_models) for each in found],
        **({"failed>": [str(each.num_failures) for each in found]} if any(each.num_failures for each in found) else {}),
        "answer": [escape(_answer(each)) for each in found],
    }
    console.print(make_fitting_table(console, columns, _LEFT_OUT, folded="answer"))
    return DONE


def _to_document(summary: "RunSummary") -> dict[str, Any]:
    """Under the names that the table has."""
    from modelhound.records import to_plain

    told = to_plain(summary)
    return {{"at": "asked_at", "headline": "answer"}.get(name, name): value for name, value in told.items()}


def _answer(summary: "RunSummary") -> str:
    """Or why there is none: with a damaged folder no command can go on."""
    if summary.finished:
        return summary.headline
    return _DAMAGED if summary.verb == "damaged" else _UNFINISHED


def _short(data: str) -> str:
    return data if len(data) <= _MOST_OF_DATA else f"…/{Path(data).name}"
