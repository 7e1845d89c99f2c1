"""What training keeps: read back as models, refused where it belongs to another, and never lost to a full disk."""

import errno
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from modelhound import store
from modelhound.data import Dataset
from modelhound.errors import ModelError, StoreError
from modelhound.features import build_network
from modelhound.models import ModelRef, source_of
from modelhound.settings import PLAIN, ModelSettings
from modelhound.training import Trained, train
from modelhound.training.checkpoints import Keeper, is_whole, name_folder
from tiny_encoders import write_timm, write_vit
from train_things import bench_of, brightness, quick, tiny_network


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return brightness(tmp_path / "photos", per_class=8)


def train_model(model: ModelRef, dataset: Dataset, kept: Path, settings: ModelSettings = PLAIN) -> Trained:
    network = build_network(model, source_of(model).read_weights(model.name), settings, seed=0)
    return train(bench_of(network, dataset, quick(epochs=1, rate=1e-3)), checkpoints=kept, model=str(model))


def check_read_back(trained: Trained, settings: ModelSettings = PLAIN, file: str = "") -> Any:
    """The checkpoint gives the features of the trained network, and was changed by training."""
    assert trained.checkpoint is not None
    again = ModelRef("file", str(trained.checkpoint / file))
    network = build_network(again, source_of(again).read_weights(again.name), settings, seed=1)
    side = network.preprocessing.input_size  # type: ignore[union-attr]
    images = torch.rand(2, 3, *side)
    with torch.inference_mode():
        assert torch.allclose(network.extract(images), trained.trainable.extract(images), atol=1e-5)
    return network


@pytest.mark.parametrize(
    ("model", "name"),
    [("timm:resnet18.a1_in1k", "timm-resnet18.a1_in1k"), ("hf:org/net", "hf-org-net"), ("file:..", "file")],
)
def test_a_folder_is_called_like_its_model(model: str, name: str) -> None:
    assert name_folder(model) == name == name_folder(model, [model, "timm:vit"])


def test_no_two_models_share_a_folder_and_no_name_is_too_long() -> None:
    models = ["file:nets/a/1", "file:nets/a-1", "file:nets/b", f"file:{'é' * 200}/1", f"file:{'é' * 200}/2"]
    names = [name_folder(model, models) for model in models]
    assert len(set(names)) == len(models)
    assert names[2] == "file-nets-b"
    assert max(len(name.encode()) for name in names) < 240


def test_a_network_of_timm_is_read_back_with_its_new_classifier(dataset: Dataset, tmp_path: Path) -> None:
    model = ModelRef("file", str(write_timm(tmp_path / "given")))
    trained = train_model(model, dataset, tmp_path / "kept")
    network = check_read_back(trained)
    features = torch.rand(2, trained.trainable.head.in_features)
    assert network.classify is not None
    assert torch.equal(network.classify(features), trained.trainable.head(features))


def test_a_network_of_transformers_is_read_back(dataset: Dataset, tmp_path: Path) -> None:
    model = ModelRef("file", str(write_vit(tmp_path / "given")))
    trained = train_model(model, dataset, tmp_path / "kept")
    network = check_read_back(trained)
    assert network.preprocessing == build_network(model, None, PLAIN, seed=0).preprocessing


def test_a_network_of_the_zoo_is_read_back_with_its_arch(dataset: Dataset, tmp_path: Path) -> None:
    trained = train_model(ModelRef("zoo", "resnet-shapes"), dataset, tmp_path / "kept")
    check_read_back(trained, ModelSettings(arch="zoo:resnet-shapes"), "model.safetensors")


def test_a_checkpoint_of_another_model_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    train(bench_of(tiny_network(), dataset, quick(epochs=1)), checkpoints=tmp_path / "kept", model="py:one")
    with pytest.raises(ModelError, match=r"expected one of py:two .* but it is one of py:one; delete it"):
        train(bench_of(tiny_network(), dataset, quick(epochs=1)), checkpoints=tmp_path / "kept", model="py:two")


def test_a_checkpoint_of_another_recipe_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    train(bench_of(tiny_network(), dataset, quick(epochs=1)), checkpoints=tmp_path / "kept")
    with pytest.raises(ModelError, match="another recipe"):
        train(bench_of(tiny_network(), dataset, quick(epochs=1, rate=0.5)), checkpoints=tmp_path / "kept")


