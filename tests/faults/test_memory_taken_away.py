"""Memory taken away from every verb, at its start and in mid-run: it ends in time and in a sentence, the next start the same.

A limit on the address space (ulimit -v) makes the system refuse what is asked for, which is what software meets where memory
cannot be promised. Where a whole machine or a container runs out of it, the system kills instead: see `test_every_verb_killed`.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import random
import resource
import signal
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault_log import FAULT_SEED, counted, note_fault
from harmed_verbs import VERBS, command_of, warm_context, write_photos

MANY = "HOUND_MANY_FAULTS" in os.environ
MOMENTS = ["begin", "begin", "early", "late"]
EVERYDAY = [("train", "early", 1)]
STARVED = [(verb, moment, number) for number, moment in enumerate(MOMENTS) for verb in VERBS] if MANY else EVERYDAY
DEADLINE_SECONDS = 180.0
ENDINGS = (0, 1, 2)
ABORTS = (-signal.SIGABRT, -signal.SIGSEGV, 127, 134)
"""How libraries written in C end a process that they can get no memory for; 127 is the C library itself."""

_undisturbed: dict[str, tuple[Any, float]] = {}


def _begin(folder: Path) -> None:
    os.setsid()
    os.environ["MODELHOUND_CACHE"] = str(folder / "cache")


def _run_command(verb: str, folder: Path, more_bytes: int | None) -> None:
    """What a person would start, with no more than so many bytes beside what it begins with."""
    _begin(folder)
    words = os.open(folder / "words", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(words, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    from modelhound.__main__ import main

    command: Any = importlib.import_module("modelhound.cli.app")
    command._refuse_too_little_memory = lambda argv: (
        None
    )  # for what a fresh process needs: this one has its libraries already
    faulthandler.register(signal.SIGUSR1)  # into the words, where it hangs
    (folder / "begun").touch()
    if more_bytes is not None:
        _limit(psutil.Process(), more_bytes)
    sys.argv[1:] = command_of(verb, folder)
    main()


def _find_answer(verb: str, folder: Path) -> None:
    _begin(folder)
    (folder / "answer.json").write_text(json.dumps(VERBS[verb](folder)))


def _limit(process: psutil.Process, more_bytes: int) -> None:
    most = process.memory_info().vms + more_bytes
    resource.prlimit(process.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _start(verb: str, folder: Path, more_bytes: int | None = None) -> ForkServerProcess:
    write_photos(folder)
    process = warm_context().Process(target=_run_command, args=(verb, folder, more_bytes))
    process.start()
    return process


def _wait_for(process: ForkServerProcess, verb: str, folder: Path) -> int:
    process.join(DEADLINE_SECONDS)
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGUSR1)
        process.join(1)
        os.killpg(process.pid, signal.SIGKILL)
        words = (folder / "words").read_text(errors="replace")
        raise AssertionError(f"{verb} hangs: not done after {DEADLINE_SECONDS:.0f} s: {words}")
    assert process.exitcode is not None
    return process.exitcode


def _answer(verb: str, folder: Path) -> Any:
    write_photos(folder)
    process = warm_context().Process(target=_find_answer, args=(verb, folder))
    process.start()
    assert _wait_for(process, verb, folder) == 0, "see its traceback"
    return json.loads((folder / "answer.json").read_text())


def _run_undisturbed(verb: str, folder: Path) -> tuple[Any, float]:
    """The answer, and how long the command takes."""
    if verb not in _undisturbed:
        process = _start(verb, folder)
        while not (folder / "begun").exists() and process.is_alive():
            time.sleep(0.01)
        began = time.monotonic()
        assert _wait_for(process, verb, folder) == 0, (folder / "words").read_text()
        seconds = time.monotonic() - began
        _undisturbed[verb] = _answer(verb, folder), seconds
    return _undisturbed[verb]


def _take_memory(process: ForkServerProcess, more_bytes: int) -> None:
    """From it and from all that it has started; nothing where it is through by now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for each in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                _limit(each, more_bytes)


def _starve(verb: str, folder: Path, moment: str, more_bytes: int, seconds: float, chance: random.Random) -> int:
    """The exit code of a command that memory is taken from at that moment."""
    if moment == "begin":
        return _wait_for(_start(verb, folder, more_bytes), verb, folder)
    process = _start(verb, folder)
    while not (folder / "begun").exists() and process.is_alive():
        time.sleep(0.005)
    process.join(chance.uniform(*{"early": (0.0, 0.5), "late": (0.5, 1.0)}[moment]) * seconds)
    if process.is_alive():
        _take_memory(process, more_bytes)
    return _wait_for(process, verb, folder)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of another process")
@pytest.mark.parametrize(("verb", "moment", "number"), STARVED)
def test_memory_that_is_taken_away_is_said_and_the_next_start_ends_as_if_it_had_not_been(
    verb: str, moment: str, number: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected, seconds = _run_undisturbed(verb, tmp_path_factory.mktemp("undisturbed"))
    chance = random.Random(f"memory of {verb} {moment} {number} {FAULT_SEED}")
    more_bytes = chance.choice([0, 1, 5, 20, 60, 150] if moment == "begin" else [0, 0, 1, 5]) << 20
    with counted("memory taken away", verb):
        ended = _starve(verb, tmp_path, moment, more_bytes, seconds, chance)
        words = (tmp_path / "words").read_text(errors="replace")
        records = tmp_path / "run" / "records.jsonl"
        before = records.read_bytes().split(b"\n")[:-1] if records.exists() else []
        assert ended in (*ENDINGS, *ABORTS)
        if ended in ENDINGS:
            assert "please report" not in words, words
            assert "modelhound/cli" not in words, words  # no traceback of ours
            assert ended == 0 or "memory" in words.lower() or "timed out" in words, words
        else:
            note_fault("memory taken away: a library ended the process", verb, tried=1, survived=1)
        assert _answer(verb, tmp_path) == expected
        assert not before or records.read_bytes().split(b"\n")[: len(before)] == before
