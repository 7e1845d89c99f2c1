"""The zoo's architectures are what their table says."""

import pytest
import torch

from modelhound.errors import ModelError
from modelhound.models.zoo_architectures import ZOO_ARCHITECTURES, build_zoo_network

NAMES = sorted(ZOO_ARCHITECTURES)


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_the_stated_number_of_parameters_is_that_of_the_trunk(name: str) -> None:
    network = build_zoo_network(name, 7)
    classifier = count(network.get_classifier())
    assert count(network) - classifier == ZOO_ARCHITECTURES[name].num_parameters
    assert classifier == 7 * (ZOO_ARCHITECTURES[name].num_features + 1)


@pytest.mark.parametrize("name", NAMES)
def test_features_have_the_stated_width_at_the_stated_input_size(name: str) -> None:
    architecture = ZOO_ARCHITECTURES[name]
    network = build_zoo_network(name, 7).eval()
    images = torch.randn(3, 3, architecture.input_size, architecture.input_size)
    with torch.inference_mode():
        features = network.forward_features(images)
        assert network.forward_head(features, pre_logits=True).shape == (3, architecture.num_features)
        assert torch.equal(network.forward_head(features), network(images))
    assert network.num_features == architecture.num_features


@pytest.mark.parametrize("name", NAMES)
def test_the_name_begins_with_the_family(name: str) -> None:
    assert name.split("_")[0] == ZOO_ARCHITECTURES[name].family


def test_preprocessing_matters_because_input_sizes_differ() -> None:
    assert len({architecture.input_size for architecture in ZOO_ARCHITECTURES.values()}) >= 2


def test_every_trainable_tensor_takes_part_in_the_output() -> None:
    for name, architecture in ZOO_ARCHITECTURES.items():
        network = build_zoo_network(name, 4)
        network(torch.randn(4, 3, architecture.input_size, architecture.input_size)).square().sum().backward()
        idle = [key for key, parameter in network.named_parameters() if parameter.grad is None]
        assert idle == [], f"{name}: {idle}"


def test_the_same_seed_gives_the_same_random_weights() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build_zoo_network("vit_small", 4).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"cannot build zoo architecture 'alexnet': expected one of .*resnet_small"):
        build_zoo_network("alexnet", 10)
