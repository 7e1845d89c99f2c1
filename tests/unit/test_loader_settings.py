"""What can be asked of `hound loader`, and the settings that come out of it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import modelhound
from modelhound.data import open_dataset
from modelhound.data.recommended import data_kind, machine_kind, read_loader, remember_loader, remembered_loader
from modelhound.errors import RequestError
from modelhound.settings import LoaderFile, LoaderSearchSettings, LoaderSettings


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
        ("items", 0, "--items"),
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
            LoaderSettings(batch=batch, workers=1, data_kind=data_kind(photos), machine=machine_kind("cpu"))
        )
    found = remembered_loader(others, device="cpu")
    assert found is not None
    assert (found.batch, found.workers) == (32, 1)
    assert remembered_loader(digits, device="cpu") is None
