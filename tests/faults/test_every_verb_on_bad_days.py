"""Full disks, damaged files and processes that stop, for every verb: it ends in time and in a sentence, and the next start
mends it. What befalls a search is told in `test_bad_days`, kills in `test_every_verb_killed`."""

import json
import multiprocessing
import os
import random
import resource
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import modelhound
from fault_log import FAULT_SEED, counted
from harmed_verbs import VERBS, WITH_WORKERS, warm_context, write_photos
from modelhound.data import loader_processes
from modelhound.errors import HoundError
from modelhound.launch import run_on_ranks
from modelhound.training import series

pytestmark = pytest.mark.skipif("HOUND_MANY_FAULTS" not in os.environ, reason="in make test-faults")

FULL_DISKS = [
    *(("train", size) for size in (500, 3_000, 60_000)),
    *(("search --finals", size) for size in (3_000, 60_000)),
    *((verb, size) for verb in ("prepare", "loader", "profile", "breakeven") for size in (500, 3_000)),
    *(("latency", size) for size in (500, 3_000)),
]
OTHER_RECORDS = [verb for verb in VERBS if verb not in ("search", "search --plain", "prepare")]
MODEL = "zoo:resnet-glyphs"
NUM_DAMAGES = 10
DEADLINE_SECONDS = 180.0

_expected: dict[str, Any] = {}


def _undisturbed(verb: str, factory: pytest.TempPathFactory) -> Any:
    if verb not in _expected:
        _expected[verb] = _in_child(verb, factory.mktemp("undisturbed"))
    return _expected[verb]


def _in_child(verb: str, folder: Path, max_bytes: int | None = None) -> Any:
    """Its answer, or the sentence that it was refused with."""
    answer = folder / "answer.json"
    process = warm_context().Process(target=_work, args=(verb, folder, max_bytes, answer))
    process.start()
    process.join(DEADLINE_SECONDS)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"{verb} hangs: not done after {DEADLINE_SECONDS:.0f} s")
    assert process.exitcode == 0, "see its traceback"
    return json.loads(answer.read_text())


def _work(verb: str, folder: Path, max_bytes: int | None, answer: Path) -> None:
    os.environ["MODELHOUND_CACHE"] = str(folder / "cache")
    write_photos(folder)
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    # A limit on file size ends a write as a full disk does: a part of it, then an error.
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited if max_bytes is None else (max_bytes, unlimited[1]))
    try:
        found = VERBS[verb](folder)
    except HoundError as error:
        found = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    answer.write_text(json.dumps(found))


