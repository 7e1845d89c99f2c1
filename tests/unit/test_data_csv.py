import csv
import os
from pathlib import Path
from typing import Any

import pytest

from modelhound.data import open_dataset
from refusals import message

ROWS = "good film,pos\nbad film,neg\nfine film,pos\nawful film,neg\n"


def write(folder: Path, content: str | bytes, name: str = "reviews.csv") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def texts(reference: str, **options: Any) -> list[Any]:
    data = open_dataset(reference, **options)
    return [data.read(index) for index in range(len(data))]


def test_rows_are_read_in_order_and_called_by_their_line(tmp_path: Path) -> None:
    reference = write(tmp_path, "review,sentiment\n" + ROWS.replace("bad film", '"bad,\n""bad"" film"'))
    data = open_dataset(reference)
    assert data.name == reference
    assert (data.task, data.modality, data.class_names) == ("classification", "text", ("neg", "pos"))
    assert data.targets.tolist() == [1, 0, 1, 0]
    assert texts(reference) == [("good film",), ('bad,\n"bad" film',), ("fine film",), ("awful film",)]
    assert data.item_names == ("reviews.csv:2", "reviews.csv:3", "reviews.csv:5", "reviews.csv:6")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_separators_and_line_ends_are_found_out(tmp_path: Path, separator: str, newline: str) -> None:
    text = 'id,text,label\n1,"a, b; c | d\te",x\n2,f,y\n3,g,x\n4,h,y\n'
    rows = list(csv.reader(text.splitlines()))
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=separator, lineterminator=newline).writerows(rows)
    assert texts(str(tmp_path / "t.csv")) == [("a, b; c | d\te",), ("f",), ("g",), ("h",)]


def test_the_separator_is_not_one_that_only_texts_hold(tmp_path: Path) -> None:
    reference = write(tmp_path, "label;text\n1;a, b, c\n2;d, e, f\n1;g, h\n2;i\n")
    assert texts(reference)[0] == ("a, b, c",)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_with_a_mark_are_just_read(tmp_path: Path, encoding: str) -> None:
    reference = write(tmp_path, "text,label\nschön,gut\nübel,schlecht\n猫,gut\n🐈,schlecht\n".encode(encoding))
    assert texts(reference) == [("schön",), ("übel",), ("猫",), ("🐈",)]


def test_another_encoding_is_answered_by_line_byte_and_command(tmp_path: Path) -> None:
    reference = write(tmp_path, "text,label\ngut,a\nschön,a\nü,b\n".encode("latin-1"), "my reviews.csv")
    text = message(reference)
    assert "expected UTF-8, but byte 4 of line 3 is 0xF6" in text
    assert f"iconv -f WINDOWS-1252 -t UTF-8 '{reference}' > '{tmp_path}/my reviews-utf8.csv'" in text


def test_a_bad_byte_far_into_the_file_is_found_too(tmp_path: Path) -> None:
    reference = write(tmp_path, b"text,label\n" + b"some words,a\nother words,b\n" * 20_000 + b"\xff,a\n")
    assert "byte 1 of line 40002 is 0xFF" in message(reference)


def test_zero_bytes_are_named_by_their_line(tmp_path: Path) -> None:
    assert "line 3 holds a zero byte" in message(write(tmp_path, "text,label\ngood,a\nb\0ad,b\n"))
    assert "iconv -f UTF-16LE" in message(write(tmp_path, ("text,label\n" + ROWS).encode("utf-16-le")))


def test_a_broken_utf_16_file_is_refused(tmp_path: Path) -> None:
    assert "expected UTF-16" in message(write(tmp_path, ("text,label\n" + ROWS).encode("utf-16")[:-1]))


def test_rows_of_another_width_are_named_by_their_line(tmp_path: Path) -> None:
    assert "line 3 of" in message(write(tmp_path, "text,label\na,x\nb,c,y\nd,x\n"))
    assert "expected 2 fields as in the header, but there are 1" in message(
        write(tmp_path, "text,label\na,x\nb\nd,x\n")
    )


def test_a_quote_that_is_never_closed_is_named_by_its_line(tmp_path: Path) -> None:
    text = message(write(tmp_path, 'text,label\na,x\n"b,y\nc,x\nd,y\n'))
    assert "cannot read line 3 of" in text
    assert "never closed" in text


def test_quotes_behind_a_backslash_are_understood(tmp_path: Path) -> None:
    reference = write(tmp_path, 'text,label\n"a \\"good\\", long film",x\nb,y\nc,x\nd,y\n')
    assert texts(reference)[0] == ('a "good", long film',)


