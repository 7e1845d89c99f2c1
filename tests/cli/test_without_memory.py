"""Where memory ends, the command says so and what to do: without a traceback, and without a request to report it."""

import subprocess
import sys

import pytest

from modelhound import cli
from modelhound.cli import console
from modelhound.verbs import prepare


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory this way")
def test_a_limit_that_leaves_no_room_for_the_libraries_is_refused_before_they_are_loaded() -> None:
    """They would hang or abort."""
    started = f"ulimit -v 250000; exec {sys.executable} -m modelhound train digits"
    done = subprocess.run(["bash", "-c", started], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("hound: cannot run `hound train` in 256 MB of memory: expected a limit of ")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory ran out: whatever was finished is kept"),
        (RuntimeError("can't start new thread"), "memory ran out (RuntimeError: can't start new thread): whatever was"),
    ],
)
def test_memory_that_runs_out_is_said_and_nobody_is_asked_to_report_it(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_out(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(prepare, "run_prepare", run_out)
    assert cli.run(["prepare", "photos", "ready"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert words in said
    assert "start the same command again to go on" in said
    assert "report" not in said


def test_an_error_that_came_of_a_lack_of_memory_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def miss(*given: object, **named: object) -> None:
        try:
            raise MemoryError
        except MemoryError as error:
            raise KeyError("what could not be loaded") from error

    monkeypatch.setattr(prepare, "run_prepare", miss)
    assert cli.run(["prepare", "photos", "ready"]) == 1
    assert "memory ran out: whatever was finished is kept" in " ".join(capsys.readouterr().err.split())


def test_a_complaint_that_has_no_memory_to_look_well_is_made_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run_out(**named: object) -> None:
        raise MemoryError

    monkeypatch.setattr(console, "open_console", run_out)
    console.complain("memory ran out")
    assert capfd.readouterr().err == "hound: memory ran out\n"


_LOSING_A_THREAD = """
import sys, threading
from modelhound.cli.lost_threads import end_where_threads_are_lost

end_where_threads_are_lost()

def begin(self):
    raise MemoryError

threading.Thread._bootstrap = begin  # what a thread without memory comes to
threading.Thread(target=print).start()
"""


def test_a_thread_that_has_no_memory_to_begin_ends_the_command_instead_of_being_waited_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOSING_A_THREAD], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("hound: memory ran out while a thread was started: whatever was finished is kept")


def test_other_errors_that_nobody_can_catch_are_told_as_ever() -> None:
    code = (
        "import time; from modelhound.cli.lost_threads import end_where_threads_are_lost; end_where_threads_are_lost()\n"
        "class Odd:\n    def __del__(self): raise ValueError('told all the same')\n"
        "Odd(); time.sleep(0.5)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "ValueError: told all the same" in done.stderr) == (0, True)
