"""What a terminal, a pipe and a person without colours get."""

import io
import sys
import time

import pytest

from modelhound.cli.console import bars, complain, make_table, open_console
from modelhound.records import Progress


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
    table.add_row("[bold]zoo:a[/bold]", "1.0")
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


def test_bars_tell_how_far_it_is_and_how_long_it_takes_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with bars() as watch:
        watch(Progress(task="models", done=0, total=40, detail="zoo:a"))
        time.sleep(0.15)  # bars are drawn ten times a second
        watch(Progress(task="models", done=20, total=40, detail="zoo:b"))
        time.sleep(0.15)
    said = screen.getvalue()
    assert "0/40" in said
    assert "models zoo:b" in said
    assert "left:" in said
    assert "/100" not in said


def test_a_log_gets_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with bars() as watch:
        watch(Progress(task="models", done=1, total=2))
    assert stream.getvalue() == ""
