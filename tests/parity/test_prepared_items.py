"""Prepared items give a model the very tensors that its own transform makes of the original images."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from layouts import encoded, random_image
from modelhound.compat import import_timm
from modelhound.data import Preprocessing, load_batches, open_dataset
from modelhound.data.dataset import glance
from modelhound.data.preparing import prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.data.sources.prepared import PreparedReader
from modelhound.records import silent
from modelhound.settings import DataSettings

MODELS = (
    "resnet18.a1_in1k",
    "resnet50.tv_in1k",
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "convnext_tiny.fb_in1k",
    "efficientnet_b1.ra4_e3600_r240_in1k",
    "tf_efficientnet_lite0.in1k",
    "inception_v3.tv_in1k",
    "convnext_base.fb_in22k_ft_in1k_384",
)
OWN = Preprocessing(
    input_size=(64, 64),
    interpolation="bilinear",
    crop_fraction=0.9,
    crop_mode="center",
    mean=(0.1, 0.5, 0.8),
    std=(0.3,) * 3,
)
CRAFTED = {
    "border": replace(OWN, crop_mode="border"),
    "border of another colour": replace(OWN, crop_mode="border", mean=(0.485, 0.456, 0.406)),
    "squash": replace(OWN, crop_mode="squash"),
    "squash with a crop": replace(OWN, crop_mode="squash", crop_fraction=0.7),
    "not square": replace(OWN, input_size=(48, 80)),
    "not square, border": replace(OWN, input_size=(80, 48), crop_mode="border"),
    "lanczos": replace(OWN, interpolation="lanczos"),
    "nearest": replace(OWN, interpolation="nearest", crop_fraction=1.0),
    "larger than the images": replace(OWN, input_size=(400, 400)),
}


def of_model(name: str) -> Preprocessing:
    timm = import_timm()
    config = timm.models.get_pretrained_cfg(name).to_dict()
    return Preprocessing.from_timm(timm.data.resolve_data_config(pretrained_cfg=config))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    sizes = ((500, 375), (375, 500), (64, 64), (31, 90), (300, 20), (224, 224), (7, 5))
    for number, size in enumerate(sizes * 2):
        path = folder / ("a" if number < len(sizes) else "b") / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(number, size=size))
    turned = random_image(99, (120, 80))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(folder / "a" / "turned.jpg", exif=exif)
    random_image(98, (90, 90)).convert("RGBA").save(folder / "b" / "alpha.png")
    Image.effect_mandelbrot((200, 100), (-2, -1, 1, 1), 40).save(folder / "b" / "grey.png")
    return folder


@pytest.fixture(scope="module")
def prepared(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all of them, in shards of few items, so that batches lie across several."""
    folder = tmp_path_factory.mktemp("prepared") / "out"
    variants = list({Variant.of(each): None for each in (*map(of_model, MODELS), *CRAFTED.values())})
    seen = glance(DataSettings(str(photos)))
    prepare_items(open_dataset(str(photos)), folder, variants, glance=seen, watch=silent, shard_bytes=1_000_000)
    return folder


def assert_same(photos: Path, prepared: Path, wanted: Preprocessing, workers: int = 0) -> None:
    original, copy = open_dataset(str(photos)), open_dataset(str(prepared))
    assert isinstance(copy.reader, PreparedReader)
    assert copy.reader.holds(wanted)
    assert copy.item_names == original.item_names
    one, other = (list(load_batches(each, wanted, batch=7, workers=workers)) for each in (original, copy))
    for expected, found in zip(one, other, strict=True):
        assert isinstance(expected.inputs, torch.Tensor)
        assert isinstance(found.inputs, torch.Tensor)
        assert found.inputs.is_contiguous()
        assert torch.equal(expected.inputs, found.inputs)
        assert torch.equal(expected.targets, found.targets)


@pytest.mark.parametrize("name", MODELS)
def test_a_models_tensors_are_the_same_to_the_last_bit(photos: Path, prepared: Path, name: str) -> None:
    assert_same(photos, prepared, of_model(name))


@pytest.mark.parametrize("name", CRAFTED)
def test_every_way_to_crop_gives_the_same_tensors(photos: Path, prepared: Path, name: str) -> None:
    assert_same(photos, prepared, CRAFTED[name])


def test_workers_give_the_same_tensors(photos: Path, prepared: Path) -> None:
    assert_same(photos, prepared, CRAFTED["border"], workers=2)


def test_another_normalisation_uses_the_same_pixels(photos: Path, prepared: Path) -> None:
    assert_same(photos, prepared, replace(CRAFTED["squash"], mean=(0.0, 0.0, 0.1), std=(1.0, 0.2, 0.7)))


def test_a_border_of_another_colour_is_another_variant(prepared: Path) -> None:
    reader = open_dataset(str(prepared)).reader
    assert isinstance(reader, PreparedReader)
    assert not reader.holds(replace(CRAFTED["border"], mean=(0.9, 0.9, 0.9)))


def test_these_models_differ_in_all_that_makes_a_variant() -> None:
    """Else the tests above would say less than they seem to."""
    wanted = [of_model(name) for name in MODELS]
    assert len({each.input_size for each in wanted}) >= 3
    assert len({each.interpolation for each in wanted}) >= 2
    assert len({each.crop_fraction for each in wanted}) >= 3
    assert {each.crop_mode for each in wanted} == {"center", "squash"}
    assert len({each.mean for each in wanted}) >= 2
