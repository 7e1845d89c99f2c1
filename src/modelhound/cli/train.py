"""`hound train`."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from modelhound.analysis.search_tables import time_text
from modelhound.analysis.search_wording import shares_text
from modelhound.analysis.wording import (
    among_runs_text,
    bytes_text,
    count_text,
    guessing_text,
    metric_interval_text,
    metric_text,
    number_text,
    plural,
    seconds_text,
    seconds_texts,
)
from modelhound.cli.app import DONE, FAILED, Json
from modelhound.cli.console import bars, fits, make_fitting_table, make_table, open_console, phase_heading, print_json
from modelhound.cli.grouping import in_groups
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
from modelhound.settings import TrainSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.analysis.bounds import Verdict
    from modelhound.records import ModelTrained, OperatorsProfiled, RankTrained
    from modelhound.report.charts import Chart
    from modelhound.verbs.train import TrainResult

    _Totals = Sequence[tuple[ModelTrained, RankTrained, Mapping[str, float]]]

_TOPICS = {
    "Data": ("data", "columns", "task", "split", "test", "limit", "follow_links"),
    "Models": ("model", "where", "weights", "arch", "tokens", "allow_code"),
    "Recipe": (
        *("mode", "epochs", "batch", "accumulate", "optimiser", "rate", "decay", "schedule", "augment", "precision"),
        *("batchnorm", "patience", "seed"),
    ),
    "Running": ("device", "ranks", "workers", "loader", "compile"),
    "Where the time goes": ("verdict", "trace"),
    "SLURM": ("slurm", "partition", "minutes", "gpus", "nodes", "dry_run"),
    "Output": ("run",),
}
if TYPE_CHECKING:
    Asked = TrainSettings
else:
    Asked = in_groups(TrainSettings, _TOPICS)

_PHASES = (
    *("wait for data", "data to device", "augment", "forward", "backward", "communication", "optimiser", "logging"),
    *("first batch", "extract features", "evaluate", "save checkpoint"),
)
_NUM_OPERATORS = 12
_LEAST_SHARE = 0.005  # of a rank's time, for a column of its own


def train(
    settings: Annotated[Asked, Parameter(name="*")],
    *,
    charts: Charts = (),
    show: Open = False,
    json: Json = False,
) -> int:
    """Fine-tune networks on 1 to N ranks: accuracy, where every second went, what bounds it and how it scales."""
    if settings.slurm:
        if show or charts:
            raise RequestError(
                f"cannot use --{'open' if show else 'charts'} with --slurm: expected a training that runs here, make the page "
                "with hound report RUN when the job has ended"
            )
        return _submit(settings, json=json)
    with bars() as watch:
        from modelhound.verbs.train import run_train

        result = run_train(settings, watch=watch)
    present(
        result.run,
        document=result.to_json,
        tables=lambda: _show(result),
        json=json,
        show=show,
        is_empty=not result.trained,
    )
    write_charts(lambda: _draw(result), charts, run=result.run)
    return DONE if result.trained and not result.failures else FAILED


def _submit(settings: TrainSettings, *, json: bool) -> int:
    from modelhound.verbs.train import submit_train

    submitted = submit_train(settings)
    if json:
        print_json(submitted.to_json())
    elif submitted.job is None:
        print(submitted.script, end="")
    else:
        console = open_console()
        console.print(
            f"Submitted as job {submitted.job}; its log and results will be in {submitted.run}",
            markup=False,
            highlight=False,
        )
    return DONE


def _draw(result: "TrainResult") -> "tuple[Chart, ...]":
    from modelhound.report.train_charts import train_charts

    answer = result.answer
    return train_charts(result.trained, result.ranks, verdicts=answer.verdicts, scalings=answer.scalings)


def _show(result: "TrainResult") -> None:
    from rich.markup import escape

    console = open_console()
    if result.trained:
        console.print(_runs_table(result, console))
        console.print(_answer_sentence(result), highlight=False)
        _show_phases(result, console)
        _show_times(result, console)
        _show_machine(result, console)
    for verdict in result.answer.verdicts:
        _show_verdict(verdict, len(result.trained) > 1, console)
    for scaling in result.answer.scalings:
        if len(scaling.points) > 1:
            console.print(f"[bold]{escape(scaling.model)}[/bold]: {escape(scaling.sentence)}.", highlight=False)
    if len(result.trained) > 1:
        console.print("Claims of published research, checked with these runs:")
        for finding in result.answer.findings:
            console.print(f"  {finding.claim}: {finding.outcome} ({finding.evidence})", highlight=False, markup=False)
    for profiled in result.operators[:1]:
        _show_operators(profiled, result, console)
    _show_rest(result, console)


def _runs_table(result: "TrainResult", console: "Console") -> "Table":
    """One row per run, with as many columns as fit."""
    trained = result.trained
    columns = {
        "model": [run.model for run in trained],
        "ranks>": [str(run.num_ranks) for run in trained],
        "score>": [metric_text(run.metric, run.score) for run in trained],
        "95% interval": [_interval_text(run) for run in trained],
        "top-5>": ["–" if run.top5 is None else f"{run.top5:.1%}" for run in trained],
        "loss>": [f"{run.losses[-1]:.3f}" if run.losses else "–" for run in trained],
        "epochs>": [str(len(run.epochs)) for run in trained],
        "batch>": [str(run.batch) for run in trained],
        "params>": [count_text(run.num_trained_parameters) for run in trained],
        "items/s>": [_speed_text(result.ranks_of(run)) for run in trained],
        "memory>": [
            bytes_text(max((each.peak_memory_bytes for each in result.ranks_of(run)), default=0)) for run in trained
        ],
        "time>": [time_text(run.wall_seconds) for run in trained],
    }
    left_out: list[set[str]] = [set()]
    for name in ("top-5>", "batch>", "loss>", "params>", "memory>", "epochs>"):
        left_out.append(left_out[-1] | {name})
    return make_fitting_table(console, columns, left_out)


def _interval_text(run: "ModelTrained") -> str:
    from modelhound.analysis.certainty import test_interval

    interval = test_interval(run)
    return "–" if interval is None else metric_interval_text(run.metric, interval)


def _speed_text(ranks: "list[RankTrained]") -> str:
    """Unknown where a start that had no steps left to do is all there is to tell of."""
    seconds = max((rank.wall_seconds for rank in ranks), default=0.0)
    num_items = sum(rank.num_items for rank in ranks)
    return number_text(num_items / seconds) if num_items and seconds else "–"


def _answer_sentence(result: "TrainResult") -> str:
    """How good the best network is and how sure that is, in the words of the page."""
    from rich.markup import escape

    from modelhound.analysis.certainty import best_run, test_interval

    best = best_run(result.trained)
    interval = test_interval(best)
    sure = f" [dim]({metric_interval_text(best.metric, interval)}, 95% interval)[/dim]" if interval else ""
    told = (
        f"[bold]{escape(best.model)}[/bold] reaches {metric_text(best.metric, best.score)}{sure} {best.metric} on "
        f"{plural(best.num_test_items, 'test item')} after {plural(len(best.epochs), 'epoch')}"
        + among_runs_text([run.score for run in result.trained])
        + "."
    )
    return f"{told} {guessing_text(best.metric, best.score, interval, result.answer.guess)}".rstrip()


def _show_phases(result: "TrainResult", console: "Console") -> None:
    """Share of each rank's time by phase: of one rank a sentence, of several a table without what takes next to none."""
    totals = [
        (run, rank, {phase: max(0.0, seconds) / rank.wall_seconds for phase, seconds in rank.totals().items()})
        for run in result.trained
        for rank in result.ranks_of(run)
    ]
    if len(totals) == 1:
        ((_, rank, shares),) = totals
        console.print(
            f"Where the {time_text(rank.wall_seconds)} of the training loop went ({rank.device}): {shares_text(shares)}.",
            highlight=False,
        )
        return
    console.print(_phases_table(totals, console))


