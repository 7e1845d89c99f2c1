"""Full disks, damaged files, files that vanish, memory that is taken away, workers that stop: the next start mends it all."""

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import modelhound
from fault_log import FAULT_SEED, counted
from harmed_verbs import warm_context
from layouts import encoded
from modelhound.errors import HoundError
from modelhound.store import read_run

MANY = "HOUND_MANY_FAULTS" in os.environ
NUM_DAMAGES = 60 if MANY else 3
MODELS = "zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:vit-rotation"
OPTIONS: dict[str, Any] = {"limit": 60, "scorers": "ridge", "workers": 0, "device": "cpu"}


def _search(run: Path, data: str = "digits", **more: Any) -> Any:
    return modelhound.search(data, MODELS, run=run, **{**OPTIONS, **more})


def _scores(result: Any) -> list[tuple[str, int, float]]:
    return [(row.model, row.rank, row.score) for row in result.ranking.models]


def _in_child(work: Callable[..., None], *arguments: Any, seconds: float = 120) -> int | None:
    """In a process of its own, which has torch loaded already; None where it hangs."""
    process = warm_context().Process(target=work, args=(dict(os.environ), *arguments))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, int, float]]]:
    """A search and the cache that it left."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODELHOUND_CACHE", str(folder / "cache"))
        result = _search(folder / "run")
    return folder, _scores(result)


def _damage(path: Path, chance: random.Random) -> None:
    """Some bytes are others, or gone."""
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    stop = min(len(content), start + chance.choice([1, 8, 500]))
    how = chance.choice(["other", "zeros", "cut"])
    if how == "cut":
        del content[start:]
    else:
        content[start:stop] = bytes(stop - start) if how == "zeros" else chance.randbytes(stop - start)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(NUM_DAMAGES))
@counted("random bytes of records and cache damaged", "search")
def test_records_and_cache_damaged_at_random_bytes_are_mended_by_the_next_start(
    seed: int, finished: tuple[Path, list[tuple[str, int, float]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = finished
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.setenv("MODELHOUND_CACHE", str(tmp_path / "copy" / "cache"))
    chance = random.Random(f"{seed} {FAULT_SEED}")
    files = [path for path in (tmp_path / "copy" / "cache").rglob("*") if path.is_file() and path.stat().st_size]
    files = [*sorted(files), tmp_path / "copy" / "run" / "records.jsonl", tmp_path / "copy" / "run" / "answer.json"]
    for path in [*chance.sample(files, min(3, len(files))), tmp_path / "copy" / "run" / "records.jsonl"]:
        _damage(path, chance)
    assert _scores(_search(tmp_path / "copy" / "run")) == expected
    assert read_run(tmp_path / "copy" / "run").answer is not None


def test_a_damaged_request_is_refused_and_said(finished: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(finished[0] / "run", tmp_path / "run")
    (tmp_path / "run" / "asked.json").write_bytes(b'{"verb": "\x80\xff')
    with pytest.raises(HoundError, match="delete the folder or choose another --run"):
        _search(tmp_path / "run")


def _search_on_a_full_disk(environment: dict[str, str], run: Path, max_bytes: int, words: Path) -> None:
    os.environ.update(environment)
    # A limit on file size ends a write as a full disk does: a part of it, then an error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
    try:
        _search(run)
    except HoundError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        words.write_text(str(error))


@pytest.mark.parametrize("max_bytes", [2_000] if not MANY else [0, 1, 100, 500, 1_000, 2_000, 4_000, 8_000])
@counted("full disk", "search")
def test_a_full_disk_says_so_and_the_next_start_goes_on(
    max_bytes: int, finished: tuple[Path, list[tuple[str, int, float]]], tmp_path: Path
) -> None:
    assert _in_child(_search_on_a_full_disk, tmp_path / "run", max_bytes, tmp_path / "words") == 0
    if (tmp_path / "words").exists():
        assert "free some space" in (tmp_path / "words").read_text()
    before = (tmp_path / "run" / "records.jsonl").read_bytes() if (tmp_path / "run" / "records.jsonl").exists() else b""
    assert not before or before.endswith(b"\n")
    assert _scores(_search(tmp_path / "run")) == finished[1]
    assert (tmp_path / "run" / "records.jsonl").read_bytes().startswith(before)


_ON_A_SMALL_DISK = """
    mount -t tmpfs -o size="$1" none . && cd "$PWD" || exit 9
    shift
    "$@" > "$OUT/first" 2>&1
    echo $? > "$OUT/ending"
    mount -o remount,size=100m .
    "$@" --json > "$OUT/second"
