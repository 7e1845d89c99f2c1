"""The page of any verb: what it says in words, its charts, its answer and its records as tables.

In:  a run, and the charts its verb draws
Out: a Page
Nothing here knows a verb: what is shown follows from how records and answers are built.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from modelhound.analysis.wording import list_text, plural
from modelhound.records import Failure, ItemSkipped, LoaderUsed, Record, RunStarted
from modelhound.report.charts import Chart
from modelhound.report.common_sections import (
    command_section,
    failure_section,
    find_failures,
    kicker,
    machine_section,
)
from modelhound.report.flattening import (
    SENTENCE_KEYS,
    Scalar,
    find_sentences,
    flat_row,
    flat_rows_by_kind,
    flat_table,
    is_sentence,
)
from modelhound.report.next_steps import before_the_end
from modelhound.report.parts import Block, Cell, Column, Page, Remarks, Section, Sentence, Strong, Table, plain_text
from modelhound.report.told import Told
from modelhound.report.verb_numbers import Numbers
from modelhound.store import Run

__all__ = ["any_page"]

_MOST_BESIDE_ANSWER = 3
_MOST_FIGURES = 4
_MOST_REMARKS = 10
_BESIDE_RESULTS = (RunStarted, Failure, ItemSkipped, LoaderUsed)
_NOUNS = {
    "latency point": "point",
    "latency failed": "failed point",
    "latency ceilings": "ceiling",
    "loader step": "computing time",
    "loader load": "loading time",
    "loader run": "run",
    "profile": "job",
    "trained": "training",
    "training time": "training",
    "features time": "extraction",
    "search time": "search run",
}
"""Kinds of records, as a person would count them."""


def any_page(run: Run, charts: Sequence[Chart] = (), told: Told | None = None) -> Page:
    """The answer with its figures on top, then charts, what follows in words, tables, and what every page ends with."""
    answer = msgspec.json.decode(run.answer) if run.answer is not None else {}
    given = told.remarks if told and told.remarks is not None else find_sentences(answer)
    said = [_as_sentence(text) for text in given]
    first = [_as_sentence(text) for text in told.sentences] if told and told.sentences else said
    beside = [_so_far(run)] if run.answer is None else first[:_MOST_BESIDE_ANSWER]
    headline = run.headline or (
        "This run is not finished." if run.answer is None else f"hound {run.verb} has finished."
    )
    found = (
        Section(name="charts", title="Charts", blocks=tuple(charts)) if charts else None,
        _verdict_section([text for text in said if text not in beside], told.remarks_title if told else "What follows"),
        _numbers_section(told.numbers) if told and told.numbers is not None else _answer_section(answer),
        _record_section(run),
        failure_section(run),
        machine_section(run),
        command_section(run),
    )
    return Page(
        title=f"{plain_text(told.answer) if told else headline} · hound {run.verb}",
        kicker=kicker(run),
        answer=told.answer if told else (_as_sentence(headline),),
        sentences=(*((text,) for text in beside), *_failure_sentence(run)),
        figures=told.figures[:_MOST_FIGURES] if told else (),
        next_steps=told.next_steps if told else before_the_end(run) if run.answer is None else (),
        sections=tuple(section for section in found if section is not None),
        is_running=run.answer is None,
    )


def _failure_sentence(run: Run) -> tuple[Sentence, ...]:
    num_failed = len(find_failures(run))
    if not num_failed:
        return ()
    return ((Strong(plural(num_failed, "failure")), ": what and why stands under What did not work."),)


def _so_far(run: Run) -> str:
    """What an unfinished run has measured: nothing of it is lost."""
    kinds = Counter(_noun(record) for record in run.records if not isinstance(record, _BESIDE_RESULTS))
    told = [plural(count, noun) for noun, count in kinds.most_common()]
    if not told:
        return "Nothing has been measured yet."
    return f"Measured so far: {list_text(told)}. Going on keeps all of it."


def _noun(record: Record) -> str:
    kind = str(record.__struct_config__.tag).replace("_", " ")
    return _NOUNS.get(kind, f"{kind} record")


def _as_sentence(headline: str) -> str:
    """With a full stop, and a capital where it begins with a word and not with a name."""
    if not headline:
        return ""
    is_word = re.fullmatch(r"[a-z]+(-[a-z]+)*:?", headline.partition(" ")[0])
    begun = headline[0].upper() + headline[1:] if is_word else headline
    return begun if begun.endswith((".", "!", "?")) else f"{begun}."


def _verdict_section(sentences: Sequence[str], title: str) -> Section | None:
    if not sentences:
        return None
    block: Block = Remarks(sentences=tuple((text,) for text in sentences))
    if len(sentences) > _MOST_REMARKS:
        rows = tuple((Cell(text),) for text in sentences)
        block = Table(caption="Everything that follows", columns=(Column(name="finding"),), rows=rows, num_shown=10)
    return Section(name="verdicts", title=title, blocks=(block,))


def _numbers_section(numbers: Numbers) -> Section | None:
    tables = [flat_table(caption, rows, in_order=True) for caption, rows in numbers.items() if rows]
    blocks: tuple[Block, ...] = tuple(table for table in tables if table is not None)
    return Section(name="answer", title="The answer in numbers", blocks=blocks) if blocks else None


def _answer_section(answer: Any) -> Section | None:
    """Every list of things in the answer as a table of its own, and the single values in one."""
    if not isinstance(answer, dict):
        return None
    tables: list[Table | None] = []
    singles = {}
    for name, value in answer.items():
        title = name.replace("_", " ").capitalize()
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            tables.append(flat_table(title, [_without_sentences(flat_row(each)) for each in value]))
        elif isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values()):
            rows = [{name: key, **_without_sentences(flat_row(each))} for key, each in value.items()]
            tables.append(flat_table(title, rows))
        elif value not in (None, "", []):
            singles[name] = value
    row = _without_sentences(flat_row(singles))
    if row:
        tables.append(flat_table("Single values", [{"value": key, "is": _as_text(each)} for key, each in row.items()]))
    blocks: tuple[Block, ...] = tuple(table for table in tables if table is not None)
    return Section(name="answer", title="The answer in numbers", blocks=blocks) if blocks else None


def _without_sentences(row: dict[str, Scalar]) -> dict[str, Scalar]:
    """They stand above already."""
    return {name: value for name, value in row.items() if not (is_sentence(value) and name.endswith(SENTENCE_KEYS))}


def _as_text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _record_section(run: Run) -> Section | None:
    records = [each for each in run.records if not isinstance(each, _BESIDE_RESULTS)]
    tables = [
        flat_table(f"{plural(len(rows), 'record')} of kind {kind}", rows)
        for kind, rows in flat_rows_by_kind(records).items()
    ]
    blocks: tuple[Block, ...] = tuple(table for table in tables if table is not None)
    if not blocks:
        return None
    return Section(
        name="records",
        title="Everything measured",
        lead="Phases are told by what they took in all, other raw samples by their median and number.",
        blocks=blocks,
        is_folded=True,
    )
