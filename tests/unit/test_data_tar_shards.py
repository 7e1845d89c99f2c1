import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from layouts import encoded, image_samples, write_tar
from modelhound.data import open_dataset
from modelhound.data.images import decode_image
from modelhound.errors import DataError
from refusals import message


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    for shard in range(3):
        write_tar(folder / f"train-{shard:03}.tar", image_samples(range(8 * shard, 8 * shard + 8), 2))
    return folder


def test_a_shard_a_folder_and_a_pattern_give_the_same_samples(shards: Path) -> None:
    one = open_dataset(str(shards / "train-000.tar"))
    assert one.item_names == tuple(f"train-000.tar/{number:04}" for number in range(8))
    assert (one.class_names, one.targets.tolist()) == (("0", "1"), [0, 1] * 4)
    whole, pattern = open_dataset(str(shards)), open_dataset(str(shards / "train-{000..002}.tar"))
    assert len(whole) == 24
    assert whole.item_names == pattern.item_names
    assert whole.fingerprint == pattern.fingerprint
    assert open_dataset(str(shards / "{train-000,train-002}.tar")).item_names[8] == "train-002.tar/0016"


def test_an_image_is_read_from_its_place_without_unpacking(shards: Path) -> None:
    before = sorted(shards.rglob("*"))
    data = open_dataset(str(shards))
    for index in (0, 9, 23):
        assert data.read(index).tobytes() == decode_image(encoded(index)).tobytes()  # type: ignore[union-attr]
    assert sorted(shards.rglob("*")) == before


