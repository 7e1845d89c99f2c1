"""Runs -> the files that were asked for: page, pictures, Markdown, exports.

In:  ReportSettings
Out: a ReportResult, and the files it names
Nothing here prints or opens anything.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.errors import RequestError
from modelhound.records import Progress, Watch, silent
from modelhound.report.charts import Chart, save_charts
from modelhound.report.exporting import export_records
from modelhound.report.markdown import render_markdown
from modelhound.report.page import render_page
from modelhound.report.pages import build_page
from modelhound.report.parts import plain_text
from modelhound.report.tracking import log_to_mlflow
from modelhound.report.writing import write_file
from modelhound.settings import ReportSettings
from modelhound.store import DEFAULT_ROOT, Run, list_runs, read_run

__all__ = ["ReportResult", "pictures_folder", "run_report"]

_PAGE = "report.html"


class ReportResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and where."""

    runs: tuple[Path, ...]
    answer: str
    """The sentence the page begins with."""
    page: Path
    num_bytes: int
    """Of the page."""
    finished: bool
    """Whether all of the runs have ended, so that this is their last word."""
    charts: tuple[Path, ...] = ()
    markdown: Path | None = None
    exports: tuple[Path, ...] = ()
    mlflow_runs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document that `hound report --json` prints."""
        return {
            "runs": [str(path) for path in self.runs],
            "answer": self.answer,
            "page": str(self.page),
            "num_bytes": self.num_bytes,
            "finished": self.finished,
            "charts": [str(path) for path in self.charts],
            "markdown": str(self.markdown) if self.markdown else None,
            "exports": [str(path) for path in self.exports],
            "mlflow_runs": list(self.mlflow_runs),
        }


def run_report(settings: ReportSettings, *, watch: Watch = silent) -> ReportResult:
    """Do what `settings` ask for."""
    paths = _find_runs(settings.runs)
    steps = 2 + bool(settings.charts or settings.markdown) + bool(settings.export) + len(paths) * bool(settings.mlflow)
    done = 0

    def step(detail: str) -> None:
        nonlocal done
        watch(Progress(task="report", done=done, total=steps, detail=detail))
        done += 1

    step("reading")
    runs = [read_run(path) for path in paths]
    page = build_page(runs)
    out = settings.out or (paths[0] / _PAGE if len(paths) == 1 else Path(_PAGE))
    sources = ", ".join(path.name for path in paths[:8]) + (" and others" if len(paths) > 8 else "")
    step("page")
    html = render_page(page, sources=sources).encode()
    write_file(out, html)
    charts: tuple[Path, ...] = ()
    if settings.charts or settings.markdown:
        step("charts")
        charts = save_charts(page.charts, _beside(out, "charts"), settings.charts or ("png",), watch=watch)
    markdown = None
    if settings.markdown:
        pictures = _pictures(page.charts, charts, out.parent)
        markdown = write_file(
            out.with_suffix(".md"), render_markdown(page, pictures=pictures, sources=sources).encode()
        )
    exports: tuple[Path, ...] = ()
    if settings.export:
        step("exports")
        exports = export_records(runs, _beside(out, "records"), settings.export)
    mlflow_runs = []
    for run in runs if settings.mlflow else ():
        step("MLflow")
        mlflow_runs.append(
            log_to_mlflow(
                run, settings.mlflow or "", {"": [out, *_files_of(run)], "charts": charts, "records": exports}
            )
        )
    watch(Progress(task="report", done=steps, total=steps))
    return ReportResult(
        runs=tuple(paths),
        answer=plain_text(page.answer),
        page=out,
        num_bytes=len(html),
        finished=all(run.answer is not None for run in runs),
        charts=charts,
        markdown=markdown,
        exports=exports,
        mlflow_runs=tuple(mlflow_runs),
    )


def pictures_folder(run: Path) -> Path:
    """Where the charts of one run lie, whichever command draws them."""
    return _beside(run / _PAGE, "charts")


def _find_runs(given: Sequence[Path]) -> list[Path]:
    """The folders that are meant: as given, or below runs/; without any, the newest run."""
    if not given:
        newest = next((Path(each.run) for each in list_runs() if each.verb != "damaged"), None)
        if newest is None:
            raise RequestError(
                f"cannot make a report: expected a run folder, and there is none in {str(DEFAULT_ROOT)!r} yet; begin with: "
                "hound search fashion"
            )
        return [newest]
    found = []
    for path in given:
        below = DEFAULT_ROOT / path
        found.append(below if not path.is_dir() and not path.is_absolute() and below.is_dir() else path)
    whole = [path.resolve() for path in found]
    twice = next((path for place, path in enumerate(found) if whole[place] in whole[:place]), None)
    if twice is not None:
        raise RequestError(f"cannot compare {str(twice)!r} with itself: expected different runs, name each once")
    return found


def _beside(out: Path, what: str) -> Path:
    return out.with_name(f"{out.stem}-{what}")


def _pictures(charts: Sequence[Chart], files: Sequence[Path], folder: Path) -> dict[str, str]:
    """Chart -> its picture, as seen from `folder`; PNG before SVG, since every viewer shows it."""
    found: dict[str, str] = {}
    for path in sorted(files, key=lambda path: path.suffix != ".png"):
        found.setdefault(path.stem, path.relative_to(folder).as_posix())
    return {chart.name: found[chart.name] for chart in charts if chart.name in found}


def _files_of(run: Run) -> list[Path]:
    """What the run folder holds, but for the lock and what was made from it."""
    return [path for path in sorted(run.path.glob("*.json*")) if path.is_file()]
