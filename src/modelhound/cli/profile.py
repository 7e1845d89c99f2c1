"""`hound profile`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from modelhound.analysis.job_lines import PHASES
from modelhound.analysis.wording import span_of_counts_text
from modelhound.cli.app import DONE, FAILED, Json
from modelhound.cli.console import bars, make_fitting_table, open_console, phase_heading
from modelhound.cli.grouping import DATA, MODELS, in_groups
from modelhound.cli.offering import (
    AnalysisFolder,
    Charts,
    Open,
    present,
    show_failures,
    show_loader,
    show_resumed,
    show_skipped,
    write_charts,
)
from modelhound.settings import ProfileSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.records import ConfigurationProfiled, ProfileFindings
    from modelhound.report.charts import Chart
    from modelhound.verbs.profile import ProfileResult

_TELLING = 1.1  # of a ratio: below, it is noise

_TOPICS = {
    "Data": (*DATA, "also"),
    "Models": (*MODELS, "parts", "joint", "heads"),
    "Measuring": ("quick", "batches", "warmup", "batch", "repeats", "classes", "scorers", "items"),
    "Running": ("precision", "workers", "loader", "device"),
    "Output": ("run",),
}
if TYPE_CHECKING:
    Asked = ProfileSettings
else:
    Asked = in_groups(ProfileSettings, _TOPICS)


def profile(
    settings: Annotated[Asked, Parameter(name="*")],
    *,
    charts: Charts = (),
    analysis: AnalysisFolder = None,
    show: Open = False,
    json: Json = False,
) -> int:
    """Measure where the time of a model search goes, phase by phase: full models, their last layers, joint models."""
    with bars() as watch:
        from modelhound.verbs.profile import run_profile

        result = run_profile(settings, watch=watch)
    present(
        result.run,
        document=result.to_json,
        tables=lambda: _show_profile(result),
        json=json,
        show=show,
        is_empty=not result.profiles,
    )
    write_charts(
        lambda: _draw(result, settings),
        charts,
        run=result.run,
        analysis=analysis,
        words=lambda drawn: _in_words(result, drawn),
    )
    return DONE if result.profiles else FAILED


def _draw(result: "ProfileResult", settings: ProfileSettings) -> "tuple[Chart, ...]":
    from modelhound.report.profile_charts import profile_charts

    if not result.profiles:
        return ()
    return profile_charts(result.profiles, result.findings, item_counts=settings.item_counts())


def _in_words(result: "ProfileResult", drawn: "Sequence[Chart]") -> str:
    from modelhound.report.analysis_text import profile_analysis

    return profile_analysis(
        result.profiles,
        result.findings,
        drawn,
        failures=result.failures,
        notes=(*result.notes, *(() if result.loader is None else (f"loaded with {result.loader.text()}",))),
        machine=result.machine,
        run=result.run.name,
    )


def _show_profile(result: "ProfileResult") -> None:
    console = open_console()
    if not result.profiles:
        console.print("Nothing could be measured.", style="bold red")
    for device in result.devices:
        for data in result.data:
            rows = [each for each in result.profiles if (each.device, each.data) == (device, data)]
            if rows:
                _show_place(rows, console)
    if result.profiles:
        _show_findings(result.findings, console)
        _show_repeat(result, console)
        _show_reading(result, console)
        _show_scoring(result, console)
    for note in result.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    show_skipped(result.skipped, console)
    show_failures(result.failures, console)
    show_loader(result.loader, console)
    show_resumed(result.num_resumed, "configuration", console)


def _show_place(rows: "list[ConfigurationProfiled]", console: "Console") -> None:
    first = rows[0]
    batches = span_of_counts_text((each.num_batches for each in rows), "batch", "batches")
    items = span_of_counts_text((each.batch for each in rows), "item")
    console.print(
        f"\n{first.data} on {first.device}, {first.precision}: {batches} of {items}, "
        f"weights {'from the disk' if first.cold else 'from the page cache'}, milliseconds",
        markup=False,
        highlight=False,
    )
    console.print(_phase_table(rows, console))


def _phase_table(rows: "list[ConfigurationProfiled]", console: "Console") -> "Table":
    """One row per configuration, and beside the phases what they do not account for; those that matter least make room."""
    models = [record.model for record in rows]
    largest = [max(record.seconds_of(phase) for phase in PHASES) for record in rows]
    columns: dict[str, list[str]] = {
        "model": [name if name != before else "" for name, before in zip(models, ["", *models], strict=False)],
        "layers": [record.configuration for record in rows],
        "run>": [f"{record.num_layers_run}/{record.num_layers}" for record in rows],
    }
    for phase in PHASES:
        seconds = [record.seconds_of(phase) for record in rows]
        columns[f"{phase_heading(phase)}>"] = [
            f"[bold]{_milliseconds(each)}[/bold]" if each == most else _milliseconds(each)
            for each, most in zip(seconds, largest, strict=True)
        ]
    accounted = [sum(record.seconds_of(phase) for phase in PHASES) for record in rows]
    columns["other>"] = [
        _milliseconds(record.wall_seconds - seconds) for record, seconds in zip(rows, accounted, strict=True)
    ]
    columns[f"{phase_heading('end to end')}>"] = [_milliseconds(record.wall_seconds) for record in rows]
    left_out: list[set[str]] = [set()]
    for name in ("run", "data to device", "other", "weights to device", "read weights", "score"):
        left_out.append(left_out[-1] | {f"{phase_heading(name)}>"})
    return make_fitting_table(console, columns, left_out)


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _show_findings(findings: "ProfileFindings", console: "Console") -> None:
    shown = {
        "What takes most of the time": [each.sentence for each in findings.bottlenecks if each.configuration == "full"]
        or [each.sentence for each in findings.bottlenecks],
        "Where that changes as items grow": [each.sentence for each in findings.moves if each.configuration == "full"],
    }
    for title, sentences in shown.items():
        if sentences:
            console.print(f"\n{title}", style="bold")
            for sentence in sentences:
                console.print(f"  {sentence}", markup=False, highlight=False)
    if findings.savings:
        console.print(
            "\nWhat running less saves: last layers against the full model, joint models against models run apart; as FLOPs "
            "predict it, and as measured"
        )
        console.print(_saving_table(findings, console))
    console.print(
        f"The phases account for all but {findings.unaccounted:.1%} of every job's wall clock; "
        f"intervals are {findings.confidence:.0%}.",
        highlight=False,
    )


def _saving_table(findings: "ProfileFindings", console: "Console") -> "Table":
    savings = findings.savings
    several = len({(each.data, each.device) for each in savings}) > 1
    places = [(each.model, *((Path(each.data).name, each.device) if several else ())) for each in savings]
    shown = [
        place if place != before else ("",) * len(place) for place, before in zip(places, [(), *places], strict=False)
    ]
    columns: dict[str, list[str]] = {
        name: [place[number] for place in shown]
        for number, name in enumerate(("model", "data", "device")[: 1 + 2 * several])
    }
    columns |= {
        "layers": [each.configuration for each in savings],
        "by FLOPs>": [f"{each.predicted:.2f}x" for each in savings],
        "forward>": [f"{each.forward:.2f}x {_around(each.forward_interval)}" for each in savings],
        "end to end>": [f"{each.end_to_end:.2f}x {_around(each.end_to_end_interval)}" for each in savings],
    }
    return make_fitting_table(console, columns, [set(), {"by FLOPs>"}])


def _around(interval: tuple[float, float]) -> str:
    from rich.markup import escape

    return escape(f"[{interval[0]:.2f}, {interval[1]:.2f}]")


def _show_repeat(result: "ProfileResult", console: "Console") -> None:
    """Whether the machine was quiet enough for jobs to be compared."""
    from modelhound.analysis.bottlenecks import repeat_sentence

    sentence, is_busy = repeat_sentence(result.profiles)
    if sentence:
        console.print(sentence, style="yellow" if is_busy else "", highlight=False)


def _show_reading(result: "ProfileResult", console: "Console") -> None:
    """Cold against warm, of full models."""
    from statistics import median

    full = [each for each in result.profiles if each.form == "full"]
    if any(not each.cold_read_seconds for each in full):
        console.print("Files could not be dropped from the page cache here: weights were read from memory.")
    cold = [median(each.cold_read_seconds) / median(each.warm_read_seconds) for each in full if each.cold_read_seconds]
    if cold:
        told = f"takes {_times(cold)} times as long as" if max(cold) >= _TELLING else "takes no longer here than"
        console.print(f"Reading weights from the disk {told} from the page cache.", highlight=False)
    builds = [each.usual_build_seconds[0] / each.seconds_of("build model") for each in full if each.usual_build_seconds]
    if builds:
        told = (
            f"makes building {_times(builds)} times as long"
            if max(builds) >= _TELLING
            else "takes no time worth telling here"
        )
        console.print(
            f"Drawing random weights first, as most programs do, {told}.",
            highlight=False,
        )


def _times(ratios: list[float]) -> str:
    """From the smallest to the largest; one number where they are the same."""
    return " to ".join(dict.fromkeys(f"{ratio:.1f}" for ratio in (min(ratios), max(ratios))))


def _show_scoring(result: "ProfileResult", console: "Console") -> None:
    """Each scorer and number of classes, over all full models."""
    from statistics import median

    full = [each for each in result.profiles if each.form == "full"]
    spent: dict[tuple[str, int], list[float]] = {}
    for record in full:
        for each in record.scorings:
            if each.num_items >= record.num_items:
                spent.setdefault((each.scorer, each.num_classes), []).append(median(each.seconds))
    if spent:
        texts = [
            f"{scorer} {classes} classes {_milliseconds(median(times))}" for (scorer, classes), times in spent.items()
        ]
        console.print(f"Scoring one model, milliseconds: {', '.join(texts)}.", highlight=False)
