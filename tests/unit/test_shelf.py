"""The shelf holds each distinct tensor once, and no more than it may."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from modelhound.data import Preprocessing
from modelhound.features import shelf as shelf_module
from modelhound.features.shelf import Shelf, install
from modelhound.features.workshop import Blueprint, Specimen
from modelhound.models import ModelRef, Network
from modelhound.models.parts import dissect
from modelhound.models.tensor_hashes import hash_tensor

FORM = Preprocessing(
    input_size=(8, 8), interpolation="bilinear", crop_fraction=1.0, crop_mode="center", mean=(0.5,) * 3, std=(0.5,) * 3
)


def make_blueprint(dtype: torch.dtype = torch.float32) -> Blueprint:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    network = Network(module=module, preprocessing=FORM, extract=module)
    anatomy = dissect(network, torch.randn(2, 3, 8, 8))
    kinds = {name: tensor.dtype for name, tensor in module.state_dict().items()}
    module.to(dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    slots = module.state_dict(keep_vars=True)
    return Blueprint(
        network=network,
        anatomy=anatomy,
        slots=slots,
        templates={name: tensor.to("meta") for name, tensor in slots.items()},
        kinds=kinds,
        parameters=frozenset(name for name, _ in module.named_parameters()),
        layout=torch.channels_last,
        unsaved={},
        used=("weight", "bias"),
        part_bytes=(),
    )


def make_specimen(blueprint: Blueprint, name: str, changes: Mapping[str, torch.Tensor] = {}) -> Specimen:
    """A model with the tensors of the blueprint's architecture, of which some are its own."""
    torch.manual_seed(1)
    tensors = {each: torch.randn(slot.shape).to(blueprint.kinds[each]) for each, slot in blueprint.slots.items()}
    tensors["1.running_var"] = tensors["1.running_var"].abs()
    tensors |= changes
    return Specimen(
        model=ModelRef(source="file", name=name),
        blueprint=blueprint,
        form=FORM,
        num_parameters=0,
        tensors=tensors,
        digests={each: hash_tensor(tensor) for each, tensor in tensors.items()},
        fingerprints=(),
        is_mapped=False,
        classifier=None,
    )


def test_equal_tensors_of_two_models_are_one_and_others_are_not() -> None:
    blueprint, shelf = make_blueprint(), Shelf("cpu")
    one = make_specimen(blueprint, "one")
    other = make_specimen(blueprint, "other", {"3.weight": torch.zeros(5, 144)})
    names = ("0.weight", "3.weight")
    first, second = shelf.fetch(one, names), shelf.fetch(other, names)
    assert first["0.weight"] is second["0.weight"]
    assert torch.equal(first["3.weight"], one.tensors["3.weight"])
    assert torch.equal(second["3.weight"], torch.zeros(5, 144))


def test_tensors_come_as_the_module_wants_them_and_the_models_own_stay_as_they_are() -> None:
    blueprint = make_blueprint(torch.bfloat16)
    specimen = make_specimen(blueprint, "one")
    before = {name: tensor.clone() for name, tensor in specimen.tensors.items()}
    fetched = Shelf("cpu").fetch(specimen, list(blueprint.slots))
    for name, tensor in fetched.items():
        slot = blueprint.slots[name]
        assert (tensor.dtype, tensor.stride()) == (slot.dtype, slot.stride()), name
        assert torch.equal(tensor, before[name].to(slot.dtype)), name
        assert torch.equal(specimen.tensors[name], before[name]), name
    assert fetched["0.weight"].dtype == torch.bfloat16
    assert fetched["0.weight"].is_contiguous(memory_format=torch.channels_last)


def test_what_fits_already_is_not_copied() -> None:
    blueprint = make_blueprint()
    specimen = make_specimen(blueprint, "one")
    fetched = Shelf("cpu").fetch(specimen, ["3.weight"])
    assert fetched["3.weight"].data_ptr() == specimen.tensors["3.weight"].data_ptr()


def test_those_used_longest_ago_go_first() -> None:
    blueprint, shelf = make_blueprint(torch.bfloat16), Shelf("cpu")  # so that each fetch of one not there makes a copy
    models = [
        make_specimen(blueprint, str(number), {"3.weight": torch.full((5, 144), float(number))}) for number in range(3)
    ]
    size = 5 * 144 * 2

    def fetch(number: int) -> int:
        return shelf.fetch(models[number], ["3.weight"])["3.weight"].data_ptr()

    shelf.limit(2 * size)
    held = [shelf.fetch(model, ["3.weight"])["3.weight"] for model in models]  # kept, so that no memory is used twice
    assert fetch(2) == held[2].data_ptr()
    assert fetch(1) == held[1].data_ptr()
    assert fetch(0) != held[0].data_ptr()  # was dropped when 2 came; takes the place of 2
    assert fetch(1) == held[1].data_ptr()
    assert fetch(2) != held[2].data_ptr()
    assert torch.equal(held[0], torch.zeros(5, 144, dtype=torch.bfloat16))  # who holds one keeps it


def test_what_must_go_is_gone_before_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is run whole would else be held beside the one it takes the place of."""
    blueprint, shelf = make_blueprint(torch.bfloat16), Shelf("cpu")
    one, other = (make_specimen(blueprint, str(fill), {"3.weight": torch.full((5, 144), fill)}) for fill in (1.0, 2.0))
    shelf.limit(5 * 144 * 2)
    shelf.fetch(one, ["3.weight"])
    held_bytes = []
    make = shelf_module._as_wanted

    def noting(tensor: torch.Tensor, template: torch.Tensor) -> torch.Tensor:
        held_bytes.append(shelf._held_bytes)
        return make(tensor, template)

    monkeypatch.setattr(shelf_module, "_as_wanted", noting)
    shelf.fetch(other, ["3.weight"])
    assert held_bytes == [0]
    assert shelf._held_bytes == 5 * 144 * 2


def test_a_smaller_limit_drops_at_once_and_nothing_stays_on_a_shelf_without_room() -> None:
    blueprint, shelf = make_blueprint(torch.bfloat16), Shelf("cpu")
    specimen = make_specimen(blueprint, "one")
    held = shelf.fetch(specimen, ["3.weight", "0.weight"])
    shelf.limit(5 * 144 * 2 - 1)  # the larger of both does not fit
    assert shelf.fetch(specimen, ["0.weight"])["0.weight"] is held["0.weight"]
    again = shelf.fetch(specimen, ["3.weight"])["3.weight"]
    assert again is not held["3.weight"]
    assert torch.equal(again, held["3.weight"])
    shelf.limit(0)
    assert shelf.fetch(specimen, ["0.weight"])["0.weight"] is not held["0.weight"]


def test_models_take_turns_in_one_module() -> None:
    blueprint, shelf = make_blueprint(), Shelf("cpu")
    names = list(blueprint.slots)
    models = [
        make_specimen(blueprint, "one"),
        make_specimen(blueprint, "two", {"0.weight": torch.ones(4, 3, 3, 3), "1.running_mean": torch.zeros(4)}),
    ]
    images = torch.randn(2, 3, 8, 8)
    outputs = []
    for model in (*models, models[0]):
        install(model, shelf.fetch(model, names))
        with torch.inference_mode():
            outputs.append(blueprint.network.extract(images))
        for name in names:
            assert torch.equal(blueprint.slots[name], model.tensors[name]), name
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
