import json
from pathlib import Path

import pytest

from modelhound.data import open_dataset
from refusals import message

ROWS = [
    {"text": "good", "label": "pos"},
    {"text": "bad", "label": "neg"},
    {"text": "fine", "label": "pos"},
    {"text": "awful", "label": "neg"},
]
LINES = "\n".join(map(json.dumps, ROWS))


def write(folder: Path, content: str | bytes, name: str = "r.jsonl") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize("name", ["r.jsonl", "r.ndjson", "r.json", "R.JSONL"])
@pytest.mark.parametrize("content", [LINES, "\n" + LINES.replace("\n", "\r\n\r\n") + "\n", json.dumps(ROWS, indent=1)])
def test_lines_and_arrays_hold_the_same(tmp_path: Path, name: str, content: str) -> None:
    data = open_dataset(write(tmp_path, content, name))
    assert data.class_names == ("neg", "pos")
    assert data.targets.tolist() == [1, 0, 1, 0]
    assert [data.read(index) for index in range(4)] == [("good",), ("bad",), ("fine",), ("awful",)]


def test_rows_are_called_by_their_line_or_place(tmp_path: Path) -> None:
    assert open_dataset(write(tmp_path, "\n" + LINES)).item_names == (
        "r.jsonl:2",
        "r.jsonl:3",
        "r.jsonl:4",
        "r.jsonl:5",
    )
    assert open_dataset(write(tmp_path, json.dumps(ROWS, indent=1))).item_names[0] == "r.jsonl:1"


def test_a_missing_key_is_a_missing_value_and_a_late_key_a_column(tmp_path: Path) -> None:
    rows = [{"text": "early"}] * 300 + [{**row, "kind": row["label"]} for row in ROWS]
    reference = write(tmp_path, "\n".join(map(json.dumps, rows)))
    data = open_dataset(reference, columns={"label": "kind"})
    assert len(data) == 4
    assert len(data.skipped) == 300


def test_labels_keep_their_types(tmp_path: Path) -> None:
    lists = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": ["x"]}, {"text": "c", "label": []}]
    assert open_dataset(write(tmp_path, json.dumps(lists))).task == "multilabel"
    numbers = "".join(f'{{"text": "a", "score": {score}}}\n' for score in (1.5, 2, "NaN", "null", 3.25, 4))
    data = open_dataset(write(tmp_path, numbers))
    assert (data.task, data.targets.tolist()) == ("regression", [1.5, 2.0, 3.25, 4.0])
    assert [item.item for item in data.skipped] == ["r.jsonl:3", "r.jsonl:4"]


def test_texts_may_hold_any_character(tmp_path: Path) -> None:
    odd = 'a\u2028b\x85c\r\nd\te"f\\ 猫 🐈'
    rows = [{**row, "text": odd} for row in ROWS]
    for escaped in (True, False):
        data = open_dataset(write(tmp_path, "\n".join(json.dumps(row, ensure_ascii=escaped) for row in rows)))
        assert data.read(0) == (odd,)


@pytest.mark.parametrize(
    "bad",
    [
        '{"text": "a", "label": }',
        '{"text": "a"',
        "text,label",
        '{"text": "\\ud800", "label": "x"}',
        '{"text": "\\ud800", "label": NaN}',
    ],
)
def test_a_line_that_does_not_parse_is_named(tmp_path: Path, bad: str) -> None:
    assert "cannot read line 5 of" in message(write(tmp_path, LINES + "\n" + bad))


@pytest.mark.parametrize("start", ["[", '{"a":'])
def test_objects_nested_without_end_are_refused(tmp_path: Path, start: str) -> None:
    assert "nested too deep" in message(write(tmp_path, start * 100_000))


def test_a_line_that_is_no_object_is_shown(tmp_path: Path) -> None:
    assert 'but it is ["a",1]' in message(write(tmp_path, LINES + '\n["a", 1]'))
    assert "item 2" in message(write(tmp_path, '[{"text": "a"}, 5]'))


def test_an_array_that_is_cut_short_is_refused_with_the_line(tmp_path: Path) -> None:
    whole = json.dumps(ROWS, indent=1)
    assert "truncated in its last line, 11" in message(write(tmp_path, whole[: whole.index("fine")]))
    assert "in line 2;" in message(write(tmp_path, '[\n{"text" 5},\n{}]'))


@pytest.mark.parametrize(("content", "told"), [("", "it is empty"), ("\n \n", "no objects"), ("[]", "no objects")])
def test_a_file_without_objects_is_refused(tmp_path: Path, content: str, told: str) -> None:
    assert told in message(write(tmp_path, content))


def test_another_encoding_is_named_by_line_and_byte(tmp_path: Path) -> None:
    text = message(write(tmp_path, (LINES + '\n{"text": "schön", "label": "pos"}').encode("latin-1")))
    assert "byte 14 of line 5 is 0xF6" in text
