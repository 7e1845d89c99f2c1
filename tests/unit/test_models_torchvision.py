"""torchvision's classifiers: names, cards, preprocessing and weights."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modelhound.compat import import_torchvision
from modelhound.data import Preprocessing
from modelhound.data.preprocessing import make_transform
from modelhound.errors import ModelError
from modelhound.models import describe_models, find_models
from modelhound.models.torchvision import TorchvisionSource


def test_cards_tell_what_torchvision_states() -> None:
    (card,) = describe_models(find_models(["tv:mobilenet_v2"]))
    assert (card.num_parameters, card.input_size, card.family) == (3_504_872, (224, 224), "mobilenetv2")
    assert card.licence == "BSD-3-Clause"


def test_a_set_of_weights_can_be_named() -> None:
    (model,) = find_models(["tv:resnet50@IMAGENET1K_V1"])
    assert model.name == "resnet50@IMAGENET1K_V1"
    assert TorchvisionSource().find("resnet50@IMAGENET99") == []
    assert TorchvisionSource().find("resnet5000@IMAGENET1K_V1") == []
    assert set(TorchvisionSource().find("resnet1*")) == {"resnet101", "resnet152", "resnet18"}


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_b1", "resnet50@IMAGENET1K_V2"])
def test_images_are_prepared_as_torchvision_does(name: str) -> None:
    import_torchvision()
    from torchvision.models import get_model_weights

    bare, _, tag = name.partition("@")
    weights = get_model_weights(bare)
    theirs = (weights[tag] if tag else weights.DEFAULT).transforms()
    form = TorchvisionSource().build(name, None).preprocessing
    assert isinstance(form, Preprocessing)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 410, 3), dtype=np.uint8))
    torch.testing.assert_close(make_transform(form)(image), theirs(image), rtol=0, atol=1e-6)


def test_the_classifier_gives_the_networks_own_logits() -> None:
    torch.manual_seed(0)
    network = TorchvisionSource().build("mobilenet_v3_small", None)
    images = torch.rand(2, 3, 224, 224)
    assert network.classify is not None
    with torch.no_grad():
        torch.testing.assert_close(network.classify(network.extract(images)), network.module(images))


def test_features_given_to_the_classifier_are_not_held_on_to() -> None:
    network = TorchvisionSource().build("mobilenet_v3_small", None)
    assert network.classify is not None
    given = [torch.rand(2, 1024) for _ in range(2)]
    alive = weakref.ref(given[0])
    while given:
        network.classify(given.pop(0))
    assert alive() is None


def test_squeezenet_has_features_but_no_linear_classifier() -> None:
    network = TorchvisionSource().build("squeezenet1_1", None)
    assert network.classify is None
    assert network.extract(torch.rand(2, 3, 224, 224)).shape == (2, 512)


def test_weights_are_taken_from_torchs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    source = TorchvisionSource()
    torch.manual_seed(5)
    network = source.build("squeezenet1_1", None)
    file = tmp_path / "hub" / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    file.parent.mkdir(parents=True)
    torch.save(network.module.state_dict(), file)
    again = source.build("squeezenet1_1", source.read_weights("squeezenet1_1"))
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(again.extract(images), network.extract(images))
    with pytest.raises(ModelError, match=r"tv:squeezenet1_0.*do not fit"):
        source.build("squeezenet1_0", source.read_weights("squeezenet1_1"))
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"cannot read weights of tv:squeezenet1_1.*--weights random"):
        source.read_weights("squeezenet1_1")
