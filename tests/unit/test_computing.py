"""Who multiplies in linear layers where features are made, and that it is always the right product."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from modelhound import compat
from modelhound.data import Preprocessing
from modelhound.models import Network, computing
from modelhound.models.computing import computing_features, linear_library, quick_linear
from modelhound.training import fine_tune
from train_things import FORM, SIDE, brightness, quick

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN")
ROWS, WEIGHT, BIAS = torch.randn(5, 7, 128), torch.randn(96, 128), torch.randn(96)


class Calls(TorchDispatchMode):
    """Notes which operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def network_of(*layers: nn.Module, classify: nn.Module | None = None) -> Network:
    module = nn.Sequential(*layers)
    return Network(module=module, extract=module, preprocessing=FED, classify=classify)


FED = Preprocessing(
    input_size=(8, 8), interpolation="bilinear", crop_fraction=1.0, crop_mode="center", mean=(0.5,) * 3, std=(0.5,) * 3
)
WIDE = network_of(nn.Linear(128, 96))


def products(rows: Tensor, weight: Tensor, bias: Tensor | None, device: str = "cpu") -> tuple[Tensor, list[str]]:
    with computing_features(device, WIDE), Calls() as calls:
        made = functional.linear(rows, weight, bias)
    return made, calls.names


def test_networks_without_large_layers_before_their_classifier_are_left_alone(held_back: None) -> None:
    classifier = nn.Linear(128, 1000)
    for network in (network_of(nn.Conv2d(3, 8, 3), nn.Linear(8, 8)), network_of(classifier, classify=classifier)):
        with computing_features("cpu", network), Calls() as calls:
            functional.linear(ROWS, WEIGHT, BIAS)
        assert "mkldnn::_linear_pointwise" not in calls.names


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU on which MKL does less than it could, whatever CPU this is."""
    monkeypatch.setattr(computing, "is_mkl_held_back", lambda: True)
    return


@pytest.mark.parametrize(
    ("rows", "weight", "bias"),
    [
        (ROWS, WEIGHT, BIAS),
        (ROWS, WEIGHT, None),
        (ROWS[0], WEIGHT, BIAS),
        (ROWS[:1, :1], WEIGHT, BIAS),
        (torch.randn(2, 3, 4, 128), WEIGHT, BIAS),
        (torch.randn(128, 7, 5).permute(2, 1, 0), WEIGHT, BIAS),
        (torch.randn(5, 7, 256)[..., 64:192], WEIGHT, BIAS),
        (torch.randn(1, 1, 128).expand(5, 7, 128), WEIGHT, BIAS),
        (torch.randn(5 * 7 * 128 + 1)[1:].view(5, 7, 128), WEIGHT, BIAS),
    ],
    ids=["three", "no-bias", "two", "one-row", "four", "permuted", "a-slice", "expanded", "not-aligned"],
)
def test_a_large_layer_is_multiplied_by_one_dnn_and_rightly(
    held_back: None, rows: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    made, names = products(rows, weight, bias)
    assert names == ["mkldnn::_linear_pointwise"]
    exact = functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(made.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "weight", "bias"),
    [
        (ROWS, WEIGHT, torch.randn(1).expand(96)),
        (ROWS, torch.randn(128, 96).T, BIAS),
        (ROWS, torch.randn(96, 256)[:, ::2], BIAS),
        (ROWS[..., :32], WEIGHT[:, :32].contiguous(), BIAS),
        (ROWS[0, 0], WEIGHT, BIAS),
        (ROWS[:0], WEIGHT, BIAS),
        (ROWS.double(), WEIGHT.double(), BIAS.double()),
    ],
    ids=["expanded-bias", "turned", "thinned", "small", "one-vector", "nothing", "doubles"],
)
def test_any_other_is_multiplied_as_torch_does(
    held_back: None, rows: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    made, names = products(rows, weight, bias)
    assert "mkldnn::_linear_pointwise" not in names
    assert torch.equal(made, functional.linear(rows, weight, bias))


def test_a_tensor_that_knows_itself_how_it_multiplies_is_asked(held_back: None) -> None:
    class Own(Tensor):
        """As those of quantised networks, which look like fp32."""

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is functional.linear:
                return torch.full((5, 7, 96), 3.0)
            return super().__torch_function__(func, types, args, kwargs or {})

    with computing_features("cpu", WIDE):
        assert bool((functional.linear(ROWS, WEIGHT.as_subclass(Own), BIAS) == 3).all())


def test_the_library_depends_on_the_cpu_and_a_gpu_is_left_alone(
    held_back: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (linear_library("cpu"), linear_library("cuda:0")) == ("oneDNN", "torch")
    assert "mkldnn::_linear_pointwise" not in products(ROWS, WEIGHT, BIAS, "cuda:0")[1]
    monkeypatch.setattr(computing, "is_mkl_held_back", lambda: False)
    assert linear_library("cpu") == "torch"
    assert "mkldnn::_linear_pointwise" not in products(ROWS, WEIGHT, BIAS)[1]


@pytest.mark.parametrize(
    ("maker", "instructions", "is_held_back"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        ("", "AVX512", False),
    ],
)
def test_mkl_is_held_back_on_cpus_with_avx512_that_intel_did_not_make(
    monkeypatch: pytest.MonkeyPatch, maker: str, instructions: str, is_held_back: bool
) -> None:
    monkeypatch.setattr(compat, "_maker_of_cpu", lambda: maker)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert compat.is_mkl_held_back.__wrapped__() is is_held_back


@pytest.mark.parametrize("loss", ["sum", "squares", "cut"])
@pytest.mark.parametrize("learns", ["all", "no bias", "weight alone", "rows alone"])
def test_slopes_are_those_of_the_exact_product(held_back: None, loss: str, learns: str) -> None:
    def slopes(dtype: torch.dtype) -> list[Tensor | None]:
        rows, weight, bias = (each.to(dtype, copy=True) for each in (ROWS, WEIGHT, BIAS))
        learning = {"all": (rows, weight, bias), "no bias": (rows, weight), "weight alone": (weight,)}.get(
            learns, (rows,)
        )
        for each in learning:
            each.requires_grad_()
        made = functional.linear(rows, weight, None if learns == "no bias" else bias)
        {"sum": made, "squares": made.square(), "cut": made[:, 1:4, ::2]}[loss].sum().backward()
        return [each.grad for each in (rows, weight, bias)]

    exact = slopes(torch.float64)
    with quick_linear("cpu", WIDE)(), Calls() as calls:
        found = slopes(torch.float32)
    assert calls.names.count("mkldnn::_linear_pointwise") == {"all": 3, "no bias": 3}.get(learns, 2)
    for one, other in zip(found, exact, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-3)


def test_a_network_learns_by_either_library_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = brightness(tmp_path / "photos")
    losses, counts = {}, {}
    for is_held_back in (False, True):
        monkeypatch.setattr(computing, "is_mkl_held_back", lambda is_held_back=is_held_back: is_held_back)
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
        module = nn.Sequential(*layers)
        network = Network(module=module, extract=module, preprocessing=FORM)
        with Calls() as calls:
            trained = fine_tune(network, dataset, quick(epochs=2))
        losses[is_held_back], counts[is_held_back] = trained.losses, calls.names.count("mkldnn::_linear_pointwise")
    assert counts[False] == 0
    assert counts[True] > 4 * len(losses[True])  # forward and backward of both layers, and testing
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
    assert losses[True] != losses[False]


def test_who_computes_in_bf16_is_left_alone(held_back: None) -> None:
    with computing_features("cpu", WIDE), torch.autocast("cpu", dtype=torch.bfloat16), Calls() as calls:
        functional.linear(ROWS, WEIGHT, BIAS)
    assert "mkldnn::_linear_pointwise" not in calls.names


def test_nothing_is_left_behind(held_back: None) -> None:
    before = torch.backends.cudnn.allow_tf32
    with computing_features("cpu", WIDE):
        assert torch.is_inference_mode_enabled()
    with Calls() as calls:
        functional.linear(ROWS, WEIGHT, BIAS)
    assert "mkldnn::_linear_pointwise" not in calls.names
    assert not torch.is_inference_mode_enabled()
    assert torch.backends.cudnn.allow_tf32 == before
