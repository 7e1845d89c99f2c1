"""What a person sees: tables, bars, messages.

Results go to stdout, progress and messages to stderr. Colours and bars only where a terminal shows them; NO_COLOR is honoured.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.records import Watch

__all__ = [
    "bars",
    "complain",
    "make_table",
    "open_console",
    "print_json",
    "say",
]


def make_table(*columns: str) -> "Table":
    """A plain table; a column whose name ends in ">" is aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return table


@contextlib.contextmanager
def bars() -> Iterator["Watch"]:
    """Progress bars with an estimate of the time left, on stderr, one per kind of work; gone when the work is done."""
    from rich import progress as bars

    from modelhound.records import Progress

    tasks: dict[str, bars.TaskID] = {}
    with bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("left:"),
        bars.TimeRemainingColumn(),
        console=open_console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),  # in a log, bars would be noise
    ) as display:

        def watch(progress: Progress) -> None:
            if progress.task not in tasks:
                tasks[progress.task] = display.add_task(progress.task, total=progress.total)
            elif display.tasks[tasks[progress.task]].completed > progress.done:
                display.reset(tasks[progress.task])  # the next model begins its items anew
            display.update(
                tasks[progress.task],
                description=f"{progress.task} {progress.detail}".rstrip(),
                completed=progress.done,
                total=progress.total,
            )

        yield watch


def open_console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    class PatientConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the program here; `run` knows better

    stream = sys.stderr if stderr else sys.stdout
    # A pipe has no width: tables are for reading, so they get room instead of being folded to 80 columns.
    has_width = stream.isatty() or "COLUMNS" in os.environ
    return PatientConsole(stderr=stderr, width=None if has_width else 160)


def print_json(document: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def complain(message: str) -> None:
    """Say why the command ends."""
    say(message, style="red")


def say(message: str, style: str = "") -> None:
    """A message for the person, beside the results."""
    open_console(stderr=True).print(f"hound: {message}", style=style, markup=False, highlight=False, soft_wrap=True)
