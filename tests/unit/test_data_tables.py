from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modelhound.data.source import DataRequest, Listing, UnreadableItemError
from modelhound.data.sources.tables import Chunk, Table, list_table
from modelhound.errors import DataError
from modelhound.settings import Task

WORDS = ["a good film, and a long one", "a bad film, and a long one", "nothing to see, move on", "what a day it was"]


def table(columns: Mapping[str, Sequence[Any]], folder: Path = Path(), **options: Any) -> Table:
    def read(names: Sequence[str]) -> list[Chunk]:
        num_rows = len(next(iter(columns.values())))
        half = num_rows // 2
        return [
            Chunk("t", range(start + 1, stop + 1), [columns[name][start:stop] for name in names])
            for start, stop in ((0, half), (half, num_rows))
        ]

    return Table(reference="t", folder=folder, sample=columns, read=read, **options)


def listed(
    columns: Mapping[str, Sequence[Any]], task: Task | None = None, folder: Path = Path(), **asked: str
) -> Listing:
    return list_table(table(columns, folder), DataRequest(columns=asked, task=task))


def message(columns: Mapping[str, Sequence[Any]], task: Task | None = None, **asked: str) -> str:
    with pytest.raises(DataError) as caught:
        listed(columns, task, **asked)
    text = str(caught.value)
    assert text.startswith("cannot ")
    assert "expected" in text
    return text


def labels(values: Sequence[Any], task: Task | None = None) -> Listing:
    return listed({"text": ["x"] * len(values), "label": values}, task)


def label_message(values: Sequence[Any], task: Task | None = None) -> str:
    return message({"text": ["x"] * len(values), "label": values}, task)


# Which column is what


@pytest.mark.parametrize(
    "name", ["label", "Labels", "CLASS", "category", "target", "sentiment", "score", "stars", "Rating", "y"]
)
def test_a_label_is_known_by_its_name_in_either_case(name: str) -> None:
    found = listed({"other": ["p", "p", "q", "q"], name: ["a", "b", "a", "b"], "text": WORDS})
    assert found.class_names == ("a", "b")
    assert found.reader.read(0) == (WORDS[0],)


def test_a_sure_label_name_beats_a_likely_one() -> None:
    assert listed({"text": WORDS, "score": [1, 2, 3, 4], "label": ["a", "b", "a", "b"]}).class_names == ("a", "b")


def test_two_likely_labels_are_for_the_person_to_choose_from() -> None:
    text = message({"text": WORDS, "stars": [1, 2, 3, 4], "category": ["a", "b", "a", "b"]})
    assert "'stars', 'category' all could be" in text
    assert "--columns text=text,label=category" in text
    assert "'stars' (such as 1)" in text
    assert "'category' (such as 'a')" in text


def test_the_only_other_column_is_the_label() -> None:
    found = listed({"id": [7, 8, 9, 10], "v2": WORDS, "v1": ["a", "b", "a", "b"], "unnamed 4": ["", "", "x", ""]})
    assert found.class_names == ("a", "b")
    assert found.reader.read(3) == (WORDS[3],)


def test_counters_and_ids_are_neither_text_nor_label() -> None:
    found = listed({"index": [0, 1, 2, 3], "user_id": ["u" * 99] * 4, "words": WORDS, "kind": ["a", "b", "a", "b"]})
    assert found.class_names == ("a", "b")
    assert found.reader.read(0) == (WORDS[0],)


def test_without_a_usual_name_the_text_is_the_column_of_the_longest_strings() -> None:
    found = listed({"who": ["me", "you", "me", "he"], "said": WORDS, "label": ["a", "b", "a", "b"]})
    assert found.reader.read(1) == (WORDS[1],)


def test_two_columns_of_equally_long_texts_are_for_the_person_to_choose_from() -> None:
    text = message({"said": WORDS, "heard": WORDS[::-1], "label": ["a", "b", "a", "b"]})
    assert "which column of 't' is the text" in text
    assert "--columns text=said,label=label" in text


