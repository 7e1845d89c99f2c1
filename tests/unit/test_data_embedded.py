from importlib import resources

import numpy as np
import pytest
from sklearn.datasets import load_digits

from modelhound.data import open_dataset


def test_digits_are_scikit_learns_with_all_shades_used() -> None:
    original, digits = load_digits(), open_dataset("digits")
    assert digits.targets.tolist() == original.target.tolist()
    for index in (0, 17, 1796):
        pixels = np.asarray(digits.read(index))[:, :, 0]
        assert pixels.tolist() == np.rint(original.images[index] * 255 / 16).tolist()
    assert np.asarray(digits.read(0)).max() > 200


def test_fashion_has_200_images_of_each_class() -> None:
    fashion = open_dataset("fashion")
    assert np.bincount(fashion.targets).tolist() == [200] * 10
    assert fashion.class_names[0] == "T-shirt/top"
    assert fashion.class_names[9] == "Ankle boot"
    assert fashion.read(0).size == (28, 28)


def test_fashion_images_are_all_different_and_say_where_they_come_from() -> None:
    with resources.files("modelhound.data").joinpath("embedded/fashion.npz").open("rb") as file:
        arrays = dict(np.load(file, allow_pickle=False))
    assert len({image.tobytes() for image in arrays["images"]}) == 2000
    assert len(set(arrays["original"].tolist())) == 2000
    assert arrays["original"].min() >= 0
    assert arrays["original"].max() < 10_000


def test_sms_has_as_many_of_each_class_and_no_text_twice() -> None:
    sms = open_dataset("sms")
    assert (sms.modality, sms.task, sms.class_names) == ("text", "classification", ("ham", "spam"))
    assert np.bincount(sms.targets).tolist() == [500, 500]
    assert len({sms.read(index) for index in range(1000)}) == 1000
    assert sum("free" in sms.read(index)[0].lower() for index in np.flatnonzero(sms.targets)) > 100  # type: ignore[index,union-attr]


@pytest.mark.parametrize("name", ["digits", "fashion"])
def test_an_embedded_file_is_small_and_needs_no_pickle(name: str) -> None:
    path = resources.files("modelhound.data").joinpath(f"embedded/{name}.npz")
    assert len(path.read_bytes()) < 1_200_000
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        assert all(arrays[key].dtype != object for key in arrays)


def test_item_names_say_the_data_set_and_the_place() -> None:
    assert open_dataset("digits").item_names[17] == "digits/17"
