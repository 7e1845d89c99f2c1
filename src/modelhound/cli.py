"""argv -> Settings -> one verb -> what a person sees. The only room that prints.

Results go to stdout, progress and messages to stderr; with --json, stdout holds one JSON document and nothing else.
Exit codes: 0 done, 2 the request cannot be served, 1 anything else, 130 interrupted.
Verbs are imported when they are called, so that --help answers at once.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
from cyclopts import App, Parameter

from modelhound import __version__
from modelhound.errors import HoundError, RequestError
from modelhound.settings import ACCURACY_SCORERS, PrepareSettings, SearchSettings, split_list

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.models import ModelCard
    from modelhound.records import Ranking, Watch
    from modelhound.verbs.doctor import Diagnosis
    from modelhound.verbs.prepare import PrepareResult
    from modelhound.verbs.search import SearchResult

__all__ = ["run"]

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


Json = Annotated[bool, Parameter(name="--json", help="Print one JSON document on stdout and nothing else there.")]

app = App(
    name="hound",
    help="Which pretrained network to fine-tune, what that will cost, and where the time goes: measured, not guessed.",
    version=__version__,
    help_format="plaintext",  # the other formats load a parser each, and --help should answer at once
    default_parameter=Parameter(negative=(), consume_multiple=True, show_default=True),
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `run` says what became of the work
)


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    try:
        code = app(list(argv), exit_on_error=False, print_error=False)
        sys.stdout.flush()  # a reader that has gone shows here and not after the last line of this program
        return code if isinstance(code, int) else DONE
    except cyclopts.CycloptsError as error:
        _complain(f"{error} See `hound --help`.")
        return REFUSED
    except RequestError as error:
        _complain(str(error))
        return REFUSED
    except HoundError as error:
        _complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        _complain("interrupted: whatever was finished is kept, start the same command again to go on")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `hound runs | head` is no error
        return DONE
    except Exception as error:
        if os.environ.get("MODELHOUND_DEBUG"):
            raise
        _complain(
            f"unexpected {type(error).__name__}: {error}. Set MODELHOUND_DEBUG=1 to see where, and please report it."
        )
        return FAILED


@app.command
def search(settings: Annotated[SearchSettings, Parameter(name="*")], *, json: Json = False) -> int:
    """Rank pretrained networks for a data set, with intervals, ties and a size-ordered control."""
    from modelhound.data.sources.embedded import EMBEDDED
    from modelhound.verbs.search import run_search

    if Path(settings.data).is_dir() and settings.data in EMBEDDED:
        _say(f"{settings.data} is the embedded data set; for the folder of that name, say ./{settings.data}")
    with _bars() as watch:
        result = run_search(settings, watch=watch)
    if json:
        _print_json(result.to_json())
    else:
        _show_search(result)
    return DONE if result.ranking.models else FAILED


@app.command
def prepare(settings: Annotated[PrepareSettings, Parameter(name="*")], *, json: Json = False) -> int:
    """Decode a data set once into a folder of plain pixels, so that every later search only has to copy."""
    from modelhound.verbs.prepare import run_prepare

    with _bars() as watch:
        result = run_prepare(settings, watch=watch)
    if json:
        _print_json(result.to_json())
    else:
        _show_prepared(result)
    return DONE


@app.command
def models(patterns: tuple[str, ...] = ("zoo:*",), *, where: str | None = None, json: Json = False) -> int:
    """List models with their sizes, without loading them.

    Parameters
    ----------
    patterns
        References or globs, such as 'zoo:*' or 'timm:resnet*'.
    where
        Keep only models for which this holds, such as "params < 30e6 and family == 'resnet'".
    """
    from modelhound.models import find_cards

    with _bars() as watch:
        cards = find_cards(split_list(patterns), where=where, watch=watch)
    if json:
        from modelhound.records import to_plain

        _print_json({"models": [to_plain(card) for card in cards]})
    else:
        _show_models(cards)
    return DONE


@app.command
def runs(root: Path = Path("runs"), *, json: Json = False) -> int:
    """List earlier runs, newest first.

    Parameters
    ----------
    root
        The folder that holds the run folders.
    """
    from modelhound.records import to_plain
    from modelhound.store import DEFAULT_ROOT, list_runs

    if not root.is_dir() and root != DEFAULT_ROOT:
        raise RequestError(f"cannot list runs in {str(root)!r}: expected a folder that holds run folders")
    from rich.markup import escape

    found = list_runs(root)
    if json:
        _print_json({"runs": [to_plain(summary) for summary in found]})
        return DONE
    if not found:
        _console().print(f"No runs in {root} yet. Begin with: hound search fashion")
        return DONE
    table = _table("run", "verb", "asked at", "data", "models>", "failed>", "best")
    for each in found:
        best = (each.best or "(none)") if each.finished else "(unfinished: start the same command again)"
        cells = (each.run, each.verb, each.at[:16].replace("T", " "), each.data)
        table.add_row(*map(escape, cells), str(each.num_models), str(each.num_failures), escape(best))
    _console().print(table)
    return DONE


@app.command
def doctor(*, json: Json = False) -> int:
    """Check this machine and say what will be slow or broken."""
    from modelhound.verbs.doctor import doctor as visit

    with _bars() as watch:
        diagnosis = visit(watch=watch)
    if json:
        _print_json(diagnosis.to_json())
    else:
        _show_diagnosis(diagnosis)
    return DONE


def _show_search(result: "SearchResult") -> None:
    console = _console()
    ranking = result.ranking
    if ranking.models:
        console.print(_ranking_table(ranking, result.top, console))
        console.print(_verdict(result), highlight=False)
        if ranking.size_agreement is not None:
            console.print(
                f"Control: a list ordered by size alone agrees with this ranking by Kendall's tau = "
                f"{ranking.size_agreement:+.2f} (1 the same order, 0 no relation).",
                highlight=False,
            )
        console.print(_time_sentence(result), highlight=False)
    else:
        console.print("No model could be measured.", style="bold red")
    _show_dropped(result, console)
    _show_notes(result, console)
    if result.skipped:
        console.print(
            f"{len(result.skipped)} {_what_was_skipped(result)} left out: "
            + "; ".join(f"{each.item} ({each.reason})" for each in result.skipped[:3])
            + ("; ..." if len(result.skipped) > 3 else ""),
            style="yellow",
            markup=False,
            highlight=False,
        )
    for failure in result.failures:
        console.print(
            f"Failed: {failure.model} in phase '{failure.phase}': {failure.error}",
            style="red",
            markup=False,
            highlight=False,
        )
    if result.num_resumed:
        console.print(f"{result.num_resumed} models were measured by an earlier start and not run again.")
    console.print(f"Everything measured is in {result.run}", markup=False, highlight=False)


def _show_dropped(result: "SearchResult", console: "Console") -> None:
    if not result.dropped:
        return
    best = result.dropped[0]
    console.print(
        f"{len(result.dropped)} models left the race early, the best of them {best.model} with "
        f"{_format_metric(result.ranking.metric, best.score)} on {best.num_items} items: each had a chance of at most "
        f"{max(each.chance for each in result.dropped):.1%} to be among the best {best.top}. "
        "Use --exhaustive to measure all to the end.",
        markup=False,
        highlight=False,
    )


def _what_was_skipped(result: "SearchResult") -> str:
    return "item was" if len(result.skipped) == 1 else "items were"


def _show_notes(result: "SearchResult", console: "Console") -> None:
    """Notes that many models share are said once."""
    by_note: dict[str, list[str]] = {}
    for model, note in result.notes:
        by_note.setdefault(note, []).append(model)
    for note, of_models in by_note.items():
        who = of_models[0] if len(of_models) == 1 else f"{len(of_models)} models"
        console.print(f"Note: {who}: {note}", markup=False, highlight=False)


def _ranking_table(ranking: "Ranking", top: int | None, console: "Console") -> "Table":
    """The ranking with the control beside it, with as many columns as fit: fewer are better than folded ones."""
    rows = ranking.models[:top]
    scorers = list(dict.fromkeys(name for row in rows for name in row.scores))
    columns: dict[str, list[str]] = {
        "rank>": [f"{row.rank}{'=' if row.tied else ' '}" for row in rows],
        "model": [row.model for row in rows],
        "score>": [_format_metric(ranking.metric, row.score) for row in rows],
        "interval": [_format_interval(ranking.metric, row.interval) for row in rows],
        **{f"{name}>": [_format_score(ranking.metric, name, row.scores.get(name)) for row in rows] for name in scorers},
        "params>": [_format_count(row.num_parameters) for row in rows],
        "time>": [f"{row.seconds:.1f} s" for row in rows],
        "by size>": [f"#{row.size_rank}" for row in rows],
        "by size (control)": list(ranking.by_size[: len(rows)]),
    }
    too_wide = [{"by size>"}, {"by size>", *(f"{name}>" for name in scorers)}]
    too_wide.append((too_wide[1] | {"by size (control)", "params>"}) - {"by size>"})
    unlimited = console.options.update(max_width=10_000)  # a measurement is cut to the screen otherwise
    for left_out in too_wide:
        kept = {name: cells for name, cells in columns.items() if name not in left_out}
        table = _table(*kept)
        for cells in zip(*kept.values(), strict=True):
            table.add_row(*cells)
        if console.measure(table, options=unlimited).maximum <= console.width:
            break
    return table


def _verdict(result: "SearchResult") -> str:
    from rich.markup import escape

    ranking = result.ranking
    best = ranking.models[0]
    how = " and ".join(ranking.rests_on)
    meaning = {
        "accuracy": f"of {ranking.num_items} items are recognised from its features",
        "ranking precision": f"ranking precision of the labels of {ranking.num_items} items, told from its features",
        "R2": f"is the R2 of {ranking.num_items} numbers told from its features",
    }[ranking.metric]
    sentence = (
        f"[bold]{escape(best.model)}[/bold] suits {escape(result.data)} best: {_format_metric(ranking.metric, best.score)} "
        f"[dim]({_format_interval(ranking.metric, best.interval)}, {ranking.confidence:.0%} interval)[/dim] "
        f"{meaning} ({how})."
    )
    if result.weights == "random":
        sentence += " [bold]All weights are random[/bold]: this says nothing of trained models."
    tied = [row for row in ranking.models if row.rank == best.rank]
    if len(tied) > 1:
        smallest = min(tied, key=lambda row: row.num_parameters)
        sentence += (
            f"\n{len(tied)} models share rank 1: {ranking.num_items} items cannot tell them apart. "
            f"The smallest of them is {escape(smallest.model)} ({_format_count(smallest.num_parameters)} parameters)."
        )
    return sentence


def _time_sentence(result: "SearchResult") -> str:
    total = sum(result.phases.values())
    parts = sorted(result.phases.items(), key=lambda phase: -phase[1])
    shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts if seconds / total >= 0.005)
    return f"Where the {total:.1f} s of model time went ({result.device}): {shares}."


def _show_prepared(result: "PrepareResult") -> None:
    from rich.markup import escape

    console = _console()
    table = _table("variant", "size>", "exact for")
    for variant in result.variants:
        shown = ", ".join(variant.models[:3]) + (
            f" and {len(variant.models) - 3} more" if len(variant.models) > 3 else ""
        )
        table.add_row(variant.name, f"{_format_count(variant.num_bytes)}B", escape(shown))
    console.print(table)
    done = "were prepared already" if result.was_finished else "are prepared"
    left_out = f"; {len(result.skipped)} could not be read" if result.skipped else ""
    console.print(
        f"{result.num_items} items of {result.data} {done} in {result.out}{left_out}. Use them: hound search {result.out}",
        markup=False,
        highlight=False,
    )


def _show_models(cards: "list[ModelCard]") -> None:
    from rich.markup import escape

    table = _table("model", "family", "params>", "input>", "trained on", "licence", "downloads>")
    for card in cards:
        taken = "{} x {}".format(*card.input_size) if card.input_size else f"{card.max_tokens or '?'} tokens"
        cells = (card.model, card.family, _format_count(card.num_parameters), taken, card.trained_on, card.licence)
        table.add_row(*map(escape, cells), "" if card.downloads is None else _format_count(card.downloads))
    _console().print(table)


def _show_diagnosis(diagnosis: "Diagnosis") -> None:
    from rich.markup import escape

    styles = {"good": "green", "slow": "yellow", "broken": "bold red", "note": "cyan"}
    table = _table("what", "", "found", "what to do")
    for check in diagnosis.checks:
        verdict = f"[{styles[check.verdict]}]{check.verdict}[/]"
        table.add_row(check.name, verdict, escape(check.finding), escape(check.advice))
    _console().print(table)


def _table(*columns: str) -> "Table":
    """A plain table; a column whose name ends in ">" is aligned to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return table