def test_the_option_shown_works_as_it_stands() -> None:
    columns = {"what I said": WORDS, "what I heard": WORDS[::-1], "label": ["a", "b", "a", "b"]}
    assert "--columns 'text=what I said,label=label'" in message(columns)
    assert listed(columns, text="what I said", label="label").reader.read(0) == (WORDS[0],)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("text", "text_pair"),
        ("Sentence1", "Sentence2"),
        ("premise", "hypothesis"),
        ("question1", "question2"),
        ("s1", "s2"),
    ],
)
def test_a_pair_is_known_by_its_names(first: str, second: str) -> None:
    found = listed({second: WORDS[::-1], first: WORDS, "label": ["a", "b", "a", "b"]})
    assert found.modality == "text"
    assert found.reader.read(0) == (WORDS[0], WORDS[3])


def test_a_text_that_was_named_is_no_pair() -> None:
    found = listed({"s1": WORDS, "s2": WORDS, "label": ["a", "b", "a", "b"]}, text="s2", label="label")
    assert found.reader.read(2) == (WORDS[2],)


def test_a_pair_can_be_named() -> None:
    found = listed({"p": WORDS, "q": WORDS[::-1], "z": ["a", "b", "a", "b"]}, text="q", pair="p", label="z")
    assert found.reader.read(0) == (WORDS[3], WORDS[0])


def test_a_wrong_column_is_answered_by_the_columns_there_are_and_a_close_one() -> None:
    text = message({"review": WORDS, "stars": [1, 2, 1, 2]}, text="reveiw")
    assert "--columns text=reveiw" in text
    assert "did you mean text=review?" in text
    assert "'stars' (such as 1)" in text


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"text": "a", "label": "a"}, "in two roles"),
        ({"text": "a", "image": "b"}, "text and image columns"),
        ({"pair": "a"}, "add text=COLUMN"),
    ],
)
def test_roles_that_do_not_go_together_are_refused(asked: dict[str, str], told: str) -> None:
    assert told in message({"a": WORDS, "b": WORDS, "label": [1, 2, 1, 2]}, **asked)


# Images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


def colour(found: Listing, position: int) -> Any:
    item = found.reader.read(position)
    assert isinstance(item, Image.Image)
    return item.getpixel((0, 0))


def test_names_that_end_like_images_are_read_from_the_folder_of_the_table(photos: Path) -> None:
    found = listed({"x": ["0.png", "./1.png", "a/../2.png", str(photos / "3.png")], "y": [1, 2, 1, 2]}, folder=photos)
    assert found.modality == "image"
    (photos / "a").mkdir()
    assert [colour(found, place) for place in range(4)] == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0)]


def test_a_relative_path_may_not_leave_the_folder() -> None:
    text = message({"x": ["a.png", "b.png", "b/../../secret.png", "c.png"], "y": [1, 2, 1, 2]})
    assert "'b/../../secret.png' in t:3" in text


def test_images_may_lie_in_the_table_itself(photos: Path) -> None:
    files = [(photos / f"{number}.png").read_bytes() for number in range(4)]
    found = listed({"x": files, "y": [1, 2, 1, 2]})
    as_stored = listed({"image": [{"bytes": each, "path": None} for each in files], "label": [1, 2, 1, 2]})
    assert found.modality == as_stored.modality == "image"
    assert [colour(found, place) for place in range(4)] == [colour(as_stored, place) for place in range(4)]
    assert found.reader.select([2]).stamp(0) == found.reader.stamp(2)
    assert found.reader.stamp(0) == as_stored.reader.stamp(0) != found.reader.stamp(1)


def test_a_row_without_an_image_cannot_be_read_but_does_not_stop_the_others(photos: Path) -> None:
    found = listed({"x": ["0.png", None, "2.png", ""], "y": [1, 2, 1, 2]}, folder=photos)
    for position in (1, 3):
        with pytest.raises(UnreadableItemError, match="not a regular file"):
            found.reader.check(position)
    found.reader.check(2)


def test_an_image_beside_a_text_is_for_the_person_to_choose() -> None:
    assert "an image or a text" in message({"text": WORDS, "x": ["a.png"] * 4, "label": [1, 2, 1, 2]})


