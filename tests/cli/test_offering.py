"""How every command ends: JSON or tables, charts where asked for, and the page."""

import importlib
import inspect
import json
import webbrowser
from pathlib import Path

import pytest

from modelhound import cli
from modelhound.cli.console import open_console
from modelhound.cli.offering import present, show_failures, write_charts
from modelhound.records import Failure
from modelhound.report.making import run_report
from modelhound.report.pages import build_page
from modelhound.report.verb_charts import charts_of
from modelhound.settings import ReportSettings
from modelhound.store import read_run
from verb_runs import write_verb_runs


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that the browser was asked to show."""
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) or True)
    return shown


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_says_of_a_command_what_the_command_says_of_itself(name: str) -> None:
    function = getattr(importlib.import_module(f"modelhound.cli.{name}"), name)
    assert inspect.getdoc(function).splitlines()[0] == cli.COMMANDS[name]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["breakeven", "latency", "loader", "profile", "search", "train"])
def test_every_verb_that_leaves_a_run_can_show_its_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert "--open" in said
    assert "--json" in said
    assert "--charts" in said


def test_tables_are_followed_by_how_to_get_the_page(capsys: pytest.CaptureFixture[str], opened: list[str]) -> None:
    present(Path("runs/my run"), document=dict, tables=lambda: open_console().print("a table"), json=False, show=False)
    said = capsys.readouterr().out
    assert said == "a table\nEverything measured is in runs/my run\nAs a page: hound report 'runs/my run'\n"
    assert opened == []


def test_the_terminal_offers_the_next_steps_of_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for run in write_verb_runs(tmp_path).values():
        present(run, document=dict, tables=lambda: None, json=False, show=False)
        said = capsys.readouterr().out.splitlines()
        page = build_page([read_run(run)])
        assert [f"{label}: {command}" for label, command in page.next_steps] == said[:-2]


def test_json_stands_alone_and_the_page_is_shown_all_the_same(
    capsys: pytest.CaptureFixture[str], opened: list[str], tmp_path: Path
) -> None:
    run = write_verb_runs(tmp_path)["profile"]
    present(run, document=lambda: {"found": 1}, tables=lambda: open_console().print("a table"), json=True, show=True)
    assert json.loads(capsys.readouterr().out) == {"found": 1}
    assert opened == [(run / "report.html").as_uri()]


def test_charts_and_an_analysis_go_where_they_are_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    charts = charts_of(read_run(write_verb_runs(tmp_path / "runs")["profile"]))[:1]
    run = Path("mine")
    words = lambda drawn: f"{len(drawn)} chart"  # noqa: E731
    write_charts(lambda: charts, ("png", "svg"), run=run, analysis=Path("told"), words=words)
    assert {path.suffix for path in Path("mine/report-charts").iterdir()} == {".png", ".svg"}
    assert Path("told/README.md").read_text() == "1 chart"
    said = capsys.readouterr().err
    assert "hound: 1 chart is in mine/report-charts" in said
    assert "hound: the analysis is in told/README.md" in said


def test_nothing_measured_leaves_nothing_behind_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    write_charts(lambda: (), ("png",), run=Path("mine"))
    assert not Path("mine").exists()
    assert "nothing to draw" in capsys.readouterr().err


def test_charts_that_nobody_asked_for_are_not_drawn() -> None:
    write_charts(lambda: pytest.fail("drawn"), (), run=Path("mine"))


def test_a_verb_and_its_report_draw_the_charts_into_one_folder(tmp_path: Path) -> None:
    run = write_verb_runs(tmp_path)["profile"]
    charts = charts_of(read_run(run))[:1]
    write_charts(lambda: charts, ("svg",), run=run)
    (drawn,) = run.glob("*/*.svg")
    before = drawn.read_bytes()
    drawn.write_bytes(b"")
    run_report(ReportSettings(runs=(run,), charts=("svg",)))
    assert drawn.read_bytes() == before


def test_what_happened_to_many_models_in_the_same_way_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("hf:org/a", "hf:org/b", "hf:org/c")
    alike = [Failure(model=name, phase="read weights", error=f"cannot fetch {name}: no hub") for name in names]
    other = Failure(model="hf:org/d", phase="forward", error="out of memory")
    tagged = [
        Failure(model=f"timm:net{number}", phase="build model", error=f"cannot fetch hf:timm/net{number}.tag_{number}")
        for number in (1, 2)
    ]
    show_failures([*alike, other, *tagged], open_console())
    assert capsys.readouterr().out.splitlines() == [
        "Failed: hf:org/a in phase 'read weights': cannot fetch hf:org/a: no hub. The same of hf:org/b, hf:org/c",
        "Failed: hf:org/d in phase 'forward': out of memory",
        "Failed: timm:net1 in phase 'build model': cannot fetch hf:timm/net1.tag_1. The same of timm:net2",
    ]
