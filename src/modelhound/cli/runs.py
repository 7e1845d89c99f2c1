"""`hound runs`."""

from pathlib import Path

from modelhound.cli.app import DONE, Json
from modelhound.cli.console import make_table, open_console, print_json
from modelhound.errors import RequestError


def runs(root: Path = Path("runs"), *, json: Json = False) -> int:
    """List earlier runs, newest first.

    Parameters
    ----------
    root
        The folder that holds the run folders.
    """
    from modelhound.records import to_plain
    from modelhound.store import DEFAULT_ROOT, list_runs

    if not root.is_dir() and root != DEFAULT_ROOT:
        raise RequestError(f"cannot list runs in {str(root)!r}: expected a folder that holds run folders")
    from rich.markup import escape

    found = list_runs(root)
    if json:
        print_json({"runs": [to_plain(summary) for summary in found]})
        return DONE
    if not found:
        open_console().print(f"No runs in {root} yet. Begin with: hound search fashion")
        return DONE
    table = make_table("run", "verb", "asked at", "data", "models>", "failed>", "answer")
    for column in table.columns[:3]:
        column.no_wrap = True  # a name that is broken in two cannot be copied
    for each in found:
        answer = each.headline if each.finished else "(unfinished: start the same command again)"
        cells = (each.run, each.verb, each.at[:16].replace("T", " "), each.data)
        table.add_row(*map(escape, cells), str(each.num_models), str(each.num_failures), escape(answer))
    open_console().print(table)
    return DONE
