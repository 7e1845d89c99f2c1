"""Kill every verb at random moments: nothing finished is lost, and the next start ends as if nothing had been."""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from fault_log import FAULT_SEED, counted, wanted
from harmed_verbs import VERBS, WITH_WORKERS, warm_context

NUM_KILLS = wanted("HOUND_NUM_KILLS", 1)
"""Per verb; `make test-faults` makes it many more."""
NUM_WORKER_KILLS = -(-NUM_KILLS // 4)

IN_A_ROW = 4
_ATTEMPTS_PER_KILL = 4
DEADLINE_SECONDS = 180
REFUSED = 3


EVERYDAY = ("search",)
"""What `make test` kills; the others have everyday tests of their own, or take seconds a start."""


def _work(verb: str, folder: Path) -> None:
    from modelhound.errors import HoundError

    os.setsid()  # so that its own children can be ended with it
    os.environ["MODELHOUND_CACHE"] = str(folder / "cache")
    try:
        answer = {**VERBS, **WITH_WORKERS}[verb](folder)
    except HoundError as error:
        (folder / "words").write_text(str(error))
        sys.exit(REFUSED)
    unfinished = folder / "answer.part"
    unfinished.write_text(json.dumps(answer))
    unfinished.rename(folder / "answer.json")


def _nothing() -> None:
    pass


def _start(verb: str, folder: Path) -> ForkServerProcess:
    process = warm_context().Process(target=_work, args=(verb, folder))
    process.start()
    return process


def _finish(verb: str, folder: Path) -> Any:
    process = _start(verb, folder)
    process.join(DEADLINE_SECONDS)
    if process.is_alive():
        _kill(process)
        raise AssertionError(f"{verb} hangs: not done after {DEADLINE_SECONDS} s")
    assert process.exitcode == 0, (folder / "words").read_text() if process.exitcode == REFUSED else "see its traceback"
    return json.loads((folder / "answer.json").read_text())


def _kill(process: ForkServerProcess) -> None:
    assert process.pid is not None
    process.kill()  # it may have ended since somebody looked
    process.join()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # workers that notice a moment later that nobody listens


def _whole_lines(folder: Path) -> list[bytes]:
    path = folder / "run" / "records.jsonl"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


_undisturbed: dict[str, tuple[Any, float]] = {}


def _run_undisturbed(verb: str, folder: Path) -> tuple[Any, float]:
    """The answer, and how long it takes."""
    if verb not in _undisturbed:
        first = warm_context().Process(target=_nothing)  # after it processes start at once
        first.start()
        first.join()
        start = time.monotonic()
        answer = _finish(verb, folder)
        _undisturbed[verb] = answer, time.monotonic() - start
    return _undisturbed[verb]


def _skip_unless_wanted(verb: str) -> None:
    if verb not in EVERYDAY and "HOUND_NUM_KILLS" not in os.environ:
        pytest.skip("in make test-faults")
    chosen = os.environ.get("HOUND_KILLED_VERBS")
    if chosen and not {verb, verb.split()[0]} & set(chosen.split(",")):
        pytest.skip("not asked for")


_killed: Counter[tuple[str, str]] = Counter()


def _skip_if_enough(fault: str, verb: str, number: int) -> None:
    if _killed[fault, verb] >= number:
        pytest.skip("killed often enough")


# Verbs take turns: where the time is over before the kills are, each of them has had its share. On a machine that has become
# quicker since a verb was run undisturbed, most moments come too late.
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("attempt", range(_ATTEMPTS_PER_KILL * NUM_KILLS))
def test_a_verb_killed_at_a_random_moment_loses_nothing_and_ends_the_same(
    verb: str, attempt: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And again while the next start mends what the kill has left. Some moments come too late, so that there are more."""
    _skip_unless_wanted(verb)
    _skip_if_enough("process", verb, NUM_KILLS)
    expected, seconds = _run_undisturbed(verb, tmp_path_factory.mktemp("undisturbed"))
    chance = random.Random(f"{verb} {attempt} {FAULT_SEED}")
    num_killed = 0
    for number in range(min(IN_A_ROW, NUM_KILLS - _killed["process", verb])):
        process = _start(verb, tmp_path)
        process.join(chance.uniform(0, seconds / (number + 1)))  # there is less and less to do
        if process.is_alive():
            _kill(process)
            num_killed += 1
        process.join()
        if (tmp_path / "answer.json").exists():
            break
    _killed["process", verb] += num_killed
    with counted("kill -9 of the process", verb, num_killed):
        before = _whole_lines(tmp_path)
        assert _finish(verb, tmp_path) == expected
        after = _whole_lines(tmp_path)
        assert after[: len(before)] == before  # records are never lost and never rewritten


@pytest.mark.parametrize("verb", WITH_WORKERS)
@pytest.mark.parametrize("attempt", range(_ATTEMPTS_PER_KILL * NUM_WORKER_KILLS))
def test_a_verb_whose_worker_is_killed_ends_in_time_and_the_next_start_ends_the_same(
    verb: str, attempt: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _skip_unless_wanted(verb)
    _skip_if_enough("worker", verb, NUM_WORKER_KILLS)
    expected, seconds = _run_undisturbed(verb, tmp_path_factory.mktemp("undisturbed"))
    process = _start(verb, tmp_path)
    process.join(random.Random(f"worker of {verb} {attempt} {FAULT_SEED}").uniform(0, seconds))
    num_killed = 0
    end = time.monotonic() + seconds
    while process.is_alive() and not num_killed and time.monotonic() < end:
        num_killed = _kill_a_child(process)
        time.sleep(0.02)
    _killed["worker", verb] += num_killed
    with counted("kill -9 of a worker", verb, num_killed):
        process.join(DEADLINE_SECONDS)
        if process.is_alive():
            _kill(process)
            raise AssertionError(f"{verb} hangs: not done {DEADLINE_SECONDS} s after one of its workers was killed")
        assert process.exitcode in (0, REFUSED)  # it went on, or ended in a sentence
        assert _finish(verb, tmp_path) == expected


def _kill_a_child(process: ForkServerProcess) -> int:
    """One of the processes that it has started, if there is any: how many were killed."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
        working = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
        if working:
            random.Random(len(working)).choice(working).kill()
            return 1
    return 0