"""


@pytest.mark.skipif(not MANY, reason="in make test-faults: it starts the command twice")
@pytest.mark.parametrize("size", ["4k", "12k", "24k", "40k"])
@counted("small disk (tmpfs) full", "search")
def test_a_small_disk_that_fills_up_says_so_and_the_next_start_goes_on_when_there_is_room(
    size: str, finished: tuple[Path, list[tuple[str, int, float]]], tmp_path: Path
) -> None:
    """A real one, which is there for these processes alone."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a disk of their own")
    (tmp_path / "disk").mkdir()
    options = [each for name, value in OPTIONS.items() for each in (f"--{name}", str(value))]
    ask = [sys.executable, "-m", "modelhound", "search", "digits", "--models", MODELS, *options, "--run", "run"]
    done = subprocess.run(
        [*alone, "bash", "-c", _ON_A_SMALL_DISK, "bash", size, *ask],
        cwd=tmp_path / "disk",
        env={**os.environ, "OUT": str(tmp_path), "MODELHOUND_CACHE": "cache"},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "first").read_text()
    assert (tmp_path / "ending").read_text() == "0\n" or "free some space" in words
    assert "Traceback" not in words
    answer = json.loads((tmp_path / "second").read_text())
    assert [(row["model"], row["rank"], row["score"]) for row in answer["ranking"]] == finished[1]


def _search_with_little_memory(environment: dict[str, str], run: Path, more_bytes: int, words: Path) -> None:
    os.environ.update(environment)
    import torch

    torch.zeros(10).sum()
    limit = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        result = _search(run, batch=60)
        answer = [f"{each.model}: {each.error}" for each in result.failures]
    except (HoundError, MemoryError) as error:
        answer = [str(error) or "MemoryError"]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    words.write_text(json.dumps(answer))


@pytest.mark.parametrize("more_megabytes", [60] if not MANY else [0, 10, 30, 60, 100, 200, 400])
@counted("memory taken away", "search")
def test_memory_that_is_taken_away_costs_models_at_most_and_the_next_start_measures_them(
    more_megabytes: int, finished: tuple[Path, list[tuple[str, int, float]]], tmp_path: Path
) -> None:
    ended = _in_child(_search_with_little_memory, tmp_path / "run", more_megabytes << 20, tmp_path / "words")
    assert ended is not None, "it hangs"
    assert _scores(_search(tmp_path / "run")) == finished[1]


def _write_photos(root: Path) -> Path:
    for number in range(60):
        path = root / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    return root


