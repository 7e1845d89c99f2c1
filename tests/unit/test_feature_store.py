"""What the feature store promises: rows come back as they went in, damage is found, others are respected, limits are kept."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modelhound.errors import StoreError
from modelhound.feature_store import FeatureStore
from modelhound.store import cache_folder

ITEMS = [f"/photos/{number}.jpg:{number}" for number in range(40)]


def rows_of(items: list[str], width: int = 6) -> npt.NDArray[np.float32]:
    """Numbers that follow from the item alone, so that a row given out for another item is noticed."""
    return np.array([[int(item.split(":")[1]) + column / 8 for column in range(width)] for item in items], np.float32)


def key_folders(store: FeatureStore) -> list[Path]:
    return sorted(path for path in store.folder.iterdir() if len(path.name) == 32)


def only(store: FeatureStore, pattern: str) -> Path:
    (path,) = store.folder.glob(f"*/{pattern}")
    return path


def assert_holds(store: FeatureStore, items: list[str], made_by: str = "a") -> None:
    found = store.read(made_by, items)
    assert found.positions.tolist() == list(range(len(items)))
    assert np.array_equal(found.rows, rows_of(items))


def test_rows_come_back_for_any_choice_and_order_of_items(tmp_path: Path) -> None:
    FeatureStore(tmp_path).write("a", ITEMS, rows_of(ITEMS))
    store = FeatureStore(tmp_path)
    for asked in (ITEMS, ITEMS[10:20], ITEMS[::-1], ITEMS[::3], [ITEMS[3], ITEMS[3]], []):
        found = store.read("a", asked)
        assert found.positions.tolist() == list(range(len(asked)))
        assert found.missing.tolist() == []
        assert np.array_equal(found.rows, rows_of(asked).reshape(len(asked), 6))


def test_what_is_not_here_is_named_and_leaves_no_trace(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "features")
    found = store.read("a", ITEMS)
    assert (len(found.rows), found.missing.tolist()) == (0, list(range(40)))
    assert not (tmp_path / "features").exists()
    store.write("a", ITEMS[:30:2], rows_of(ITEMS[:30:2]))
    found = store.read("a", ITEMS)
    assert found.positions.tolist() == list(range(0, 30, 2))
    assert sorted([*found.positions, *found.missing]) == list(range(40))
    assert np.array_equal(found.rows, rows_of(ITEMS[:30:2]))
    assert len(store.read("b", ITEMS).rows) == 0  # made by something else


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_the_size_and_order_of_batches_make_no_difference(tmp_path: Path, batch: int) -> None:
    store = FeatureStore(tmp_path)
    shuffled = [ITEMS[number] for number in np.random.default_rng(batch).permutation(40)]
    for start in range(0, 40, batch):
        assert store.write("a", shuffled[start : start + batch], rows_of(shuffled[start : start + batch])) > 0
    for reader in (store, FeatureStore(tmp_path)):
        assert_holds(reader, ITEMS)


def test_an_item_is_kept_once(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    assert store.write("a", ITEMS[:20] * 2, rows_of(ITEMS[:20] * 2)) == 20
    assert FeatureStore(tmp_path).write("a", ITEMS, rows_of(ITEMS)) == 20
    assert store.write("a", ITEMS, rows_of(ITEMS)) == 0
    assert only(store, "rows-*").stat().st_size == 40 * 6 * 4
    assert_holds(store, ITEMS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_every_bit_of_a_row_is_kept(tmp_path: Path, dtype: Any) -> None:
    bits = np.random.default_rng(0).integers(
        0, 256, (40, 8 * np.dtype(dtype).itemsize), dtype=np.uint8
    )  # not-a-numbers too
    FeatureStore(tmp_path).write("a", ITEMS, bits.view(dtype))
    found = FeatureStore(tmp_path).read("a", ITEMS)
    assert found.rows.dtype == dtype
    assert np.array_equal(found.rows.view(np.uint8), bits)


def test_rows_that_are_no_plain_block_of_memory_are_kept_too(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write("a", ITEMS, np.asfortranarray(rows_of(ITEMS)))
    store.write("b", ITEMS, rows_of(ITEMS, width=12)[:, :6])
    assert_holds(store, ITEMS, "a")
    assert_holds(store, ITEMS, "b")


def test_who_changes_rows_changes_a_copy(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write("a", ITEMS, rows_of(ITEMS))
    for asked in (ITEMS, ITEMS[::-1]):
        store.read("a", asked).rows[:] = 0
    assert_holds(store, ITEMS)
    assert_holds(FeatureStore(tmp_path), ITEMS)


def test_file_names_that_are_no_text_can_be_stamps(tmp_path: Path) -> None:
    items = [os.fsdecode(b"/photos/\xff.jpg:1"), "/photos/\u00e9.jpg:2", ":3"]
    store = FeatureStore(tmp_path)
    store.write(items[0], items, rows_of(items))
    assert_holds(store, items, items[0])


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (np.zeros((39, 6), np.float32), "one row for each item"),
        (np.zeros((40, 0), np.float32), "one row for each item"),
        (np.zeros(40, np.float32), "one row for each item"),
        (np.zeros((40, 6), np.float64), "float64"),
        (np.zeros((40, 6), ">f4"), ">f4"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: Any, told: str) -> None:
    with pytest.raises(StoreError, match=told):
        FeatureStore(tmp_path).write("a", ITEMS, rows)


def test_rows_of_another_kind_under_the_same_name_are_refused(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    store.write("a", ITEMS[:20], rows_of(ITEMS[:20]))
    for other in (rows_of(ITEMS, width=7), rows_of(ITEMS).astype(np.float16)):
        with pytest.raises(StoreError, match="one kind"):
            FeatureStore(tmp_path).write("a", ITEMS, other)
    assert_holds(store, ITEMS[:20])


def test_a_reader_sees_what_another_adds_and_what_another_forgets(tmp_path: Path) -> None:
    reader, writer = FeatureStore(tmp_path), FeatureStore(tmp_path)
    writer.write("a", ITEMS[:10], rows_of(ITEMS[:10]))
    assert_holds(reader, ITEMS[:10])
    writer.write("a", ITEMS[10:], rows_of(ITEMS[10:]))
    assert_holds(reader, ITEMS)
    kept = reader.read("a", ITEMS).rows
    reader.close()
    assert writer.forget("a") > 40 * 6 * 4
    writer.write("a", ITEMS[::-1], -rows_of(ITEMS[::-1]))
    assert np.array_equal(kept, rows_of(ITEMS))  # rows once read stay as they are
    assert np.array_equal(FeatureStore(tmp_path).read("a", ITEMS).rows, -rows_of(ITEMS))


def test_forgetting_spares_other_names_and_what_others_use(tmp_path: Path) -> None:
    store, other = FeatureStore(tmp_path), FeatureStore(tmp_path)
    for name in ("a", "b", "c"):
        store.write(name, ITEMS, rows_of(ITEMS))
    assert_holds(other, ITEMS, "c")
    store.forget("b")
    assert [len(store.read(name, ITEMS).rows) for name in "abc"] == [40, 0, 40]
    store.forget()
    assert [len(store.read(name, ITEMS).rows) for name in "abc"] == [0, 0, 40]
    assert store.forget("never heard of") == 0
    assert FeatureStore(tmp_path / "nowhere").forget() == 0
    assert store.write("a", ITEMS, rows_of(ITEMS)) == 40  # and what was forgotten can be kept anew


def test_threads_share_one_store(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)

    def use(start: int) -> int:
        order = ITEMS[start:] + ITEMS[:start]
        num_kept = sum(store.write("a", [item], rows_of([item])) for item in order)
        assert_holds(store, order)
        return num_kept

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(use, (0, 10, 20, 30))) == 40
    assert store.trouble is None


def test_the_size_is_that_of_the_files(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    assert store.size_bytes() == 0
    for name in ("a", "b"):
        store.write(name, ITEMS, rows_of(ITEMS))
    assert store.size_bytes() == 2 * (64 + 40 * (6 * 4 + 32))


def fill(folder: Path, names: str) -> list[Path]:
    """Keys that nobody uses any more, each used later than those before; about 2 300 bytes each."""
    store = FeatureStore(folder)
    found: list[Path] = []
    for name in names:
        store.write(name, ITEMS, rows_of(ITEMS))
        (new,) = set(key_folders(store)) - set(found)
        found.append(new)
    for age, path in enumerate(found):
        os.utime(path, (age, age))
    return found


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    a, b, c, d = fill(tmp_path, "abcd")
    os.utime(a, (9, 9))  # used since
    store = FeatureStore(tmp_path, limit_bytes=10_000)
    assert store.write("new", ITEMS, rows_of(ITEMS)) == 40
    assert [path.exists() for path in (a, b, c, d)] == [True, False, True, True]
    assert store.size_bytes() <= 10_000
    assert store.trouble is None
    assert_holds(store, ITEMS, "new")


def test_reading_counts_as_use(tmp_path: Path) -> None:
    a, b, _, _ = fill(tmp_path, "abcd")
    assert_holds(FeatureStore(tmp_path), ITEMS, "a")
    FeatureStore(tmp_path, limit_bytes=10_000).write("new", ITEMS, rows_of(ITEMS))
    assert (a.exists(), b.exists()) == (True, False)


def test_what_a_living_process_uses_stays_and_keeping_ends_with_a_reason(tmp_path: Path) -> None:
    a, b = fill(tmp_path, "ab")
    user = FeatureStore(tmp_path)
    assert_holds(user, ITEMS, "a")
    os.utime(a, (0, 0))
    store = FeatureStore(tmp_path, limit_bytes=5_000)
    assert store.write("new", ITEMS, rows_of(ITEMS)) == 40
    assert (a.exists(), b.exists()) == (True, False)
    assert store.write("another", ITEMS, rows_of(ITEMS)) == 0
    assert store.trouble is not None
    assert "limit of 5000 bytes" in store.trouble
    assert store.write("small", ITEMS[:1], rows_of(ITEMS[:1])) == 0  # it has ended
    assert_holds(store, ITEMS, "new")  # and what is here can be read
    user.close()
    assert FeatureStore(tmp_path, limit_bytes=5_000).write("another", ITEMS, rows_of(ITEMS)) == 40
    assert not a.exists()


def test_what_a_kill_left_of_a_removal_goes_first(tmp_path: Path) -> None:
    a, b = fill(tmp_path, "ab")
    gone = a.rename(a.with_name("gone-0123"))
    FeatureStore(tmp_path, limit_bytes=5_000).write("new", ITEMS, rows_of(ITEMS))
    assert (gone.exists(), b.exists()) == (False, True)


def test_a_store_of_another_format_is_left_alone(tmp_path: Path) -> None:
    for name in ("v0", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index").write_bytes(b"who knows" * 1000)
    store = FeatureStore(tmp_path, limit_bytes=5_000)
    for name in "abc":
        store.write(name, ITEMS, rows_of(ITEMS))
    store.forget()
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("v")} == {"v0", "v1", "v2"}
    assert all((tmp_path / name / "index").read_bytes() == b"who knows" * 1000 for name in ("v0", "v2"))


def test_the_store_lies_in_the_cache_folder_unless_told_otherwise() -> None:
    FeatureStore().write("a", ITEMS, rows_of(ITEMS))
    assert [path.name for path in (cache_folder() / "features").iterdir()] == ["v1"]


def test_the_store_needs_no_torch() -> None:
    code = "import modelhound.feature_store, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
