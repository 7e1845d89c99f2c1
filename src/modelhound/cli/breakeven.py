"""`hound breakeven`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from modelhound.analysis.breakeven_wording import TRAININGS, WAYS, cost_text, span_text
from modelhound.analysis.wording import plural, seconds_texts
from modelhound.cli.app import DONE, FAILED, Json
from modelhound.cli.console import bars, make_table, open_console
from modelhound.cli.grouping import DATA, MODELS, in_groups
from modelhound.cli.offering import (
    AnalysisFolder,
    Charts,
    Open,
    present,
    show_failures,
    show_resumed,
    show_skipped,
    write_charts,
)
from modelhound.settings import BreakevenSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.records import BreakEvenCount, BreakevenFindings, ExtrapolationStep, RatioRow
    from modelhound.report.charts import Chart
    from modelhound.verbs.breakeven import BreakevenResult

_TOPICS = {
    "Data": DATA,
    "Models": MODELS,
    "Training": ("sizes", "epochs", "measured_epochs", "modes"),
    "Searching": ("pool", "counts", "repeats"),
    "Reckoning": ("scenario", "assume", "price_per_hour", "watts"),
    "Running": ("batch", "precision", "workers", "device"),
    "Output": ("run",),
}
if TYPE_CHECKING:
    Asked = BreakevenSettings
else:
    Asked = in_groups(BreakevenSettings, _TOPICS)


def breakeven(
    settings: Annotated[Asked, Parameter(name="*")],
    *,
    charts: Charts = (),
    analysis: AnalysisFolder = None,
    show: Open = False,
    json: Json = False,
) -> int:
    """Measure fine-tuning against searching, and from how many models on searching takes longer."""
    with bars() as watch:
        from modelhound.verbs.breakeven import run_breakeven

        result = run_breakeven(settings, watch=watch)
    present(
        result.run,
        document=result.to_json,
        tables=lambda: _show_breakeven(result),
        json=json,
        show=show,
        is_empty=not result.findings.rows,
    )
    write_charts(
        lambda: _draw(result), charts, run=result.run, analysis=analysis, words=lambda drawn: _in_words(result, drawn)
    )
    return DONE if result.findings.counts else FAILED


def _draw(result: "BreakevenResult") -> "tuple[Chart, ...]":
    from modelhound.report.breakeven_charts import breakeven_charts

    return breakeven_charts(result.findings) if result.findings.counts else ()


def _in_words(result: "BreakevenResult", drawn: "Sequence[Chart]") -> str:
    from modelhound.report.breakeven_text import breakeven_analysis

    return breakeven_analysis(
        result.findings,
        drawn,
        data=result.data,
        device=result.device,
        failures=result.failures,
        notes=result.notes,
        machine=result.machine,
        run=result.run.name,
    )


def _show_breakeven(result: "BreakevenResult") -> None:
    console = open_console()
    findings = result.findings
    if findings.rows:
        console.print(
            f"\n{result.data} on {result.device}: what {plural(result.epochs, 'epoch')} of training "
            f"{'takes' if result.epochs == 1 else 'take'}, and (in brackets) how many times as long as extracting the features "
            "of a model once",
            markup=False,
            highlight=False,
        )
        console.print(_ratio_table(findings.rows))
    else:
        console.print("Nothing could be measured.", style="bold red")
    for way in findings.ways:
        console.print(
            f"A search over k models takes {way.start_seconds:.2f} + {way.seconds_per_model:.3f} k seconds "
            f"({WAYS[way.way]}; measured up to k = {max(way.num_models)}).",
            highlight=False,
        )
    _show_counts(findings, console)
    _show_extrapolation(findings, console)
    if findings.counts:
        console.print("\nWhat this rests on", style="bold")
        for line in findings.assumptions:
            console.print(f"  {line}", markup=False, highlight=False)
    for note in result.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    show_skipped(result.skipped, console)
    show_failures(result.failures, console)
    show_resumed(result.num_resumed, "measurement", console)


def _ratio_table(rows: "tuple[RatioRow, ...]") -> "Table":
    modes = [mode for mode in TRAININGS if any(mode in row.seconds for row in rows)]
    table = make_table("model", "items>", "features>", *(f"{TRAININGS[mode]}>" for mode in modes))
    last = ""
    for row in rows:
        features, *times = seconds_texts([row.seconds[job] for job in ("extract", *modes) if job in row.seconds])
        left = iter(times)
        cells = [f"{next(left)} ({row.ratios[mode]:.1f}x)" if mode in row.seconds else "–" for mode in modes]
        name = row.model if row.model != last else ""
        table.add_row(name, f"{row.num_items:,}", features, *cells)
        last = row.model
    return table


def _show_counts(findings: "BreakevenFindings", console: "Console") -> None:
    """The counts on the most items of every model; the others are in the analysis and the JSON."""
    largest = {
        each.model: max(c.num_items for c in findings.counts if c.model == each.model) for each in findings.counts
    }
    shown = [each for each in findings.counts if each.num_items == largest[each.model]]
    if not shown:
        return
    console.print("\nFrom how many models on searching takes longer", style="bold")
    for each in shown:
        if (each.scenario, each.way) == ("S1", "plain"):
            console.print(f"  {each.sentence}", markup=False, highlight=False)
    console.print(_count_table(findings, shown))


def _count_table(findings: "BreakevenFindings", counts: "Sequence[BreakEvenCount]") -> "Table":
    """A row for each model and scenario, a column for each way of searching."""
    from rich.markup import escape

    ways = {way: name for way, name in WAYS.items() if any(each.way == way for each in counts)}
    has_costs = bool(cost_text(findings, 1.0))
    table = make_table("model", "items>", "scenario", "training>", *(["cost>"] if has_costs else []),
                       *(f"{name}: above>" for name in ways.values()))  # fmt: skip
    last = ""
    shown = [each for each in counts if each.way == "plain"]
    trainings = iter(_training_texts([each.training_seconds for each in shown]))
    for first in shown:
        same = {each.way: each for each in counts if (each.model, each.scenario) == (first.model, first.scenario)}
        table.add_row(
            first.model if first.model != last else "",
            f"{first.num_items:,}",
            first.scenario,
            next(trainings),
            *([cost_text(findings, first.training_seconds)] if has_costs else []),
            *(
                escape(f"{same[way].num_models:,} [{same[way].interval[0]:,}, {same[way].interval[1]:,}]")
                for way in ways
            ),
        )
        last = first.model
    return table


def _training_texts(seconds: "Sequence[float]") -> list[str]:
    """In hours where one of them takes that long."""
    return seconds_texts(seconds) if max(seconds, default=0) < 3600 else [span_text(each, each) for each in seconds]


def _show_extrapolation(findings: "BreakevenFindings", console: "Console") -> None:
    def show(title: str, steps: "tuple[ExtrapolationStep, ...]") -> None:
        if not steps:
            return
        console.print(f"\n{title}", style="bold")
        for step in steps:
            cost = cost_text(findings, *step.seconds)
            console.print(
                f"  {step.assumption}: {span_text(*step.seconds)}" + (f", {cost}" if cost else ""),
                markup=False,
                highlight=False,
            )

    show("Fine-tuning, extrapolated step by step", findings.training)
    show("Searching, extrapolated step by step", findings.searching)
    if findings.extrapolated:
        console.print(f"  {findings.extrapolated}", markup=False, highlight=False)