def _phases_table(totals: "_Totals", console: "Console") -> "Table":
    """Where there is no room for all phases, the smallest count among "other"."""
    used = [name for name in _PHASES if any(shares.get(name, 0.0) >= _LEAST_SHARE for _, _, shares in totals)]
    while not fits(console, columns := _phase_columns(totals, used)) and len(used) > 1:
        used.remove(min(used, key=lambda name: max(shares.get(name, 0.0) for _, _, shares in totals)))
    return make_fitting_table(console, columns, [()])


def _phase_columns(totals: "_Totals", used: Sequence[str]) -> dict[str, list[str]]:
    """What is not in `used` is in "other"."""
    shown = {name: [shares.get(name, 0.0) for _, _, shares in totals] for name in used}
    rest = [max(0.0, 1 - sum(shares.get(name, 0.0) for name in used)) for _, _, shares in totals]
    return {
        "model": [run.model for run, _, _ in totals],
        "rank>": [f"{rank.rank} of {run.num_ranks}" for run, rank, _ in totals],
        **{f"{phase_heading(name)}>": [f"{part:.1%}" for part in parts] for name, parts in shown.items()},
        "other>": [f"{part:.1%}" for part in rest],
        "loop>": [time_text(rank.wall_seconds) for _, rank, _ in totals],
    }


