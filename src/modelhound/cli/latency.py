"""`hound latency`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from modelhound.analysis.wording import count_text
from modelhound.cli.app import DONE, FAILED, Json
from modelhound.cli.console import bars, make_table, open_console, print_json
from modelhound.cli.offering import ChartFolder, Open, present, write_charts
from modelhound.errors import RequestError
from modelhound.settings import LatencySettings, parse_share

if TYPE_CHECKING:
    from rich.console import Console

    from modelhound.analysis.comparison import Comparison
    from modelhound.records import LatencyPoint
    from modelhound.report.charts import Chart
    from modelhound.verbs.latency import LatencyPlan, LatencyResult

_MOST_DETAILS = 30
_MOST_FAILURES = 12
_ROUNDED = {
    "none": ", nothing rounds to TF32",
    "convolutions": ", convolutions round to TF32",
    "all": ", all products round to TF32",
}
_SHORT = {"out of memory": "memory", "timed out": "too slow", "crashed": "crashed", "error": "error"}


def latency(
    settings: Annotated[LatencySettings | None, Parameter(name="*")] = None,
    *,
    explain: bool = False,
    compare: tuple[Path, ...] = (),
    fail_if_slower: str | None = None,
    charts: ChartFolder = None,
    scale: Literal["log", "linear"] = "log",
    show: Open = False,
    json: Json = False,
) -> int:
    """Time networks over batch, image and sequence sizes, and say by which law times grow and why.

    Parameters
    ----------
    explain
        Say what the sweep will take, and run nothing.
    compare
        Earlier runs: two or more are compared with each other, the first is the baseline, and nothing is run; one is the
        baseline of the sweep that is run now.
    fail_if_slower
        With --compare: end with exit code 1 if a point, or all together, is slower than the baseline by more than this, such
        as 5%.
    scale
        Of the charts' axes.
    """
    settings = settings or LatencySettings()
    limit = parse_share("fail-if-slower", fail_if_slower) if fail_if_slower is not None else None
    _check(explain, compare, limit, charts, scale, show)
    if explain:
        return _explain(settings, json)
    from modelhound.verbs.latency import compare_latency, run_latency

    if len(compare) > 1:
        return _compare(compare, limit, json=json, show=show)
    if compare and settings.run is not None and settings.run.resolve() == compare[0].resolve():
        raise RequestError(f"cannot compare {str(compare[0])!r} with itself: expected another --run for the sweep")
    with bars() as watch:
        result = run_latency(settings, watch=watch)
    found: Comparison | None = None
    if compare:
        if result.run.resolve() == compare[0].resolve():
            raise RequestError(
                f"cannot compare {str(compare[0])!r} with itself: the same request has the same folder, choose another --run"
            )
        found = compare_latency((compare[0], result.run), limit=0.05 if limit is None else limit)
    write_charts(lambda: _draw(result, scale), charts)

    def tables() -> None:
        _show(result)
        if found:
            _show_comparison(found, open_console())

    def document() -> dict[str, object]:
        return {**result.to_json(), **({"comparison": _comparison_json(found)} if found else {})}

    present(result.run, document=document, tables=tables, json=json, show=show)
    slower = limit is not None and found is not None and found.slower
    return FAILED if slower or not result.measured else DONE


def _compare(runs: Sequence[Path], limit: float | None, *, json: bool, show: bool) -> int:
    """Earlier runs with each other."""
    from modelhound.verbs.latency import compare_latency

    comparison = compare_latency(runs, limit=0.05 if limit is None else limit)
    present(
        *runs,
        document=lambda: _comparison_json(comparison),
        tables=lambda: _show_comparison(comparison, open_console()),
        json=json,
        show=show,
    )
    return FAILED if limit is not None and comparison.slower else DONE


def _check(
    explain: bool, compare: Sequence[Path], limit: float | None, charts: Path | None, scale: str, show: bool
) -> None:
    """Options that would do nothing are refused."""
    if limit is not None and not compare:
        raise RequestError("cannot use --fail-if-slower alone: expected --compare RUN beside it, name the baseline")
    if explain and (compare or charts or show):
        raise RequestError(
            "cannot use --explain with --compare, --charts or --open: expected one of them, nothing is run"
        )
    if charts and len(compare) > 1:
        raise RequestError("cannot use --charts while runs are compared: expected a sweep, leave one of them out")
    if scale != "log" and charts is None:
        raise RequestError(f"cannot use --scale {scale} without charts: expected --charts FOLDER beside it")


def _draw(result: "LatencyResult", scale: Literal["log", "linear"]) -> "tuple[Chart, ...]":
    from modelhound.report.latency_charts import latency_charts

    return latency_charts(
        result.measured, failed=result.failed, laws=result.laws, ceilings=result.ceilings, scale=scale
    )


def _explain(settings: LatencySettings, json: bool) -> int:
    from modelhound.verbs.latency import explain_latency

    with bars() as watch:
        plan = explain_latency(settings, watch=watch)
    if json:
        print_json(plan.to_json())
    else:
        _show_plan(plan)
    return DONE if plan.priced else FAILED


def _show_plan(plan: "LatencyPlan") -> None:
    from modelhound.analysis.wording import bytes_text, seconds_text

    console = open_console()
    table = make_table("model", "device", "precision", "points>", "a call, from>", "to>", "memory, to>", "to measure>")
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, each in enumerate(plan.priced):
        groups.setdefault((each.point.model, each.point.device, each.point.precision), []).append(place)
    for (model, device, precision), places in groups.items():
        own = [plan.priced[place] for place in places]
        calls = [each.call_seconds.seconds for each in own if each.call_seconds]
        shown = (seconds_text(min(calls)), seconds_text(max(calls))) if calls else ("–", "–")
        most = bytes_text(max(each.memory_bytes for each in own))
        table.add_row(
            model, device, precision, str(len(own)), *shown, most, seconds_text(sum(each.point_seconds for each in own))
        )
    console.print(table)
    refused = [each.refusal for each in plan.priced if each.refusal]
    console.print(f"{len(plan.priced)} points would take about {_duration(plan.total_seconds)}.", highlight=False)
    for device, precision, why in plan.basis:
        console.print(f"{precision} on {device}: prices rest on {why}.", markup=False, highlight=False)
    for refusal in refused[:_MOST_FAILURES]:
        _say_row(console, refusal.point, f"{refusal.why}, {refusal.message}")
    for failure in plan.broken:
        console.print(f"Failed: {failure.model}: {failure.error}", style="red", markup=False, highlight=False)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def _show(result: "LatencyResult") -> None:
    console = open_console()
    if result.measured:
        _show_times(result, console)
        if len(result.measured) <= _MOST_DETAILS:
            _show_details(result, console)
        _show_laws(result, console)
        _show_regimes(result, console)
    else:
        console.print("No point could be measured.", style="bold red")
    for each in result.failed[:_MOST_FAILURES]:
        _say_row(console, each.point, f"{each.why}{'' if each.tried else ' (predicted)'}: {each.message}")
    if len(result.failed) > _MOST_FAILURES:
        console.print(f"... and {len(result.failed) - _MOST_FAILURES} more points without a time.")
    for failure in result.broken:
        console.print(f"Failed: {failure.model}: {failure.error}", style="red", markup=False, highlight=False)
    for note, models in _gather((note, record.model) for record in result.measured for note in record.notes).items():
        console.print(
            f"Note: {', '.join(dict.fromkeys(models))}: {note}", style="yellow", markup=False, highlight=False
        )
    for note in result.notes:
        console.print(f"Note: {note}", style="yellow", markup=False, highlight=False)
    if result.num_resumed:
        console.print(f"{result.num_resumed} points were measured by an earlier start and not run again.")
    console.print(f"Everything measured is in {result.run}", markup=False, highlight=False)


def _say_row(console: "Console", point: "LatencyPoint", why: str) -> None:
    text = f"{point.model} {point.shape_text} {point.precision} {point.device}: {why}"
    console.print(text, style="yellow", markup=False, highlight=False)


def _gather(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    gathered: dict[str, list[str]] = {}
    for key, value in pairs:
        gathered.setdefault(key, []).append(value)
    return gathered


def _show_times(result: "LatencyResult", console: "Console") -> None:
    """Medians, one table per axis; points that stand in one table already do not make another."""
    from modelhound.analysis.wording import seconds_text

    cells = {
        row.point: seconds_text(row.mean_seconds if record.convention == "timm" else row.median_seconds)
        for row, record in zip(result.summaries, result.measured, strict=True)
    }
    cells |= {each.point: _SHORT[each.why] for each in result.failed}
    parameters = {each.model: count_text(each.num_parameters) for each in result.failed if each.num_parameters}
    parameters |= {record.model: count_text(record.num_parameters) for record in result.measured}
    for axis, lines in _lines([point for point in cells if point.image]) + _lines(
        [point for point in cells if point.tokens]
    ):
        columns = sorted({place for line in lines.values() for place in line})
        table = make_table(
            "model", "params>", "held", "precision", "device", *(f"{axis} {place}>" for place in columns)
        )
        for (model, held, precision, device), line in lines.items():
            found = [cells[line[place]] if place in line else "" for place in columns]
            table.add_row(model, parameters.get(model, "–"), held, precision, device, *found)
        console.print(table)


def _lines(points: "Sequence[LatencyPoint]") -> "list[tuple[str, dict[tuple[str, ...], dict[int, LatencyPoint]]]]":
    """Axis -> lines along it -> place on the axis -> point; the axis with the most places comes first."""
    kind = "image" if points and points[0].image else "tokens"
    places = {"batch": {point: point.batch for point in points}, kind: {point: point.size for point in points}}
    shown: set[LatencyPoint] = set()
    tables: list[tuple[str, dict[tuple[str, ...], dict[int, LatencyPoint]]]] = []
    for axis in sorted(places, key=lambda axis: -len(set(places[axis].values()))):
        lines: dict[tuple[str, ...], dict[int, LatencyPoint]] = {}
        for point, place in places[axis].items():
            held = f"{kind} {point.size}" if axis == "batch" else f"batch {point.batch}"
            lines.setdefault((point.model, held, point.precision, point.device), {})[place] = point
        if tables:
            lines = {key: line for key, line in lines.items() if not shown.issuperset(line.values()) and len(line) > 1}
        else:
            shown.update(point for line in lines.values() if len(line) > 1 for point in line.values())
            lines = {key: line for key, line in lines.items() if len(line) > 1} or lines
        if lines:
            tables.append((axis, lines))
    return tables


def _show_details(result: "LatencyResult", console: "Console") -> None:
    from modelhound.analysis.wording import bytes_text, number_text, seconds_text

    apart = any(record.host_seconds for record in result.measured)  # on a GPU host and device are two
    table = make_table(
        *("model", "shape", "median>", "interval", "samples>", "first call>"),
        *(("host>", "kernels>") if apart else ()),
        *("items/s>", "GFLOP/s>", "memory>", "bound by"),
    )
    for record, row in zip(result.measured, result.summaries, strict=True):
        interval = (
            f"{seconds_text(row.interval[0])} – {seconds_text(row.interval[1])}" if row.interval else "too few samples"
        )
        table.add_row(
            record.model,
            f"{record.point.shape_text}, {record.point.precision}, {record.point.device}",
            seconds_text(row.median_seconds),
            interval,
            str(row.num_samples),
            seconds_text(record.first_call_seconds),
            *(
                "–" if seconds is None else seconds_text(seconds)
                for seconds in ((row.host_seconds, record.kernel_seconds) if apart else ())
            ),
            number_text(row.items_per_second),
            number_text(row.flops_per_second * 1e-9),
            bytes_text(record.peak_memory_bytes),
            row.regime.bound,
        )
    console.print(table)


def _show_laws(result: "LatencyResult", console: "Console") -> None:
    from modelhound.analysis.wording import interval_text, share_text

    if result.laws:
        table = make_table("axis", "model", "held", "precision", "exponent>", "law", "")
        for law in result.laws:
            exponent = law.answer.law.exponent
            told = f"{share_text(exponent.overall)} {interval_text(exponent.overall_interval)}" if exponent else "–"
            verdict = f"{law.answer.hypothesis.name} {law.answer.verdict}"
            where = f"{law.precision}, {law.device}"
            table.add_row(law.axis, law.model, law.held, where, told, law.answer.law.sentence, verdict)
        console.print(table)
    for each in result.conclusions:
        held = f", {each.held}" if each.held else ""
        console.print(
            f"{each.conclusion.sentence.rstrip('.')} ({each.precision} on {each.device}{held}).",
            markup=False,
            highlight=False,
        )
    for each_law in _telling(result):
        console.print(f"  {each_law}", markup=False, highlight=False)


def _telling(result: "LatencyResult") -> list[str]:
    """Why a claim fails: for each hypothesis and device the one line that shows it best, that with the lowest exponent."""
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for law in result.laws:
        exponent = law.answer.law.exponent
        if law.answer.verdict == "does not hold" and exponent is not None and law.answer.cause:
            key = (law.answer.hypothesis.name, law.device)
            found = (exponent.overall, law.answer.sentence)
            best[key] = min(best.get(key, found), found)
    return [sentence for _, sentence in best.values()]


def _show_regimes(result: "LatencyResult", console: "Console") -> None:
    from modelhound.analysis.wording import number_text

    for each in result.ceilings:
        bounds = _gather(
            (row.regime.bound, row.point.model)
            for row in result.summaries
            if (row.point.device, row.point.precision) == (each.device, each.precision)
        )
        counted = ", ".join(
            f"{len(models)} cannot be explained"
            if bound == "unknown"
            else f"{len(models)} {'is' if len(models) == 1 else 'are'} {bound}-bound"
            for bound, models in sorted(bounds.items())
        )
        rates = ", ".join(f"{kind} {number_text(rate * 1e-9)}" for kind, rate in each.kind_flops_per_second.items())
        told = f" ({rates})" if rates else ""
        console.print(
            f"{each.precision} on {each.device} ({each.device_name}{_ROUNDED.get(each.tf32 or '', '')}): "
            f"at most {number_text(each.flops_per_second * 1e-9)} GFLOP/s{told} and "
            f"{number_text(each.bytes_per_second * 1e-9)} GB/s were seen; of the points {counted or 'none was measured'}.",
            markup=False,
            highlight=False,
        )
    for prediction in result.prediction:
        if prediction.error is not None:
            console.print(
                f"Prediction, {prediction.precision} on {prediction.device}: {prediction.error.sentence}.",
                markup=False,
                highlight=False,
            )


def _show_comparison(comparison: "Comparison", console: "Console") -> None:
    from modelhound.analysis.wording import interval_text, seconds_text, share_text

    for run in comparison.runs:
        table = make_table("point", f"{comparison.baseline}>", f"{run.name}>", "ratio>", "interval", "")
        for point in run.points:
            table.add_row(
                point.name,
                "–" if point.baseline_seconds is None else seconds_text(point.baseline_seconds),
                "–" if point.seconds is None else seconds_text(point.seconds),
                "–" if point.ratio is None else share_text(point.ratio),
                "–" if point.interval is None else interval_text(point.interval),
                point.change,
            )
        console.print(table)
        console.print(f"{run.sentence}.", style="red" if run.slower else "", markup=False, highlight=False)
    for note in comparison.notes:
        console.print(f"Note: {note}", style="yellow", markup=False, highlight=False)


def _comparison_json(comparison: "Comparison") -> dict[str, object]:
    from modelhound.records import to_plain

    plain: dict[str, object] = to_plain(comparison)
    return {**plain, "slower": comparison.slower}
