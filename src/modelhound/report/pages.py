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

_NUMBERS, _LISTS = ("seed", "limit", "epochs", "seconds"), ("models", "items", "ranks")
"""Settings that pages reckon with, by what they are where they were given."""


def build_page(runs: Sequence[Run]) -> Page:
    """The page of one run, or one page that compares several."""
    if not runs:
        raise RequestError("cannot make a report of no runs: expected at least one run folder, see `hound runs`")
    return _page_of(runs[0]) if len(runs) == 1 else comparison_page(runs, _page_of)


def _page_of(run: Run) -> Page:
    _check_request(run)
    page = search_page(run) if run.verb == "search" else any_page(run, charts_of(run), tell_answer(run))
    if not run.num_unread:
        return page
    lost = f"{plural(run.num_unread, 'record')} cannot be read"
    warning = (Strong(lost), ": damaged, or written by another version of modelhound. This page does without.")
    return dataclasses.replace(page, sentences=(warning, *page.sentences))


def _check_request(run: Run) -> None:
    """The file is plain text in a folder that may be a stranger's."""
    kinds = {**dict.fromkeys(_NUMBERS, int | float), **dict.fromkeys(_LISTS, list)}
    for name, kind in kinds.items():
        given = run.settings.get(name)
        is_odd = given is not None and not isinstance(given, kind)
        if is_odd or (name == "items" and not all(str(each).isdecimal() for each in given or ())):
            raise RequestError(
                f"cannot make a page of {str(run.path)!r}: expected its request as it was written, found {name} of {given!r}; "
                "it was changed, delete the folder and measure again"
            )
