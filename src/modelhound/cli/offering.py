"""How every verb ends: JSON or tables, charts and an analysis in words where asked for, and a page of what it found.

In:  what a verb brought back, and the options that all verbs share
Out: files, lines on the screen, a page in the browser
Nothing here knows a verb.
"""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from modelhound.analysis.wording import plural
from modelhound.cli.console import bars, open_console, print_json, say

if TYPE_CHECKING:
    from modelhound.report.charts import Chart

__all__ = ["AnalysisFolder", "ChartFolder", "Open", "open_page", "present", "write_charts"]

Open = Annotated[bool, Parameter(name="--open", help="Show the result as a page in the browser.")]
ChartFolder = Annotated[
    Path | None, Parameter(name="--charts", help="Draw the charts into this folder, as PNG and SVG.")
]
AnalysisFolder = Annotated[
    Path | None,
    Parameter(
        name="--analysis", help="Write the analysis in words with its charts into this folder: README.md and PNGs."
    ),
]


def present(
    *runs: Path, document: Callable[[], dict[str, Any]], tables: Callable[[], None], json: bool, show: bool
) -> None:
    """Print what was found in one run or several, as one JSON document or as tables, and offer or show their page."""
    if json:
        print_json(document())
    else:
        tables()
    page = _show_page(runs) if show else None
    if not json:
        line = f"Page: {page}" if page else f"As a page: hound report {shlex.join(map(str, runs))}"
        open_console().print(line, markup=False, highlight=False, soft_wrap=True)


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