# Labels


def test_rows_without_label_are_skipped_and_counted_whatever_their_share() -> None:
    found = labels(["a", "", None, float("nan"), " NaN ", "null", "b", "a", "b"])
    assert found.item_names == ("t:1", "t:7", "t:8", "t:9")
    assert [item.item for item in found.skipped] == ["t:2", "t:3", "t:4", "t:5", "t:6"]
    assert {item.reason for item in found.skipped} == {"it has no label"}


def test_after_a_thousand_rows_without_label_only_their_number_is_told() -> None:
    found = labels(["a", "b", "a", "b"] + [""] * 1234)
    assert len(found.skipped) == 1001
    assert found.skipped[-1].reason == "234 more rows have no label"


def test_a_table_without_any_label_is_refused() -> None:
    assert "column 'label' is empty in all of them" in label_message([None, "", None])


def test_classes_are_sorted_numbers_by_value_and_texts_by_code_point() -> None:
    assert labels(["10", "9", "-1", "10", "9", "-1"]).class_names == ("-1", "9", "10")
    assert labels([10, 9, 10, 9]).class_names == ("9", "10")
    found = labels(["ß", "Z", "猫", "a", "ض", "a", "Z", "ß", "ض", "猫"])
    assert found.class_names == ("Z", "a", "ß", "ض", "猫")
    assert found.targets.tolist() == [2, 0, 4, 1, 3, 1, 0, 2, 3, 4]


def test_equal_numbers_are_one_class_however_they_are_written() -> None:
    found = labels(["1", "1.0", "01", "2", "+2", "2e0"])
    assert found.class_names == ("1", "2")
    assert found.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert labels([1.0, 2.0, None, 1.0, 2.0]).class_names == ("1", "2")


def test_long_numbers_are_told_apart_by_their_last_digit_whatever_their_sign() -> None:
    labels = ["-12345678901234567890", "-12345678901234567891", "+12345678901234567890"] * 2
    names = listed({"text": WORDS + WORDS[:2], "label": labels}).class_names
    assert names == ("-12345678901234567890", "-12345678901234567891", "12345678901234567890")


def test_true_and_false_are_classes() -> None:
    assert labels([True, False, True, False]).class_names == ("False", "True")


def test_bytes_that_are_text_are_labels() -> None:
    assert labels([b"a", b" b", "a", "b", b""]).class_names == ("a", "b")
    assert "t:1 holds bytes" in label_message([b"\xff", "b"])


def test_numbers_that_are_not_all_whole_are_a_regression() -> None:
    found = labels(["1", "2.5", "1e1", ".5"])
    assert found.task == "regression"
    assert found.class_names == ("label",)
    assert found.targets.tolist() == [1.0, 2.5, 10.0, 0.5]
    assert labels([Decimal("1.5"), Decimal(2)]).targets.tolist() == [1.5, 2.0]


def test_a_task_that_is_asked_for_holds() -> None:
    assert labels([1, 2, 2, 3], "regression").targets.tolist() == [1.0, 2.0, 2.0, 3.0]
    halves = labels([0.5, 1, 0.5, 1], "classification")
    assert (halves.task, halves.class_names) == ("classification", ("0.5", "1"))
    mixed = labels(["x", "10", "9", "x", "10", "9"], "classification")
    assert mixed.class_names == ("9", "10", "x")


def test_numbers_and_words_in_one_column_are_an_error_that_names_rows_of_each() -> None:
    text = label_message(["1", "2", "unknown", "1", "?"])
    assert "numbers in t:1 ('1'), t:2 ('2'), t:4 ('1')" in text
    assert "words in t:3 ('unknown'), t:5 ('?')" in text
    assert "--task classification" in text
    assert "true or false in t:2 (True)" in label_message([1, True, 0, False])


def test_words_are_no_regression() -> None:
    assert "words in t:1 ('a')" in label_message(["a", "1", "2"], "regression")
    assert "t:2 holds inf" in label_message([1.5, float("inf"), 2.0])
    assert "t:1 holds inf" in label_message(["9" * 400, "1.5"])
    assert "t:2 holds inf" in label_message([1, 10**400, 2], "regression")


