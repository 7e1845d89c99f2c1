"""`hound search`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from modelhound.analysis.search_tables import ranking_columns
from modelhound.analysis.search_wording import best_sentence, control_sentence, tie_sentence, time_sentence
from modelhound.analysis.wording import bytes_text, count_text, metric_text, plural
from modelhound.cli.app import DONE, FAILED, Json
from modelhound.cli.console import bars, make_fitting_table, open_console, print_json, say
from modelhound.cli.finals import show_finals
from modelhound.cli.grouping import DATA, MODELS, in_groups, output_group
from modelhound.cli.offering import (
    Charts,
    Open,
    present,
    show_failures,
    show_loader,
    show_notes,
    show_resumed,
    show_skipped,
    write_charts,
)
from modelhound.errors import RequestError
from modelhound.settings import SearchSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.tree import Tree

    from modelhound.records import PlanNode, Progress, Ranking, SearchForeseen, Watch
    from modelhound.report.charts import Chart
    from modelhound.verbs.search import SearchResult

Live = Annotated[
    bool,
    Parameter(name="--live", group=output_group, help="Serve a page on 127.0.0.1 that shows the search as it runs."),
]

_TOPICS = {
    "Data": DATA,
    "Models": MODELS,
    "Ranking": ("top", "scorers", "exhaustive", "risk", "finals", "finals_budget"),
    "Running": ("explain", "fresh", "plain", "precision", "memory", "batch", "workers", "loader", "device", "on"),
    "Output": ("run",),
}
if TYPE_CHECKING:
    Asked = SearchSettings
else:
    Asked = in_groups(SearchSettings, _TOPICS)

_ALL_RANDOM = "[bold]All weights are random[/bold]: this says nothing of trained models."


def search(
    settings: Annotated[Asked, Parameter(name="*")],
    *,
    charts: Charts = (),
    live: Live = False,
    show: Open = False,
    json: Json = False,
) -> int:
    """Rank pretrained networks for a data set, with intervals, ties and a size-ordered control."""
    from modelhound.data.sources.embedded import EMBEDDED

    if settings.data in EMBEDDED and Path(settings.data).is_dir():
        say(f"{settings.data} is the embedded data set; for the folder of that name, say ./{settings.data}")
    if settings.explain:
        if live or show or charts:
            given = "live" if live else "open" if show else "charts"
            raise RequestError(
                f"cannot use --{given} with --explain: expected a search that runs, leave one of them out"
            )
        return _explain(settings, json)
    with _followed(live) as (begun, follower):
        with bars() as draw:
            from modelhound.verbs.search import run_search

            def watch(progress: "Progress") -> None:
                draw(progress)
                follower(progress)

            result = run_search(settings, watch=watch, begun=begun)
        present(
            result.run,
            document=result.to_json,
            tables=lambda: _show_search(result, settings),
            json=json,
            show=show,
            is_empty=not result.ranking.models,
        )
    write_charts(lambda: _draw(result), charts, run=result.run)
    return DONE if result.ranking.models else FAILED


def _draw(result: "SearchResult") -> "tuple[Chart, ...]":
    """Those of its page."""
    from modelhound.report.pages import build_page
    from modelhound.store import read_run

    return build_page([read_run(result.run)]).charts


@contextlib.contextmanager
def _followed(live: bool) -> "Iterator[tuple[Callable[[Path], None], Watch]]":
    """Where to tell the run folder and how far it has come; with `live`, its page can be watched meanwhile."""
    from modelhound.records import silent

    if not live:
        yield (lambda path: None), silent
        return
    from modelhound.report.live import serve_live

    with serve_live() as page:
        say(f"watch it at {page.address} (from this machine only, until it ends)")
        yield page.follow, page.watch


def _explain(settings: SearchSettings, json: bool) -> int:
    from modelhound.records import to_document

    with bars() as watch:
        from modelhound.verbs.search import explain_search

        foreseen = explain_search(settings, watch=watch)
    if json:
        print_json(to_document(foreseen))
    else:
        _show_foreseen(foreseen)
    return DONE if foreseen.num_models or foreseen.num_remembered else FAILED


def _show_foreseen(foreseen: "SearchForeseen") -> None:
    from rich.markup import escape
    from rich.tree import Tree

    console = open_console()
    for place, top in enumerate(foreseen.plan.trees):
        made = "made of the same items" if place else "decoded once"
        tree = Tree(f"[bold]{escape(top.label)}[/bold], {bytes_text(top.output_bytes)} {made}", guide_style="dim")
        for child in top.children:
            _add_branch(tree, child)
        console.print(tree)
    show_failures(foreseen.failures, console)
    if not foreseen.num_models and not foreseen.num_remembered:
        console.print("No model can be used.", style="bold red")
        return
    sentences = [_work_sentence(foreseen)]
    if foreseen.num_remembered and foreseen.num_models:
        more = plural(foreseen.num_remembered, "more is remembered and only has", "more are remembered and only have")
        sentences.append(f"{more} to be scored.")
    if len(foreseen.rungs) > 1:
        after = ", ".join(map(str, foreseen.rungs[:-1]))
        sentences.append(
            f"After {after} items, models that have lost are dropped: between {foreseen.least_seconds:.1f} and "
            f"{foreseen.seconds:.1f} s in all."
        )
    else:
        sentences.append(f"About {foreseen.seconds:.1f} s in all.")
    busy = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in foreseen.phases.items() if seconds >= 0.05)
    if busy:
        sentences.append(f"Busy, some of it at the same time: {busy}.")
    for sentence in sentences:
        console.print(sentence, markup=False, highlight=False)


def _work_sentence(foreseen: "SearchForeseen") -> str:
    if not foreseen.num_models:
        return (
            f"Nothing has to be run: the features of {plural(foreseen.num_remembered, 'model', 'models')} over "
            f"{plural(foreseen.num_items, 'item')} are remembered and only have to be scored."
        )
    shared = 1 - foreseen.flops_run / foreseen.flops if foreseen.flops else 0.0
    if shared < 0.005 and foreseen.weight_bytes_read >= foreseen.weight_bytes:
        return (
            f"{plural(foreseen.num_models, 'model', 'models')} over {plural(foreseen.num_items, 'item')}: "
            f"{count_text(foreseen.flops_run)}FLOP and {bytes_text(foreseen.weight_bytes)} of weights, nothing of which can "
            f"be shared; {bytes_text(foreseen.peak_memory_bytes)} of memory at most."
        )
    return (
        f"{plural(foreseen.num_models, 'model', 'models')} over {plural(foreseen.num_items, 'item')}: "
        f"{count_text(foreseen.flops_run)}FLOP, {shared:.0%} less than one by one; "
        f"{bytes_text(foreseen.weight_bytes_read)} of weights to the device instead of "
        f"{bytes_text(foreseen.weight_bytes)}; {bytes_text(foreseen.peak_memory_bytes)} of memory at most."
    )


def _add_branch(tree: "Tree", node: "PlanNode") -> None:
    from rich.markup import escape

    parts = [node.label, f"{count_text(node.flops)}FLOP", f"{node.seconds:.2f} s"]
    if node.num_models > len(node.finishes):
        parts.append(f"shared by {node.num_models} models, kept " + ("on disk" if node.keep == "disk" else "in memory"))
    branch = tree.add(", ".join(parts) + "".join(f"\n[bold]{escape(model)}[/bold]" for model in node.finishes))
    for child in node.children:
        _add_branch(branch, child)


def _show_search(result: "SearchResult", settings: SearchSettings) -> None:
    console = open_console()
    ranking = result.ranking
    if ranking.models:
        console.print(_ranking_table(ranking, result.top, console))
        if ranking.finals is None:
            console.print(_verdict(result), highlight=False)
        show_finals(ranking, settings, console)
        if ranking.finals is not None and result.weights == "random":
            console.print(_ALL_RANDOM, highlight=False)
        if control := control_sentence(ranking):
            console.print(control, highlight=False)
        console.print(time_sentence(result.phases, result.device, result.precision), highlight=False)
    else:
        console.print("No model could be measured.", style="bold red")
    _show_dropped(result, console)
    show_notes(result.notes, "model", console)
    show_skipped(result.skipped, console)
    show_failures(result.failures, console)
    for warning in result.warnings:
        console.print(f"Note: {warning}", markup=False, highlight=False)
    show_loader(result.loader, console)
    remembers = not settings.plain and not settings.fresh  # or another folder would get features that are not made anew
    anew = "another --run with --fresh" if remembers else "another --run"
    show_resumed(result.num_resumed, "model", console, anew=anew)


def _show_dropped(result: "SearchResult", console: "Console") -> None:
    if not result.dropped:
        return
    best = result.dropped[0]
    many = f"{len(result.dropped)} models left the race early, the best of them {best.model}"
    is_one = len(result.dropped) == 1
    console.print(
        f"{f'{best.model} left the race early' if is_one else many} with "
        f"{metric_text(result.ranking.metric, best.score)} on {best.num_items} items: {'it' if is_one else 'each'} had a "
        f"chance of at most {max(each.chance for each in result.dropped):.1%} to be among the best {best.top}. "
        "Use --exhaustive to measure all to the end.",
        markup=False,
        highlight=False,
    )


def _ranking_table(ranking: "Ranking", top: int | None, console: "Console") -> "Table":
    """The ranking with the control beside it, with as many columns as fit: fewer are better than folded ones."""
    from rich.markup import escape

    known = ranking_columns(ranking, top=top)
    scorers = [name for name in ranking.models[0].scores if name in known]
    columns: dict[str, Sequence[str]] = {
        f"{name}{'>' if each.is_number else ''}": each.texts for name, each in known.items()
    }
    columns["by size (control)"] = [escape(model) for model in ranking.by_size[: len(known["rank"].texts)]]
    details = {f"{name}>" for name in scorers}
    shorter = details | {"by size (control)"}
    left_out = [{"by size>"}, {"by size>", *details}, shorter]
    for name in ("params>", "time>", "by size>"):
        left_out.append(left_out[-1] | {name})
    return make_fitting_table(console, columns, left_out)


def _verdict(result: "SearchResult") -> str:
    from rich.markup import escape

    ranking = result.ranking
    best, rest = best_sentence(ranking, result.data)
    by = f" ({' and '.join(ranking.rests_on)})." if ranking.is_guess_beaten else "."
    sentence = f"[bold]{escape(best)}[/bold]{escape(rest.removesuffix('.'))}{by}"
    if result.weights == "random":
        sentence += f" {_ALL_RANDOM}"
    tied = "".join(tie_sentence(ranking))
    return f"{sentence}\n{escape(tied)}" if tied else sentence
