import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from modelhound.data import open_dataset
from refusals import message

TEXTS = ["good", "bad", "fine", "awful"]


def write(path: Path, columns: dict[str, Any], **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def test_rows_are_read_in_order_across_row_groups(tmp_path: Path) -> None:
    columns = {"text": [f"text {number}" for number in range(1000)], "label": [number % 3 for number in range(1000)]}
    data = open_dataset(write(tmp_path / "t.parquet", columns, row_group_size=77))
    assert data.class_names == ("0", "1", "2")
    assert data.targets.tolist() == columns["label"]
    assert [data.read(number) for number in (0, 500, 999)] == [("text 0",), ("text 500",), ("text 999",)]
    assert (data.item_names[0], data.item_names[-1]) == ("t.parquet:1", "t.parquet:1000")


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (pa.array(["a", "b", "a", "b"]).dictionary_encode(), "classification"),
        (pa.array([True, False, True, False]), "classification"),
        (pa.array([1, 0, 1, 0], pa.int8()), "classification"),
        (pa.array([1.5, 0, 2, 3], pa.float32()), "regression"),
        (pa.array([["a"], ["a", "b"], [], ["b"]]), "multilabel"),
    ],
)
def test_the_type_of_the_column_tells_the_task(tmp_path: Path, values: Any, task: str) -> None:
    assert open_dataset(write(tmp_path / "t.parquet", {"text": TEXTS, "label": values})).task == task


def test_the_files_of_a_folder_are_one_table(tmp_path: Path) -> None:
    for number in (1, 0):
        write(
            tmp_path / f"part-{number}.parquet", {"text": [f"{number} {text}" for text in TEXTS], "label": [1, 2, 1, 2]}
        )
    (tmp_path / "_SUCCESS").touch()
    data = open_dataset(str(tmp_path))
    assert len(data) == 8
    assert data.read(0) == ("0 good",)
    assert data.item_names[4] == "part-1.parquet:1"


def test_a_split_takes_the_files_called_so_and_train_by_default(tmp_path: Path) -> None:
    for part in ("test", "train"):
        for number in range(2):
            columns = {"text": [part] * 4, "label": ["a", "b", "a", "b"]}
            write(tmp_path / f"{part}-0000{number}-of-00002.parquet", columns)
    assert {open_dataset(str(tmp_path)).read(index) for index in range(8)} == {("train",)}
    assert open_dataset(str(tmp_path), split="test").read(7) == ("test",)
    assert "expected one of its parts, test, train" in message(str(tmp_path), split="dev")
    assert "of which there are none" in message(write(tmp_path / "other" / "t.parquet", {"text": TEXTS}), split="test")
    assert "no such path" in message(str(tmp_path / "nothing.parquet"), split="test")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"text": TEXTS, "label": [1, 2, 1, 2]})
    write(tmp_path / "b.parquet", {"words": TEXTS, "label": [1, 2, 1, 2]})
    assert "expected column 'text' in all of its files, but 'b.parquet' lacks it" in message(str(tmp_path))


def test_images_are_read_from_their_bytes(tmp_path: Path) -> None:
    files = []
    for number in range(4):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (number, 0, 0)).save(buffer, "PNG")
        files.append({"bytes": buffer.getvalue(), "path": f"{number}.png"})
    data = open_dataset(write(tmp_path / "t.parquet", {"image": files, "label": ["a", "b", "a", "b"]}))
    assert data.modality == "image"
    image = data.read(2)
    assert isinstance(image, Image.Image)
    assert image.getpixel((0, 0)) == (2, 0, 0)


def test_class_names_come_from_the_head_of_the_file(tmp_path: Path) -> None:
    head = b'{"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}}}'
    table = pa.table({"text": TEXTS, "label": [1, 0, 1, 0]}).replace_schema_metadata({"huggingface": head})
    pq.write_table(table, tmp_path / "t.parquet")
    assert open_dataset(str(tmp_path / "t.parquet")).class_names == ("no", "yes")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = Path(write(tmp_path / "t.parquet", {"text": TEXTS, "label": [1, 2, 1, 2]}))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    text = message(str(path))
    assert ("it is empty" if share == 0.0 else "cut short or damaged") in text


def test_a_file_with_damaged_pages_is_refused(tmp_path: Path) -> None:
    texts = [f"a text of some length {number * 7919}" for number in range(4000)]
    path = Path(write(tmp_path / "t.parquet", {"text": texts, "label": [1, 2] * 2000}))
    content = bytearray(path.read_bytes())
    content[100:20_000] = b"\xff" * 19_900
    path.write_bytes(content)
    assert "cut short or damaged" in message(str(path))


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    empty = {"text": pa.array([], pa.string()), "label": pa.array([], pa.int64())}
    assert "expected rows, but it has none" in message(write(tmp_path / "t.parquet", empty))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(TEXTS), pa.array(TEXTS)], names=["text", "text"])
    pq.write_table(table, tmp_path / "t.parquet")
    assert "several called 'text'" in message(str(tmp_path / "t.parquet"))
