"""What a person sees of `hound latency`: tables of times, laws in words, what bounds the points, runs beside each other.

In:  what the verb brought back
Out: tables and sentences on a console
Nothing here measures, and nothing ends the command.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from modelhound.analysis.wording import (
    bytes_text,
    count_text,
    duration_text,
    interval_text,
    number_text,
    plural,
    seconds_text,
    share_text,
    span_of_seconds_text,
)
from modelhound.cli.console import make_fitting_table, make_table, open_console
from modelhound.cli.offering import show_failures, show_resumed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from modelhound.analysis.comparison import Comparison
    from modelhound.analysis.laws import Exponent
    from modelhound.records import LatencyPoint
    from modelhound.verbs.latency import LatencyPlan, LatencyResult

__all__ = ["show_comparison", "show_latency", "show_plan"]

_MOST_DETAILS = 30
_MOST_FAILURES = 12
_ROUNDED = {
    "none": ", nothing rounds to TF32",
    "convolutions": ", convolutions round to TF32",
    "all": ", all products round to TF32",
}
_SHORT = {"out of memory": "memory", "timed out": "too slow", "crashed": "crashed", "error": "error"}


def show_plan(plan: "LatencyPlan") -> None:
    console = open_console()
    names = ("model", "device", "precision", "points>", "a call, from>", "to>", "memory, to>", "to measure>")
    rows: list[tuple[str, ...]] = []
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, each in enumerate(plan.priced):
        groups.setdefault((each.point.model, each.point.device, each.point.precision), []).append(place)
    for (model, device, precision), places in groups.items():
        own = [plan.priced[place] for place in places]
        calls = [each.call_seconds.seconds for each in own if each.call_seconds]
        shown = (seconds_text(min(calls)), seconds_text(max(calls))) if calls else ("–", "–")
        most = bytes_text(max(each.memory_bytes for each in own))
        to_measure = seconds_text(sum(each.point_seconds for each in own))
        rows.append((model, device, precision, str(len(own)), *shown, most, to_measure))
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    same = {name for name in ("device", "precision") if len(set(columns[name])) == 1}  # which is told below too
    left_out = [set(), same, {*same, "memory, to>"}, {*same, "memory, to>", "to>"}]
    left_out.append({*left_out[-1], "a call, from>"})
    console.print(make_fitting_table(console, columns, left_out))
    refused = [each.refusal for each in plan.priced if each.refusal]
    took = f"{plural(len(plan.priced), 'point')} would take about {duration_text(plan.total_seconds)}."
    console.print(took, highlight=False)
    for device, precision, why in plan.basis:
        console.print(f"{precision} on {device}: these times rest on {why}.", markup=False, highlight=False)
    _say_points(console, [(each.point, f"{each.why}, {each.message}") for each in refused])
    show_failures(plan.broken, console)


def show_latency(result: "LatencyResult") -> None:
    console = open_console()
    if result.measured:
        _show_times(result, console)
        if len(result.measured) <= _MOST_DETAILS:
            _show_details(result, console)
        _show_laws(result, console)
        _show_regimes(result, console)
    else:
        console.print("No point could be measured.", style="bold red")
    _say_points(
        console,
        [(each.point, f"{each.why}{'' if each.tried else ' (predicted)'}: {each.message}") for each in result.failed],
    )
    show_failures(result.broken, console)
    for note, models in _gather((note, record.model) for record in result.measured for note in record.notes).items():
        console.print(
            f"Note: {', '.join(dict.fromkeys(models))}: {note}", style="yellow", markup=False, highlight=False
        )
    for note in result.notes:
        console.print(f"Note: {note}", style="yellow", markup=False, highlight=False)
    show_resumed(result.num_resumed, "point", console)


def _say_points(console: "Console", points: "Sequence[tuple[LatencyPoint, str]]") -> None:
    """Those without a time and why; of many the first, and how many more there are."""
    for point, why in points[:_MOST_FAILURES]:
        text = f"{point.model} {point.shape_text} {point.precision} {point.device}: {why}"
        console.print(text, style="yellow", markup=False, highlight=False)
    if len(points) > _MOST_FAILURES:
        console.print(f"... and {plural(len(points) - _MOST_FAILURES, 'more point', 'more points')} without a time.")


def _gather(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    gathered: dict[str, list[str]] = {}
    for key, value in pairs:
        gathered.setdefault(key, []).append(value)
    return gathered


def _show_times(result: "LatencyResult", console: "Console") -> None:
    """Medians, one table per axis; points that stand in one table already do not make another."""
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
        names = ("model", "held", "precision", "device")
        shown = {name: [key[place] for key in lines] for place, name in enumerate(names)}
        filled: dict[str, Sequence[str]] = {
            "model": shown["model"],
            "params>": [parameters.get(model, "–") for model in shown["model"]],
            **{name: shown[name] for name in names[1:]},
            **{
                f"{axis} {place}>": [cells[line[place]] if place in line else "" for line in lines.values()]
                for place in columns
            },
        }
        same = {name for name in ("precision", "device") if len(set(shown[name])) == 1}  # which is told below too
        console.print(make_fitting_table(console, filled, [set(), same, {*same, "params>"}]))


def _lines(points: "Sequence[LatencyPoint]") -> "list[tuple[str, dict[tuple[str, ...], dict[int, LatencyPoint]]]]":
    """Axis -> lines along it -> place on the axis -> point; the axis with the longest lines comes first."""
    kind = "image" if points and points[0].image else "tokens"
    places = {"batch": {point: point.batch for point in points}, kind: {point: point.size for point in points}}
    along: dict[str, dict[tuple[str, ...], dict[int, LatencyPoint]]] = {axis: {} for axis in places}
    for axis, place_of in places.items():
        for point, place in place_of.items():
            key = (point.model, point.held_text(axis), point.precision, point.device)
            along[axis].setdefault(key, {})[place] = point
    shown: set[LatencyPoint] = set()
    tables: list[tuple[str, dict[tuple[str, ...], dict[int, LatencyPoint]]]] = []
    # Models of unlike image sizes do not make an axis of these: only what varies along a line counts.
    for axis, lines in sorted(along.items(), key=lambda each: -max(map(len, each[1].values()), default=0)):
        if tables:
            lines = {key: line for key, line in lines.items() if not shown.issuperset(line.values()) and len(line) > 1}
        else:
            shown.update(point for line in lines.values() if len(line) > 1 for point in line.values())
            lines = {key: line for key, line in lines.items() if len(line) > 1} or lines
        if lines:
            tables.append((axis, lines))
    return tables


def _show_details(result: "LatencyResult", console: "Console") -> None:
    apart = any(record.host_seconds for record in result.measured)  # on a GPU host and device are two
    several = len({(record.point.precision, record.point.device) for record in result.measured}) > 1
    rows = list(zip(result.measured, result.summaries, strict=True))
    models = [record.model for record, _ in rows]

    def seconds_or_none(seconds: float | None) -> str:
        return "–" if seconds is None else seconds_text(seconds)

    columns: dict[str, Sequence[str]] = {
        "model": [name if name != before else "" for name, before in zip(models, ["", *models], strict=False)],
        "shape": [
            record.point.shape_text + (f", {record.point.precision}, {record.point.device}" if several else "")
            for record, _ in rows
        ],
        "median>": [seconds_text(row.median_seconds) for _, row in rows],
        "interval": [span_of_seconds_text(row.interval) if row.interval else "too few" for _, row in rows],
        "samples>": [str(row.num_samples) for _, row in rows],
        "first call>": [seconds_text(record.first_call_seconds) for record, _ in rows],
        "host>": [seconds_or_none(row.host_seconds) for _, row in rows],
        "kernels>": [seconds_or_none(record.kernel_seconds) for record, _ in rows],
        "items/s>": [number_text(row.items_per_second) for _, row in rows],
        "GFLOP/s>": [number_text(row.flops_per_second * 1e-9) for _, row in rows],
        "memory>": [bytes_text(record.peak_memory_bytes) for record, _ in rows],
        "bound by": [row.regime.short_text for _, row in rows],
    }
    left_out = [set() if apart else {"host>", "kernels>"}]
    for name in ("first call>", "GFLOP/s>", "samples>", "items/s>", "memory>"):
        left_out.append(left_out[-1] | {name})
    console.print(make_fitting_table(console, columns, left_out))


def _show_laws(result: "LatencyResult", console: "Console") -> None:
    from modelhound.analysis.laws import LEAST_SIZES

    if result.laws:
        console.print(_law_table(result, console))
        claims = _gather((law.answer.hypothesis.name, law.answer.hypothesis.relation) for law in result.laws)
        told_claims = [
            f"{name}: the time of a call is {' or '.join(dict.fromkeys(said))}" for name, said in claims.items()
        ]
        console.print(f"{'; '.join(told_claims)}.", markup=False, highlight=False)
    else:
        console.print(
            f"To tell by which law times grow, {LEAST_SIZES} sizes of batch, image or text are needed, such as --batch 1,2,4.",
            highlight=False,
        )
    for each in result.conclusions:
        held = f", {each.held}" if each.held else ""
        console.print(
            f"{each.conclusion.sentence.rstrip('.')} ({each.precision} on {each.device}{held}).",
            markup=False,
            highlight=False,
        )
    for each_law in _telling(result):
        console.print(f"  {each_law}", markup=False, highlight=False)


def _law_table(result: "LatencyResult", console: "Console") -> "Table":
    from rich.markup import escape

    def told(exponent: "Exponent | None") -> str:
        return f"{share_text(exponent.overall)} {interval_text(exponent.overall_interval)}" if exponent else "–"

    laws = result.laws
    columns: dict[str, Sequence[str]] = {
        "axis": [law.axis for law in laws],
        "model": [law.model for law in laws],
        "held": [law.held for law in laws],
        "precision": [f"{law.precision}, {law.device}" for law in laws],
        "exponent>": [escape(told(law.answer.law.exponent)) for law in laws],
        "fits best": [escape(law.answer.law.sentence) for law in laws],
        "": [f"{law.answer.hypothesis.name} {law.answer.verdict}" for law in laws],
    }
    same = {"precision"} if len(set(columns["precision"])) == 1 else set()
    return make_fitting_table(
        console, columns, [set(), same, {*same, "axis"}, {*same, "axis", "exponent>"}], folded="fits best"
    )


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
    from modelhound.analysis.latency import fastest_beyond
    from modelhound.analysis.roofline import bounds_text

    for each in result.ceilings:
        counted = bounds_text(
            row.regime
            for row in result.summaries
            if (row.point.device, row.point.precision) == (each.device, each.precision)
        )
        rates = ", ".join(f"{kind} {number_text(rate * 1e-9)}" for kind, rate in each.kind_flops_per_second.items())
        told = f" ({rates})" if rates else ""
        beyond = fastest_beyond(result.summaries, each)
        if beyond is not None:
            counted = (
                f"a network reached {number_text(beyond * 1e-9)} GFLOP/s, so that something else ran when that was measured, "
                f"and shares are of what was reached; {counted}"
            )
        console.print(
            f"{each.precision} on {each.device} ({each.device_name}{_ROUNDED.get(each.tf32 or '', '')}): "
            f"at most {number_text(each.flops_per_second * 1e-9)} GFLOP/s{told} and "
            f"{number_text(each.bytes_per_second * 1e-9)} GB/s were seen; {counted or 'none was measured'}.",
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


def show_comparison(comparison: "Comparison", console: "Console") -> None:
    from rich.markup import escape

    for run in comparison.runs:
        table = make_table("point", f"{comparison.baseline}>", f"{run.name}>", "ratio>", "interval", "")
        for point in run.points:
            table.add_row(
                escape(point.name),
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
