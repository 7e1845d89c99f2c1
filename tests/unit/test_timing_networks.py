"""The nine networks of the research, built from their published shapes; which sizes a network takes."""

from typing import Any

import msgspec
import pytest
import torch

from modelhound.errors import UnknownModelError
from modelhound.models import ModelRef
from modelhound.models.published import PUBLISHED, describe_published, draw_published
from modelhound.models.resizing import build_for_side
from modelhound.records import to_plain
from modelhound.settings import LATENCY_MODELS, PLAIN
from modelhound.timing.sketching import Sketched, SketchRequest, sketch_model
from modelhound.timing.subject import build_subject, describe_subject

MILLIONS = {
    "hf:google-bert/bert-base-uncased": 109.5,
    "hf:albert/albert-base-v2": 11.7,
    "hf:distilbert/distilbert-base-uncased": 66.4,
    "hf:allenai/longformer-base-4096": 148.7,
    "tv:mobilenet_v2": 3.5,
    "tv:resnet18": 11.7,
    "tv:squeezenet1_0": 1.2,
    "tv:vgg16": 138.4,
    "tv:mnasnet1_0": 4.4,
}


def sketch(model: str, *sizes: int, own_size: int = 224) -> Sketched:
    modality: Any = "text" if model.startswith("hf:") else "image"
    request = SketchRequest(
        model=model, modality=modality, sizes=sizes, own_size=own_size, weights="random", settings=PLAIN
    )
    return msgspec.convert(sketch_model(to_plain(request)), Sketched, strict=False)


def test_the_default_models_are_those_of_the_research() -> None:
    assert set(LATENCY_MODELS) == set(MILLIONS)


@pytest.mark.parametrize(("model", "millions"), MILLIONS.items(), ids=list(MILLIONS))
def test_parameters_are_as_many_as_published(model: str, millions: float) -> None:
    size = 64 if model.startswith("hf:") else 224
    cost = sketch(model, size).costs[size]
    assert round(cost.num_parameters / 1e6, 1) == millions
    assert describe_subject(ModelRef.parse(model), weights="random").num_parameters == cost.num_parameters
    assert cost.flops > 0


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_published_encoders_have_the_size_on_their_card(name: str) -> None:
    with torch.device("meta"):
        module = draw_published(name)
    assert sum(parameter.numel() for parameter in module.parameters()) == describe_published(name).num_parameters


def test_an_encoder_that_is_not_known_here_is_refused_by_name() -> None:
    with pytest.raises(UnknownModelError, match="cannot build hf:some/thing without the hub"):
        draw_published("some/thing")


def test_work_grows_with_pixels_and_tokens_and_longformer_fills_its_window() -> None:
    photos = sketch("tv:resnet18", 64, 128).costs
    assert photos[128].flops == pytest.approx(4 * photos[64].flops, rel=0.02)
    texts = sketch("hf:distilbert/distilbert-base-uncased", 32, 64).costs
    assert texts[64].flops == pytest.approx(2 * texts[32].flops, rel=0.05)
    long = sketch("hf:allenai/longformer-base-4096", 16, 512, 1024).costs
    assert long[16].flops == long[512].flops < long[1024].flops


@pytest.mark.parametrize("model", ["timm:vit_tiny_patch16_224", "tv:vit_b_16"])
def test_networks_with_positions_are_built_for_the_side(model: str) -> None:
    costs = sketch(model, 64, 224).costs
    assert set(costs) == {64, 224}
    assert costs[64].num_parameters < costs[224].num_parameters


def test_trained_positions_are_stretched_to_the_side() -> None:
    reference = ModelRef("timm", "vit_tiny_patch16_224")
    small, is_sided = build_for_side(reference, None, 64)
    large, _ = build_for_side(reference, small.state_dict(), 96)
    assert is_sided
    assert large.pos_embed.shape[1] == 1 + (96 // 16) ** 2
    assert large(torch.zeros(1, 3, 96, 96)).shape == (1, 1000)


def test_a_size_that_a_network_does_not_take_is_refused_with_some_that_it_takes() -> None:
    found = sketch("tv:vgg16", 16, 64)
    assert set(found.costs) == {64}
    assert "too small" in found.refused[16]
    assert 32 in found.taken
    assert 16 not in found.taken
    assert not found.broken


def test_longformer_is_fed_with_one_token_that_sees_all_others() -> None:
    with torch.device("meta"):
        subject = build_subject(ModelRef.parse("hf:allenai/longformer-base-4096"), modality="text", settings=PLAIN)
    inputs = subject.make_inputs(2, 8, device="cpu", dtype=torch.float32)
    assert inputs["global_attention_mask"].tolist() == [[1] + [0] * 7] * 2
    assert inputs["attention_mask"].min() == 1
    assert inputs["input_ids"].shape == (2, 8)
