"""Which page belongs to which verb.

In:  one run or several
Out: a Page
A verb without a page of its own gets the one that any run gets, with the charts of `verb_charts`.
"""

import dataclasses
from collections.abc import Sequence

from modelhound.analysis.wording import plural
from modelhound.errors import RequestError
from modelhound.report.any_page import any_page
from modelhound.report.comparing import comparison_page
from modelhound.report.parts import Page, Strong
from modelhound.report.search_page import search_page
from modelhound.report.verb_answers import tell_answer
from modelhound.report.verb_charts import charts_of
from modelhound.store import Run

__all__ = ["build_page"]


def build_page(runs: Sequence[Run]) -> Page:
    """The page of one run, or one page that compares several."""
    if not runs:
        raise RequestError("cannot make a report of no runs: expected at least one run folder, see `hound runs`")
    return _page_of(runs[0]) if len(runs) == 1 else comparison_page(runs, _page_of)


def _page_of(run: Run) -> Page:
    page = search_page(run) if run.verb == "search" else any_page(run, charts_of(run), tell_answer(run))
    if not run.num_unread:
        return page
    lost = f"{plural(run.num_unread, 'record')} cannot be read"
    warning = (Strong(lost), ": damaged, or written by another version of modelhound. This page does without.")
    return dataclasses.replace(page, sentences=(warning, *page.sentences))
