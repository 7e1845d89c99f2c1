"""`hound report`."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from modelhound.analysis.wording import bytes_text, plural
from modelhound.cli.app import DONE, Json
from modelhound.cli.console import bars, open_console, print_json
from modelhound.cli.grouping import in_groups
from modelhound.cli.offering import Open, open_page
from modelhound.settings import ReportSettings

if TYPE_CHECKING:
    from modelhound.report.making import ReportResult

_TOPICS = {"Runs": ("runs",), "Output": ("out", "charts", "markdown", "export", "mlflow")}
if TYPE_CHECKING:
    Asked = ReportSettings
else:
    Asked = in_groups(ReportSettings, _TOPICS)


def report(
    settings: Annotated[Asked | None, Parameter(name="*")] = None, *, show: Open = False, json: Json = False
) -> int:
    """Make one page of a run that opens anywhere, or of several runs side by side."""
    with bars() as watch:
        from modelhound.report.making import run_report

        result = run_report(settings or ReportSettings(), watch=watch)
    if json:
        print_json(result.to_json())
    else:
        _show_report(result, settings.mlflow if settings else None)
    if show:
        open_page(result.page)
    return DONE


def _show_report(result: "ReportResult", mlflow: str | None) -> None:
    console = open_console()
    unfinished = [] if result.finished else ["Not everything that was asked for has been measured yet."]
    lines = [f"Page: {result.page} ({bytes_text(result.num_bytes)})"]
    if result.charts:
        lines.append(
            f"Charts: {plural(len({path.stem for path in result.charts}), 'chart')} in {result.charts[0].parent}"
        )
    if result.markdown:
        lines.append(f"Markdown: {result.markdown}")
    if result.exports:
        lines.append(f"Records: {', '.join(path.name for path in result.exports)} in {result.exports[0].parent}")
    lines += [f"MLflow: run {each} of the experiment modelhound in {mlflow}" for each in result.mlflow_runs]
    for sentence in (result.answer, *unfinished):
        console.print(sentence, markup=False, highlight=False)
    for line in lines:  # to copy
        console.print(line, markup=False, highlight=False, soft_wrap=True)
