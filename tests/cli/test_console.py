"""What a terminal, a pipe and a person without colours get."""

import io
import sys
import time
from pathlib import Path

import numpy
import pytest

from modelhound import cli
from modelhound.analysis.ranking import rank_models
from modelhound.cli.console import bars, complain, make_fitting_table, make_table, open_console
from modelhound.cli.search import _ranking_table
from modelhound.records import Failure, Progress
from modelhound.store import open_run
from report_runs import measure


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    """A message and a table, as this stream gets them."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    complain("it does not work")
    table = make_table("model", "score>")
    table.add_row("zoo:a", "[bold]1.0[/bold]")
    open_console().print(table)
    return stream.getvalue()


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31mhound: it does not work" in shown(monkeypatch, Screen())


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    said = shown(monkeypatch, Screen())
    assert "hound: it does not work" in said
    assert "\x1b[3" not in said  # bold is no colour, and may stay


def test_a_pipe_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(monkeypatch, io.StringIO())
    assert "zoo:a" in said
    assert "\x1b" not in said


def test_a_table_in_a_pipe_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    table = make_table("model", "why")
    table.add_row("a" * 70, "b" * 70)
    open_console().print(table)
    assert any("a" * 70 in line and "b" * 70 in line for line in stream.getvalue().splitlines())


PROSE = (
    "  • it takes long to read the file '/data/of mine/weights.safetensors' and `hound models 'timm:*'` tells why, see "
)
FOLDER = "/a/folder/that/is/longer/than/the/screen/and/has/to/be/copied/in/one/piece"


def test_prose_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "46")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    open_console().print(PROSE + FOLDER, markup=False, highlight=False)
    assert screen.getvalue().splitlines() == [
        "  • it takes long to read the file",
        "    '/data/of mine/weights.safetensors' and",
        "    `hound models 'timm:*'` tells why, see",
        f"    {FOLDER}",
    ]


def test_a_message_is_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    complain("cannot find the data: expected a folder, check how it is written")
    assert max(map(len, screen.getvalue().replace("\x1b[31m", "").replace("\x1b[0m", "").splitlines())) <= 30
    assert len(screen.getvalue().splitlines()) == 3


def test_a_command_to_copy_and_what_a_pipe_gets_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, pipe = Screen(), io.StringIO()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", screen)
    open_console().print("As a page: hound report runs/one", soft_wrap=True, highlight=False)
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "stdout", pipe)
    open_console().print(3 * PROSE, markup=False)
    assert screen.getvalue() == "As a page: hound report runs/one\n"
    assert pipe.getvalue() == 3 * PROSE + "\n"


def shows(screen: Screen, text: str) -> bool:
    for _ in range(3000):
        if text in screen.getvalue():
            return True
        time.sleep(0.01)
    return False


def test_bars_tell_how_far_it_is_and_how_long_it_takes_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with bars() as watch:
        assert shows(screen, "starting"), "what a verb imports takes seconds"
        watch(Progress(task="models", done=0, total=40, detail="zoo:a"))
        assert shows(screen, " 0/40")  # bars are drawn ten times a second
        watch(Progress(task="models", done=20, total=40, detail="zoo:b"))
        assert shows(screen, "models zoo:b")
        watch(Progress(task="items", done=5, total=7))
        watch(Progress(task="models", done=3, total=40, detail="zoo:c"))
        assert shows(screen, " 3/40"), "the next begins its items anew"
    said = screen.getvalue()
    assert "left:" in said
    assert "/100" not in said


@pytest.mark.parametrize("name", ["file:runs[red]/model", "file:runs[/old]/model"])
def test_bars_show_a_name_that_looks_like_markup_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with bars() as watch:
        watch(Progress(task="models", done=0, total=40, detail=name))
        assert shows(screen, f"models {name}")


def test_a_log_gets_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with bars() as watch:
        watch(Progress(task="models", done=1, total=2))
    assert stream.getvalue() == ""


def test_a_name_is_not_broken_in_a_narrow_terminal_unless_it_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Screen()
    monkeypatch.setattr(sys, "stdout", stream)
    name, path = "zoo:resnet-shapes-garments_b", "file:/somewhere/far/away/" + "x" * 60
    for model in (name, path):
        table = make_table("model", "what was found")
        table.add_row(model, "words that can be broken wherever there is a space between them")
        open_console().print(table)
    lines = stream.getvalue().splitlines()
    assert any(name in line for line in lines)
    assert sum(line.count("x") for line in lines) == 60  # nothing of the long one is cut off


def test_a_table_has_as_many_columns_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"model": ["zoo:a"], "score>": ["1.0"], "by size": ["zoo:" + "b" * 30]}
    for width, expected in (("100", ["model", "score", "by size"]), ("40", ["model", "score"]), ("5", ["model"])):
        monkeypatch.setenv("COLUMNS", width)
        left_out = ((), ("by size",), ("by size", "score>"))
        table = make_fitting_table(open_console(), columns, left_out)
        assert [column.header for column in table.columns] == expected
        assert table.columns[0].no_wrap is (width != "5")


@pytest.mark.parametrize("width", [80, 90, 100, 120, 160])
def test_no_terminal_breaks_the_name_of_a_run(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = ["runs/breakeven-digits-4dfeaa64", "runs/latency-resnet-shapes-5e546a1e", "runs/search-sms-8d15cc4b"]
    for name in names:
        with open_run(Path(name), verb="search", at="2026-11-18T22:00:00+00:00", settings={}, identity={}) as run:
            run.append(Failure(model="zoo:a", phase="forward", error="no"))
            run.write_answer(
                Failure(model="", phase="", error=""),
                headline="above 207 models the search takes longer (zoo:resnet-shapes, 60 items)",
            )
    assert cli.run(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(name in line for line in lines) for name in names)
    assert max(map(len, lines)) <= width
    assert ("asked at" in lines[1]) is (width >= 90)


def test_with_a_damaged_run_nobody_is_told_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/broken").mkdir(parents=True)
    Path("runs/broken/asked.json").write_text("{")
    assert cli.run(["runs"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "nobody knows what was asked" in said
    assert "start the same command again" not in said


def test_a_long_answer_takes_several_lines_before_a_column_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"run": ["runs/one"], "verb": ["loader"], "answer": ["words of an answer that go on and on " * 5]}
    for width, expected in (("70", ["run", "verb", "answer"]), ("45", ["run", "answer"])):
        monkeypatch.setenv("COLUMNS", width)
        stream = Screen()
        monkeypatch.setattr(sys, "stdout", stream)
        table = make_fitting_table(open_console(), columns, ((), ("verb",)), folded="answer")
        assert [column.header for column in table.columns] == expected
        open_console().print(table)
        assert stream.getvalue().count("words") == 5


@pytest.mark.parametrize("name", ["file:runs[red]/model", "file:runs[/old]/model", "file:" + 60 * "[b]"])
def test_a_name_that_looks_like_markup_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    console = open_console()
    console.print(make_fitting_table(console, {"model": [name], "score>": ["[bold]1.0[/bold]"]}, [()]))
    assert name in stream.getvalue()
    assert "[bold]" not in stream.getvalue()


def test_the_control_beside_a_ranking_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    name, generator = "file:runs[/old]/model", numpy.random.default_rng(0)
    ranking = rank_models([measure(name, 0, 1, 120, generator)], rests_on=("ridge",), seed=0)
    console = open_console()
    console.print(_ranking_table(ranking, None, console))
    assert stream.getvalue().count(name) == 2  # by score, and by size
