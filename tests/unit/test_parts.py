"""Networks cut into parts: every family must give by parts what it gives as a whole."""

import copy
import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modelhound.compat import import_timm, import_transformers
from modelhound.data import Preprocessing
from modelhound.models import Network
from modelhound.models.parts import PROBE_TOKENS, Anatomy, dissect, run_part
from modelhound.models.timm import pooled_features
from modelhound.models.torchvision import TorchvisionSource

FORM = Preprocessing(
    input_size=(32, 32), interpolation="bicubic", crop_fraction=1.0, crop_mode="center", mean=(0.5,) * 3, std=(0.5,) * 3
)


def wrap(module: nn.Module, extract: Callable[..., Tensor] | None = None) -> Network:
    return Network(module=module.eval(), extract=extract or module, preprocessing=FORM)


def by_parts(network: Network, anatomy: Anatomy, inputs: Tensor | dict[str, Tensor]) -> Tensor:
    value = None
    with torch.no_grad():
        for number in range(len(anatomy.parts)):
            value = run_part(network, anatomy, number, number + 1, inputs, value)
    assert value is not None
    return value


SIDE = 64  # pixels, for networks that take images of any size
TIMM = {
    "resnet18": 10,
    "mobilenetv2_100": 20,
    "efficientnet_b0": 18,
    "vit_tiny_patch16_224": 14,
    "convnext_atto": 14,
    "test_vit": 3,
    "mixer_s32_224": 8,
    "densenet121": 8,
    "levit_128s": 12,
}


@pytest.mark.parametrize(("name", "at_least"), TIMM.items())
def test_networks_of_timm_give_by_parts_what_they_give_as_a_whole(name: str, at_least: int) -> None:
    torch.manual_seed(0)
    module = import_timm().create_model(name)
    network = wrap(module, pooled_features(module))
    side = module.pretrained_cfg["input_size"][-1] if module.pretrained_cfg["fixed_input_size"] else SIDE
    anatomy = dissect(network, torch.rand(2, 3, side, side))
    assert len(anatomy.parts) >= at_least
    images = torch.rand(3, 3, side, side)
    with torch.no_grad():
        assert torch.equal(by_parts(network, anatomy, images), network.extract(images))


@pytest.mark.parametrize(("name", "at_least"), [("mobilenet_v2", 18), ("squeezenet1_1", 10), ("resnet18", 10)])
def test_networks_of_torchvision_do_too(name: str, at_least: int) -> None:
    torch.manual_seed(0)
    network = TorchvisionSource().build(name, None)
    anatomy = dissect(network, torch.rand(2, 3, SIDE, SIDE))
    assert len(anatomy.parts) >= at_least
    images = torch.rand(1, 3, SIDE, SIDE)
    with torch.no_grad():
        assert torch.equal(by_parts(network, anatomy, images), network.extract(images))


SMALL = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 40, "vocab_size": 99}
ENCODERS = {
    "Bert": SMALL,
    "Roberta": SMALL,
    "DistilBert": {"n_layers": 3, "n_heads": 4, "dim": 32, "hidden_dim": 40, "vocab_size": 99},
    "Longformer": {**SMALL, "attention_window": 8, "max_position_embeddings": 64},
    "MPNet": SMALL,
    "ModernBert": {**SMALL, "pad_token_id": 0},
    "GPT2": {"n_layer": 3, "n_head": 4, "n_embd": 32, "vocab_size": 99},
}


