"""Kill `prepare` anywhere, or fill the disk: started again, it must end with the very same bytes."""

import multiprocessing
import os
import random
import resource
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from layouts import encoded
from modelhound.data import open_dataset
from modelhound.data.dataset import glance
from modelhound.data.preparing import prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.errors import StoreError
from modelhound.records import Progress
from modelhound.settings import DataSettings

NUM_ITEMS = 40
VARIANTS = (Variant.square(16), Variant.square(23))
SHARD_BYTES = 7 * VARIANTS[0].item_bytes


def _prepare(photos: Path, folder: Path, kill_at: int | None, seconds: float | None) -> None:
    def watch(progress: Progress) -> None:
        if progress.task == "preparing items" and progress.done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if seconds is not None:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, seconds)
    prepare_items(
        open_dataset(str(photos)),
        folder,
        VARIANTS,
        glance=glance(DataSettings(str(photos))),
        watch=watch,
        shard_bytes=SHARD_BYTES,
    )


def _prepare_on_a_full_disk(photos: Path, folder: Path, max_bytes: int) -> None:
    # A limit on file size ends a write as a full disk does: a part of it, then an error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
    with pytest.raises(StoreError, match="free some space, then start the same command again: whole shards are kept"):
        _prepare(photos, folder, None, None)


def _run(target: Any, *arguments: Any) -> int | None:
    """In a copy of this process, which has timm loaded already: many starts do not cost many times loading it."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: none of them holds anything that the copy needs
        process.start()
    process.join(120)
    return process.exitcode


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM_ITEMS):
        path = folder / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(number))
    return folder


@pytest.fixture(scope="module")
def undisturbed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    _prepare(photos, folder, None, None)
    return contents(folder)


@pytest.fixture(scope="module")
def seconds(photos: Path, undisturbed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long it takes when nobody disturbs it and libraries are loaded."""
    start = time.monotonic()
    _prepare(photos, tmp_path_factory.mktemp("timed") / "out", None, None)
    return time.monotonic() - start


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("kill_at", [0, 1, 7, 20, 39, 40])
def test_killed_between_items_it_ends_with_the_same_bytes(
    photos: Path, undisturbed: dict[str, bytes], tmp_path: Path, kill_at: int
) -> None:
    assert _run(_prepare, photos, tmp_path / "out", kill_at, None) == -signal.SIGKILL
    assert contents(tmp_path / "out") != undisturbed
    whole = [path for path in contents(tmp_path / "out") if path.endswith(".bin")]
    assert len(whole) >= 2 * (kill_at // 7) - 1
    _prepare(photos, tmp_path / "out", None, None)
    assert contents(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("attempt", range(20))
def test_killed_at_any_moment_it_ends_with_the_same_bytes(
    photos: Path, undisturbed: dict[str, bytes], seconds: float, tmp_path: Path, attempt: int
) -> None:
    _run(_prepare, photos, tmp_path / "out", None, random.Random(attempt).uniform(0.001, seconds))
    _prepare(photos, tmp_path / "out", None, None)
    assert contents(tmp_path / "out") == undisturbed


def test_a_full_disk_says_so_and_keeps_what_is_whole(
    photos: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    limit = 6 * VARIANTS[0].item_bytes  # less than one of the shards, more than all other files
    assert limit > max(len(content) for path, content in undisturbed.items() if not path.endswith(".bin"))
    assert _run(_prepare_on_a_full_disk, photos, out, limit) == 0
    assert not list(out.rglob("*.part"))
    _prepare(photos, out, None, None)
    assert contents(out) == undisturbed
