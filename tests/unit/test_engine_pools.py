"""The pools of benchmarks/engine_pools.py: what a contest on them would not tell if they were made badly."""

from pathlib import Path

import pytest
import torch

from benchmark_scripts import load_script
from modelhound.models import ModelRef, source_of

pools = load_script("engine_pools")


@pytest.mark.parametrize("architecture", ["resnet18", "resnet50"])
def test_near_copies_that_differ_in_their_last_block_alone_compute_different_features(
    tmp_path: Path, architecture: str
) -> None:
    """timm begins these with blocks that add nothing, so that all models of a pool tied whatever the engine did."""
    pool = {"architectures": [architecture], "models": 2, "differ": 0.01, "side": 64}
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    made = []
    for model in map(ModelRef.parse, pools.make_models(str(tmp_path), pool)):
        network = source_of(model).build(model.name, source_of(model).read_weights(model.name))
        with torch.inference_mode():
            made.append(network.extract(images))
    assert torch.isfinite(made[0]).all()
    assert (made[0] - made[1]).std() > 0.01 * made[0].std()
