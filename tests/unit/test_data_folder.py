import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from modelhound.data import open_dataset
from modelhound.data.source import DataRequest
from modelhound.data.sources.folder import FolderSource
from modelhound.errors import DataError
from modelhound.records import silent
from modelhound.settings import TrainSettings
from modelhound.training.items import open_items
from refusals import message


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    return folder


def add_image(path: Path, colour: tuple[int, int, int] = (10, 20, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path, "BMP")  # the content decides how it is read, not the name


def make_folder(root: Path, *paths: str) -> Path:
    for path in paths:
        add_image(root / path)
    return root


def test_items_are_sorted_by_class_and_then_by_name(photos: Path) -> None:
    make_folder(photos, "b/2.png", "b/10.png", "a-b/x.png", "a-b/Y.png", "a/z.png", "a/sub/1.png", "a/ä.png")
    data = open_dataset(str(photos))
    assert data.class_names == ("a", "a-b", "b")
    assert data.item_names == ("a/sub/1.png", "a/z.png", "a/ä.png", "a-b/Y.png", "a-b/x.png", "b/10.png", "b/2.png")
    assert data.targets.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert data.skipped == ()


def test_all_image_suffixes_count_in_either_case_and_nothing_else(photos: Path) -> None:
    good = ["a/1.jpg", "a/2.JPEG", "a/3.PNG", "a/4.webp", "a/5.Bmp"]
    make_folder(photos, *good, "b/1.jpg", "b/2.jpg")
    make_folder(
        photos, "a/.hidden.jpg", "a/._1.jpg", "__MACOSX/a/1.jpg", ".git/1.jpg", "a/__MACOSX/1.jpg", "a/.x/1.jpg"
    )
    for other in ("a/readme.txt", "a/1.svg", "a/jpg", "classes.csv"):
        (photos / other).write_text("no image")
    assert open_dataset(str(photos)).item_names == (*good, "b/1.jpg", "b/2.jpg")
    assert open_dataset(str(photos)).skipped == ()


def test_images_beside_class_folders_and_folders_without_images_are_listed_as_skipped(photos: Path) -> None:
    make_folder(photos, "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg", "stray.jpg")
    (photos / "notes").mkdir()
    data = open_dataset(str(photos))
    assert data.class_names == ("a", "b")
    assert [item.item for item in data.skipped] == ["stray.jpg", "notes/"]


def test_links_are_followed_where_allowed_but_never_in_circles(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    make_folder(tmp_path / "elsewhere", "1.jpg", "2.jpg")
    (root / "c").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "a" / "up").symlink_to(root, target_is_directory=True)
    (root / "b" / "self").symlink_to(root / "b", target_is_directory=True)
    (root / "b" / "knot").symlink_to(root / "b" / "knot")
    (root / "b" / "3.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    data = open_dataset(str(root), follow_links=True)
    assert data.item_names == ("a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg", "b/3.jpg", "c/1.jpg", "c/2.jpg")


def test_a_folder_named_digits_can_be_given_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "digits", "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("digits")) == 1797
    data = open_dataset("./digits")
    assert (len(data), data.name) == (4, "./digits")


def test_an_opened_folder_can_be_read_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "photos", "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    monkeypatch.chdir(tmp_path)
    data = open_dataset("photos")
    monkeypatch.chdir("/")
    assert data.read(3).getpixel((0, 0)) == (10, 20, 30)


def test_names_that_are_not_unicode_can_be_read_shown_and_stored(photos: Path) -> None:
    make_folder(photos, "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg")
    add_image(photos / os.fsdecode(b"b/caf\xe9.jpg"))
    data = open_dataset(str(photos))
    assert data.item_names[-1] == "b/caf\ufffd.jpg"
    assert data.read(4).mode == "RGB"


def test_one_class_given_alone_suggests_the_folder_around_it(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(photos, "circle/1.jpg", "circle/2.jpg", "square/1.jpg", "square/2.jpg")
    assert f"give the folder around it, {str(photos)!r}" in message(photos / "circle")
    monkeypatch.chdir(photos / "circle")
    assert "give the folder around it, '..'" in message(".")
    make_folder(photos / "deeper" / "lonely", "1.jpg")
    assert "move them into one folder per class" in message(photos / "deeper" / "lonely")


def test_a_part_that_is_not_there_is_told_in_the_words_of_who_asked(photos: Path) -> None:
    make_folder(photos, "test/a/1.jpg", "test/a/2.jpg", "test/b/1.jpg", "test/b/2.jpg")
    asked = TrainSettings(str(photos), model="zoo:resnet-shapes", test="test")
    with pytest.raises(DataError, match=r"cannot use part 'train' to train on \(--split names another\) of"):
        open_items(asked, silent)
    with pytest.raises(DataError, match="cannot use --test 'val' of"):
        open_items(replace(asked, split="test", test="val"), silent)
    with pytest.raises(DataError, match="cannot use --split 'val' of"):
        open_items(replace(asked, split="val"), silent)


def test_a_missing_path_suggests_close_names(tmp_path: Path) -> None:
    make_folder(tmp_path / "flowers", "a/1.jpg")
    assert repr(str(tmp_path / "flowers")) in message(tmp_path / "flower")
    assert "'fashion'" in message("Fashon")
    assert "'digits'" in message("digit")
    assert "expected digits, fashion, sms or the path" in message(tmp_path / "zzzz" / "qqqq")


def test_paths_that_no_file_system_takes_are_errors_of_the_request(tmp_path: Path) -> None:
    message(tmp_path / ("x" * 5000))
    message("a\0b")
    (tmp_path / "knot").symlink_to(tmp_path / "knot")
    message(tmp_path / "knot")
    add_image(tmp_path / "file.jpg")
    message(tmp_path / "file.jpg" / "below")


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").write_bytes(b"PK")
    assert "it is a file" in message(tmp_path / "photos.zip")


def test_an_empty_folder_holds_no_classes(photos: Path) -> None:
    assert "no folder with images" in message(photos)


def test_class_folders_without_images_say_which_files_would_count(photos: Path) -> None:
    (photos / "a").mkdir()
    (photos / "a" / "1.svg").write_text("<svg/>")
    assert "jpg, jpeg, png, webp, bmp, tif, tiff or gif" in message(photos)


def test_images_without_class_folders_are_to_be_moved(photos: Path) -> None:
    assert "one folder per class" in message(make_folder(photos, "1.jpg", "2.jpg"))


def test_one_class_is_too_few(photos: Path) -> None:
    assert "'cats' is the only one" in message(make_folder(photos, "cats/1.jpg", "cats/2.jpg"))


def test_classes_one_level_deeper_are_pointed_at(photos: Path) -> None:
    make_folder(photos, "images/a/1.jpg", "images/a/2.jpg", "images/b/1.jpg", "images/b/2.jpg")
    assert repr(str(photos / "images")) in message(photos)


def test_splits_are_not_taken_for_classes(photos: Path) -> None:
    make_folder(photos, *(f"{split}/{name}/{i}.jpg" for split in ("train", "test") for name in "ab" for i in range(2)))
    assert "splits" in message(photos)


def test_a_class_called_train_may_stand_beside_others(photos: Path) -> None:
    make_folder(photos, "train/1.jpg", "train/2.jpg", "bus/1.jpg", "bus/2.jpg")
    assert open_dataset(str(photos)).class_names == ("bus", "train")


def test_a_class_with_one_image_is_named(photos: Path) -> None:
    text = message(make_folder(photos, "cats/1.jpg", "cats/2.jpg", "dogs/1.jpg"))
    assert "'dogs'" in text
    assert "'cats'" not in text


@contextmanager
def as_a_user_without_rights(*denied: Path) -> Iterator[None]:
    """Root may read everything, so root becomes nobody for a while."""
    for path in denied:
        path.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        for path in denied:
            path.chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="this system has no users in this sense")
@pytest.mark.parametrize("denied", [".", "a", "a/sub"])
def test_a_folder_that_may_not_be_read_is_an_error_of_the_request(denied: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # not tmp_path, which is below folders closed to other users
        Path(place).chmod(0o755)
        root = make_folder(Path(place, "photos"), "a/1.jpg", "a/sub/2.jpg", "b/1.jpg", "b/2.jpg")
        with as_a_user_without_rights(root / denied):
            assert "permission" in message(root)


def test_the_check_and_the_listing_do_not_import_torch(photos: Path) -> None:
    make_folder(photos, "a/1.jpg")
    code = (
        "import sys, modelhound.data as d, modelhound.errors as e\n"
        "try: d.open_dataset(sys.argv[1])\n"
        "except e.DataError: print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(photos)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_folders_may_lie_deeper_in_each_other_than_functions_can_call_themselves(photos: Path) -> None:
    deep = "/".join(["a", *["b"] * 300, "4.png"])
    make_folder(photos, "a/1.png", "c/2.png", "c/3.png", deep)
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 200)  # a folder of a thousand is more than pytest itself can take away again
    try:
        listing = FolderSource().list_items(str(photos), DataRequest())
    finally:
        sys.setrecursionlimit(before)
    assert listing.item_names == ("a/1.png", deep, "c/2.png", "c/3.png")
