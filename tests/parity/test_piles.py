"""Trainings that benchmarks/quality_stacked.py runs as one give what they give one by one."""

from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest

from benchmark_scripts import load_script
from finals_networks import write_coloured, write_networks
from modelhound.analysis.trials import draw_folds
from modelhound.data import open_dataset
from modelhound.finals.held_items import HeldItems
from modelhound.finals.trials import Classroom, TrialRequest, run_trial
from modelhound.records import unpack_items
from modelhound.settings import ModelSettings


@pytest.fixture
def stacked() -> ModuleType:
    return load_script("quality_stacked")


def test_a_pile_gives_what_its_networks_give_one_by_one(stacked: ModuleType, tmp_path: Path) -> None:
    """Two networks, two rates, two folds, two stages."""
    networks = write_networks(Path.cwd())
    dataset = open_dataset(str(write_coloured(tmp_path / "coloured", noise=60.0)))
    room = Classroom(dataset, draw_folds(dataset.targets, seed=0), HeldItems(dataset, "cpu"))
    requests = [
        TrialRequest(
            model=networks[name],
            model_settings=ModelSettings(models=(networks[name],)),
            rate=rate,
            fold=fold,
            cycles=(2, 1),
            device="cpu",
            seed=0,
            folder=str(tmp_path / f"{name}-{fold}"),
        )
        for name, rate, fold in (("sharp", 0.03, 0), ("dull", 0.01, 1), ("sharp", 0.003, 2))
    ]
    assert len({stacked.shape_of(request, room) for request in requests}) == 1
    together = stacked.run_stacked(requests, room)
    for request, (first, last) in zip(requests, together, strict=True):
        for alone, piled in (
            (run_trial(msgspec.structs.replace(request, cycles=request.cycles[:1]), room), first),
            (run_trial(request, room), last),
        ):
            assert alone.error == piled.error == ""
            assert piled.num_steps == alone.num_steps
            assert piled.loss == pytest.approx(alone.loss, rel=1e-3)
            np.testing.assert_array_equal(unpack_items(piled.item_scores), unpack_items(alone.item_scores))
