"""Items that many processes look at give the same numbers as the files they came from, to the last bit."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layouts import encoded
from modelhound.data import open_dataset
from modelhound.data.decode.decoded import decode
from modelhound.data.preprocessing import OwnTransform, Preprocessing
from modelhound.data.shared_items import SharedItems, carry_files, share_items
from modelhound.data.sources.image_bytes import BytesReader

IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
SMALL = Preprocessing(input_size=(32, 32), crop_fraction=0.875, crop_mode="center", **IMAGENET)
WIDE = Preprocessing(input_size=(24, 40), crop_fraction=1.0, crop_mode="squash", **IMAGENET)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(20):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:02}.{('jpg', 'png')[number % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number, "PNG" if number % 3 == 0 else "JPEG", size=(50 + number, 40)))
    return tmp_path / "photos"


def test_shared_pixels_are_those_of_the_files(photos: Path) -> None:
    dataset = open_dataset(str(photos))
    shared = pickle.loads(pickle.dumps(share_items(dataset, [SMALL, WIDE])))
    assert isinstance(shared.reader, SharedItems)
    positions = [7, 3, 19, 0]
    for form in (SMALL, WIDE):
        plain = decode(dataset, positions, [form], device="cpu").inputs(form, 0, 4)
        assert decode(shared, positions, [form], device="cpu").inputs(form, 0, 4).equal(plain)
    some = shared.select([5, 6])
    assert np.array_equal(some.reader.read_pixels([1], SMALL), shared.reader.read_pixels([6], SMALL))
    assert (shared.fingerprint, shared.digests) == (dataset.fingerprint, dataset.digests)


def test_pixels_are_one_array_that_a_pickler_need_not_copy(photos: Path) -> None:
    buffers: list[pickle.PickleBuffer] = []
    shared = share_items(open_dataset(str(photos)), [SMALL])
    inside = pickle.dumps(shared, protocol=5, buffer_callback=buffers.append)
    assert max(len(each.raw()) for each in buffers) == 20 * 32 * 32 * 3
    assert len(inside) < 20_000


def _as_it_is(image: Any) -> Any:
    import torch

    return torch.zeros(3, 8, 8) + image.width


def test_a_form_that_is_not_pixels_is_made_from_the_files_which_travel_along(photos: Path) -> None:
    own = OwnTransform(transform=_as_it_is, input_size=(8, 8))
    dataset = open_dataset(str(photos))
    shared = share_items(dataset, [SMALL, own])
    for path in photos.rglob("*.*"):
        path.unlink()
    made = decode(shared, [4], [own], device="cpu").inputs(own, 0, 1)
    assert made.unique().tolist() == [float(shared.read(4).width)]


def test_files_are_carried_and_texts_stay_as_they_are(photos: Path) -> None:
    dataset = open_dataset(str(photos))
    carried = carry_files(dataset)
    assert isinstance(carried.reader, BytesReader)
    assert carried.read(3).tobytes() == dataset.read(3).tobytes()
    texts = open_dataset("sms", limit=20)
    assert share_items(texts, []) == texts
