"""What can be asked of `hound report`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from modelhound.errors import RequestError
from modelhound.settings.checks import check_choices, check_text, split_list, tidy

__all__ = ["ReportSettings", "parse_chart_formats"]

_FORMATS = ("png", "svg")


@dataclass(frozen=True)
class ReportSettings:
    """One page that opens anywhere, of one run or of several side by side."""

    runs: tuple[Path, ...] = ()
    """Run folders, or their names below runs/; the default is the newest run. Several are compared on one page."""

    out: Path | None = field(default=None, kw_only=True)
    """The HTML file; the default is report.html in the run folder, or here for several runs."""

    charts: tuple[str, ...] = field(default=(), kw_only=True)
    """png, svg: every chart as a picture as well, in a folder beside the page."""

    markdown: bool = field(default=False, kw_only=True)
    """Write the page as Markdown too, with its charts as pictures."""

    export: tuple[str, ...] = field(default=(), kw_only=True)
    """csv, parquet: the records for other programs, in a folder beside the page."""

    mlflow: str | None = field(default=None, kw_only=True)
    """Address of an MLflow server or store, such as sqlite:///mlflow.db: write parameters, metrics and files there."""

    def __post_init__(self) -> None:
        runs = (self.runs,) if isinstance(self.runs, str | Path) else self.runs
        tidy(self, "runs", tuple(Path(each) for each in runs))
        if isinstance(self.out, str):
            tidy(self, "out", Path(self.out))
        tidy(self, "charts", parse_chart_formats(self.charts))
        tidy(self, "export", split_list(self.export))
        for run in self.runs:
            check_text("runs", str(run))
        if self.export:
            check_choices("export", self.export, ("csv", "parquet"))
        if self.mlflow is not None:
            check_text("mlflow", self.mlflow)
        if self.out is not None:
            check_text("out", str(self.out))
            if self.out.suffix.lower() not in (".html", ".htm"):
                raise RequestError(
                    f"cannot use --out {str(self.out)!r}: expected the name of an HTML file, such as report.html"
                )


def parse_chart_formats(given: str | Iterable[str]) -> tuple[str, ...]:
    """What --charts takes in every verb: png, svg or both."""
    formats = split_list(given)
    wrong = next((each for each in formats if each not in _FORMATS), None)
    if wrong is not None:
        raise RequestError(
            f"cannot use --charts {wrong!r}: expected png, svg or both, which are put into a folder beside the page"
        )
    return formats