@pytest.mark.parametrize("family", ENCODERS)
def test_text_encoders_do_too_at_any_length(family: str) -> None:
    transformers = import_transformers()
    torch.manual_seed(0)
    module = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**ENCODERS[family]))

    def extract(tokens: dict[str, Tensor]) -> Tensor:
        states: Tensor = module(**tokens).last_hidden_state
        return (states * tokens["attention_mask"][..., None]).sum(1)

    def texts(num_texts: int, length: int) -> dict[str, Tensor]:
        tokens = torch.randint(5, 99, (num_texts, length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(tokens)
        mask[-1, length // 2 :] = 0
        return {"input_ids": tokens, "attention_mask": mask}

    network = wrap(module, extract)
    anatomy = dissect(network, texts(2, PROBE_TOKENS))
    assert len(anatomy.parts) >= 4
    other = texts(5, 21)
    with torch.no_grad():
        assert torch.equal(by_parts(network, anatomy, other), network.extract(dict(other)))


def test_albert_whose_layers_are_one_layer_stays_whole_or_right() -> None:
    transformers = import_transformers()
    module = transformers.AlbertModel(transformers.AlbertConfig(**SMALL, embedding_size=16))
    network = wrap(module, lambda tokens: module(**tokens).last_hidden_state.mean(1))
    tokens = {
        "input_ids": torch.randint(5, 99, (2, PROBE_TOKENS)),
        "attention_mask": torch.ones(2, PROBE_TOKENS).long(),
    }
    anatomy = dissect(network, tokens)
    with torch.no_grad():
        assert torch.equal(by_parts(network, anatomy, tokens), network.extract(tokens))


class Leaky(nn.Module):
    """Its last block looks back at the input of the first: there is no place to cut but the very beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4))

    def forward(self, items: Tensor) -> Tensor:
        value = items
        for block in self.blocks:
            value = block(value)
        return value + items


class Straight(Leaky):
    def forward(self, items: Tensor) -> Tensor:
        for block in self.blocks:
            items = block(items)
        return items


class Remembering(Straight):
    """Depends on something that no graph shows, a number it keeps from block to block: the only cut is after the first."""

    def forward(self, items: Tensor) -> Tensor:
        total = 0.0
        for block in self.blocks:
            items = block(items)
            total += items.detach().mean().item()
        return items + total


class Changing(Straight):
    """Changes the output of its blocks in place."""

    def forward(self, items: Tensor) -> Tensor:
        for block in self.blocks:
            items = block(items)
            with torch.no_grad():
                items.add_(1)
        return items


@pytest.mark.parametrize(("kind", "num_parts"), [(Straight, 4), (Leaky, 1), (Remembering, 2)])
def test_a_cut_is_where_everything_goes_through_one_tensor(kind: type[nn.Module], num_parts: int) -> None:
    torch.manual_seed(1)
    assert len(dissect(wrap(kind()), torch.rand(2, 8)).parts) == num_parts


def test_places_that_only_look_like_cuts_are_given_up_and_it_says_why() -> None:
    torch.manual_seed(1)
    anatomy = dissect(wrap(Remembering()), torch.rand(2, 8))
    assert anatomy.trouble is not None
    assert "depends on more" in anatomy.trouble


def test_a_place_whose_stored_output_would_be_changed_is_given_up_and_it_says_why() -> None:
    torch.manual_seed(1)
    network = wrap(Changing())
    anatomy = dissect(network, torch.rand(2, 8))
    assert len(anatomy.parts) == 1
    assert anatomy.trouble == "blocks.0 is no place to cut: what follows changes it in place"
    items = torch.rand(3, 8)
    with torch.no_grad():
        assert torch.equal(by_parts(network, anatomy, items), network.extract(items))


def test_every_tensor_that_is_used_belongs_to_a_part_and_the_classifier_to_none() -> None:
    module = import_timm().create_model("vit_tiny_patch16_224")
    anatomy = dissect(wrap(module, pooled_features(module)), torch.rand(2, 3, 224, 224))
    owned = [name for part in anatomy.parts for name in part.tensors]
    assert len(owned) == len(set(owned))
    assert set(module.state_dict()) - set(owned) == {"head.weight", "head.bias"}
    assert {"cls_token", "pos_embed", "patch_embed.proj.weight"} <= set(anatomy.parts[0].tensors)
    assert set(anatomy.everywhere) == {"cls_token", "pos_embed"}


class Turned(nn.Module):
    """Takes a tensor of a module that it never calls; another, its classifier, it neither calls nor asks."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU())) for _ in range(3)])
        self.head = nn.Linear(8, 2)

    def forward(self, items: Tensor) -> Tensor:
        for block in self.blocks:
            items = block(items) * self.turns.bias
        return items


def test_a_tensor_that_is_asked_for_without_a_call_is_the_networks_own() -> None:
    torch.manual_seed(0)
    network = wrap(Turned())
    anatomy = dissect(network, torch.rand(2, 8))
    assert len(anatomy.parts) > 1
    assert anatomy.everywhere == ("turns.bias",)
    assert "turns.bias" in anatomy.parts[0].tensors
    assert not {"turns.weight", "head.weight"} & {name for part in anatomy.parts for name in part.tensors}
    items = torch.rand(3, 8)
    with torch.no_grad():
        assert torch.equal(by_parts(network, anatomy, items), network.extract(items))


def test_a_pooler_that_nobody_asks_belongs_to_the_last_part_alone() -> None:
    """Near-copies often differ in it: in the first part it would leave them nothing to share."""

    class Pooled(Straight):
        def __init__(self) -> None:
            super().__init__()
            self.pooler = nn.Linear(8, 8)

        def forward(self, items: Tensor) -> Tensor:
            made = super().forward(items)
            self.pooler(made)
            return made

    anatomy = dissect(wrap(Pooled()), torch.rand(2, 8))
    assert len(anatomy.parts) == 4
    assert anatomy.everywhere == ()
    assert [number for number, part in enumerate(anatomy.parts) if "pooler.weight" in part.tensors] == [3]


def test_flops_are_counted_part_by_part() -> None:
    module = import_timm().create_model("resnet18")
    anatomy = dissect(wrap(module, pooled_features(module)), torch.rand(2, 3, 224, 224))
    assert sum(part.flops_per_item for part in anatomy.parts) == pytest.approx(2 * 1.8135e9, rel=1e-3)
    assert anatomy.parts[-1].output_bytes_per_item == 512 * 4


def test_weights_and_the_number_of_classes_do_not_change_the_architecture_but_the_depth_does() -> None:
    timm = import_timm()

    def hash_of(name: str, **options: int) -> str:
        module = timm.create_model(name, **options)
        return dissect(wrap(module, pooled_features(module)), torch.rand(2, 3, 64, 64)).architecture

    assert hash_of("resnet18") == hash_of("resnet18", num_classes=7)
    assert hash_of("resnet18") != hash_of("resnet34")
    assert hash_of("resnet18") != hash_of("resnet18", output_stride=16)


NET = """
from torch import nn

class Net(nn.Module):
    def forward(self, images):
        return images.flatten(1) * FACTOR
"""


def test_the_architecture_follows_the_code_of_strangers_wherever_it_lies(tmp_path: Path) -> None:
    def hash_of(folder: str, factor: int) -> str:
        path = tmp_path / folder / "net_of_a_stranger.py"
        path.parent.mkdir()
        path.write_text(NET.replace("FACTOR", str(factor)))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            return dissect(wrap(module.Net()), torch.rand(2, 3, 4, 4)).architecture
        finally:
            del sys.modules[path.stem]

    assert hash_of("one", 2) == hash_of("copy", 2) != hash_of("edited", 3)


def test_what_is_made_of_a_networks_output_is_part_of_the_architecture() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    def mean_times(factor: int) -> Callable[[Tensor], Tensor]:
        return lambda images: module(images).mean((2, 3)) * factor

    def largest(images: Tensor) -> Tensor:
        return module(images).amax((2, 3))

    images = torch.rand(2, 3, 8, 8)
    hashes = [dissect(wrap(module, each), images).architecture for each in (mean_times(1), mean_times(2), largest)]
    assert len(set(hashes)) == 3
    assert dissect(wrap(module, mean_times(1)), images).architecture == hashes[0]


class Picked:
    """A function that knows what it was made with, like `partial`."""

    def __init__(self, module: nn.Module, places: list[int]) -> None:
        self.module, self.places = module, places

    def __call__(self, images: Tensor) -> Tensor:
        return self.read(images)

    def read(self, images: Tensor) -> Tensor:
        made: Tensor = self.module(images).mean((2, 3))
        return made[:, self.places]


def columns(held: Any) -> Tensor:
    if isinstance(held, np.ndarray):
        return columns(held.tolist())
    if isinstance(held, SimpleNamespace):
        return columns(held.places)
    if isinstance(held, nn.Module):
        return held(torch.eye(4))
    if isinstance(held, Tensor):
        return held
    if isinstance(held, dict):
        return columns(held["places"])
    return torch.eye(4)[:, held] if isinstance(held, list) else held()


def one_at(place: int) -> Callable[[], Tensor]:
    return lambda: torch.eye(4)[:, [place]]


def weighing(weight: float) -> nn.Linear:
    """Beside the network, so that nobody else knows of its weights."""
    layer = nn.Linear(4, 2)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, weight)
    return layer


def closing_over(module: nn.Module, held: Any) -> Callable[[Tensor], Tensor]:
    return lambda images: module(images).mean((2, 3)) @ columns(held)


def by_default(module: nn.Module, held: list[int]) -> Callable[[Tensor], Tensor]:
    return lambda images, places=held: module(images).mean((2, 3))[:, places]


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (closing_over, ([0, 1], [2, 3])),
        (closing_over, (torch.ones(4, 2), torch.eye(4)[:, :2])),
        (closing_over, ({"places": [0, 1]}, {"places": [2, 3]})),
        (closing_over, (partial(columns, [0, 1]), partial(columns, [2, 3]))),
        (closing_over, (np.array([0, 1]), np.array([2, 3]))),
        (closing_over, (SimpleNamespace(places=[0, 1]), SimpleNamespace(places=[2, 3]))),
        (closing_over, (one_at(0), one_at(1))),
        (closing_over, (weighing(1.0), weighing(2.0))),
        (by_default, ([0, 1], [2, 3])),
        (Picked, ([0, 1], [2, 3])),
        (lambda module, held: Picked(module, held).read, ([0, 1], [2, 3])),
    ],
    ids=[
        *("a list", "a tensor", "a mapping", "a partial", "an array", "a namespace"),
        *("a function", "weights of its own", "a default", "an object", "a method"),
    ],
)
def test_whatever_a_function_of_the_output_was_made_with_is_part_of_the_architecture(
    make: Callable[[nn.Module, Any], Callable[[Tensor], Tensor]], settings: tuple[Any, Any]
) -> None:
    """Or the second of two networks would be run as the first; near-copies, which were made with the same, are one."""

    def hash_of(held: Any) -> str:
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        return dissect(wrap(module, make(module, held)), torch.rand(2, 3, 8, 8)).architecture

    one, other = settings
    assert hash_of(one) == hash_of(one) != hash_of(other)


