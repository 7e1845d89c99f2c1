"""`hound loader`."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from modelhound.analysis.wording import plural
from modelhound.cli.app import DONE, FAILED, Json
from modelhound.cli.console import bars, make_fitting_table, make_table, open_console
from modelhound.cli.grouping import DATA, MODELS, in_groups
from modelhound.cli.offering import Charts, Open, present, show_failures, show_resumed, show_skipped, write_charts
from modelhound.settings import LoaderSearchSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.records import KindAnswer, PairRegret
    from modelhound.report.charts import Chart
    from modelhound.verbs.loader import LoaderResult

_MOST_PAIRS_SHOWN = 12
_MOST_FAILURES_SHOWN = 6

_TOPICS = {
    "Data": DATA,
    "Models": MODELS,
    "Choosing": (
        "batch",
        "workers",
        "kind",
        "length",
        "grid",
        "repeats",
        "budget",
        "prefetch",
        "pin",
        "persistent",
        "tune",
    ),
    "Running": ("precision", "device", "on"),
    "Output": ("run", "out"),
}
if TYPE_CHECKING:
    Asked = LoaderSearchSettings
else:
    Asked = in_groups(LoaderSearchSettings, _TOPICS)


def loader(
    settings: Annotated[Asked, Parameter(name="*")],
    *,
    charts: Charts = (),
    show: Open = False,
    json: Json = False,
) -> int:
    """Find one batch size and number of loader processes that suit all models on this machine."""
    with bars() as watch:
        from modelhound.verbs.loader import run_loader

        result = run_loader(settings, watch=watch)
    results = result.hosts or (result,)
    present(
        *(each.run for each in results),
        document=result.to_json,
        tables=lambda: _show_hosts(result) if result.hosts else _show_loader(result),
        json=json,
        show=show,
    )
    for each in results:
        write_charts(partial(_draw, each), charts, run=each.run)
    return DONE if all(each.recommended is not None for each in results) and not result.lost else FAILED


def _draw(result: "LoaderResult") -> "tuple[Chart, ...]":
    from modelhound.report.loader_charts import loader_charts

    return loader_charts(result.answer, result.runs)


def _show_hosts(result: "LoaderResult") -> None:
    """All machines of a cluster: each by itself, then what suits which."""
    console = open_console()
    table = make_table("host", "device", "items", "batch>", "workers>", "mean regret>", "models>", "bound by")
    for each in result.hosts:
        console.rule(each.host, align="left", style="dim")
        _show_loader(each)
        for kind in each.answer.kinds:
            if kind.recommended is not None:
                best, bounds = kind.regret[0], Counter(model.bounds for model in kind.models)
                told = (str(best.batch), str(best.workers), _regret_cells(best)[0], str(len(kind.models)))
                table.add_row(each.host, each.answer.device, kind.kind, *told, ", ".join(bounds.most_common(1)[0][0]))
    console.rule("all hosts", align="left", style="dim")
    console.print(table)
    for host, why in result.lost.items():
        console.print(f"Failed: {host}: {why}", style="red", markup=False, highlight=False)


def _show_loader(result: "LoaderResult") -> None:
    console = open_console()
    if not result.answer.kinds:
        console.print("No model could be measured.", style="bold red")
    for kind in result.answer.kinds:
        if kind.recommended is None:
            console.print(kind.verdict, style="bold red", markup=False, highlight=False)
            continue
        what, whose = (f"{len(kind.models)} models take", "their") if len(kind.models) > 1 else ("model takes", "its")
        console.print(
            f"\n{kind.kind.capitalize()} items: how much longer the {what} with each pair than with {whose} best",
            highlight=False,
        )
        console.print(_regret_table(kind, console))
        console.print(_models_table(kind, console))
        _show_verdict(kind, console)
    for note in result.answer.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    show_skipped(result.skipped, console)
    _show_failures(result, console)
    show_resumed(result.num_resumed, "run", console)


def _regret_table(kind: "KindAnswer", console: "Console") -> "Table":
    """The best pairs first, with as many columns as fit."""
    top = {(each.batch, each.workers): each.count for each in kind.top}
    rows = kind.regret[:_MOST_PAIRS_SHOWN]
    mean, interval, median, worst = zip(*map(_regret_cells, rows), strict=True)
    columns: dict[str, list[str]] = {
        "batch>": [str(row.batch) for row in rows],
        "workers>": [str(row.workers) for row in rows],
        "mean regret>": list(mean),
        "95% interval": list(interval),
        "median>": list(median),
        "worst>": list(worst),
        "top 3>": [f"{top.get((row.batch, row.workers), 0)}" for row in rows],
        "within 2%>": ["–" if row.chance_within is None else f"{row.chance_within:.0%}" for row in rows],
        "measured>": [f"{row.num_measured}/{len(kind.models)}" if row.num_measured else "predicted" for row in rows],
        "": ["recommended", *("as good within noise" if row.as_good else "" for row in rows[1:])],
    }
    for name, cells in columns.items():
        more = f"{len(kind.regret) - len(rows)} more" if name == "mean regret>" else "…" if name == "batch>" else ""
        columns[name] = [f"[bold]{cells[0]}[/bold]", *cells[1:], *([more] if len(kind.regret) > len(rows) else [])]
    left_out: list[set[str]] = [set()]
    for names in ({"median>", "worst>"}, {"top 3>"}, {"measured>"}, {"within 2%>"}):
        left_out.append(left_out[-1] | names)
    return make_fitting_table(console, columns, left_out)


def _regret_cells(row: "PairRegret") -> tuple[str, str, str, str]:
    if row.mean is None or row.median is None or row.worst is None or row.interval is None:
        from rich.markup import escape

        return "fails", f"with {escape(row.worst_model)}", "–", "–"
    low, high = row.interval
    return f"{row.mean:.1%}", f"{low:.1%} – {high:.1%}", f"{row.median:.1%}", f"{row.worst:.1%}"


def _models_table(kind: "KindAnswer", console: "Console") -> "Table":
    models = kind.models
    columns = {
        "model": [each.model for each in models],
        "best alone>": [f"{each.batch} x {each.workers}" for each in models],
        "time>": [f"{each.seconds:.2f} s" for each in models],
        "with the pair for all>": [f"{each.recommended_seconds:.2f} s (+{each.regret:.1%})" for each in models],
        "bound by": [", ".join(each.bounds) for each in models],
        "cores needed>": [f"{each.num_cores_needed:.1f}" for each in models],
        "loading for free>": [f"{each.speedup_if_free:.1f}x faster" for each in models],
    }
    left_out: list[set[str]] = [set()]
    for name in ("cores needed>", "time>", "loading for free>"):
        left_out.append(left_out[-1] | {name})
    return make_fitting_table(console, columns, left_out)


def _show_verdict(kind: "KindAnswer", console: "Console") -> None:
    console.print(kind.verdict, style="bold", markup=False, highlight=False)
    for advice in kind.advice:
        console.print(f"  • {advice.text} {advice.evidence}", markup=False, highlight=False)
    is_part = 0 < kind.measuring_seconds < kind.grid_seconds
    share = f"{kind.measuring_seconds / kind.grid_seconds:.0%} of the" if is_part else "beside"
    console.print(
        f"  {plural(kind.num_runs, 'run')} and what they are composed of took {kind.measuring_seconds:.1f} s, {share} "
        f"{kind.grid_seconds:.1f} s of all pairs with all models once; a run scatters by {kind.noise:.1%}.",
        style="dim",
        markup=False,
        highlight=False,
    )


def _show_failures(result: "LoaderResult", console: "Console") -> None:
    show_failures(result.failed_models, console)
    for failure in result.failures[:_MOST_FAILURES_SHOWN]:
        who = f" with {failure.for_model}" if failure.for_model else ""
        console.print(
            f"Failed: {failure.item_kind} {failure.batch} x {failure.workers}{who} in phase '{failure.phase}': {failure.error}",
            style="red",
            markup=False,
            highlight=False,
        )
    if len(result.failures) > _MOST_FAILURES_SHOWN:
        console.print(f"... and {plural(len(result.failures) - _MOST_FAILURES_SHOWN, 'more failure')}", style="red")
    traced = next((each for each in result.failures if each.trace), None)
    if traced is not None:
        console.print("Where the first of them happened:", style="red")
        console.print(traced.trace.rstrip(), style="dim", markup=False, highlight=False)
