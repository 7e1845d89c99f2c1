"""A GPU that is fed by loader processes: pinned batches, sub-times."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import modelhound

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]


def test_a_gpu_is_fed_and_advice_says_how_many_cores_it_needs(image_folder: Callable[..., Path]) -> None:
    result = modelhound.loader(
        str(image_folder(num_classes=3, per_class=32)),
        ("zoo:mobilenet-rotation", "zoo:resnet-glyphs"),
        batch=(8, 32),
        workers=(0, 1, 2),
        kind=("raw", "preprocessed"),
        device="cuda",
        tune=("pin",),
    )
    assert [kind.kind for kind in result.answer.kinds] == ["raw", "preprocessed"]
    assert not result.failures
    for kind in result.answer.kinds:
        assert kind.recommended is not None
        assert kind.recommended.device.startswith("cuda")
        assert "cores that load" in " ".join(each.text for each in kind.advice)
    for run in result.runs:
        assert run.other_seconds >= 0
        assert {samples.phase for samples in run.phases} == {"wait for data", "data to device", "forward"}
