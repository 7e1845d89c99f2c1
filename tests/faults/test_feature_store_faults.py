"""Kill, corrupt, fill and lock up the feature store: rows that come back are the right ones, and a search is never ended."""

import contextlib
import errno
import fcntl
import multiprocessing
import os
import random
import resource
import shutil
import signal
import struct
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modelhound.feature_store import FeatureStore, sharing

NUM_KILLS = 8
NUM_ITEMS, WIDTH = 600, 300
WIDE = 6_000  # most of the time of a write goes into rows, so that kills hit there
ITEMS = [f"item {number}" for number in range(NUM_ITEMS)]
FEW = ITEMS[:12]


def rows_of(items: list[str], width: int = WIDTH) -> npt.NDArray[np.float32]:
    numbers = np.array([int(item.split()[1]) for item in items], np.float32)
    return numbers[:, None] + np.arange(width, dtype=np.float32) / np.float32(512)


def assert_right(store: FeatureStore, items: list[str], width: int = WIDTH) -> list[int]:
    """Every row that the store gives is that of its item; the positions it has none for."""
    found = store.read("a", items)
    if len(found.rows):
        assert np.array_equal(found.rows, rows_of([items[position] for position in found.positions], width))
    missing: list[int] = found.missing.tolist()
    assert len(found.positions) + len(missing) == len(items)
    return missing


def only(store: FeatureStore, pattern: str) -> Path:
    (path,) = store.folder.glob(f"*/{pattern}")
    return path


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["modelhound.feature_store", "pytest"])
    return context


def _write_until_killed(folder: Path, seed: int, told: Connection) -> None:
    chance = random.Random(seed)
    store = FeatureStore(folder)
    left = chance.sample(ITEMS, NUM_ITEMS)
    told.send([])
    while left:
        size = chance.choice([1, 5, 60])
        batch, left = left[:size], left[size:]
        store.write("a", batch, rows_of(batch, WIDE))
        told.send(batch)


@pytest.mark.parametrize("attempt", range(NUM_KILLS))
def test_a_kill_at_a_random_moment_loses_nothing_that_was_written_and_leaves_nothing_wrong(
    attempt: int, tmp_path: Path
) -> None:
    told, teller = _context().Pipe(duplex=False)
    writer = _context().Process(target=_write_until_killed, args=(tmp_path, attempt, teller))
    writer.start()
    teller.close()
    chance = random.Random(attempt)
    written: set[str] = set()
    for _ in range(chance.randrange(10)):  # by its progress and not by the clock: machines differ
        written.update(told.recv())
    writer.join(chance.uniform(0, 0.006))
    writer.kill()
    writer.join()
    with contextlib.suppress(EOFError, OSError):  # the last message may be cut off
        while True:
            written.update(told.recv())
    store = FeatureStore(tmp_path)
    missing = [ITEMS[position] for position in assert_right(store, ITEMS, WIDE)]
    assert written.isdisjoint(missing)
    if missing:
        store.write("a", missing, rows_of(missing, WIDE))
    assert store.trouble is None
    for reader in (store, FeatureStore(tmp_path)):
        assert assert_right(reader, ITEMS, WIDE) == []


