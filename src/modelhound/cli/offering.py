"""What every verb offers at its end: a page of what it found."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from modelhound.cli.console import bars, open_console, say

__all__ = ["Open", "offer_page", "open_page", "show_page"]

Open = Annotated[bool, Parameter(name="--open", help="Show the result as a page in the browser.")]


def offer_page(run: Path, *, show: bool) -> None:
    """Say how to get the page of a run, or make it and show it."""
    if show:
        open_console().print(f"Page: {show_page(run)}", markup=False, highlight=False, soft_wrap=True)
    else:
        open_console().print(f"As a page: hound report {run}", markup=False, highlight=False, soft_wrap=True)


def show_page(run: Path) -> Path:
    """Make the page of a run and open it; where it lies."""
    from modelhound.report.making import run_report
    from modelhound.settings import ReportSettings

    with bars() as watch:
        page = run_report(ReportSettings(runs=(run,)), watch=watch).page
    open_page(page)
    return page


def open_page(page: Path) -> None:
    """In the browser, or say that there is none."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser could be started: open {page} yourself")