@pytest.mark.parametrize(
    "file", ["model.safetensors", "head.safetensors", "trained.json", "state.pt", "checksums.json"]
)
def test_of_a_damaged_checkpoint_nothing_is_used_and_training_ends_the_same(
    file: str, dataset: Dataset, tmp_path: Path
) -> None:
    """One byte, in the middle: most files would still be read, and tell something else."""
    whole = train(bench_of(tiny_network(), dataset, quick(epochs=2)), checkpoints=tmp_path / "whole")
    began = train(bench_of(tiny_network(), dataset, quick(epochs=2)), checkpoints=tmp_path / "kept")
    assert began.checkpoint is not None
    content = bytearray((began.checkpoint / file).read_bytes())
    content[len(content) // 2] ^= 1
    (began.checkpoint / file).write_bytes(content)
    resumed = train(bench_of(tiny_network(), dataset, quick(epochs=2)), checkpoints=tmp_path / "kept")
    assert resumed.losses == whole.losses
    assert [each.score for each in resumed.epochs] == [each.score for each in whole.epochs]
    assert resumed.num_steps == whole.num_steps
    assert any("epoch-00002 was damaged" in note for note in resumed.notes)
    assert is_whole(tmp_path / "kept" / "epoch-00002")


def test_before_a_damaged_checkpoint_one_that_is_whole_is_gone_on_from(dataset: Dataset, tmp_path: Path) -> None:
    recipe = quick(epochs=3, patience=9)  # keeps the best beside the newest
    whole = train(bench_of(tiny_network(), dataset, recipe), checkpoints=tmp_path / "kept")
    newest = tmp_path / "kept" / "epoch-00003"
    shutil.copytree(newest, tmp_path / "kept" / "epoch-00004")
    (tmp_path / "kept" / "epoch-00004" / "head.safetensors").unlink()
    resumed = train(bench_of(tiny_network(), dataset, recipe), checkpoints=tmp_path / "kept")
    assert resumed.num_steps == 0
    assert resumed.losses == whole.losses


def test_a_checkpoint_without_checksums_is_believed_and_one_that_cannot_be_read_is_refused(
    dataset: Dataset, tmp_path: Path
) -> None:
    trained = train(bench_of(tiny_network(), dataset, quick(epochs=1)), checkpoints=tmp_path / "kept")
    assert trained.checkpoint is not None
    (trained.checkpoint / "checksums.json").unlink()
    assert train(bench_of(tiny_network(), dataset, quick(epochs=1)), checkpoints=tmp_path / "kept").num_steps == 0
    (trained.checkpoint / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match="delete it or choose another --run"):
        train(bench_of(tiny_network(), dataset, quick(epochs=1)), checkpoints=tmp_path / "kept")


@contextmanager
def no_file_larger_than(num_bytes: int) -> Iterator[None]:
    """As on a disk that is full in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("room", "file"), [(1500, "model.safetensors"), (6000, "state.pt")])
def test_the_last_good_checkpoint_stays_when_the_disk_is_full(
    room: int, file: str, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Keeper.save
    whole = train(bench_of(tiny_network(), dataset, quick(epochs=2)), checkpoints=tmp_path / "whole")
    assert (tmp_path / "whole" / "epoch-00002" / file).stat().st_size > room

    def save_until_full(self: Keeper, trainable: Any, optimiser: Any, progressed: Any) -> Path:
        if len(progressed.epochs) == 1:
            return save(self, trainable, optimiser, progressed)
        with no_file_larger_than(room):
            return save(self, trainable, optimiser, progressed)

    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "save", save_until_full)
        with pytest.raises(StoreError, match="File too large; free some space"):
            train(bench_of(tiny_network(), dataset, quick(epochs=2)), checkpoints=tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["epoch-00001"]
    resumed = train(bench_of(tiny_network(), dataset, quick(epochs=2)), checkpoints=tmp_path / "kept")
    assert resumed.losses == whole.losses


def _no_space_left(*given: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "one").write_text("1")
        _no_space_left()

    with pytest.raises(StoreError):
        store.write_folder(tmp_path / "made", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