class Times:
    """A function that is an object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, made: Tensor) -> Tensor:
        return made * self.factor


class Bent(nn.Module):
    """A layer, as often as somebody says, and a function of what comes out."""

    def __init__(self, bend: Callable[[Tensor], Tensor], told: SimpleNamespace) -> None:
        super().__init__()
        self.layer, self.bend, self.told = nn.Linear(4, 4), bend, told

    def forward(self, images: Tensor) -> Tensor:
        made = images.mean((1, 2))
        for _ in range(self.told.times):
            made = self.layer(made)
        return self.bend(made)


def test_functions_that_modules_were_made_with_and_how_often_they_are_called_are_part_of_the_architecture() -> None:
    def hash_of(bend: Callable[[Tensor], Tensor], times: int = 1, config: str = "") -> str:
        network = wrap(Bent(bend, SimpleNamespace(times=times)))
        return dissect(dataclasses.replace(network, config=config), torch.rand(2, 3, 4, 4)).architecture

    bends: list[Callable[[Tensor], Tensor]] = [torch.relu, torch.tanh]
    bends += [partial(nn.functional.leaky_relu, negative_slope=slope) for slope in (0.1, 0.2)]
    bends += [Times(factor) for factor in (2.0, 3.0)]
    hashes = [*map(hash_of, bends), hash_of(torch.relu, 2), hash_of(torch.relu, 1, "other")]
    assert len(set(hashes)) == len(hashes)
    assert hash_of(torch.relu) == hashes[0]


def test_the_network_is_left_as_it_was() -> None:
    module = import_timm().create_model("resnet18").train()
    for parameter in module.conv1.parameters():
        parameter.requires_grad_(False)
    images = torch.rand(2, 3, 64, 64)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    network = Network(module=module, extract=pooled_features(module), preprocessing=FORM)
    dissect(network, images)
    assert module.training
    assert not module.conv1.weight.requires_grad
    assert module.fc.weight.requires_grad
    assert all("forward" not in vars(each) and not each._forward_hooks for each in module.modules())
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())


def test_a_module_with_a_forward_of_its_own_keeps_it() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    block = module[0]
    plain = block.forward
    block.forward = lambda value: plain(value) + 1  # as hooks of other libraries do
    own, network, items = block.forward, wrap(module), torch.rand(2, 4)
    expected = module(items)
    anatomy = dissect(network, items)
    assert len(anatomy.parts) > 1
    assert torch.equal(by_parts(network, anatomy, items), expected)
    assert block.forward is own
    assert "forward" not in vars(module[1])
    assert torch.equal(module(items), expected)


class Tabled(nn.Module):
    """Makes a table of its weights once and remembers what came last, as some networks of timm do while they do not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.tables: dict[str, Tensor] = {}
        self.last: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        if str(images.device) not in self.tables:
            self.tables[str(images.device)] = 2 * self.layer.weight
        self.last = images.mean((1, 2)) @ self.tables[str(images.device)]
        return self.last


