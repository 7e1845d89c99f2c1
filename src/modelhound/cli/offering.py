"""How every verb ends: JSON or tables, charts and an analysis in words where asked for, and a page of what it found.

In:  what a verb brought back, and the options that all verbs share
Out: files, lines on the screen, a page in the browser
Nothing here knows a verb.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from modelhound.analysis.wording import plural
from modelhound.cli.console import bars, open_console, print_json, say
from modelhound.cli.grouping import output_group

if TYPE_CHECKING:
    from rich.console import Console

    from modelhound.records import Failure
    from modelhound.report.charts import Chart

__all__ = [
    "AnalysisFolder",
    "ChartFolder",
    "Open",
    "open_page",
    "present",
    "show_failures",
    "show_resumed",
    "write_charts",
]

_MOST_NAMED = 8

Open = Annotated[bool, Parameter(name="--open", group=output_group, help="Show the result as a page in the browser.")]
ChartFolder = Annotated[
    Path | None,
    Parameter(name="--charts", group=output_group, help="Draw the charts into this folder, as PNG and SVG."),
]
AnalysisFolder = Annotated[
    Path | None,
    Parameter(
        name="--analysis",
        group=output_group,
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
        where = f"{'What was tried' if is_empty else 'Everything measured'} is in {', '.join(map(str, runs))}"
        line = f"Page: {page}" if page else f"As a page: hound report {shlex.join(map(str, runs))}"
        open_console().print(f"{where}\n{line}", markup=False, highlight=False, soft_wrap=True)


def show_failures(failures: "Iterable[Failure]", console: "Console") -> None:
    """Who could not be measured and why; what happened to many in the same way is said once."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        name = failure.model.partition(":")[2]
        reason = failure.error.replace(failure.model, "").replace(name, "") if name else failure.error
        alike.setdefault((failure.phase, reason), []).append(failure)
    for (phase, _), group in alike.items():
        others = list(dict.fromkeys(each.model for each in group[1:] if each.model != group[0].model))
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        told = f". The same of {', '.join(others[:_MOST_NAMED])}{more}" if others else ""
        line = f"Failed: {group[0].model} in phase '{phase}': {group[0].error}{told}"
        console.print(line, style="red", markup=False, highlight=False)


def show_resumed(count: int, noun: str, console: "Console") -> None:
    """What an earlier start had done already."""
    if count:
        console.print(
            f"{plural(count, f'{noun} was', f'{noun}s were')} finished by an earlier start and not run again."
        )


def write_charts(
    draw: "Callable[[], Sequence[Chart]]",
    charts: Path | None,
    *,
    analysis: Path | None = None,
    words: "Callable[[Sequence[Chart]], str] | None" = None,
) -> None:
    """Draw the charts into one folder and the analysis with them into another, each where it is asked for."""
    if charts is None and analysis is None:
        return
    from modelhound.report.analysis_text import write_analysis
    from modelhound.report.charts import save_charts

    drawn = draw()
    if not drawn:
        say("nothing was measured, so there is nothing to draw")
        return
    written = None
    with bars() as watch:
        if charts is not None:
            save_charts(drawn, charts, watch=watch)
        if analysis is not None and words is not None:
            written = write_analysis(words(drawn), drawn, analysis, watch=watch)
    if charts is not None:
        say(f"{plural(len(drawn), 'chart is', 'charts are')} in {charts}")
    if written is not None:
        say(f"the analysis is in {written}")


def open_page(page: Path) -> None:
    """In the browser, or say that there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser could be started: open {page} yourself")


def _show_page(runs: Sequence[Path]) -> Path:
    """Make the page and open it; where it lies."""
    from modelhound.report.making import run_report
    from modelhound.settings import ReportSettings

    with bars() as watch:
        page = run_report(ReportSettings(runs=tuple(runs)), watch=watch).page
    open_page(page)
    return page
