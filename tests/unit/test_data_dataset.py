import errno
import os
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modelhound.data import check_there, open_dataset
from modelhound.errors import BrokenItemError, DataError
from modelhound.records import Progress


def make_folder(root: Path, *, classes: str = "ab", per_class: int = 20) -> Path:
    generator = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:03}.jpg")
    return root


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("reference", ["nowhere", "nowhere.csv", "nowhere.jsonl", "nowhere.parquet", "no\0where"])
def test_a_path_that_does_not_exist_is_told_before_anything_is_opened(reference: str) -> None:
    with pytest.raises(DataError, match="there is no such path"):
        check_there(reference)


def test_what_is_there_or_is_no_path_is_left_to_be_opened(tmp_path: Path) -> None:
    for reference in (str(tmp_path), "digits", "hf:nobody/nothing", "part-{000..003}.tar"):
        check_there(reference)


def test_broken_images_are_skipped_and_listed_with_the_reason(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos")
    (root / "a" / "003.jpg").write_bytes(b"")
    cut(root / "b" / "007.jpg")
    data = open_dataset(str(root))
    assert len(data) == 38
    assert {"a/003.jpg", "b/007.jpg"}.isdisjoint(data.item_names)
    reasons = {item.item: item.reason for item in data.skipped}
    assert "empty" in reasons["a/003.jpg"]
    assert "truncated" in reasons["b/007.jpg"]
    assert np.bincount(data.targets).tolist() == [19, 19]
    assert [data.read(index).size for index in range(38)] == [(32, 24)] * 38


@pytest.mark.parametrize("stumble", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_what_says_nothing_of_an_item_is_not_remembered_of_it(
    stumble: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_dataset(str(make_folder(tmp_path / "photos")))

    room: Any = os if isinstance(stumble, OSError) else Image
    stumbles, ordinary = [stumble], room.open

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if stumbles and (room is Image or str(arguments[0]).endswith("a/000.jpg")):
            raise stumbles.pop()
        return ordinary(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(room, "open", fail_once)
        with pytest.raises(BrokenItemError, match=r"'a/000\.jpg'"):
            data.read(0)
    assert open_dataset(str(tmp_path / "photos")).skipped == ()


def test_what_a_decoder_says_of_an_item_is_remembered_of_it(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos")
    content = bytearray((root / "a" / "000.jpg").read_bytes())
    table = content.index(b"\xff\xc4") + 5
    content[table : table + 16] = b"\xff" * 16  # more codes than there can be; head and end are as they were
    (root / "a" / "000.jpg").write_bytes(content)
    data = open_dataset(str(root))
    assert data.skipped == ()
    with pytest.raises(BrokenItemError, match=r"'a/000\.jpg'"):
        data.read(0)
    assert [each.item for each in open_dataset(str(root)).skipped] == ["a/000.jpg"]


def test_a_link_to_nowhere_and_a_pipe_are_skipped(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos")
    (root / "a" / "000.jpg").unlink()
    (root / "a" / "000.jpg").symlink_to(tmp_path / "gone.jpg")
    os.mkfifo(tmp_path / "pipe")
    (root / "b" / "000.jpg").unlink()
    (root / "b" / "000.jpg").symlink_to(tmp_path / "pipe")
    assert [item.item for item in open_dataset(str(root)).skipped] == ["a/000.jpg", "b/000.jpg"]


def test_more_than_5_percent_broken_is_an_error_that_counts_and_names_them(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos")
    for number in range(3):
        cut(root / "a" / f"{number:03}.jpg")
    with pytest.raises(DataError, match=r"at most 5%.* 3 of 40 are: 'a/000.jpg' \(.*truncated.*repair or remove"):
        open_dataset(str(root))


def test_a_class_with_too_few_readable_images_is_named(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", classes="a", per_class=38)
    (make_folder(tmp_path / "more", classes="b", per_class=2) / "b").rename(root / "b")
    cut(root / "b" / "001.jpg")
    with pytest.raises(DataError, match=r"at least 2 readable.*'b'.*'b/001.jpg'"):
        open_dataset(str(root))


def test_a_decompression_bomb_is_skipped(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos")
    Image.new("1", (9600, 9600)).save(root / "a" / "000.jpg", "PNG")
    (skipped,) = open_dataset(str(root)).skipped
    assert "bomb" in skipped.reason


def test_only_chosen_images_are_checked(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos")
    chosen = set(open_dataset(str(root), limit=10).item_names)
    for path in root.glob("*/*.jpg"):
        if path.relative_to(root).as_posix() not in chosen:
            path.write_bytes(b"")
    assert set(open_dataset(str(root), limit=10).item_names) == chosen


def test_a_limit_below_two_of_each_class_says_the_smallest_usable_one() -> None:
    with pytest.raises(DataError, match=r"cannot take 19 items of 'digits'.*--limit 20"):
        open_dataset("digits", limit=19)
    assert np.bincount(open_dataset("digits", limit=20).targets).tolist() == [2] * 10


def test_progress_begins_at_none_ends_at_all_and_comes_at_most_every_percent(tmp_path: Path) -> None:
    seen: list[Progress] = []
    open_dataset("fashion", watch=seen.append)
    assert seen[0] == Progress(task="checking items", done=0, total=2000)
    assert seen[-1] == Progress(task="checking items", done=2000, total=2000)
    steps = np.diff([progress.done for progress in seen])
    assert (steps[:-1] >= 20).all()


def test_what_a_watcher_raises_stops_the_check(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_dataset("fashion", watch=stop)


def test_the_fingerprint_of_a_folder_follows_names_labels_and_contents(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", per_class=4)
    seen = [open_dataset(str(root)).fingerprint]
    assert open_dataset(str(root)).fingerprint == seen[0]
    Image.new("RGB", (32, 24)).save(root / "a" / "000.jpg")  # content
    seen.append(open_dataset(str(root)).fingerprint)
    os.utime(root / "a" / "001.jpg", ns=(1, 1))  # time
    seen.append(open_dataset(str(root)).fingerprint)
    (root / "a" / "002.jpg").rename(root / "a" / "9.jpg")  # name
    seen.append(open_dataset(str(root)).fingerprint)
    (root / "a" / "003.jpg").rename(root / "b" / "9.jpg")  # label
    seen.append(open_dataset(str(root)).fingerprint)
    (root / "a").rename(root / "A")  # class
    seen.append(open_dataset(str(root)).fingerprint)
    assert len(set(seen)) == len(seen)


def test_the_fingerprint_does_not_follow_the_place_of_the_folder(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "here", per_class=3)
    before = open_dataset(str(root)).fingerprint
    root.rename(tmp_path / "there")
    assert open_dataset(str(tmp_path / "there")).fingerprint == before


def test_an_image_that_goes_bad_after_the_check_is_named_when_read(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", per_class=3)
    data = open_dataset(str(root))
    cut(root / "b" / "001.jpg")
    (root / "b" / "002.jpg").unlink()
    with pytest.raises(DataError, match=r"cannot read 'b/001.jpg' of .*photos.*truncated"):
        data.read(4)
    with pytest.raises(DataError, match=r"cannot read 'b/002.jpg'.*no such file"):
        data.read(5)


def test_a_dataset_cannot_be_changed() -> None:
    data = open_dataset("digits", limit=20)
    with pytest.raises(FrozenInstanceError):
        data.targets = ()  # type: ignore[misc,assignment]


def test_a_few_bad_images_in_a_small_sample_do_not_condemn_the_set(image_folder: Callable[..., Path]) -> None:
    folder = image_folder(num_classes=2, per_class=100)
    for index in range(8):  # 4 % of all, and as it happens far more of this sample
        file = folder / "class0" / f"{index:03}.png"
        file.write_bytes(file.read_bytes()[:100])
    for seed in range(20):
        assert 14 <= len(open_dataset(str(folder), limit=16, seed=seed)) <= 16
