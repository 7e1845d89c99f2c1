from pathlib import Path

import pytest

from layouts import write_food101
from modelhound.data import open_dataset
from refusals import message


@pytest.fixture
def food(tmp_path: Path) -> Path:
    return write_food101(tmp_path / "food-101")


def test_a_split_is_what_its_list_says_and_train_is_the_default(food: Path) -> None:
    train, test = open_dataset(str(food)), open_dataset(str(food), split="test")
    assert (len(train), len(test)) == (30, 15)
    assert not set(train.item_names) & set(test.item_names)
    assert train.class_names == test.class_names == ("apple_pie", "tacos", "waffles")
    assert train.item_names[0] == "waffles/1.jpg"
    assert train.targets[0] == 2


def test_lists_in_json_are_the_same(food: Path, tmp_path: Path) -> None:
    other = write_food101(tmp_path / "other", lists="json")
    assert open_dataset(str(other)).item_names == open_dataset(str(food)).item_names


def test_without_classes_txt_classes_are_those_of_the_list(food: Path) -> None:
    (food / "meta" / "classes.txt").unlink()
    assert open_dataset(str(food)).class_names == ("apple_pie", "tacos", "waffles")


def test_a_missing_image_is_left_out_and_named(food: Path) -> None:
    (food / "images" / "tacos" / "2001.jpg").unlink()
    data = open_dataset(str(food))
    assert len(data) == 29
    assert [(each.item, each.reason) for each in data.skipped] == [("tacos/2001.jpg", "no such file or directory")]


def test_what_is_wrong_with_a_list_is_said(food: Path) -> None:
    assert "train, test" in message(food, split="val")
    lines = (food / "meta" / "train.txt").read_text()
    (food / "meta" / "train.txt").write_text(lines + "../../etc/passwd\n")
    assert "'../../etc/passwd'" in message(food)
    (food / "meta" / "train.txt").write_text(lines + "tacos/20\0x\n")
    assert r"'tacos/20\x00x'" in message(food)
    (food / "meta" / "train.txt").write_text(lines + "sushi/1\n")
    assert "'sushi/1'" in message(food)
    (food / "meta" / "train.txt").write_text("\n")
    assert "it is empty" in message(food)
    (food / "meta" / "train.txt").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in message(food)
    (food / "meta" / "test.txt").unlink()
    assert "test.txt or test.json" in message(food, split="test")


def test_a_list_in_json_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    food = write_food101(tmp_path / "food", lists="json")
    (food / "meta" / "train.json").write_text('{"a": 3}')
    assert "train.json" in message(food)
