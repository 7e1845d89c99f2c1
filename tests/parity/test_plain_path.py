"""The plain path is what anyone would write by hand: read, transform, run, one image at a time."""

from pathlib import Path

import pytest
import torch

import modelhound
from finals_networks import write_coloured
from modelhound.compat import import_timm
from modelhound.data import Preprocessing, open_dataset
from modelhound.features import extract_features, suitable_batch
from modelhound.meter import Meter
from modelhound.models import SOURCES


@pytest.mark.parametrize(
    "name", ["resnet-glyphs", "vit-rotation", "convnext-textures", "mixer-shapes", "mobilenet-shapes"]
)
def test_features_equal_those_of_one_image_at_a_time(name: str) -> None:
    timm = import_timm()
    dataset = open_dataset("digits", limit=24)
    network = SOURCES["zoo"].build(name, SOURCES["zoo"].read_weights(name))
    wanted = network.preprocessing
    assert isinstance(wanted, Preprocessing)
    transform = timm.data.create_transform(
        input_size=(3, *wanted.input_size),
        interpolation=wanted.interpolation,
        mean=wanted.mean,
        std=wanted.std,
        crop_pct=wanted.crop_fraction,
        crop_mode=wanted.crop_mode,
    )
    by_hand = []
    with torch.inference_mode():
        for index in range(len(dataset)):
            image = transform(dataset.read(index))[None]
            by_hand.append(network.module.forward_head(network.module.forward_features(image), pre_logits=True))
    (result,) = extract_features(network, dataset, device="cpu", batch=7, workers=0, meter=Meter()).layers
    torch.testing.assert_close(result.features, torch.cat(by_hand), rtol=1e-4, atol=1e-5)
    assert result.targets.tolist() == dataset.targets.tolist()


def test_every_batch_is_one_sample_of_each_phase() -> None:
    dataset = open_dataset("digits", limit=24)
    network = SOURCES["zoo"].build("resnet-glyphs", None)
    meter = Meter()
    extract_features(network, dataset, device="cpu", batch=10, workers=0, meter=meter)
    counts = {each.phase: len(each.seconds) for each in meter.samples}
    assert counts == {"wait for data": 3, "data to device": 3, "forward": 3}


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("resnet-glyphs", "cpu", 128),
        ("efficientnet_lite1", "cpu", 18),
        ("efficientnet_lite1", "cuda:0", 512),
    ],
)
def test_the_batch_follows_the_size_of_images_on_a_cpu(name: str, device: str, expected: int) -> None:
    assert suitable_batch(SOURCES["zoo"].build(name, None).preprocessing, device) == expected


def test_features_that_are_no_numbers_are_told_alike_by_the_engine_and_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "hazy.py"
    file.write_text(_HAZY)
    data = str(write_coloured(tmp_path / "coloured", per_class=8))
    models = [f"py:{file}:hazy", f"py:{file}:clear"]
    told = {}
    for way in ("engine", "plain"):
        result = modelhound.search(data, models, plain=way == "plain", run=tmp_path / way, device="cpu")
        assert [row.model for row in result.ranking.models] == models[1:]
        told[way] = result.failures
    assert told["engine"] == told["plain"]
    (failure,) = told["plain"]
    assert failure.phase == "score"
    assert failure.error.startswith("cannot score features: 9 of 24 items give NaN or infinite values")


_HAZY = """
from torch import nn

FORM = {"input_size": 8, "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 1.0, "interpolation": "bilinear"}


class Eye(nn.Module):
    def __init__(self, is_hazy):
        super().__init__()
        self.is_hazy = is_hazy
        self.mix = nn.Linear(3, 3)

    def forward(self, images):
        seen = images.mean((2, 3))
        reddest = seen[:, :1] > seen[:, 1:].max(1, keepdim=True).values
        return self.mix(seen.masked_fill(reddest, float("nan")) if self.is_hazy else seen)


def hazy():
    return Eye(True), FORM


def clear():
    return Eye(False), FORM
"""
