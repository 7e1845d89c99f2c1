"""`hound prepare` as a person meets it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import modelhound
from command_line import hound
from modelhound.records import Progress

MODELS = "zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:vit-rotation"


def test_a_search_over_prepared_items_finds_the_same_as_over_the_originals(
    capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]
) -> None:
    photos = str(image_folder())
    code, out, _ = hound(capsys, "prepare", photos, "ready", "--models", MODELS, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["out"], document["data"], document["num_items"], document["num_classes"]) == (
        "ready",
        photos,
        24,
        3,
    )
    assert sorted(model for variant in document["variants"] for model in variant["models"]) == sorted(MODELS.split(","))
    assert document["num_bytes"] == sum(variant["num_bytes"] for variant in document["variants"])
    scores = []
    for data in (photos, "ready"):
        _, out, _ = hound(capsys, "search", data, "--models", MODELS, "--json")
        scores.append({row["model"]: row["scores"] for row in json.loads(out)["ranking"]})
    assert scores[0] == scores[1]


def test_what_was_prepared_is_offered_to_the_models_it_is_for_and_what_was_left_out_is_named(
    capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]
) -> None:
    photos = image_folder()
    (next(each for each in photos.iterdir() if each.is_dir()) / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
    _, out, _ = hound(capsys, "prepare", str(photos), "ready", "--models", "zoo:resnet-glyphs,zoo:vit-rotation")
    assert "Use them: hound search ready --models zoo:resnet-glyphs,zoo:vit-rotation" in out
    assert re.search(r"1 item was left out: \S*broken\.jpg", out)


def test_a_folder_that_is_called_like_an_embedded_data_set_is_offered_as_a_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = hound(capsys, "prepare", "digits", "fashion", "--limit", "40", "--size", "8")
    assert code == 0
    assert "Use them: hound search ./fashion" in out


def test_data_that_are_not_there_are_told_before_anything_slow_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(watch: object) -> None:
        raise AssertionError("too early")

    monkeypatch.setattr("modelhound.verbs.prepare.load_libraries", load)
    code, _, err = hound(capsys, "prepare", "not/there", "ready", "--models", "zoo:vit-rotation")
    assert code == 2
    assert "not/there" in err


def written_when(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Of everything in it; that it was read is also noted by the system, at times."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: (each.st_ino, each.st_size, each.st_mtime_ns) for path, each in found.items()}


def test_the_second_time_nothing_is_done_and_that_is_said(
    capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]
) -> None:
    photos = str(image_folder())
    _, first, _ = hound(capsys, "prepare", photos, "ready", "--size", "32")
    assert "24 items of" in first
    assert "hound search ready" in first
    before = written_when(Path("ready"))
    _, second, _ = hound(capsys, "prepare", photos, "ready", "--size", "32")
    assert "were prepared already" in second
    assert written_when(Path("ready")) == before


def test_a_finished_folder_is_found_without_torch(image_folder: Callable[..., Path]) -> None:
    photos = str(image_folder())
    modelhound.prepare(photos, "ready", size=32)
    code = (
        "import sys, modelhound\n"
        "result = modelhound.prepare(sys.argv[1], 'ready', size=32)\n"
        "print(result.was_finished, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, photos], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_progress_is_told_and_limits_are_kept(image_folder: Callable[..., Path]) -> None:
    seen: list[Progress] = []
    result = modelhound.prepare(str(image_folder()), "ready", size=16, limit=12, seed=1, watch=seen.append)
    assert result.num_items == 12
    steps = [progress.done for progress in seen if progress.task == "preparing items"]
    assert (steps[0], steps[-1]) == (0, 12)
    assert steps == sorted(steps)


def test_embedded_images_can_be_prepared_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hound(capsys, "prepare", "digits", "ready", "--limit", "40", "--size", "8", "--json")
    assert code == 0
    assert json.loads(out)["num_bytes"] == 40 * 8 * 8 * 3


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["prepare", "digits"], "without OUT: expected the folder to write"),
        (["prepare", "sms", "ready"], "texts, which need no preparing"),
        (["prepare", "digits", "ready", "--size", "4"], "at least 8"),
        (["prepare", "digits", "ready", "--size", "1000000"], "of free space"),
        (["prepare", "digits", "ready", "--size", "32", "--models", "zoo:vit-rotation"], "expected one of them"),
        (["prepare", "digits", "ready", "--models", "zoo:nothing"], "no zoo model has that name"),
        (["prepare", "digits", "taken"], "holds other files"),
        (["prepare", "digits", "taken/notes.txt"], "expected a new, empty or prepared folder"),
        (["prepare", "no/such/folder", "ready"], "no/such/folder"),
        (["prepare", "digits", "ready", "--split", "train"], "--split"),
    ],
)
def test_a_request_that_cannot_be_served_exits_with_2_and_makes_no_folder(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    Path("taken").mkdir()
    Path("taken/notes.txt").write_text("mine")
    code, out, err = hound(capsys, *argv)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err
    assert not Path("ready").exists()
    assert [path.name for path in Path("taken").iterdir()] == ["notes.txt"]


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(modelhound.RequestError, match="sise"):
        modelhound.prepare("digits", "ready", sise=3)