def _show_times(result: "TrainResult", console: "Console") -> None:
    """Data and training apart, per batch and per epoch."""
    for run in result.trained:
        times = result.times_of(run)
        if times is None:
            continue
        whose = f"{run.model} on {run.num_ranks}: " if len(result.trained) > 1 else ""
        batch = seconds_texts((times.data_seconds_per_batch, times.training_seconds_per_batch))
        epoch = seconds_texts((times.data_seconds_per_epoch, times.training_seconds_per_epoch))
        words = (
            f"each batch takes {batch[0]} for data and {batch[1]} for training, each epoch "
            f"{epoch[0]} for data and {epoch[1]} for training; the first "
            f"batch came after {seconds_text(times.first_batch_seconds)}."
        )
        console.print(
            whose + (words if whose else words[:1].upper() + words[1:]), style="dim", markup=False, highlight=False
        )


def _show_machine(result: "TrainResult", console: "Console") -> None:
    """What the machine did beside each run, in one line; disk and network are the whole machine's."""
    from modelhound.analysis.telemetry import summarise_telemetry

    for run in result.trained:
        told = [each for rank in result.ranks_of(run) if (each := summarise_telemetry(rank.telemetry)) is not None]
        if not told:
            continue
        first = told[0]
        words = [
            f"{sum(each.busy_cores for each in told):.1f} of {first.num_cores} cores busy",
            f"{bytes_text(sum(each.peak_memory_bytes for each in told))} of memory",
            f"{bytes_text(first.disk_read_bytes)} read and {bytes_text(first.disk_written_bytes)} written on the machine",
            f"{bytes_text(first.network_sent_bytes)} sent",
        ]
        if first.gpu_share is not None:
            words.append(f"GPU busy {first.gpu_share:.0%} of the time")
        if first.gpu_power_watts is not None:
            words.append(f"{first.gpu_power_watts:.0f} W")
        words += [f"held back by {reason} for {share:.0%} of it" for reason, share in first.gpu_throttled.items()]
        whose = f"{run.model} on {run.num_ranks}: " if len(result.trained) > 1 else "Machine: "
        console.print(f"{whose}{', '.join(words)}.", style="dim", markup=False, highlight=False)


def _show_verdict(verdict: "Verdict", several: bool, console: "Console") -> None:
    from rich.markup import escape

    whose = f"{escape(verdict.model)} on {verdict.num_ranks}: " if several else ""
    bound, _, rest = verdict.sentence.partition(":")
    advice = verdict.advice[:1].upper() + verdict.advice[1:]
    bound = bound if whose else bound[:1].upper() + bound[1:]
    console.print(f"{whose}[bold]{bound}[/bold]:{escape(rest)}. {escape(advice)}.", highlight=False)
    for dose in verdict.doses:
        low, high = dose.interval
        console.print(
            f"  a delay in {dose.stage} lengthens the step by {dose.share:.0%} of it [dim]({low:.0%} – {high:.0%})[/dim]",
            highlight=False,
        )


def _show_operators(profiled: "OperatorsProfiled", result: "TrainResult", console: "Console") -> None:
    from rich.markup import escape

    on_device = any(each.device_seconds for each in profiled.operators)
    table = make_table("operator", "calls>", "CPU>", *(("device>",) if on_device else ()))
    for each in profiled.operators[:_NUM_OPERATORS]:
        device = (f"{each.device_seconds * 1000:.1f} ms",) if on_device else ()
        table.add_row(escape(each.name), str(each.calls), f"{each.cpu_seconds * 1000:.1f} ms", *device)
    console.print(table)
    console.print(
        f"Trace of {plural(profiled.num_steps, 'step')} for ui.perfetto.dev: {result.run / profiled.trace}",
        highlight=False,
        markup=False,
    )


def _show_rest(result: "TrainResult", console: "Console") -> None:
    if result.weights == "random":
        console.print("[bold]Weights were random[/bold] to begin with: this says nothing of fine-tuning.")
    show_notes(((run.model, note) for run in result.trained for note in run.notes), "run", console)
    show_skipped(result.skipped, console)
    show_failures(result.failures, console)
    show_loader(result.loader, console)
    show_resumed(result.num_resumed, "run", console)
    for model, saved in result.read_back.items():
        words = ["--models", saved.model, *(("--arch", saved.arch) if saved.arch else ())]
        console.print(
            f"{model}, fine-tuned, for other commands: {shlex.join(words)}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
