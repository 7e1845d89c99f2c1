"""How every verb ends: JSON or tables, charts and an analysis in words where asked for, and a page of what it found.

In:  what a verb brought back, and the options that all verbs share
Out: files, lines on the screen, a page in the browser
Nothing here knows a verb.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from modelhound.analysis.wording import plural
from modelhound.cli.console import bars, open_console, print_json, say
from modelhound.cli.grouping import output_group
from modelhound.settings import parse_chart_formats

if TYPE_CHECKING:
    from rich.console import Console

    from modelhound.records import Failure, ItemSkipped, LoaderUsed
    from modelhound.report.charts import Chart

__all__ = [
    "AnalysisFolder",
    "Charts",
    "Open",
    "open_page",
    "present",
    "show_failures",
    "show_loader",
    "show_notes",
    "show_resumed",
    "show_skipped",
    "write_charts",
]

_MOST_NAMED = 8
_MOST_SKIPPED = 3

Open = Annotated[bool, Parameter(name="--open", group=output_group, help="Show the result as a page in the browser.")]


def _read_folder(wanted: Any, tokens: Sequence[Token]) -> Path:
    """Before anything is run, too: the README of somebody's project must not be lost to an analysis."""
    from modelhound.report.analysis_text import check_folder

    folder = Path(tokens[0].value)
    check_folder(folder)
    return folder


def _read_formats(wanted: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Before anything is run: a wrong one must not cost the run."""
    return parse_chart_formats([token.value for token in tokens])


Charts = Annotated[
    tuple[str, ...],
    Parameter(
        name="--charts",
        group=output_group,
        converter=_read_formats,
        help="png, svg: every chart as a picture as well, in a folder beside the page.",
    ),
]
AnalysisFolder = Annotated[
    Path | None,
    Parameter(
        name="--analysis",
        group=output_group,
        converter=_read_folder,
        help="Write the analysis in words with its charts into this folder: README.md and PNGs.",
    ),
]


def present(
    *runs: Path,
    document: Callable[[], dict[str, Any]],
    tables: Callable[[], None],
    json: bool,
    show: bool,
    is_empty: bool = False,
) -> None:
    """Print what was found in one run or several, as one JSON document or as tables, and offer or show their page."""
    if json:
        print_json(document())
    else:
        tables()
    page = _show_page(runs) if show else None
    if not json:
        _show_next_steps(runs)
        where = f"{'What was tried' if is_empty else 'Everything measured'} is in {', '.join(map(str, runs))}"
        line = f"Page: {page}" if page else f"As a page: hound report {shlex.join(map(str, runs))}"
        open_console().print(f"{where}\n{line}", markup=False, highlight=False, soft_wrap=True)


def _show_next_steps(runs: Sequence[Path]) -> None:
    """What the page of a run offers to do next; of several runs it offers nothing."""
    from modelhound.report.next_steps import after_search
    from modelhound.report.search_view import view_search
    from modelhound.report.verb_answers import tell_answer
    from modelhound.store import read_run

    if len(runs) > 1 or not runs[0].is_dir():
        return
    run = read_run(runs[0])
    told = None if run.verb == "search" else tell_answer(run)
    for label, command in after_search(view_search(run)) if run.verb == "search" else told.next_steps if told else ():
        open_console().print(f"{label}: {command}", markup=False, highlight=False, soft_wrap=True)


def show_failures(failures: "Iterable[Failure]", console: "Console") -> None:
    """Who could not be measured and why; what happened to many in the same way is said once."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        name = failure.model.partition(":")[2]
        reason = re.sub(rf"\S*{re.escape(name)}\S*", "", failure.error) if name else failure.error
        alike.setdefault((failure.phase, reason), []).append(failure)
    for (phase, _), group in alike.items():
        others = list(dict.fromkeys(each.model for each in group[1:] if each.model != group[0].model))
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        told = f". The same of {', '.join(others[:_MOST_NAMED])}{more}" if others else ""
        line = f"Failed: {group[0].model} in phase '{phase}': {group[0].error}{told}"
        console.print(line, style="red", markup=False, highlight=False)


def show_skipped(skipped: "Sequence[ItemSkipped]", console: "Console") -> None:
    """Which items take no part, and why."""
    if skipped:
        named = "; ".join(f"{each.item} ({each.reason})" for each in skipped[:_MOST_SKIPPED])
        more = "; ..." if len(skipped) > _MOST_SKIPPED else ""
        told = f"{plural(len(skipped), 'item was', 'items were')} left out: {named}{more}"
        console.print(told, style="yellow", markup=False, highlight=False)


def show_notes(notes: "Iterable[tuple[str, str]]", noun: str, console: "Console") -> None:
    """What to know of single results, each with whose it is; what many share is said once."""
    by_note: dict[str, list[str]] = {}
    for whose, note in notes:
        by_note.setdefault(note, []).append(whose)
    for note, of_many in by_note.items():
        who = of_many[0] if len(of_many) == 1 else plural(len(of_many), noun)
        console.print(f"Note: {who}: {note}", markup=False, highlight=False)


def show_loader(used: "LoaderUsed | None", console: "Console") -> None:
    """What was taken over from `hound loader`."""
    if used is not None:
        console.print(used.sentence(), markup=False, highlight=False)


def show_resumed(count: int, noun: str, console: "Console", *, anew: str = "another --run") -> None:
    """What an earlier start had done already, and what would do it anew."""
    if count:
        done = plural(count, f"{noun} was", f"{noun}s were")
        console.print(f"{done} finished by an earlier start and not run again; {anew} measures anew.")


def write_charts(
    draw: "Callable[[], Sequence[Chart]]",
    formats: Sequence[str],
    *,
    run: Path,
    analysis: Path | None = None,
    words: "Callable[[Sequence[Chart]], str] | None" = None,
) -> None:
    """Draw the charts beside the page of the run, and the analysis with them into a folder of its own, each if asked for."""
    if not formats and analysis is None:
        return
    from modelhound.report.analysis_text import write_analysis
    from modelhound.report.charts import save_charts
    from modelhound.report.making import pictures_folder

    drawn = draw()
    if not drawn:
        say("nothing was measured, so there is nothing to draw")
        return
    written = None
    with bars() as watch:
        if formats:
            save_charts(drawn, pictures_folder(run), formats, watch=watch)
        if analysis is not None and words is not None:
            written = write_analysis(words(drawn), drawn, analysis, watch=watch)
    if formats:
        say(f"{plural(len(drawn), 'chart is', 'charts are')} in {shlex.quote(str(pictures_folder(run)))}")
    if written is not None:
        say(f"the analysis is in {shlex.quote(str(written))}")


def open_page(page: Path) -> None:
    """In the browser, or say that there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser could be started: open {shlex.quote(str(page))} yourself")


def _show_page(runs: Sequence[Path]) -> Path:
    """Make the page and open it; where it lies."""
    from modelhound.report.making import run_report
    from modelhound.settings import ReportSettings

    with bars() as watch:
        page = run_report(ReportSettings(runs=tuple(runs)), watch=watch).page
    open_page(page)
    return page
