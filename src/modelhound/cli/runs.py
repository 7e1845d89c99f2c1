"""`hound runs`."""

from pathlib import Path

from modelhound.cli.app import DONE, Json
from modelhound.cli.console import make_fitting_table, open_console, print_json
from modelhound.errors import RequestError

_NARROW = 90
_MOST_OF_DATA = 30  # characters; of a longer path its last part
_UNFINISHED = "(unfinished: start the same command again)"


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
    console = open_console()
    columns = {
        "run": [escape(each.run) for each in found],
        "verb": [escape(each.verb) for each in found],
        "asked at": [escape(each.at[:16].replace("T", "\N{NO-BREAK SPACE}")) for each in found],
        "data": [escape(_short(each.data)) for each in found],
        "models>": [str(each.num_models) for each in found],
        **({"failed>": [str(each.num_failures) for each in found]} if any(each.num_failures for each in found) else {}),
        "answer": [escape(each.headline if each.finished else _UNFINISHED) for each in found],
    }
    left_out: list[tuple[str, ...]] = [(), ("models>",), ("data", "verb")]  # the last two are in most names
    if console.width < _NARROW:
        left_out.append(("data", "verb", "models>", "asked at"))
    console.print(make_fitting_table(console, columns, left_out, folded="answer"))
    return DONE


def _short(data: str) -> str:
    return data if len(data) <= _MOST_OF_DATA else f"…/{Path(data).name}"
