"""`hound report`, as a person types it."""

import json
from pathlib import Path

import pytest

from modelhound.cli import run
from report_runs import write_search


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_becomes_a_page_in_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    write_search(Path("runs/one"), ["zoo:a", "zoo:b"])
    assert run(["report", "runs/one"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("zoo:a suits fashion best: ")
    assert "Page: runs/one/report.html" in said
    assert Path("runs/one/report.html").read_text().startswith("<!doctype html>")


def test_without_a_run_the_newest_is_taken_and_a_bare_name_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    write_search(Path("runs/one"), ["zoo:a"])
    assert run(["report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == "runs/one/report.html"
    assert run(["report", "one", "--out", "new/page.html", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["runs"] == ["runs/one"]
    assert document["num_bytes"] == Path("new/page.html").stat().st_size


def test_a_run_that_has_not_ended_is_not_told_as_the_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    write_search(Path("runs/one"), ["zoo:a"], finish=False)
    assert run(["report"]) == 0
    assert "measured yet." in capsys.readouterr().out
    write_search(Path("runs/two"), ["zoo:a"])
    assert run(["report", "two"]) == 0
    assert "measured yet." not in capsys.readouterr().out


def test_a_run_folder_may_be_called_what_looks_like_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    write_search(Path("runs/[old]"), ["zoo:a"])
    assert run(["report", "runs/[old]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == "runs/[old]/report.html"
    assert run(["report", "[old]"]) == 0


def test_several_runs_charts_markdown_and_exports_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    write_search(Path("runs/one"), ["zoo:a", "zoo:b"])
    write_search(Path("runs/two"), ["zoo:a", "zoo:b"], seed=3)
    words = [
        "report",
        "runs/one",
        "runs/two",
        "--out",
        "both.html",
        "--charts",
        "svg",
        "--markdown",
        "--export",
        "csv,parquet",
    ]
    assert run(words) == 0
    said = capsys.readouterr().out
    assert "Markdown: both.md" in said
    assert f"Charts: {len(list(Path('both-charts').iterdir()))} charts in both-charts" in said
    pictures = sorted(path.name for path in Path("both-charts").iterdir())
    assert "compare_scores.svg" in pictures
    text = Path("both.md").read_text()
    for name in pictures:
        assert f"](both-charts/{name})" in text
    assert Path("both-records/model.csv").exists()
    assert Path("both-records/model.parquet").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["report"], "there is none in 'runs' yet; begin with: hound search fashion"),
        (["report", "nowhere"], "cannot read run 'nowhere': expected a run folder"),
        (["report", "runs/one", "one"], "cannot compare 'runs/one' with itself: expected different runs"),
        (["report", "runs/one/asked.json", "--json"], "cannot read run 'runs/one/asked.json': expected a run folder"),
        (["report", "runs/one", "--charts", "gif"], "cannot use --charts 'gif': expected png, svg or both"),
        (["report", "runs/one", "--export", "xlsx"], "cannot use --export 'xlsx'"),
        (["report", "runs/one", "--out", "page.pdf"], "expected the name of an HTML file"),
        (["report", "runs/one", "--out", "/proc/nowhere/x.html"], "cannot write '/proc/nowhere/x.html'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if len(words) > 2:
        write_search(Path("runs/one"), ["zoo:a"])
    assert run(words) == 2
    seen = capsys.readouterr()
    assert complaint in seen.err
    assert seen.err.count("\n") == 1
    assert seen.out == ""


def test_open_hands_the_page_to_the_browser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    write_search(Path("runs/one"), ["zoo:a"])
    assert run(["report", "runs/one", "--open"]) == 0
    assert opened == [Path("runs/one/report.html").resolve().as_uri()]


def test_a_machine_without_a_browser_is_told_what_to_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    write_search(Path("runs/one"), ["zoo:a"])
    assert run(["report", "runs/one", "--open"]) == 0
    assert "open runs/one/report.html yourself" in capsys.readouterr().err