def test_what_modules_keep_from_one_forward_is_forgotten_before_they_run_with_other_weights() -> None:
    module, images = Tabled(), torch.rand(2, 3, 4, 4)
    network = wrap(module)
    anatomy = dissect(network, images)
    assert (module.tables, module.last) == ({}, None)
    before = by_parts(network, anatomy, images)
    module.layer.weight.data = -module.layer.weight.data
    assert torch.equal(by_parts(network, anatomy, images), -before)


class Holding(nn.Module):
    """A module of one's own that was made with anything."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"scale": 1}, {"scale": 2}),
        ({1}, {2}),
        (torch.ones(2), torch.zeros(2)),
        (np.float32(1), np.float32(2)),
        (np.ones(2), np.zeros(2)),
        (torch.float32, torch.bfloat16),
        (None, torch.float32),
        (SimpleNamespace(scale=1), SimpleNamespace(scale=2)),
        ([nn.Linear(2, 2)], [nn.Linear(2, 2)]),
        (Times(2.0), Times(3.0)),
    ],
)
def test_whatever_a_module_of_ones_own_was_made_with_is_part_of_the_architecture(one: Any, other: Any) -> None:
    def hash_of(held: Any) -> str:
        return dissect(wrap(Holding(held)), torch.rand(2, 3, 4, 4)).architecture

    assert hash_of(one) == hash_of(copy.deepcopy(one)) != hash_of(other)


def test_what_holds_itself_or_is_held_by_many_is_told_all_the_same() -> None:
    itself: list[Any] = [1]
    itself.append({"again": itself})
    many: Any = SimpleNamespace()
    for _ in range(25):  # of which each holds the one before twice
        many = SimpleNamespace(one=many, other=many)
    deep: Any = None
    for _ in range(5_000):
        deep = [deep]
    for held in (itself, many, deep):
        assert len(dissect(wrap(Holding(held)), torch.rand(2, 3, 4, 4)).architecture) == 64


def scaled(factor: float) -> nn.Module:
    class Scaled(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1) * factor

    return Scaled()


def test_a_class_that_a_function_has_made_is_not_taken_for_another_of_its_name() -> None:
    def hash_of(factor: float) -> str:
        return dissect(wrap(scaled(factor)), torch.rand(2, 3, 4, 4)).architecture

    assert hash_of(2.0) == hash_of(2.0) != hash_of(3.0)


def test_what_a_hook_catches_where_is_part_of_the_architecture() -> None:
    def hash_of(place: int) -> str:
        module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1))
        caught: list[Tensor] = []
        module[place].register_forward_hook(lambda layer, inputs, output: caught.append(output))

        def extract(images: Tensor) -> Tensor:
            module(images)
            return caught.pop().mean((2, 3))

        return dissect(wrap(module, extract), torch.rand(2, 3, 8, 8)).architecture

    assert hash_of(0) == hash_of(0) != hash_of(1)