@pytest.mark.parametrize("harm", ["gone", "cut", "other", "unreadable"] if MANY else ["unreadable"])
@counted("a file of the data gone, changed or unreadable in mid-run", "search")
def test_a_file_that_changes_in_mid_run_is_left_out_or_named(harm: str, tmp_path: Path) -> None:
    photos = _write_photos(tmp_path / "photos")
    victim = photos / "a" / "00.jpg"
    begun = threading.Event()

    def watch(progress: Any) -> None:
        if progress.task == "reading models" and not begun.is_set():  # all items have been looked at by now
            begun.set()
            if harm in ("gone", "unreadable"):
                victim.unlink()
            if harm == "unreadable":
                victim.symlink_to(victim)  # nobody can open that, while rights would not keep root out
            elif harm != "gone":
                victim.write_bytes(victim.read_bytes()[:100] if harm == "cut" else b"no picture any more")

    options = {**OPTIONS, "limit": None, "watch": watch, "fresh": True}
    words = ""
    try:
        modelhound.search(str(photos), MODELS, run=tmp_path / "run", **options)
    except HoundError as error:  # it names the item, or says that the data are others than those the run was begun with
        words = str(error)
    assert not words or "00.jpg" in words or "changed" in words
    result = modelhound.search(str(photos), MODELS, **{**OPTIONS, "limit": None})
    assert result.failures == ()
    assert result.num_items in (59, 60)  # 60 where the file was still held in memory and its place is not read again


@pytest.mark.skipif(not MANY, reason="in make test-faults: it has to wait for deadlines")
@counted("SIGSTOP of a measuring process", "latency")
def test_a_measuring_process_that_stops_costs_its_point_and_no_more(tmp_path: Path) -> None:
    """SIGSTOP: nothing dies, nothing answers. The deadline of the point ends it."""
    stopped: list[psutil.Process] = []

    def watch(progress: Any) -> None:
        if progress.task == "timing" and progress.done == 0 and progress.total and not stopped:
            for child in psutil.Process().children(recursive=True):
                if "worker_child" in " ".join(child.cmdline()):
                    child.suspend()
                    stopped.append(child)

    options: dict[str, Any] = {"batch": (1, 2), "seconds": 0.05, "device": "cpu", "precision": "fp32", "timeout": 5.0}
    began = time.monotonic()
    result = modelhound.latency("zoo:resnet-glyphs", run=tmp_path / "run", watch=watch, **options)
    assert stopped
    assert time.monotonic() - began < 120
    assert not stopped[0].is_running()
    answer = result.to_json()
    assert "timed out" in json.dumps(answer)
    assert "SIGSTOP" not in json.dumps(answer)


def _search_while_weights_are_cut_short(environment: dict[str, str], run: Path, weights: Path, words: Path) -> None:
    os.environ.update(environment)

    def watch(progress: Any) -> None:
        if progress.task == "reading models" and progress.done == progress.total:  # mapped, and not used yet
            os.truncate(weights, weights.stat().st_size // 2)

    models = ["zoo:resnet-glyphs", f"file:{weights}"]
    result = modelhound.search("digits", models, run=run, arch="timm:resnet10t", watch=watch, **OPTIONS)
    words.write_text(
        json.dumps([[row.model for row in result.ranking.models], [each.error for each in result.failures]])
    )


@pytest.mark.skipif(not MANY, reason="in make test-faults: it makes a network of 20 MB")
@counted("weights cut short while they are mapped", "search")
def test_weights_cut_short_in_mid_run_lose_nothing_else(tmp_path: Path) -> None:
    """They are mapped: the system would end who looks at them (SIGBUS). The next start refuses them in a sentence."""
    from safetensors.torch import save_file

    from modelhound.compat import import_timm

    weights = tmp_path / "mine.safetensors"
    save_file(import_timm().create_model("resnet10t", num_classes=0).state_dict(), weights)
    assert _in_child(_search_while_weights_are_cut_short, tmp_path / "run", weights, tmp_path / "words") == 0
    ranked, (error,) = json.loads((tmp_path / "words").read_text())
    assert ranked == ["zoo:resnet-glyphs"]
    assert "cut it short in the meantime" in error
    models = ["zoo:resnet-glyphs", f"file:{weights}"]
    result = modelhound.search("digits", models, run=tmp_path / "run", arch="timm:resnet10t", **OPTIONS)
    assert [row.model for row in result.ranking.models] == ["zoo:resnet-glyphs"]
    (failure,) = result.failures
    assert "cannot read weights" in failure.error
