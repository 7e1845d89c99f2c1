import dataclasses
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import modelhound
from layouts import encoded
from modelhound.data import Dataset, Preprocessing, load_batches, open_dataset
from modelhound.data.dataset import glance
from modelhound.data.preparing import find_damaged, find_finished, prepare_items
from modelhound.data.preprocessing import Variant, make_transform
from modelhound.data.sources.prepared import PreparedReader
from modelhound.errors import DataError, RequestError, RunBusyError
from modelhound.records import Progress, silent
from modelhound.settings import DataSettings

SMALL, TALL = (
    Variant.square(16),
    Variant.of(
        Preprocessing(
            input_size=(24, 16),
            interpolation="bilinear",
            crop_fraction=1.0,
            crop_mode="squash",
            mean=(0.5, 0.4, 0.3),
            std=(0.2, 0.3, 0.4),
        )
    ),
)
SHARD_BYTES = 5 * SMALL.item_bytes


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for number in range(22):
        path = folder / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    return folder


def make(photos: Path, folder: Path, *variants: Variant, watch: Callable[[Progress], None] = silent) -> Dataset:
    prepare_items(
        open_dataset(str(photos)),
        folder,
        variants or (SMALL, TALL),
        glance=glance(DataSettings(str(photos))),
        watch=watch,
        shard_bytes=SHARD_BYTES,
    )
    return open_dataset(str(folder))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def change_byte(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def message(reference: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_dataset(str(reference))
    assert "hound prepare" in str(caught.value)
    return str(caught.value)


def test_a_folder_holds_what_its_page_says(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = make(photos, out)
    assert set(contents(out)) == {
        "prepared.json",
        "targets.npy",
        "lock",
        *(f"{SMALL.name}/shard-0000{number}.bin" for number in range(5)),
        f"{SMALL.name}/checksums.npy",
        *(f"{TALL.name}/shard-0000{number}.bin" for number in range(8)),
        f"{TALL.name}/checksums.npy",
    }
    assert (out / SMALL.name / "shard-00000.bin").stat().st_size == 5 * 16 * 16 * 3
    assert (out / SMALL.name / "shard-00004.bin").stat().st_size == 2 * 16 * 16 * 3
    assert (len(data), data.class_names, data.item_names[0]) == (22, ("a", "b"), "a/00.jpg")


def test_an_item_can_be_found_by_its_offset_alone(photos: Path, tmp_path: Path) -> None:
    data = make(photos, tmp_path / "out")
    raw = (tmp_path / "out" / TALL.name / "shard-00002.bin").read_bytes()
    row = np.frombuffer(raw, np.uint8, TALL.item_bytes, offset=TALL.item_bytes).reshape(24, 16, 3)
    assert np.array_equal(
        np.asarray(data.read(7)), row
    )  # three items a shard; the largest variant is what a person sees


def test_batches_come_from_any_items_in_any_order(photos: Path, tmp_path: Path) -> None:
    data = make(photos, tmp_path / "out")
    assert isinstance(data.reader, PreparedReader)
    wanted = Preprocessing(
        input_size=(16, 16),
        interpolation="bicubic",
        crop_fraction=1.0,
        crop_mode="center",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    whole = data.reader.read_pixels(range(22), wanted)
    assert whole.shape == (22, 16, 16, 3)
    for positions in ([3], [0, 1, 2], [4, 2, 2], [21, 0, 9, 10], list(range(5, 10)), []):
        assert np.array_equal(data.reader.read_pixels(positions, wanted), whole[positions])
    some = data.reader.select([20, 3, 4])
    assert np.array_equal(some.read_pixels([2, 0], wanted), whole[[4, 20]])


def test_a_model_that_no_variant_fits_gets_the_largest_through_its_own_transform(photos: Path, tmp_path: Path) -> None:
    data = make(photos, tmp_path / "out")
    wanted = Preprocessing(
        input_size=(20, 20),
        interpolation="bicubic",
        crop_fraction=0.9,
        crop_mode="center",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    assert isinstance(data.reader, PreparedReader)
    assert not data.reader.holds(wanted)
    (batch,) = load_batches(data, wanted, batch=30, workers=0)
    transform = make_transform(wanted)
    assert isinstance(batch.inputs, torch.Tensor)
    assert torch.equal(batch.inputs, torch.stack([transform(data.read(index)) for index in range(22)]))  # type: ignore[arg-type]


def test_a_broken_original_is_left_out_and_still_listed(photos: Path, tmp_path: Path) -> None:
    (photos / "a" / "04.jpg").write_bytes(b"")
    data = make(photos, tmp_path / "out")
    assert len(data) == 21
    assert [each.item for each in data.skipped] == ["a/04.jpg"]


def test_a_finished_folder_is_known_without_reading_an_item(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert find_finished(out, glance(DataSettings(str(photos))), [SMALL]) is None
    make(photos, out)
    assert find_finished(out, glance(DataSettings(str(photos))), [SMALL]) is not None
    assert find_finished(out, glance(DataSettings(str(photos))), [Variant.square(17)]) is None
    os.utime(photos / "a" / "02.jpg", (1, 1))
    assert find_finished(out, glance(DataSettings(str(photos))), [SMALL]) is None


def test_a_variant_can_be_added_later_and_the_bytes_do_not_depend_on_when(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "once")
    make(photos, tmp_path / "twice", SMALL)
    before = (tmp_path / "twice" / SMALL.name / "shard-00001.bin").stat()
    make(photos, tmp_path / "twice", TALL)
    assert contents(tmp_path / "once") == contents(tmp_path / "twice")
    assert (tmp_path / "twice" / SMALL.name / "shard-00001.bin").stat() == before


@pytest.mark.parametrize("lost", ["{}/shard-00002.bin", "{}/shard-00004.bin", "{}/checksums.npy", "targets.npy"])
@pytest.mark.parametrize("how", ["gone", "shorter"])
def test_a_damaged_file_is_named_and_made_again(photos: Path, tmp_path: Path, lost: str, how: str) -> None:
    out = tmp_path / "out"
    make(photos, out)
    whole = contents(out)
    path = out / lost.format(SMALL.name)
    if how == "gone":
        path.unlink()
    else:
        os.truncate(path, 100)
    assert path.name in message(out)
    assert find_finished(out, glance(DataSettings(str(photos))), [SMALL]) is None
    make(photos, out, SMALL)
    assert contents(out) == whole


def test_changed_bytes_are_found_by_the_check_and_the_item_is_left_out(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = make(photos, out)
    with (out / SMALL.name / "shard-00001.bin").open("r+b") as file:
        file.seek(2 * SMALL.item_bytes + 17)
        file.write(b"\0\0\0\0\0\0")
    with pytest.raises(ValueError, match=r"shard-00001\.bin.*hound prepare"):
        data.reader.check(7)
    data.reader.check(6)
    again = open_dataset(str(out))
    assert len(again) == 21
    assert [each.item for each in again.skipped] == [data.item_names[7]]


@pytest.mark.parametrize("place", [0, 2 * SMALL.item_bytes + 17, 5 * SMALL.item_bytes - 1])
def test_a_changed_byte_in_a_finished_folder_is_found_and_made_again(photos: Path, tmp_path: Path, place: int) -> None:
    out = tmp_path / "out"
    make(photos, out)
    whole = contents(out)
    assert find_damaged(out, watch=silent) == ()
    shard = out / SMALL.name / "shard-00001.bin"
    change_byte(shard, place)
    before = (out / SMALL.name / "shard-00002.bin").stat()
    result = modelhound.prepare(str(photos), out, size=16)
    assert result.mended == (str(shard),)
    assert not result.was_finished
    assert contents(out) == whole
    assert (out / SMALL.name / "shard-00002.bin").stat() == before
    assert modelhound.prepare(str(photos), out, size=16).was_finished


def test_changed_labels_and_descriptions_are_found_too(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(photos, out, SMALL)
    whole = contents(out)
    change_byte(out / "targets.npy", -8)  # one label of two becomes the other
    assert "other labels than were written" in message(out)
    assert not modelhound.prepare(str(photos), out, size=16).was_finished
    assert contents(out) == whole
    described = out / "prepared.json"
    described.write_bytes(described.read_bytes().replace(b"a/00.jpg", b"a/99.jpg"))
    assert "delete the folder" in message(out)


def test_a_folder_of_an_older_version_is_still_read_and_kept(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(photos, out, SMALL)
    forget_checksums(out)
    assert len(open_dataset(str(out))) == 22
    assert modelhound.prepare(str(photos), out, size=16).was_finished
    assert len(make(photos, out, TALL)) == 22


def test_items_with_one_checksum_are_still_told_apart(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make(photos, tmp_path / "out")
    copy = make(photos, tmp_path / "copy")
    assert data.digests == copy.digests
    reader = data.reader
    assert isinstance(reader, PreparedReader)
    reader = dataclasses.replace(reader, checksums=reader.checksums * 0)
    monkeypatch.setattr(zlib, "crc32", lambda content: 0)
    assert reader.stamp(0) == reader.stamp(1)
    assert reader.check(0) != reader.check(1)


def test_a_shard_that_shrinks_after_opening_is_an_error_and_not_a_crash(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = make(photos, out)
    os.truncate(out / TALL.name / "shard-00003.bin", 10)
    with pytest.raises(DataError, match=r"another length.*hound prepare"):
        data.read(10)
    (out / SMALL.name / "shard-00003.bin").unlink()
    wanted = Preprocessing(
        input_size=(16, 16),
        interpolation="bicubic",
        crop_fraction=1.0,
        crop_mode="center",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    with pytest.raises(DataError, match=r"shard-00003\.bin.*hound prepare"):
        list(load_batches(data, wanted, batch=8, workers=0))


def test_an_unfinished_folder_cannot_be_used_and_says_so(photos: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.task == "preparing items" and progress.done == 12:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        make(photos, out, watch=stop)
    assert not list(out.rglob("*.part"))
    assert "was stopped" in message(out)
    make(photos, out)
    make(photos, tmp_path / "other")
    assert contents(out) == contents(tmp_path / "other")


def test_other_items_are_refused_and_what_lies_there_is_kept(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(photos, out)
    before = contents(out)
    (photos / "a" / "00.jpg").unlink()
    with pytest.raises(RequestError, match="choose another folder"):
        make(photos, out)
    assert contents(out) == before


def test_a_folder_that_is_something_else_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds other files"):
        make(photos, photos)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RequestError, match="expected a new, empty or prepared folder"):
        make(photos, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert len(make(photos, tmp_path / "empty")) == 22


def test_two_at_once_cannot_write_the_same_folder(photos: Path, tmp_path: Path) -> None:
    refused = []

    def try_too(progress: Progress) -> None:
        if progress.task == "preparing items" and progress.done == 12:
            with pytest.raises(RunBusyError):
                make(photos, tmp_path / "out")
            refused.append(progress)

    make(photos, tmp_path / "out", watch=try_too)
    assert len(refused) == 1


def test_a_disk_without_room_is_refused_with_numbers_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"expected 66000\.0 GB \(66000000000000 bytes\) of free space"):
        make(photos, tmp_path / "out", Variant.square(1_000_000))
    assert not (tmp_path / "out").exists()


def test_a_limit_and_a_seed_work_on_prepared_items(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    some = open_dataset(str(tmp_path / "out"), limit=6, seed=3)
    assert some.item_names == open_dataset(str(photos), limit=6, seed=3).item_names


def test_a_description_that_cannot_be_read_is_named(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    (tmp_path / "out" / "prepared.json").write_text('{"format": "other"}')
    assert "prepared.json" in message(tmp_path / "out")


def forget_checksums(out: Path) -> None:
    """As in a folder of an older version, or one whose maker wants to be believed."""
    described = json.loads((out / "prepared.json").read_bytes())
    for added in ("targets_crc32", "crc32"):
        described.pop(added, None)
    (out / "prepared.json").write_text(json.dumps(described))


def test_targets_that_do_not_fit_are_named(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    for wrong in (np.zeros(21, np.int64), np.zeros(22), np.full(22, 2), np.full(22, -1)):
        np.save(tmp_path / "out" / "targets.npy", wrong)
        assert "targets.npy" in message(tmp_path / "out")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (np.zeros(21, np.int64), "expected (22,) int64"),
        (np.zeros(22), "expected (22,) int64"),
        (np.zeros(22, [("a", np.int64)]), "expected (22,) int64"),  # which cannot be compared with numbers
        (np.full(22, 2), "none of the classes"),
        (np.full(22, -1), "none of the classes"),
    ],
)
def test_targets_without_a_checksum_are_looked_at_themselves(
    photos: Path, tmp_path: Path, wrong: np.ndarray, why: str
) -> None:
    make(photos, tmp_path / "out")
    forget_checksums(tmp_path / "out")
    np.save(tmp_path / "out" / "targets.npy", wrong)
    assert why in message(tmp_path / "out")


@pytest.mark.parametrize("name", ["targets.npy", f"{SMALL.name}/checksums.npy"])
def test_an_archive_of_arrays_is_no_array(photos: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    make(photos, out)
    with (out / name).open("wb") as file:
        np.savez(file, np.zeros(22, np.int64))
    assert name in message(out)
    assert len(make(photos, out)) == 22  # and is made again