@pytest.mark.parametrize(("verb", "max_bytes"), FULL_DISKS)
def test_a_full_disk_is_said_and_the_next_start_ends_as_if_it_had_not_been(
    verb: str, max_bytes: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected = _undisturbed(verb, tmp_path_factory)
    with counted("full disk", verb):
        found = _in_child(verb, tmp_path, max_bytes)
        assert found == expected or "free some space" in found
        assert _in_child(verb, tmp_path) == expected


def _damage(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    if chance.random() < 0.3:
        del content[start:]
    else:
        content[start] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(NUM_DAMAGES))
def test_of_damaged_checkpoints_nothing_is_used(
    seed: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Records are damaged, too, so that training has to go on from what was kept."""
    expected = _undisturbed("train", tmp_path_factory)
    with counted("random bytes of records and checkpoints damaged", "train"):
        assert _in_child("train", tmp_path) == expected
        chance = random.Random(f"checkpoints {seed} {FAULT_SEED}")
        (tmp_path / "run" / "answer.json").unlink()
        (tmp_path / "run" / "records.jsonl").write_bytes(b"")
        files = sorted(path for path in tmp_path.rglob("epoch-*/*") if path.is_file())
        assert files
        for path in chance.sample(files, 2):
            _damage(path, chance)
        assert _in_child("train", tmp_path) == expected


@pytest.mark.parametrize("verb", OTHER_RECORDS)
@pytest.mark.parametrize("seed", range(2))
def test_of_damaged_records_nothing_is_used_and_what_they_held_is_measured_again(
    seed: int, verb: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Those of a search are damaged in `test_bad_days`; prepared items have checksums of their own."""
    expected = _undisturbed(verb, tmp_path_factory)
    with counted("random bytes of records damaged", verb):
        assert _in_child(verb, tmp_path) == expected
        chance = random.Random(f"records of {verb} {seed} {FAULT_SEED}")
        for name in ("records.jsonl", "answer.json"):
            _damage(tmp_path / "run" / name, chance)
        assert _in_child(verb, tmp_path) == expected


ON_PHOTOS = {
    "search --plain": lambda photos, run, watch: _models(
        modelhound.search(photos, MODEL, run=run, workers=0, scorers="ridge", plain=True, watch=watch)
    ),
    "train": lambda photos, run, watch: _models(
        modelhound.train(photos, MODEL, run=run, epochs=2, batch=6, verdict="none", device="cpu", watch=watch)
    ),
    "profile": lambda photos, run, watch: _models(
        modelhound.profile(
            *(photos, MODEL),
            run=run,
            batches=3,
            warmup=1,
            batch="4",
            parts="full",
            joint="none",
            repeats=1,
            watch=watch,
        )
    ),
    "breakeven": lambda photos, run, watch: _models(
        modelhound.breakeven(
            *(photos, MODEL), run=run, sizes="16", epochs=2, measured_epochs=1, modes="full", pool="none", watch=watch
        )
    ),
    "loader": lambda photos, run, watch: _models(
        modelhound.loader(
            photos, MODEL, run=run, batch=(8,), workers=(0, 1), grid=True, kind="raw", device="cpu", watch=watch
        )
    ),
    "prepare": lambda photos, run, watch: _models(modelhound.prepare(photos, str(run), size=32, watch=watch)),
}


def _models(result: Any) -> str:
    """What it says has failed."""
    return " ".join(str(getattr(each, "error", each)) for each in getattr(result, "failures", ()))


@pytest.mark.parametrize("verb", ON_PHOTOS)
@pytest.mark.parametrize("harm", ["gone", "unreadable"])
def test_a_file_that_cannot_be_read_any_more_is_named_and_the_next_start_does_without_it(
    harm: str, verb: str, tmp_path: Path
) -> None:
    """A search with the engine meets that in `test_bad_days`."""
    photos = Path(write_photos(tmp_path))
    victim = photos / "a" / "00.jpg"
    begun = threading.Event()

    def watch(progress: Any) -> None:
        if not begun.is_set() and progress.task not in ("loading libraries", "checking items"):
            begun.set()
            victim.unlink()
            if harm == "unreadable":
                victim.symlink_to(victim)  # nobody can open that, while rights would not keep root out

    words = ""
    with counted("a file of the data gone or unreadable in mid-run", verb):
        try:
            words = ON_PHOTOS[verb](str(photos), tmp_path / "run", watch)
        except HoundError as error:
            words = str(error)
        assert begun.is_set()
        assert not words or "00.jpg" in words or "changed" in words, words
        assert ON_PHOTOS[verb](str(photos), tmp_path / "again", lambda progress: None) == ""


@pytest.mark.parametrize("verb", ["search --plain --workers 1", "train --workers 1", "profile --workers 1"])
def test_a_loader_process_that_stops_ends_nothing_but_this_start(
    verb: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: it does not die and does not answer; its deadline ends it."""
    expected = WITH_WORKERS[verb](tmp_path_factory.mktemp("undisturbed"))
    monkeypatch.setattr(loader_processes, "_DEADLINE_SECONDS", 10.0)
    monkeypatch.setattr(loader_processes, "_LOOK_SECONDS", 0.5)
    with counted("SIGSTOP of a loader process", verb), _stopping(_loader_processes) as stopped:
        began = time.monotonic()
        words = ""
        try:
            WITH_WORKERS[verb](tmp_path)
        except HoundError as error:
            words = str(error)
        assert stopped
        assert "none came" in words
        assert time.monotonic() - began < DEADLINE_SECONDS
        assert not any(each.is_running() for each in stopped)
    assert WITH_WORKERS[verb](tmp_path) == expected


def _loader_processes() -> list[psutil.Process]:
    own = {child.pid for child in multiprocessing.active_children()}
    return [each for each in psutil.Process().children() if each.pid in own]


def test_a_rank_that_stops_is_noticed_and_the_next_start_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = WITH_WORKERS["train --ranks 2"]
    expected = train(tmp_path_factory.mktemp("undisturbed"))

    def second_rank() -> list[psutil.Process]:
        if not list(tmp_path.rglob("checkpoints/epoch-*")):  # it has begun, and there is something to go on from
            return []
        children = psutil.Process().children(recursive=True)
        ranks = [each for each in children if "modelhound.launch.rank_child" in each.cmdline()]
        return [each for each in ranks if each.environ().get("RANK") == "1"]

    with counted("SIGSTOP of a rank", "train --ranks 2"), _stopping(second_rank) as stopped:
        with monkeypatch.context() as patch:
            patch.setattr(series, "run_on_ranks", partial(run_on_ranks, deadline_seconds=15.0))
            began = time.monotonic()
            with pytest.raises(HoundError, match="start the same command again to go on from the last checkpoint"):
                train(tmp_path)
        assert stopped
        assert time.monotonic() - began < DEADLINE_SECONDS
        assert not any(each.is_running() for each in stopped)
        assert train(tmp_path) == expected


class _stopping:  # noqa: N801  (used as a statement)
    """Stop the first process that `find` finds, meanwhile."""

    def __init__(self, find: Callable[[], list[psutil.Process]]) -> None:
        self._find, self._over, self._stopped = find, threading.Event(), list[psutil.Process]()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> list[psutil.Process]:
        self._thread.start()
        return self._stopped

    def __exit__(self, *ended: object) -> None:
        self._over.set()
        self._thread.join()
        for each in self._stopped:
            if each.is_running():
                each.kill()

    def _look(self) -> None:
        while not self._over.wait(0.005) and not self._stopped:
            try:
                for process in self._find()[:1]:
                    process.suspend()
                    self._stopped.append(process)
            except psutil.Error:
                continue