def _format_metric(metric: str, value: float) -> str:
    return f"{value:.3f}" if metric == "R2" else f"{value:.1%}"


def _format_interval(metric: str, interval: tuple[float, float]) -> str:
    return " – ".join(_format_metric(metric, end) for end in interval)


def _format_score(metric: str, scorer: str, value: float | None) -> str:
    if value is None:
        return "–"
    return _format_metric(metric, value) if scorer in ACCURACY_SCORERS else f"{value:.3f}"


def _format_count(count: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}\N{NO-BREAK SPACE}{unit}"
    return str(count)


@contextlib.contextmanager
def _bars() -> Iterator["Watch"]:
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
        console=_console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),  # in a log, bars would be noise
    ) as display:

        def watch(progress: Progress) -> None:
            if progress.task not in tasks:
                tasks[progress.task] = display.add_task(progress.task)
            elif display.tasks[tasks[progress.task]].completed > progress.done:
                display.reset(tasks[progress.task])  # the next model begins its items anew
            display.update(
                tasks[progress.task],
                description=f"{progress.task} {progress.detail}".rstrip(),
                completed=progress.done,
                total=progress.total,
            )

        yield watch


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    class PatientConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the program here; `run` knows better

    stream = sys.stderr if stderr else sys.stdout
    # A pipe has no width: tables are for reading, so they get room instead of being folded to 80 columns.
    has_width = stream.isatty() or "COLUMNS" in os.environ
    return PatientConsole(stderr=stderr, width=None if has_width else 160)


def _print_json(document: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def _complain(message: str) -> None:
    """Say why the command ends."""
    _say(message, style="red")


def _say(message: str, style: str = "") -> None:
    """A message for the person, beside the results."""
    _console(stderr=True).print(f"hound: {message}", style=style, markup=False, highlight=False, soft_wrap=True)
