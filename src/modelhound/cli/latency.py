"""`hound latency`."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from modelhound.cli.app import DONE, FAILED, Json
from modelhound.cli.console import bars, open_console, print_json
from modelhound.cli.grouping import in_groups, output_group
from modelhound.cli.latency_tables import show_comparison, show_latency, show_plan
from modelhound.cli.offering import Charts, Open, present, write_charts
from modelhound.errors import RequestError
from modelhound.settings import LatencySettings, parse_share

if TYPE_CHECKING:
    from modelhound.analysis.comparison import Comparison
    from modelhound.report.charts import Chart
    from modelhound.verbs.latency import LatencyResult

_TOPICS = {
    "Models": ("models", "where", "weights", "arch", "allow_code"),
    "Shapes": ("batch", "image", "sequence", "precision", "device"),
    "Measuring": ("seconds", "width", "sampling", "compile", "timeout", "memory", "margin", "seed", "on"),
    "Output": ("run",),
}
if TYPE_CHECKING:
    Asked = LatencySettings
else:
    Asked = in_groups(LatencySettings, _TOPICS)
_comparing = Group("Comparing", sort_key=90)


def latency(
    settings: Annotated[Asked | None, Parameter(name="*")] = None,
    *,
    explain: Annotated[bool, Parameter(group="Measuring")] = False,
    compare: Annotated[tuple[Path, ...], Parameter(group=_comparing)] = (),
    fail_if_slower: Annotated[str | None, Parameter(group=_comparing)] = None,
    charts: Charts = (),
    scale: Annotated[Literal["log", "linear"], Parameter(group=output_group)] = "log",
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
    limit = parse_share("fail-if-slower", fail_if_slower, most=10) if fail_if_slower is not None else None
    _check(explain, compare, limit, charts, scale, show)
    if len(compare) > 1:
        _refuse_sweep(settings)
    if explain:
        return _explain(settings, json)
    if len(compare) > 1:
        return _compare(compare, limit, json=json, show=show)
    if compare and settings.run is not None:
        _refuse_itself(compare[0], settings.run, "expected another --run for the sweep")
    with bars() as watch:
        from modelhound.verbs.latency import compare_latency, read_comparable, run_latency

        if compare:
            read_comparable(compare[0])  # a slip in its name must not cost a sweep
        result = run_latency(settings, watch=watch)
    found: Comparison | None = None
    if compare:
        _refuse_itself(compare[0], result.run, "the same request has the same folder, choose another --run")
        found = compare_latency((compare[0], result.run), limit=0.05 if limit is None else limit)

    def tables() -> None:
        show_latency(result)
        if found:
            show_comparison(found, open_console())

    def document() -> dict[str, object]:
        return {**result.to_json(), **({"comparison": _comparison_json(found)} if found else {})}

    present(result.run, document=document, tables=tables, json=json, show=show, is_empty=not result.measured)
    write_charts(lambda: _draw(result, scale), charts, run=result.run)
    slower = limit is not None and found is not None and found.slower
    return FAILED if slower or not result.measured else DONE


def _compare(runs: Sequence[Path], limit: float | None, *, json: bool, show: bool) -> int:
    """Earlier runs with each other."""
    for each in runs[1:]:
        _refuse_itself(runs[0], each, "expected different runs, name each once")
    from modelhound.verbs.latency import compare_latency

    comparison = compare_latency(runs, limit=0.05 if limit is None else limit)
    present(
        *runs,
        document=lambda: _comparison_json(comparison),
        tables=lambda: show_comparison(comparison, open_console()),
        json=json,
        show=show,
    )
    return FAILED if limit is not None and comparison.slower else DONE


def _check(
    explain: bool, compare: Sequence[Path], limit: float | None, charts: Sequence[str], scale: str, show: bool
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
    if scale != "log" and not charts:
        raise RequestError(f"cannot use --scale {scale} without charts: expected --charts png beside it")


def _refuse_itself(baseline: Path, run: Path, advice: str) -> None:
    """A run is not its own baseline."""
    if run.resolve() == baseline.resolve():
        raise RequestError(f"cannot compare {str(baseline)!r} with itself: {advice}")


def _refuse_sweep(settings: LatencySettings) -> None:
    """Where earlier runs are compared with each other, nothing is measured."""
    usual = LatencySettings()
    given = [each.name for each in fields(settings) if getattr(settings, each.name) != getattr(usual, each.name)]
    if given:
        raise RequestError(
            f"cannot use --{given[0].replace('_', '-')} while runs are compared: expected nothing to be measured, leave it out "
            "or name one run with --compare"
        )


def _draw(result: "LatencyResult", scale: Literal["log", "linear"]) -> "tuple[Chart, ...]":
    from modelhound.report.latency_charts import latency_charts

    return latency_charts(
        result.measured, failed=result.failed, laws=result.laws, ceilings=result.ceilings, scale=scale
    )


def _explain(settings: LatencySettings, json: bool) -> int:
    with bars() as watch:
        from modelhound.verbs.latency import explain_latency

        plan = explain_latency(settings, watch=watch)
    if json:
        print_json(plan.to_json())
    else:
        show_plan(plan)
    return DONE if plan.priced else FAILED


def _comparison_json(comparison: "Comparison") -> dict[str, object]:
    from modelhound.records import to_plain

    plain: dict[str, object] = to_plain(comparison)
    return {**plain, "slower": comparison.slower}
