"""What every data source promises. A new source adds itself to SOURCES and is held to all of it."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modelhound.data import Dataset, Preprocessing, load_batches, open_dataset
from modelhound.data.embedded import ArrayReader
from modelhound.data.source import Reader

PREPROCESSING = Preprocessing(
    input_size=(24, 24),
    interpolation="bicubic",
    crop_fraction=0.9,
    crop_mode="center",
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.3, 0.4),
)


@dataclass(frozen=True)
class Case:
    """A reference, how many classes are behind it, and a way to change the content of its first item."""

    reference: str
    num_classes: int
    change_first: Callable[[Dataset], Reader]


def embedded(name: str, folder: Path) -> Case:
    def change(dataset: Dataset) -> Reader:
        assert isinstance(dataset.reader, ArrayReader)
        images = dataset.reader.images.copy()
        images[0, 0, 0] ^= 1
        return replace(dataset.reader, images=images)

    return Case(name, 10, change)


def image_folder(name: str, folder: Path) -> Case:
    generator = np.random.default_rng(1)
    suffixes = (".jpg", ".png", ".webp", ".bmp", ".JPEG")
    for number in range(90):
        path = folder / ("cat", "dog", "ox")[min(2, number // 40)] / f"{number}{suffixes[number % 5]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (30 + number % 7, 40, 3), dtype=np.uint8)).save(path)

    def change(dataset: Dataset) -> Reader:
        Image.new("RGB", (3, 3)).save(folder / dataset.item_names[0])
        return dataset.reader

    return Case(str(folder), 3, change)


SOURCES: dict[str, Callable[[str, Path], Case]] = {"digits": embedded, "fashion": embedded, "folder": image_folder}


@pytest.fixture(params=SOURCES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return SOURCES[request.param](request.param, tmp_path / "items")


def test_opening_twice_gives_the_same(case: Case) -> None:
    first, second = open_dataset(case.reference), open_dataset(case.reference)
    assert first == second
    assert first.name == case.reference
    assert len(first.fingerprint) == 64


def test_every_item_has_a_valid_label_and_a_name_of_its_own(case: Case) -> None:
    data = open_dataset(case.reference)
    assert len(data) == len(data.labels) == len(data.item_names) == len(set(data.item_names))
    assert len(data.class_names) == len(set(data.class_names)) == case.num_classes
    assert set(data.labels) == set(range(case.num_classes))
    assert all(type(label) is int for label in data.labels)


def test_every_image_is_8_bit_rgb(case: Case) -> None:
    data = open_dataset(case.reference, limit=30)
    for index in range(len(data)):
        image = data.read_image(index)
        assert image.mode == "RGB"
        assert np.asarray(image).dtype == np.uint8
        assert min(image.size) >= 1


def test_a_limit_takes_the_same_number_of_every_class(case: Case) -> None:
    data = open_dataset(case.reference, limit=6 * case.num_classes)
    assert np.bincount(data.labels).tolist() == [6] * case.num_classes
    assert len(data.class_names) == case.num_classes


def test_a_limit_takes_what_the_seed_says_in_the_order_of_the_whole(case: Case) -> None:
    whole = open_dataset(case.reference)
    some = open_dataset(case.reference, limit=30, seed=4)
    places = [whole.item_names.index(name) for name in some.item_names]
    assert places == sorted(places)
    assert [whole.labels[place] for place in places] == list(some.labels)
    assert open_dataset(case.reference, limit=30, seed=4) == some
    assert open_dataset(case.reference, limit=30, seed=5).item_names != some.item_names


def test_a_limited_item_is_the_image_it_is_called(case: Case) -> None:
    whole, some = open_dataset(case.reference), open_dataset(case.reference, limit=30)
    for index in (0, 13, 29):
        original = whole.read_image(whole.item_names.index(some.item_names[index]))
        assert some.read_image(index).tobytes() == original.tobytes()


def test_other_items_have_another_fingerprint(case: Case) -> None:
    whole = open_dataset(case.reference)
    seen = {open_dataset(case.reference, limit=30, seed=seed).fingerprint for seed in (0, 1)}
    assert len(seen | {whole.fingerprint}) == 3


def test_everything_is_the_same_whatever_the_limit_and_seed_that_ask_for_it(case: Case) -> None:
    assert open_dataset(case.reference, limit=10**6, seed=7).fingerprint == open_dataset(case.reference).fingerprint


def test_another_content_has_another_stamp(case: Case) -> None:
    data = open_dataset(case.reference)
    before, other = data.reader.stamp(0), data.reader.stamp(1)
    changed = case.change_first(data)
    assert changed.stamp(0) != before
    assert changed.stamp(1) == other


def test_a_dataset_survives_pickling(case: Case) -> None:
    data = open_dataset(case.reference, limit=30)
    again: Dataset = pickle.loads(pickle.dumps(data))
    assert again == data
    assert again.read_image(7).tobytes() == data.read_image(7).tobytes()


def test_batches_are_the_same_whatever_the_number_of_workers(case: Case) -> None:
    data = open_dataset(case.reference, limit=40)
    plain = list(load_batches(data, PREPROCESSING, batch=16, workers=0))
    shared = list(load_batches(data, PREPROCESSING, batch=16, workers=2))
    assert len(plain) == len(shared) == 3
    for (images, labels), (other_images, other_labels) in zip(plain, shared, strict=True):
        assert torch.equal(images, other_images)
        assert torch.equal(labels, other_labels)
