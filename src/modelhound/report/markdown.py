"""A page as Markdown, with its charts as pictures beside it: for a repository, a paper, an issue.

In:  a Page, and where its pictures lie
Out: Markdown that any viewer shows
What only works in a browser (sorting, tooltips) is left out; long tables and trees are cut, and say so.
"""

import re
from collections.abc import Mapping, Sequence

from modelhound.analysis.wording import plural
from modelhound.report.charts import Chart
from modelhound.report.parts import (
    Block,
    Branch,
    ChartPair,
    Commands,
    Gallery,
    Page,
    Remarks,
    Section,
    Sentence,
    Strong,
    Table,
    Tree,
)

__all__ = ["render_markdown"]

_MOST_ROWS = 50
_MOST_BRANCHES = 200


def render_markdown(page: Page, *, pictures: Mapping[str, str], sources: str) -> str:
    """`pictures`: name of a chart -> path of its picture, as seen from the Markdown file."""
    lines = [f"# {_inline(page.answer)}", "", _escape(page.kicker), ""]
    for sentence in page.sentences:
        lines += [_inline(sentence), ""]
    if page.figures:
        lines += ["| question | answer | |", "|---|---|---|"]
        lines += [
            f"| {_escape(each.question)} | **{_escape(each.value)}** | {_escape(each.note)} |" for each in page.figures
        ]
        lines.append("")
    for label, line in page.next_steps:
        lines += [f"{_escape(label)}:", "", *_code(line), ""]
    for section in page.sections:
        lines += _section(section, pictures)
    lines += ["---", "", f"Made by modelhound from {_escape(sources)}.", ""]
    return "\n".join(lines)


def _section(section: Section, pictures: Mapping[str, str]) -> list[str]:
    lines = [f"## {_escape(section.title)}", ""]
    if section.lead:
        lines += [_escape(section.lead), ""]
    for block in section.blocks:
        lines += _block(block, pictures)
    return lines


def _block(block: Block, pictures: Mapping[str, str]) -> list[str]:
    match block:
        case Chart():
            return _chart(block, pictures)
        case ChartPair():
            return [line for chart in block.charts for line in _chart(chart, pictures)]
        case Table():
            return _table(block)
        case Tree():
            return _tree(block)
        case Gallery():
            named = [
                f"- **{_escape(each.title)}** {_escape(each.note)} {_escape(each.text)}".rstrip()
                for each in block.pictures
            ]
            return [_escape(block.caption), "", *named, ""]
        case Commands():
            return [line for label, text in block.lines for line in (f"{_escape(label)}:", "", *_code(text), "")]
        case Remarks():
            return [*(f"- {_inline(sentence)}" for sentence in block.sentences), ""]


def _chart(chart: Chart, pictures: Mapping[str, str]) -> list[str]:
    lines = [f"### {_escape(chart.title)}", ""]
    if chart.name in pictures:
        lines += [f"![{_escape(chart.title)}]({pictures[chart.name].replace(' ', '%20')})", ""]
    return [*lines, _escape(chart.caption), ""]


def _table(table: Table) -> list[str]:
    lines = [_escape(table.caption), ""]
    lines.append("| " + " | ".join(_escape(column.name) for column in table.columns) + " |")
    lines.append("|" + "|".join("---:" if column.is_number else "---" for column in table.columns) + "|")
    lines += ["| " + " | ".join(_escape(cell.text) for cell in row) + " |" for row in table.rows[:_MOST_ROWS]]
    left_out = len(table.rows) - _MOST_ROWS
    return [
        *lines,
        "",
        *([f"{plural(left_out, 'more row is', 'more rows are')} on the page.", ""] if left_out > 0 else []),
    ]


def _tree(tree: Tree) -> list[str]:
    lines = _branches(tree.branches, 0)
    left_out = len(lines) - _MOST_BRANCHES
    more = [f"{plural(left_out, 'more step is', 'more steps are')} on the page.", ""] if left_out > 0 else []
    return [_escape(tree.caption), "", *lines[:_MOST_BRANCHES], "", *more]


def _branches(branches: Sequence[Branch], depth: int) -> list[str]:
    lines = []
    for each in branches:
        note = f" ({_escape(each.note)})" if each.note else ""
        lines.append(f"{'  ' * depth}- {_escape(each.label)}{note}")
        lines += _branches(each.children, depth + 1)
    return lines


def _inline(sentence: Sentence) -> str:
    return "".join(f"**{_escape(each)}**" if isinstance(each, Strong) else _escape(each) for each in sentence)


def _escape(text: str) -> str:
    """Whatever a model is called, it stays text: no markup, no line break, no end of a cell."""
    flat = re.sub(r"\s+", " ", text).strip(" ") if "\n" in text else text
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", flat)


def _code(line: str) -> list[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    return [f"{fence}sh", line.replace("\n", " "), fence]