def test_stray_quotes_in_a_file_with_tabs_are_ordinary_characters(tmp_path: Path) -> None:
    rows = "".join(f"words {number}\t{number % 2}\n" for number in range(1000))
    reference = write(tmp_path, f'text\tlabel\n{rows}"a stray one\t0\nmore\t1\n"another\t1\n', "t.tsv")
    assert texts(reference)[1000:] == [('"a stray one',), ("more",), ('"another',)]


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    reference = write(tmp_path, "text,label\n\n" + ROWS + "\n\n")
    assert open_dataset(reference).item_names[0] == "reviews.csv:3"


def test_a_text_of_a_hundred_thousand_characters_passes(tmp_path: Path) -> None:
    long = "word " * 60_000
    assert texts(write(tmp_path, f"text,label\n{long},a\nb,b\nc,a\nd,b\n"))[0] == (long,)


@pytest.mark.parametrize(
    "rows",
    [
        "ham,Go until jurong point\nspam,Free entry in a competition\nham,Ok lar\nspam,Winner\n",
        "good film,1\nbad film,0\nfine,1\nawful,0\n",
        "spam,Free entry\nham,Go until jurong point\nspam,Winner\nham,Ok lar\n",
        f"a {'very ' * 30}long sentence,great\nb,bad\nc,great\nd,bad\n",
    ],
)
def test_a_file_without_header_is_told_so(tmp_path: Path, rows: str) -> None:
    text = message(write(tmp_path, rows))
    assert "expected the names of the columns in its first line" in text
    assert "text,label" in text or "label,text" in text


def test_a_header_may_say_anything_that_is_named_by_columns(tmp_path: Path) -> None:
    reference = write(tmp_path, "0,1\n" + ROWS)
    assert "looks like data" in message(reference)
    assert texts(reference, columns={"text": "0", "label": "1"})[0] == ("good film",)


def test_the_row_numbers_and_empty_columns_that_programs_write_are_ignored(tmp_path: Path) -> None:
    assert len(texts(write(tmp_path, ",text,label\n0,a,x\n1,b,y\n2,c,x\n3,d,y\n"))) == 4
    spam = "v1,v2,,\nham,Go until jurong point,,\nspam,Free entry,,\nham,Ok,lar,\nspam,Winner,,\n"
    assert texts(write(tmp_path, spam))[2] == ("Ok",)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    assert "several called 'text'" in message(write(tmp_path, "text,text,label\na,b,x\nc,d,y\n"))


def test_one_column_is_too_few(tmp_path: Path) -> None:
    text = message(write(tmp_path, "text\na\nb\n"))
    assert "two or more columns" in text
    assert "the first line is 'text'; give the items a column of labels" in text


def test_a_wrong_column_is_answered_by_the_right_one(tmp_path: Path) -> None:
    text = message(write(tmp_path, "review,sentiment\n" + ROWS), columns={"label": "sentimant"})
    assert "did you mean label=sentiment?" in text


@pytest.mark.parametrize(
    ("content", "told"), [("", "it is empty"), ("text,label\n", "rows below its header"), ("\n\n", "two or")]
)
def test_a_file_with_nothing_in_it_is_refused(tmp_path: Path, content: str, told: str) -> None:
    assert told in message(write(tmp_path, content))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    assert "it is a folder" in message(str(tmp_path / "folder.csv"))
    os.mkfifo(tmp_path / "pipe.csv")
    assert "it is a pipe" in message(str(tmp_path / "pipe.csv"))
    write(tmp_path, "x")
    text = message(str(tmp_path / "review.csv"))
    assert "there is no such path" in text
    assert f"did you mean '{tmp_path}/reviews.csv'" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    reference = write(tmp_path, "text,label\n" + ROWS)
    Path(reference).chmod(0)
    assert "permission" in message(reference)


def test_options_a_table_has_no_use_for_are_refused(tmp_path: Path) -> None:
    assert "cannot use --split" in message(write(tmp_path, "text,label\n" + ROWS), split="train")


def test_rows_without_text_are_told_as_skipped(tmp_path: Path) -> None:
    rows = "".join(f"words {number},{number % 2}\n" for number in range(40))
    data = open_dataset(write(tmp_path, "text,label\n" + rows + ",1\nword,\n"))
    assert [(item.item, item.reason) for item in data.skipped] == [
        ("reviews.csv:43", "it has no label"),
        ("reviews.csv:42", "the text is empty"),
    ]


def test_a_changed_text_changes_the_fingerprint(tmp_path: Path) -> None:
    first = open_dataset(write(tmp_path, "text,label\n" + ROWS)).fingerprint
    assert open_dataset(write(tmp_path, "text,label\n" + ROWS)).fingerprint == first
    assert open_dataset(write(tmp_path, "text,label\n" + ROWS.replace("good", "Good"))).fingerprint != first
