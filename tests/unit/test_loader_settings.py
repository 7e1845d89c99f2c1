"""What can be asked of `hound loader`, and the settings that come out of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import modelhound
from modelhound.data import open_dataset
from modelhound.data.recommended import (
    data_kind,
    find_loader,
    item_kind,
    machine_kind,
    read_loader,
    remember_loader,
    remembered_loader,
    take_from_file,
)
from modelhound.data.sources.prepared import PREPARED
from modelhound.errors import RequestError
from modelhound.records import LoaderUsed
from modelhound.settings import (
    LoaderFile,
    LoaderSearchSettings,
    LoaderSettings,
    ProfileSettings,
    SearchSettings,
    TrainSettings,
)


def test_lists_of_numbers_are_taken_as_text_and_as_numbers() -> None:
    settings = LoaderSearchSettings("digits", batch=("64,32", "32"), workers=(2, 0))
    assert (settings.batch, settings.workers) == ((32, 64), (0, 2))
    assert LoaderSearchSettings("digits", batch="16").batch == (16,)  # type: ignore[arg-type]
    assert LoaderSearchSettings("digits").batch == ("auto",)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("batch", "0", "--batch"),
        ("batch", "", "--batch"),
        ("batch", "32,x", "--batch"),
        ("workers", "-1", "--workers"),
        ("workers", "1.5", "--workers"),
        ("kind", "cooked", "--kind"),
        ("budget", 0, "--budget"),
        ("budget", 2.0, "--budget"),
        ("length", 0, "--length"),
        ("prefetch", 0, "--prefetch"),
        ("tune", "batch", "--tune"),
        ("pin", "maybe", "--pin"),
        ("repeats", 3, "--grid"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_option(option: str, value: object, said: str) -> None:
    with pytest.raises(RequestError, match=f"cannot use .*{said}"):
        LoaderSearchSettings("digits", **{option: value})  # type: ignore[arg-type]


def test_the_settings_make_a_users_own_dataloader() -> None:
    settings = LoaderSettings(batch=4, workers=2, prefetch=3, persistent=True)
    loader = settings.dataloader(list(range(10)), shuffle=False)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (4, 2, 3)
    assert (loader.persistent_workers, loader.pin_memory) == (True, False)
    alone = LoaderSettings(batch=4, workers=0, persistent=True).dataloader(list(range(10)), drop_last=True)
    assert [batch.tolist() for batch in alone] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_file_gives_the_settings_of_the_kind_asked_for(tmp_path: Path) -> None:
    raw = LoaderSettings(batch=8, workers=1, kind="raw")
    prepared = LoaderSettings(batch=64, workers=0, kind="preprocessed")
    path = tmp_path / "loader.json"
    path.write_bytes(msgspec.json.encode(LoaderFile(settings=(raw, prepared))))
    assert read_loader(path) == raw
    assert read_loader(path, "preprocessed") == prepared
    assert modelhound.read_loader(path, "raw") == raw


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b'{"settings": []}', b'{"settings": [{"batch": 0, "workers": 1}]}', b"\xff"]
)
def test_a_file_that_is_none_says_what_was_expected(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "loader.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RequestError, match=r"cannot use --loader .*hound loader --out"):
        read_loader(path)


def test_what_is_remembered_is_found_for_data_that_load_alike_and_no_other(image_folder: Callable[..., Path]) -> None:
    photos, others = open_dataset(str(image_folder())), open_dataset(str(image_folder(name="others", per_class=5)))
    digits = open_dataset("digits", limit=40)
    assert remembered_loader(photos, device="cpu") is None
    for batch in (16, 32):  # the last counts
        remember_loader(
            LoaderSettings(batch=batch, workers=1, data_kind=data_kind(photos), machine_kind=machine_kind("cpu"))
        )
    found = remembered_loader(others, device="cpu")
    assert found is not None
    assert (found.batch, found.workers) == (32, 1)
    assert remembered_loader(digits, device="cpu") is None


@pytest.mark.parametrize(
    ("found_for", "len_now", "is_used"),
    [(40, 40, True), (40, 100, True), (40, 600, False), (40, 1000, False), (1000, 40, True), (400, 1000, True)],
)
def test_what_was_found_for_short_runs_is_not_used_for_long_ones(found_for: int, len_now: int, is_used: bool) -> None:
    now = open_dataset("digits", limit=len_now)
    about = {"data_kind": data_kind(now), "machine_kind": machine_kind("cpu")}
    remember_loader(LoaderSettings(batch=8, workers=0, num_items=found_for, **about))
    assert (remembered_loader(now, device="cpu") is not None) == is_used


def test_what_was_found_for_long_runs_outlives_what_is_found_for_short_ones() -> None:
    now = open_dataset("digits", limit=1000)
    about = {"data_kind": data_kind(now), "machine_kind": machine_kind("cpu")}
    remember_loader(LoaderSettings(batch=64, workers=2, num_items=50_000, **about))
    remember_loader(LoaderSettings(batch=8, workers=0, num_items=40, **about))
    found = remembered_loader(now, device="cpu")
    assert found is not None
    assert (found.batch, found.workers) == (64, 2)


def used(path: Path | None, photos: str, *, plain: bool, batch: int | None = None, workers: int | None = None) -> Any:
    found = find_loader(path, open_dataset(photos), device="cpu", plain=plain, batch=batch, workers=workers)
    return None if found is None else (found[1].batch, found[1].workers, found[1].prefetch)


def test_a_plain_path_takes_the_pair_and_others_the_batch_that_suits_computing(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    photos, path = str(image_folder()), tmp_path / "found.json"
    settings = LoaderSettings(
        batch=64,
        workers=2,
        prefetch=4,
        compute_batch=16,
        data_kind=data_kind(open_dataset(photos)),
        machine_kind=machine_kind("cpu"),
    )
    path.write_bytes(msgspec.json.encode(LoaderFile(settings=(settings,))))
    assert used(None, photos, plain=True) is None
    remember_loader(settings)
    for where in (None, path):
        assert used(where, photos, plain=True) == (64, 2, 4)
        assert used(where, photos, plain=False) == (16, None, None)
        assert used(where, photos, plain=True, batch=8) == (None, 2, 4)
        assert used(where, photos, plain=True, workers=0) == (64, None, None)
        assert used(where, photos, plain=True, batch=8, workers=0) is None
        assert used(where, photos, plain=False, batch=8) is None
    assert used(Path("none"), photos, plain=True) is None


def test_a_file_is_read_for_the_kind_of_the_data(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    photos, path = str(image_folder()), tmp_path / "found.json"
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / PREPARED).touch()
    both = (LoaderSettings(batch=8, workers=1), LoaderSettings(batch=64, workers=0, kind="preprocessed"))
    path.write_bytes(msgspec.json.encode(LoaderFile(settings=both)))
    taken = {}
    for data in (photos, str(tmp_path / "ready")):
        found, used = take_from_file(path, item_kind(data), device="cpu", batch=None, workers=None)
        taken[data] = (found.batch, used.batch, used.workers, used.prefetch)
    assert list(taken.values()) == [(8, 8, 1, 2), (64, 64, 0, None)]
    _, used = take_from_file(path, "raw", device="cpu", batch="largest", workers=None)
    assert (used.batch, used.workers) == (None, 1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SearchSettings, {"batch": 8}),
        (SearchSettings, {"batch": 8, "workers": 0, "plain": True}),
        (ProfileSettings, {"batch": "8", "workers": 0}),
        (TrainSettings, {"batch": 8, "workers": 0}),
    ],
)
def test_a_file_that_would_change_nothing_is_refused(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="cannot use --loader"):
        kind("digits", loader="found.json", **options)


def test_what_was_taken_over_is_said_in_words() -> None:
    taken = LoaderUsed(batch=64, workers=2, prefetch=2, origin="remembered", found_for="photos")
    assert taken.text() == (
        "batches of 64, 2 loader processes, 2 batches ahead each: as `hound loader` found here for photos"
    )
    assert taken.sentence() == f"Loaded with {taken.text()}."
    by_engine = LoaderUsed(
        batch=16, workers=None, prefetch=None, origin="remembered", found_for="photos", is_of_computing=True
    )
    assert by_engine.sentence() == (
        "Computed in batches of up to 16, from which on computing alone gets no faster: as `hound loader` found here "
        "for photos."
    )
    from_file = LoaderUsed(batch=None, workers=0, prefetch=None, origin="found.json", found_for="photos on a laptop")
    assert from_file.text() == "no loader processes: from found.json for photos on a laptop"
    single = LoaderUsed(batch=8, workers=1, prefetch=1, origin="found.json", found_for="photos")
    assert single.sentence() == "Loaded with batches of 8, 1 loader process, 1 batch ahead: from found.json for photos."
    by_hand = LoaderUsed(batch=8, workers=None, prefetch=2, origin="found.json", found_for="photos")
    assert by_hand.sentence() == "Loaded with batches of 8, 2 batches ahead each: from found.json for photos."