def test_labels_may_be_numbers_or_names_in_cls_json_or_beside_an_image_txt(tmp_path: Path) -> None:
    labels = [("cls", b"12\n"), ("json", b'{"label": "ox"}'), ("json", b'{"cls": 3}'), ("json", b'{"class": "ox"}')]
    labels += [("txt", b"cat"), ("txt", b"cat"), ("json", b'{"label": 12.0}'), ("cls", b" 3 ")]
    files = [
        file
        for number, (suffix, content) in enumerate(labels)
        for file in ((f"{number}.png", encoded(number, "PNG")), (f"{number}.{suffix}", content))
    ]
    data = open_dataset(str(write_tar(tmp_path / "a.tar", files)))
    assert data.class_names == ("12", "3", "cat", "ox")
    assert [data.class_names[target] for target in data.targets] == ["12", "ox", "3", "ox", "cat", "cat", "12", "3"]


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    files = [
        file
        for number in range(4)
        for file in ((f"{number}.jpg", encoded(number)), (f"{number}.cls", str(10 - number // 2 * 8).encode()))
    ]
    assert open_dataset(str(write_tar(tmp_path / "a.tar", files))).class_names == ("2", "10")


def test_classes_txt_beside_the_shards_names_the_classes(shards: Path) -> None:
    (shards / "classes.txt").write_text("Äpfel\n猫\nunused\n", "utf-8")
    data = open_dataset(str(shards))
    assert data.class_names == ("Äpfel", "猫")
    (shards / "classes.txt").write_text("only\n")
    assert "'train-000.tar/0001' has 1" in message(shards)


def test_samples_without_images_are_texts(tmp_path: Path) -> None:
    texts = ["good", "bad", "gut, sehr gut", "schlecht", "  "]
    files = [
        file
        for number, text in enumerate(texts * 5)
        for file in (
            (f"dir.v1/{number}.txt", text.encode()),
            (f"dir.v1/{number}.cls", b"good" if number % 2 else b"bad"),
        )
        if text.strip() or number == 4
    ]
    data = open_dataset(str(write_tar(tmp_path / "texts.tar", files)))
    assert data.modality == "text"
    assert (data.read(0), data.read(2)) == (("good",), ("gut, sehr gut",))
    assert [(each.item, each.reason) for each in data.skipped] == [("texts.tar/dir.v1/4", "the text is empty")]


def test_samples_without_a_label_or_an_image_are_listed_as_skipped(tmp_path: Path) -> None:
    files = [*image_samples(range(6), 2), ("6.jpg", encoded(6)), ("7.cls", b"1"), ("8.jpg", encoded(8)), ("8.cls", b"")]
    data = open_dataset(str(write_tar(tmp_path / "a.tar", files)))
    assert len(data) == 6
    assert [(each.item, each.reason) for each in data.skipped] == [
        ("a.tar/6", "it has no label"),
        ("a.tar/7", "there is no image in it"),
        ("a.tar/8", "it has no label"),
    ]


def test_links_and_devices_are_skipped_and_counted_and_folders_are_not(tmp_path: Path) -> None:
    def special(name: str, kind: bytes) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        return entry

    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    files = [(special(f"x{number}.jpg", kind), b"") for number, kind in enumerate(kinds)]
    data = open_dataset(str(write_tar(tmp_path / "a.tar", [*files, *image_samples(range(6), 2)])))
    assert len(data) == 6
    assert [(each.item, each.reason) for each in data.skipped] == [("a.tar", "4 links or special files in it")]


def test_names_that_climb_out_or_control_terminals_are_mere_printable_names(tmp_path: Path) -> None:
    names = ["../../etc/cron", "/root/x", "a\nb", "red\x1b[31m", os.fsdecode(b"caf\xe9"), "猫"]
    files = [
        file
        for number, name in enumerate(names)
        for file in ((f"{name}.jpg", encoded(number)), (f"{name}.cls", str(number % 2).encode()))
    ]
    path = tmp_path / "shards" / "a.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w", errors="surrogateescape", format=tarfile.GNU_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    data = open_dataset(str(path))
    assert data.item_names == (
        "a.tar/../../etc/cron",
        "a.tar//root/x",
        "a.tar/a\\nb",
        "a.tar/red\\x1b[31m",
        "a.tar/caf\ufffd",
        "a.tar/猫",
    )
    assert all(name.isprintable() for name in data.item_names)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [path]


def test_long_names_and_a_second_file_of_the_same_name_are_as_tar_has_them(tmp_path: Path) -> None:
    long = "d" * 90 + "/" + "n" * 150
    files = [*image_samples(range(4), 2), (f"{long}.jpg", encoded(9)), (f"{long}.cls", b"1"), ("0000.jpg", encoded(77))]
    data = open_dataset(str(write_tar(tmp_path / "a.tar", files)))
    assert data.item_names[4] == f"a.tar/{long}"
    assert data.read(0).tobytes() == decode_image(encoded(77)).tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("mark", "further", "expected"),
    [
        (b"0015.jpg", 512 + 100, "last whole sample in it is '0014'"),  # in the image
        (b"0015.jpg", 100, "last whole sample in it is '0013'"),  # in its header: 0014 might have had more files
        (b"0015.cls", 1024, "last whole sample in it is '0014'"),  # all is there but the mark of the end
        (b"0008.jpg", 512 + 10, "no sample in it is whole"),
    ],
)
def test_a_shard_that_is_cut_off_names_itself_and_its_last_whole_sample(
    shards: Path, mark: bytes, further: int, expected: str
) -> None:
    shard = shards / "train-001.tar"
    os.truncate(shard, shard.read_bytes().index(mark) + further)
    text = message(shards)
    assert "train-001.tar" in text
    assert expected in text


@pytest.mark.parametrize("size", ["-1", "-512", "-1536"])
def test_a_file_of_less_than_no_bytes_is_refused(size: str, tmp_path: Path) -> None:
    """It would lead back to its own header, again and again."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, headers in (("0.jpg", {}), ("1.jpg", {"size": size})):
            entry = tarfile.TarInfo(name)
            entry.size, entry.pax_headers = len(encoded(0)), headers
            archive.addfile(entry, io.BytesIO(encoded(0)))
    assert "cut off or damaged" in message(tmp_path / "a.tar")


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end(shards: Path) -> None:
    shard = shards / "train-002.tar"
    content = bytearray(shard.read_bytes())
    start = content.index(b"0020.jpg")
    content[start : start + 8] = b"\xff" * 8
    shard.write_bytes(content)
    text = message(shards)
    assert "train-002.tar" in text
    assert "last whole sample in it is '0018'" in text


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar"])
def test_a_compressed_tar_is_refused_with_advice(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "plain.tar", image_samples(range(4), 2))
    (tmp_path / name).write_bytes(gzip.compress((tmp_path / "plain.tar").read_bytes()))
    assert "gunzip" in message(tmp_path / name)


def test_files_that_are_no_tar_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.tar").write_bytes(b"")
    assert "empty" in message(tmp_path / "empty.tar")
    (tmp_path / "noise.tar").write_bytes(np.random.default_rng(0).bytes(5000))
    assert "noise.tar" in message(tmp_path / "noise.tar")
    assert "none.tar" in message(tmp_path / "none.tar")
    assert "train-003.tar" in message(tmp_path / "train-{003..004}.tar")
    write_tar(tmp_path / "nothing.tar", [])
    assert "no file in it" in message(tmp_path / "nothing.tar")
    write_tar(tmp_path / "other.tar", [("a.npy", b"x"), ("a.cls", b"1")])
    assert "cls, npy" in message(tmp_path / "other.tar")
    write_tar(tmp_path / "single.tar", image_samples(range(4), 1))
    assert "'0' is the only one" in message(tmp_path / "single.tar")


@pytest.mark.parametrize("pattern", ["a-{3..1}.tar", "a-{}.tar", "a-{x..y}.tar", "a-{0..9999999999}.tar"])
def test_a_pattern_that_means_nothing_is_explained(pattern: str) -> None:
    assert "pattern" in message(pattern) or "shards" in message(pattern)


def test_splits_are_told_apart_by_shard_names_and_train_is_the_default(shards: Path) -> None:
    write_tar(shards / "val-0.tar", image_samples(range(6), 2))
    assert len(open_dataset(str(shards))) == 24
    assert len(open_dataset(str(shards), split="val")) == 6
    assert "'train', 'val'" in message(shards, split="test")


def test_splits_may_be_folders_of_shards(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "train" / "000.tar", image_samples(range(8), 2))
    write_tar(tmp_path / "d" / "test" / "000.tar", image_samples(range(6), 2))
    assert len(open_dataset(str(tmp_path / "d"))) == 8
    assert len(open_dataset(str(tmp_path / "d"), split="test")) == 6


def test_an_archive_beside_class_folders_is_not_a_shard(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "photos" / name / f"{number}.jpg").write_bytes(encoded(number))
    write_tar(tmp_path / "photos" / "backup.tar", image_samples(range(4), 2))
    assert open_dataset(str(tmp_path / "photos")).class_names == ("a", "b")


def test_a_shard_that_shrinks_after_the_check_is_an_error_that_names_the_item(shards: Path) -> None:
    data = open_dataset(str(shards))
    os.truncate(shards / "train-002.tar", 2000)
    with pytest.raises(DataError, match=r"train-002\.tar/0023.*shorter"):
        data.read(23)
    (shards / "train-001.tar").unlink()
    with pytest.raises(DataError, match="no such file"):
        data.read(9)


def test_a_broken_image_in_a_shard_is_left_out_and_named(tmp_path: Path) -> None:
    files = [*image_samples(range(40), 2), ("x.jpg", encoded(1)[:300]), ("x.cls", b"1")]
    data = open_dataset(str(write_tar(tmp_path / "a.tar", files)))
    assert len(data) == 40
    assert [(each.item, each.reason) for each in data.skipped] == [("a.tar/x", "the file is truncated")]


def test_braces_may_be_part_of_a_shards_own_name(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "half{b}.tar", image_samples(range(4), 2))
    assert len(open_dataset(str(shard))) == 4


def test_a_name_that_no_file_can_have_is_an_error_in_words() -> None:
    with pytest.raises(DataError, match="file name too long; check the path"):
        open_dataset("a" * 5000 + ".tar")