def _tear(path: Path, generator: random.Random) -> None:
    """What a kill, a power cut or a worn disk may leave: a piece missing at the end, of zeros or of other bytes."""
    content = bytearray(path.read_bytes())
    start = generator.randrange(len(content))
    stop = min(len(content), start + generator.choice([1, 3, 33, 4096]))
    how = generator.choice(["cut", "zeros", "noise", "longer"])
    if how == "cut":
        del content[start:]
    elif how == "longer":
        content += generator.randbytes(stop - start)
    else:
        content[start:stop] = bytes(stop - start) if how == "zeros" else generator.randbytes(stop - start)
    path.unlink()  # some file systems flush a file that is overwritten, which takes long
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(60))
def test_damage_of_any_kind_is_found_and_mended_by_writing_again(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    FeatureStore(tmp_path).write("a", ITEMS[:200], rows_of(ITEMS[:200], 16))
    for file in generator.sample(["index", "rows-*"], generator.choice([1, 2])):
        _tear(only(FeatureStore(tmp_path), file), generator)
    store = FeatureStore(tmp_path)
    missing = assert_right(store, ITEMS, 16)
    again = [ITEMS[position] for position in missing]
    assert store.write("a", again, rows_of(again, 16)) == len(again)
    for reader in (store, FeatureStore(tmp_path)):
        assert assert_right(reader, ITEMS, 16) == []
    assert store.trouble is None


@pytest.mark.parametrize("file", ["index", "rows-*"])
def test_a_flipped_bit_anywhere_costs_at_most_the_rows_it_touches(file: str, tmp_path: Path) -> None:
    writer = FeatureStore(tmp_path)
    writer.write("a", FEW, rows_of(FEW, 8))
    with only(writer, file).open("rb+", buffering=0) as damaged:
        for position, byte in enumerate(damaged.read()):
            os.pwrite(damaged.fileno(), bytes([byte ^ (1 << position % 8)]), position)
            store = FeatureStore(tmp_path)
            assert len(assert_right(store, FEW, 8)) == (len(FEW) if file == "index" and position < 64 else 1)
            assert store.num_damaged == 1
            os.pwrite(damaged.fileno(), bytes([byte]), position)


def test_a_lost_file_is_an_empty_store(tmp_path: Path) -> None:
    for file in ("index", "rows-*", "lock"):
        FeatureStore(tmp_path).write("a", FEW, rows_of(FEW))
        only(FeatureStore(tmp_path), file).unlink()
        store = FeatureStore(tmp_path)
        assert len(assert_right(store, FEW)) == (0 if file == "lock" else len(FEW))
        store.write("a", FEW, rows_of(FEW))
        assert assert_right(FeatureStore(tmp_path), FEW) == []


def test_an_index_of_another_key_is_not_believed(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write("a", FEW, rows_of(FEW))
    one = only(store, "index").parent
    store.write("b", FEW, -rows_of(FEW))
    (other,) = {path.parent for path in store.folder.glob("*/index")} - {one}
    shutil.rmtree(one)
    shutil.copytree(other, one)
    assert len(assert_right(FeatureStore(tmp_path), FEW)) == len(FEW)


def test_rows_of_an_index_that_was_replaced_are_not_mixed_up(tmp_path: Path) -> None:
    reader, writer = FeatureStore(tmp_path), FeatureStore(tmp_path)
    writer.write("a", FEW, rows_of(FEW))
    assert assert_right(reader, FEW) == []
    index = only(writer, "index")
    index.write_bytes(b"\xff" * 64 + index.read_bytes()[64:])
    assert writer.write("a", FEW[::-1], rows_of(FEW[::-1])) == len(FEW)
    assert assert_right(reader, FEW) == []


def _write_all(folder: Path, seed: int, ready: Any) -> None:
    store = FeatureStore(folder)
    order = random.Random(seed).sample(ITEMS, NUM_ITEMS)
    ready.wait()
    for start in range(0, NUM_ITEMS, 20):
        batch = order[start : start + 20]
        store.write("a", batch, rows_of(batch))
        assert not set(assert_right(store, order)) & set(range(start + 20))
    assert (store.trouble, store.num_damaged) == (None, 0)


def test_processes_that_write_and_read_the_same_key_at_once_keep_every_row_once(tmp_path: Path) -> None:
    ready = _context().Barrier(3)
    writers = [_context().Process(target=_write_all, args=(tmp_path, seed, ready)) for seed in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    store = FeatureStore(tmp_path)
    assert assert_right(store, ITEMS) == []
    assert only(store, "rows-*").stat().st_size == NUM_ITEMS * WIDTH * 4


def _make_room_all_the_time(folder: Path, seed: int, ready: Any) -> None:
    store = FeatureStore(folder, limit_bytes=60_000)  # three or four keys of the twelve
    chance = random.Random(seed)
    ready.wait()
    for _ in range(60):
        name = f"key {chance.randrange(12)}"
        found = store.read(name, FEW)
        if len(found.rows):
            assert np.array_equal(found.rows, rows_of(FEW) * int(name.split()[1]))
        store.write(name, FEW, rows_of(FEW) * int(name.split()[1]))
        store.close()  # as if a process had ended
        assert store.trouble is None or "limit" in store.trouble
        store.trouble = None
    assert store.num_damaged == 0


def test_processes_that_take_room_from_each_other_never_get_a_wrong_row(tmp_path: Path) -> None:
    ready = _context().Barrier(3)
    rivals = [_context().Process(target=_make_room_all_the_time, args=(tmp_path, seed, ready)) for seed in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join(60)
    assert [rival.exitcode for rival in rivals] == [0, 0, 0]


def _use(folder: Path, told: Connection) -> None:
    store = FeatureStore(folder)
    assert assert_right(store, FEW) == []
    told.send("used")
    signal.pause()


def test_a_key_is_in_use_until_its_process_dies(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write("a", FEW, rows_of(FEW))
    told, teller = _context().Pipe(duplex=False)
    user = _context().Process(target=_use, args=(tmp_path, teller))
    user.start()
    assert told.recv() == "used"
    assert store.forget() == 0
    assert assert_right(store, FEW) == []
    os.kill(user.pid, signal.SIGKILL)
    user.join()
    assert store.forget() > 0
    assert len(assert_right(store, FEW)) == len(FEW)


def _write_on_a_full_disk(folder: Path, allowed_bytes: int) -> None:
    # A limit on file size ends a write as a full disk does: a part of it, then an error.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed_bytes, resource.RLIM_INFINITY))
    store = FeatureStore(folder)
    assert store.write("a", FEW[:2], rows_of(FEW[:2])) == (2 if allowed_bytes > 2 * WIDTH * 4 else 0)
    assert store.write("a", FEW, rows_of(FEW)) == 0
    assert store.trouble is not None
    assert os.strerror(errno.EFBIG) in store.trouble
    assert "free some space" in store.trouble
    assert_right(store, FEW)


@pytest.mark.parametrize("allowed_bytes", [0, 10, 64, 80, 3_000, 12 * WIDTH * 4 - 1])
def test_a_full_disk_ends_keeping_with_a_reason_and_keeps_what_was_written(allowed_bytes: int, tmp_path: Path) -> None:
    child = _context().Process(target=_write_on_a_full_disk, args=(tmp_path, allowed_bytes))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    store = FeatureStore(tmp_path)
    missing = assert_right(store, FEW)
    assert missing == list(range(2 if allowed_bytes > 2 * WIDTH * 4 else 0, len(FEW)))
    assert sum(path.stat().st_size for path in store.folder.glob("*/rows-*")) == (len(FEW) - len(missing)) * WIDTH * 4
    store.write("a", FEW, rows_of(FEW))
    assert assert_right(store, FEW) == []


def _read_without_rights(folder: Path) -> None:
    os.chdir(folder.parent)
    for path in [Path(), *Path(folder.name).rglob("*"), Path(folder.name)]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if os.geteuid() == 0:
        os.seteuid(65534)  # nothing is read-only for root
    store = FeatureStore(Path(folder.name))
    assert assert_right(store, FEW[:6]) == []
    assert store.trouble is None
    assert store.write("a", FEW, rows_of(FEW)) == 0
    assert store.trouble is not None
    assert "Permission denied; make it writable" in store.trouble
    assert assert_right(store, FEW) == list(range(6, 12))


def test_a_read_only_store_is_read_and_says_why_it_keeps_nothing_new(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "features"
    FeatureStore(folder).write("a", FEW[:6], rows_of(FEW[:6]))
    child = _context().Process(target=_read_without_rights, args=(folder,))
    child.start()
    child.join(60)
    for path in (folder.parent, *folder.parent.rglob("*")):
        path.chmod(0o755)  # so that it can be cleared away
    assert child.exitcode == 0


def test_a_file_in_place_of_the_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "features").write_text("")
    store = FeatureStore(tmp_path / "features")
    assert len(assert_right(store, FEW)) == len(FEW)
    assert store.write("a", FEW, rows_of(FEW)) == 0
    assert store.trouble is not None
    assert "Not a directory" in store.trouble
    assert (store.size_bytes(), store.forget()) == (0, 0)


def test_a_folder_that_was_removed_by_hand_is_made_again(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "features")
    store.write("a", FEW, rows_of(FEW))
    shutil.rmtree(tmp_path / "features")
    assert len(assert_right(store, FEW)) == len(FEW)
    assert store.write("a", FEW, rows_of(FEW)) == len(FEW)
    assert assert_right(store, FEW) == []


def test_a_lock_that_is_never_let_go_does_not_hold_up_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FeatureStore(tmp_path).write("a", FEW[:6], rows_of(FEW[:6]))
    store = FeatureStore(tmp_path)
    monkeypatch.setattr(sharing, "_NUM_TRIES", 3)
    with only(store, "lock").open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert assert_right(store, FEW[:6]) == []
        assert store.write("a", FEW, rows_of(FEW)) == 0
    assert store.trouble is not None
    assert "does not let go" in store.trouble


def test_the_index_is_as_it_was_when_the_format_got_its_number(tmp_path: Path) -> None:
    """Whoever changes the format gives it another number: this pins the first."""
    FeatureStore(tmp_path).write("a", FEW[:1], np.array([[1.0, 2.0]], np.float32))
    index = only(FeatureStore(tmp_path), "index").read_bytes()
    magic, width, dtype = struct.unpack("<8s24xII", index[:40])
    assert (magic, width, dtype) == (b"hound\x00f\x01", 2, 0)
    assert index[64:].hex() == "720ae0695afaeace6eb46731844e90db000000000000000076a53f2ea2ab3644"
