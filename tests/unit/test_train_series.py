"""What a request to train leaves behind when something goes wrong, or is another by the next start."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from modelhound.data import Dataset
from modelhound.errors import ModelError
from modelhound.features import build_network
from modelhound.models import ModelRef, source_of
from modelhound.records import ModelTrained, RankTrained
from modelhound.settings import PLAIN, TrainSettings
from modelhound.store import read_run
from modelhound.training import rank, train
from modelhound.training.rank import RankResult, told_by
from modelhound.verbs.train import TrainResult, run_train
from train_things import bench_of, brightness, quick, tiny_network


def settings(folder: Path, model: str = "zoo:resnet-shapes", **changed: Any) -> TrainSettings:
    usual: dict[str, Any] = {
        "epochs": 2,
        "batch": 8,
        "workers": 0,
        "augment": "none",
        "verdict": "none",
        "run": folder / "run",
    }
    return TrainSettings(str(folder / "photos"), model=(model,), **{**usual, **changed})


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return brightness(tmp_path / "photos", per_class=6)


def test_weights_that_the_last_step_of_an_epoch_spoiled_are_not_kept(dataset: Dataset, tmp_path: Path) -> None:
    """One step an epoch: its loss is that of the weights before it."""
    recipe = quick(epochs=3, batch=64, rate=99.0, optimiser="sgd", schedule="constant")
    network = tiny_network()
    network.module.convolution.weight.data *= 1e18  # type: ignore[union-attr, operator]
    with pytest.raises(ModelError, match=r"found nan on the test items after epoch 2; the last good .* is epoch-00001"):
        train(bench_of(network, dataset, recipe), checkpoints=tmp_path / "kept")
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["epoch-00001"]


def save_weights(path: Path, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = ModelRef("zoo", "resnet-shapes")
    tensors = build_network(model, source_of(model).read_weights(model.name), PLAIN, seed=0).module.state_dict()
    save_file(
        {
            name: each + 0.01 * torch.randn(each.shape, generator=generator) if each.ndim == 4 else each.clone()
            for name, each in tensors.items()
        },
        path,
    )


@pytest.mark.usefixtures("dataset")
def test_weights_that_changed_since_the_last_start_are_trained_anew(tmp_path: Path) -> None:
    file = tmp_path / "own.safetensors"
    asked = settings(tmp_path, f"file:{file}", arch="zoo:resnet-shapes")

    def train() -> TrainResult:
        return run_train(asked)

    save_weights(file, seed=1)
    first = train()
    save_weights(file, seed=2)
    second = train()
    assert second.num_resumed == 0
    assert second.trained[0].losses != first.trained[0].losses
    alone = run_train(replace(asked, run=tmp_path / "alone"))
    assert second.trained[0].losses == alone.trained[0].losses
    kept = [load_file(each.run / each.trained[0].checkpoint / "head.safetensors") for each in (second, alone)]
    assert torch.equal(kept[0]["weight"], kept[1]["weight"])


@pytest.mark.usefixtures("dataset")
def test_a_network_stays_trained_when_what_bounds_it_cannot_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks take copies of everything, for which a nearly full device has no room."""

    def run_out(*given: Any, **named: Any) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(rank, "intervene", run_out)
        found = run_train(settings(tmp_path, verdict="auto"))
    assert [(each.phase, each.error) for each in found.failures] == [
        (
            "finding what bounds it",
            "cannot find what bounds it, though it is trained: memory ran out "
            "(RuntimeError: CUDA out of memory. Tried to allocate 2 GiB)",
        )
    ]
    assert len(found.trained[0].epochs) == 2
    assert found.ranks_of(found.trained[0])[0].num_steps == 2
    monkeypatch.setattr(rank, "_LEAST_BUDGET_SECONDS", 0.1)
    again = run_train(settings(tmp_path, verdict="auto"))
    assert (again.num_resumed, len(again.answer.verdicts)) == (1, 1)
    assert again.ranks == found.ranks


@pytest.mark.usefixtures("dataset")
def test_what_ranks_had_trained_when_their_start_was_killed_is_on_record_after_the_next(tmp_path: Path) -> None:
    """Ranks in processes of their own leave it in files while they go on measuring."""
    alone = run_train(settings(tmp_path))
    asked = settings(tmp_path, run=tmp_path / "series", ranks=("2",))
    shutil.copytree(alone.run, tmp_path / "series", ignore=shutil.ignore_patterns("records*", "zoo*"))  # one just begun
    trained, own = alone.trained[0], alone.ranks[0]
    ranks = tmp_path / "series" / "zoo-resnet-shapes-on-2" / "ranks"
    ranks.mkdir(parents=True)
    for number in range(2):
        told = RankResult(
            rank=msgspec.structs.replace(own, num_ranks=2, rank=number),
            trained=msgspec.structs.replace(trained, num_ranks=2, checkpoint="/elsewhere/checkpoints/epoch-00002"),
        )
        (ranks / told_by(number)).write_bytes(msgspec.json.encode(told))
    found = run_train(asked)
    assert found.num_resumed == 1
    assert [each.rank for each in found.ranks] == [0, 1]
    assert found.trained[0].checkpoint == "zoo-resnet-shapes-on-2/checkpoints/epoch-00002"
    assert not list(ranks.glob("trained-*"))
    assert run_train(asked).ranks == found.ranks
    kinds = [type(each) for each in read_run(tmp_path / "series").records]
    assert (kinds.count(ModelTrained), kinds.count(RankTrained)) == (1, 2)


@pytest.mark.usefixtures("dataset")
def test_a_model_with_a_long_path_can_be_trained(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*("a-folder-with-rather-a-long-name-for-a-folder" for _ in range(6)))
    folder.mkdir(parents=True)
    save_weights(folder / "own.safetensors", seed=1)
    model = f"file:{folder / 'own.safetensors'}"
    found = run_train(settings(tmp_path, model, arch="zoo:resnet-shapes", epochs=1))
    assert not found.failures
    assert (tmp_path / "run" / found.trained[0].checkpoint / "model.safetensors").is_file()
