"""What a person sees: tables, bars, messages.

In:  texts in columns, Progress, sentences, documents
Out: lines on stdout and stderr
Nothing here knows what they are about.

Results go to stdout, progress and messages to stderr. Colours and bars only where a terminal shows them; NO_COLOR is honoured.
"""

import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from modelhound.records import Watch

__all__ = [
    "bars",
    "complain",
    "fits",
    "make_fitting_table",
    "make_table",
    "open_console",
    "phase_heading",
    "print_json",
    "say",
]


_NAMES = ("model", "run")  # a name that is broken in two cannot be copied
_LEAST_FOLDED = 28  # characters of a sentence in a line
_MOST_UNBROKEN = 44  # characters; a longer name would leave no room for anything else
_PIECE = re.compile(r"(?:(?<!\w)'[^']+'(?!\w)|`[^`]+`|\S)+\s*")
"""A word, or what is quoted, with the space behind it: what prose is not broken inside of."""
_INDENT = re.compile(r" *(?:• )?")


def make_table(*columns: str) -> "Table":
    """A plain table; a column whose name ends in ">" is aligned to the right, and names are shown as they are."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    class NamingTable(Table):
        def add_row(self, *cells: Any, **more: Any) -> None:
            shown = list(cells)
            for place, (column, cell) in enumerate(zip(self.columns, cells, strict=False)):
                if column.header in _NAMES:
                    shown[place] = Text(cell)  # a path may hold what looks like markup
                    column.no_wrap = column.no_wrap and len(cell) <= _MOST_UNBROKEN
            super().add_row(*shown, **more)

    table = NamingTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        name = column.rstrip(">")
        justify: Literal["left", "right"] = "right" if column.endswith(">") else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in _NAMES)
    return table


def make_fitting_table(
    console: "Console",
    columns: "Mapping[str, Sequence[str]]",
    left_out: "Iterable[Collection[str]]",
    *,
    folded: str | None = None,
) -> "Table":
    """All of these columns, or as many as fit: without those of the first of `left_out` that is enough, or of the last.

    The column `folded` holds sentences: it may take several lines before another column is left out for it.
    """
    for names in left_out:
        kept = {name: cells for name, cells in columns.items() if name not in names}
        short = {
            name: [cell[:_LEAST_FOLDED] for cell in cells] if name == folded else cells for name, cells in kept.items()
        }
        if fits(console, short):
            return _fill_table(kept)
    table = _fill_table(kept)
    for column in table.columns:
        column.no_wrap = False  # or numbers would be broken instead of names
    return table


def fits(console: "Console", columns: "Mapping[str, Sequence[str]]") -> bool:
    """Whether a table of these columns needs no folding."""
    unlimited = console.options.update(max_width=10_000)  # a measurement is cut to the screen otherwise
    return console.measure(_fill_table(columns), options=unlimited).maximum <= console.width


def _fill_table(columns: "Mapping[str, Sequence[str]]") -> "Table":
    table = make_table(*columns)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def phase_heading(phase: str) -> str:
    """The whole name, as everywhere else, on two lines: no wider than it must be."""
    return phase.replace(" ", "\n", 1)


@contextlib.contextmanager
def bars() -> Iterator["Watch"]:
    """Progress bars with an estimate of the time left, on stderr, one per kind of work; gone when the work is done.

    What a verb imports belongs into the block: until it tells of itself, `starting` is shown.
    """
    from rich import progress as bars

    from modelhound.records import Progress

    tasks: dict[str, bars.TaskID] = {}
    reached: dict[str, int] = {}
    with bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),  # the name of a model or a file may look like it
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left:"),
        bars.TimeRemainingColumn(),
        console=open_console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),  # in a log, bars would be noise
    ) as display:
        starting: bars.TaskID | None = display.add_task("starting", total=None)

        def watch(progress: Progress) -> None:
            nonlocal starting
            if starting is not None:
                display.remove_task(starting)
                starting = None
            if progress.task not in tasks:
                tasks[progress.task] = display.add_task(progress.task, total=progress.total)
            elif reached[progress.task] > progress.done:
                display.reset(tasks[progress.task])  # the next model begins its items anew
            reached[progress.task] = progress.done
            display.update(
                tasks[progress.task],
                description=f"{progress.task} {progress.detail}".rstrip(),
                completed=progress.done,
                total=progress.total,
            )

        yield watch


def open_console(*, stderr: bool = False) -> "Console":
    """Where tables fit and prose is broken between words; with `soft_wrap` a line is left whole, as one to copy must be."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # A pipe has no width: tables are for reading, so they get room instead of being folded to 80 columns.
    has_width = stream.isatty() or "COLUMNS" in os.environ

    class PatientConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the program here; `run` knows better

        def print(self, *objects: Any, **options: Any) -> None:
            if len(objects) == 1 and isinstance(objects[0], str) and not options.get("soft_wrap"):
                text = self.render_str(
                    objects[0], markup=options.pop("markup", None), highlight=options.pop("highlight", None)
                )
                objects, options["soft_wrap"] = (_wrap(text, self.width) if has_width else text,), True
            super().print(*objects, **options)

    return PatientConsole(stderr=stderr, width=None if has_width else 160)


def _wrap(text: "Text", width: int) -> "Text":
    """In lines of this width, below where each paragraph begins.

    A path or a name that is longer stays whole: rich would break it, and it could not be copied.
    """
    from rich.cells import cell_len
    from rich.text import Text

    lines: list[Text] = []
    for paragraph in text.split(allow_blank=True):
        start = _INDENT.match(paragraph.plain)
        indent = len(start[0]) if start else 0
        breaks, used = [], indent
        for piece in _PIECE.finditer(paragraph.plain, indent):
            length = cell_len(piece[0].rstrip())
            if used > indent and used + length > width:
                breaks.append(piece.start())
                used = indent
            used += cell_len(piece[0])
        for place, line in enumerate(paragraph.divide(breaks)):
            if place < len(breaks):
                line.rstrip()
            lines.append(Text(" " * indent).append_text(line) if place else line)
    return Text("\n", end="").join(lines)


def print_json(document: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def complain(message: str) -> None:
    """Say why the command ends, if need be without what makes it look well: that may be for want of memory."""
    try:
        say(message, style="red")
    except BrokenPipeError:
        raise
    except Exception:  # without memory, nearly any
        os.write(2, f"hound: {message}\n".encode(errors="replace"))


def say(message: str, style: str = "") -> None:
    """A message for the person, beside the results."""
    open_console(stderr=True).print(f"hound: {message}", style=style, markup=False, highlight=False)
