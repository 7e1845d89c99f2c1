"""Building around tensors that are there: the same network, without a draw and without a copy."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from modelhound.compat import import_timm, import_torchvision
from modelhound.models.adopting import build_around


def drawn(make: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """Weights for a module, of another draw than the test's own."""
    torch.manual_seed(seed)
    return {name: tensor.detach().clone() for name, tensor in make().state_dict().items()}


def loading(make: Callable[[], nn.Module], weights: dict[str, Tensor]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        module = make()
        module.load_state_dict(weights)
        return module.eval()

    return build


def everything(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, saved or not, by all of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def timm(name: str, **options: object) -> Callable[[], nn.Module]:
    return lambda: import_timm().create_model(name, **options)


def torchvision(name: str) -> Callable[[], nn.Module]:
    return lambda: import_torchvision().models.get_model(name, weights=None)


FAMILIES = {
    "resnet": timm("test_resnet"),
    "vit": timm("test_vit"),
    "efficientnet": timm("test_efficientnet"),
    "convnext": timm("test_convnext"),
    "nfnet": timm("test_nfnet"),  # standardises its weights at every call
    "byobnet": timm("test_byobnet"),
    "swin": timm("swin_tiny_patch4_window7_224", depths=(1, 1), embed_dim=24, num_heads=(2, 2), img_size=56),
    "mobilenet of torchvision": torchvision("mobilenet_v3_small"),
    "shufflenet of torchvision": torchvision("shufflenet_v2_x0_5"),
    "squeezenet of torchvision": torchvision("squeezenet1_1"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_module_equals_the_ordinarily_built_one(family: str) -> None:
    make = FAMILIES[family]
    weights = drawn(make, seed=1)
    torch.manual_seed(2)
    ordinary = everything(loading(make, weights)())
    adopted = everything(build_around(weights, loading(make, weights)))
    assert list(adopted) == list(ordinary)
    for name, tensor in ordinary.items():
        assert torch.equal(adopted[name], tensor), name
        assert adopted[name].dtype == tensor.dtype, name
        assert adopted[name].requires_grad == tensor.requires_grad, name


def test_it_is_made_of_the_very_tensors_that_were_given() -> None:
    make = FAMILIES["resnet"]
    weights = drawn(make, seed=1)
    adopted = build_around(weights, loading(make, weights))
    for name, tensor in adopted.state_dict().items():
        assert tensor.data_ptr() == weights[name].data_ptr(), name


def test_tensors_that_two_modules_share_stay_as_they_were() -> None:
    make = FAMILIES["efficientnet"]
    weights = drawn(make, seed=1)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    first, second = (build_around(weights, loading(make, weights)) for _ in range(2))
    with torch.inference_mode():
        images = torch.randn(2, 3, 96, 96)
        assert torch.equal(first(images), second(images))
    for name, tensor in weights.items():
        assert torch.equal(tensor, before[name]), name


def test_nothing_is_left_behind_in_torch() -> None:
    ordinary = nn.Module.load_state_dict
    weights = drawn(FAMILIES["vit"], seed=1)
    build_around(weights, loading(FAMILIES["vit"], weights))
    with pytest.raises(RuntimeError, match="Missing key"):
        build_around({}, loading(FAMILIES["vit"], {}))
    assert nn.Module.load_state_dict is ordinary
    torch.manual_seed(0)
    assert float(nn.Linear(4, 4).weight.detach().std()) > 0.1  # drawing works again


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_files_of_another_precision_become_what_the_module_is_of(dtype: torch.dtype) -> None:
    make = FAMILIES["resnet"]
    weights = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in drawn(make, 1).items()
    }
    adopted = build_around(weights, loading(make, weights))
    for name, tensor in adopted.state_dict().items():
        assert tensor.dtype == (torch.float32 if weights[name].is_floating_point() else torch.int64), name
        assert torch.equal(tensor, weights[name].to(tensor.dtype)), name
    assert {tensor.dtype for tensor in weights.values()} == {dtype, torch.int64}


class Tied(nn.Module):
    """One tensor under two names, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.decode = nn.Linear(5, 7, bias=False)
        self.decode.weight = self.embed.weight


def test_tied_weights_stay_tied() -> None:
    weights = drawn(Tied, seed=1)
    adopted = build_around(weights, loading(Tied, weights))
    assert adopted.get_parameter("decode.weight") is adopted.get_parameter("embed.weight")
    assert torch.equal(adopted.get_parameter("embed.weight"), weights["embed.weight"])


class Noisy(nn.Module):
    """Draws a buffer that no file holds, so that every building gives another one unless the seed is set."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("noise", torch.empty(50).normal_(), persistent=False)


def test_what_no_file_holds_is_drawn_as_ever() -> None:
    weights = drawn(Noisy, seed=1)

    def build() -> nn.Module:
        torch.manual_seed(5)
        return loading(Noisy, weights)()

    assert torch.equal(build_around(weights, build).get_buffer("noise"), build().get_buffer("noise"))


def test_a_part_that_the_file_lacks_is_drawn_as_ever() -> None:
    """timm draws a new head where the file has one for other classes."""
    weights = {name: tensor for name, tensor in drawn(FAMILIES["resnet"], 1).items() if not name.startswith("fc.")}

    def build() -> nn.Module:
        torch.manual_seed(5)
        module = FAMILIES["resnet"]()
        module.load_state_dict(weights, strict=False)
        return module

    adopted, ordinary = build_around(weights, build).state_dict(), build().state_dict()
    assert all(torch.equal(adopted[name], tensor) for name, tensor in ordinary.items())
