import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from modelhound.compat import import_timm
from modelhound.data import Preprocessing, open_dataset
from modelhound.data.preprocessing import fraction_kept, make_transform
from modelhound.errors import ModelError

timm = import_timm()


def timm_config(name: str) -> dict[str, object]:
    return dict(timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict()))


def real_image(size: tuple[int, int]) -> Image.Image:
    """A real photo of the package, enlarged to the size of real photos and sent through JPEG."""
    small = open_dataset("fashion", limit=20).read(7)
    file = io.BytesIO()
    small.resize(size, Image.Resampling.BICUBIC).save(file, "JPEG")
    return Image.open(file).convert("RGB")


PREPROCESSING = Preprocessing(
    input_size=(32, 32),
    interpolation="bilinear",
    crop_fraction=1.0,
    crop_mode="center",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


def test_lists_of_numbers_do_as_well_and_other_things_are_refused() -> None:
    listed: Any = {"input_size": [32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    given = replace(PREPROCESSING, **listed)
    assert given == PREPROCESSING
    assert make_transform(given) is make_transform(PREPROCESSING)
    for wrong in ({"input_size": 32}, {"mean": 0.5}, {"std": "0.5"}):
        with pytest.raises(ModelError, match="expected a tuple of numbers"):
            replace(PREPROCESSING, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(500, 375), (300, 640), (28, 28)])
@pytest.mark.parametrize(
    "name",
    [
        "resnet50",
        "resnet18.tv_in1k",
        "vit_base_patch16_224",
        "tf_efficientnet_lite2",
        "convnext_tiny",
        "vit_base_patch16_clip_224.openai",
        "eva02_base_patch14_448",
    ],
)
def test_the_transform_equals_timms_bit_for_bit(name: str, size: tuple[int, int]) -> None:
    config, image = timm_config(name), real_image(size)
    expected = timm.data.create_transform(**config, is_training=False)(image)
    made = make_transform(Preprocessing.from_timm(config))(image)
    assert made.dtype == torch.float32
    assert made.shape == torch.Size(config["input_size"])  # type: ignore[arg-type]
    assert torch.equal(made, expected)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(3, 96, 160), (3, 64, 64)])
def test_every_crop_mode_and_shape_equals_timms(mode: str, size: tuple[int, int, int]) -> None:
    config = {**timm_config("resnet50"), "crop_mode": mode, "input_size": size, "interpolation": "bilinear"}
    image = real_image((200, 150))
    expected = timm.data.create_transform(**config, is_training=False)(image)
    assert torch.equal(make_transform(Preprocessing.from_timm(config))(image), expected)


def test_a_models_own_configuration_is_kept_in_full() -> None:
    made = Preprocessing.from_timm(timm_config("tf_efficientnet_lite2"))
    assert made.input_size == (260, 260)
    assert (made.interpolation, made.crop_mode, made.crop_fraction) == ("bicubic", "center", 0.89)
    assert (made.mean, made.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_equal_preprocessings_are_one_key() -> None:
    again = pickle.loads(pickle.dumps(PREPROCESSING))
    assert again == PREPROCESSING
    assert {PREPROCESSING: 1}[again] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_size": (0, 32)},
        {"interpolation": "magic"},
        {"crop_mode": "round"},
        {"crop_fraction": 0.0},
        {"mean": (0.5,)},
        {"std": (0.5, 0.0, 0.5)},
    ],
)
def test_an_impossible_preprocessing_fails_that_model(wrong: dict[str, object]) -> None:
    fields = {name: getattr(PREPROCESSING, name) for name in PREPROCESSING.__slots__}
    with pytest.raises(ModelError, match="cannot prepare images"):
        Preprocessing(**{**fields, **wrong})  # type: ignore[arg-type]


def test_a_model_that_wants_other_than_three_channels_is_refused() -> None:
    with pytest.raises(ModelError, match="channels 1"):
        Preprocessing.from_timm({**timm_config("resnet50"), "input_size": (1, 28, 28)})


def test_fractions_that_are_kept_survive_rounding() -> None:
    for crop in range(64, 500, 7):
        for resize in range(crop, crop + 60):
            assert int(crop / fraction_kept(crop, resize)) == resize
