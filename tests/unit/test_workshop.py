"""What a workshop finds out about tensors and layers."""

import dataclasses

import torch
from test_shelf import make_blueprint
from torch import nn
from torch.nn.utils import parametrizations

from modelhound.features.workshop import _find_classifier, _of_same_tensors
from modelhound.models.parts import all_tensors


def test_a_tensor_that_lies_in_another_order_does_not_take_the_digest_of_the_one_at_its_place() -> None:
    square = torch.arange(9.0).reshape(3, 3)
    digests = _of_same_tensors({"weight": "abc"}, {"weight": square}, {"same": square.detach(), "turned": square.T})
    assert digests == {"same": "abc"}


def test_a_classifier_whose_weight_is_computed_from_others_is_none() -> None:
    blueprint = make_blueprint()
    layer = parametrizations.weight_norm(nn.Linear(3, 5))
    network = dataclasses.replace(blueprint.network, module=layer, classify=layer)
    slots = dict(all_tensors(layer))
    assert _find_classifier(dataclasses.replace(blueprint, network=network, slots=slots), slots) is None