def test_classes_of_one_item_are_named_with_what_to_do() -> None:
    text = label_message(["a", "a", "b", "c", "d", "d"])
    assert "2 of 4 classes have only one: 'b', 'c'" in text
    assert "regression" not in text
    assert "--task regression" in label_message([1, 2, 3, 3])
    assert "and 95 more" in label_message(list(range(100)) + ["100"] * 2)


def test_one_class_is_too_few() -> None:
    assert "'a' is the only one" in label_message(["a", "a"])


def test_ten_thousand_classes_are_fine() -> None:
    found = labels([f"class {number}" for number in range(10_000)] * 2)
    assert len(found.class_names) == 10_000
    assert np.bincount(found.targets).tolist() == [2] * 10_000


def test_lists_are_several_labels() -> None:
    found = labels([["b", "a"], [], ["c"], ["a"], None])
    assert found.task == "multilabel"
    assert found.class_names == ("a", "b", "c")
    assert found.targets.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert labels([[10, 9], [9]]).class_names == ("9", "10")


def test_texts_are_split_into_labels_where_that_is_asked_for() -> None:
    found = labels(["a | b", "b;c", "", "7"], "multilabel")
    assert found.class_names == ("7", "a", "b", "c")
    assert found.targets.tolist() == [[0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0]]
    assert labels(["a|b", "c", "a|b", "c"]).class_names == ("a|b", "c")


def test_lists_of_yes_and_no_are_read_as_such() -> None:
    for values in ([[True, False, True], [False, True, False]], [[1, 0, 1], [0, 1, 0]]):
        found = labels(values)
        assert found.class_names == ("0", "1", "2")
        assert found.targets.tolist() == [[1, 0, 1], [0, 1, 0]]


def test_lists_are_neither_one_class_nor_one_number() -> None:
    assert "one class per row" in label_message([["a"], ["b"]], "classification")
    assert "lists in t:1 (['a']) and words in t:2 ('b')" in label_message([["a"], "b"])
    assert "t:1 holds [['a']]" in label_message([[["a"]], ["b"]])


def test_something_else_is_no_label() -> None:
    assert "t:1 holds dict" in label_message([{"a": 1}, {"a": 2}])


def test_numbers_take_the_names_that_the_table_has_for_them() -> None:
    columns = {"text": ["x"] * 7, "label": [2, 0, 2, 0, -1, None, 0]}
    found = list_table(table(columns, class_names={"label": ("zero", "one", "a two")}), DataRequest())
    assert found.class_names == ("zero", "a two")
    assert found.targets.tolist() == [1, 0, 1, 0, 0]
    assert len(found.skipped) == 2
    lists = {"text": ["x"] * 2, "label": [[1, 0], [1]]}
    several = list_table(table(lists, class_names={"label": ("zero", "one")}), DataRequest())
    assert several.class_names == ("zero", "one")
    assert several.targets.tolist() == [[True, True], [False, True]]
    with pytest.raises(DataError, match=r"numbers from 0 to 0, which have names there, but t:1 holds 2"):
        list_table(table(columns, class_names={"label": ("zero",)}), DataRequest())


# Texts


def test_a_missing_text_is_left_to_the_reader() -> None:
    found = listed({"text": [WORDS[0], None, "", "x"], "label": ["a", "b", "a", "b"]})
    for position in (1, 2):
        with pytest.raises(UnreadableItemError, match="empty"):
            found.reader.check(position)


def test_bytes_that_are_text_are_text() -> None:
    assert listed({"text": ["ä".encode()] * 4, "label": [1, 2, 1, 2]}).reader.read(0) == ("ä",)


def test_numbers_are_no_texts() -> None:
    assert "t:2 holds int" in message({"text": ["x", 5, "y", "z"], "label": [1, 2, 1, 2]}, text="text")


def test_another_text_has_another_stamp() -> None:
    reader = listed({"text": ["x", "y", "x", "z"], "label": [1, 2, 1, 2]}).reader
    assert reader.stamp(0) == reader.stamp(2) != reader.stamp(1)
