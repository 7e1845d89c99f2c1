"""Fine-tuning on one rank: it learns, it adds up, it goes on where it was stopped, and it says why it cannot."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

from modelhound.data import Dataset, load_batches, open_dataset
from modelhound.data.preparing import prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.errors import DataError, ModelError, RequestError
from modelhound.features import build_network
from modelhound.models import ModelRef, Network, source_of
from modelhound.records import Progress, silent
from modelhound.records.train import STEP_PHASES
from modelhound.settings import PLAIN, PrepareSettings, RecipeSettings, TrainSettings
from modelhound.training import Delays, fine_tune, set_up, split_items, tracing, train
from modelhound.training.augmenting import Augmentation
from modelhound.training.delaying import slow_down_reading
from modelhound.training.feed import Course
from modelhound.training.items import open_items
from modelhound.training.recipe import Schedule
from modelhound.verbs.prepare import run_prepare
from train_things import FORM, SIDE, bench_of, brightness, count_time, quick, tiny_network


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return brightness(tmp_path / "photos")


@pytest.mark.parametrize("mode", ["full", "head", "cached"])
def test_brightnesses_are_learned(mode: str, dataset: Dataset) -> None:
    trained = fine_tune(tiny_network(), dataset, quick(mode=mode, epochs=12, rate=0.1))
    assert trained.score == 1.0
    assert trained.epochs[-1].loss < trained.epochs[0].loss / 2
    assert trained.metric == "accuracy"
    assert trained.top5 is None  # of three classes, five are no choice


def test_only_the_head_learns_unless_all_shall(dataset: Dataset) -> None:
    for mode, learns in (("full", True), ("head", False), ("cached", False)):
        network = tiny_network()
        before = network.module.state_dict()["convolution.weight"].clone()
        trained = fine_tune(network, dataset, quick(mode=mode, epochs=1))
        assert (not torch.equal(before, network.module.state_dict()["convolution.weight"])) == learns
        assert trained.trainable.num_trained == (8 * 3 * 25 + 8 if learns else 0) + 3 * 8 + 3


def test_head_and_cached_features_learn_the_same(dataset: Dataset) -> None:
    losses = [fine_tune(tiny_network(), dataset, quick(mode=mode)).losses for mode in ("head", "cached")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_phases_add_up_to_the_wall_clock(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    count_time(monkeypatch)
    slow = Delays(loading_seconds=0.004, model_seconds=0.004)
    trained = train(bench_of(tiny_network(), dataset, quick(augment="strong"), delays=slow))
    seconds = {each.phase: each for each in trained.phases}
    assert sum(each.total for each in trained.phases) == pytest.approx(trained.wall_seconds, abs=0.0015)  # a look
    assert all(len(seconds[phase].seconds) == trained.num_steps for phase in STEP_PHASES)
    assert len(seconds["first batch"].seconds) == 1
    assert len(seconds["evaluate"].seconds) == 4
    assert seconds["forward"].total > trained.num_steps * 0.004
    assert seconds["wait for data"].total > (trained.num_steps - 1) * 0.004
    assert seconds["communication"].total == 0


def test_the_same_seed_gives_the_same_losses_and_another_does_not(dataset: Dataset) -> None:
    runs = [
        train(
            set_up(
                tiny_network(dropout=0.2),
                dataset.select(range(40)),
                dataset.select(range(40, 60)),
                quick(seed=seed, augment="strong"),
                device="cpu",
            )
        )
        for seed in (1, 1, 2)
    ]
    assert runs[0].losses == runs[1].losses
    assert runs[0].losses != runs[2].losses


def test_accumulated_batches_are_one_large_batch(dataset: Dataset) -> None:
    large = fine_tune(tiny_network(), dataset, quick(batch=16))
    small = fine_tune(tiny_network(), dataset, quick(batch=8, accumulate=2))
    pairs = np.array(small.losses).reshape(-1, 2).mean(1)
    assert pairs == pytest.approx(large.losses, rel=1e-4)


def test_a_run_stopped_between_epochs_ends_with_the_same_losses(dataset: Dataset, tmp_path: Path) -> None:
    whole = train(bench_of(tiny_network(dropout=0.3), dataset, quick()), checkpoints=tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.done >= 14:  # in the third epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(bench_of(tiny_network(dropout=0.3), dataset, quick()), checkpoints=tmp_path / "kept", watch=stop)
    resumed = train(bench_of(tiny_network(dropout=0.3), dataset, quick()), checkpoints=tmp_path / "kept")
    assert resumed.losses == whole.losses
    assert [each.score for each in resumed.epochs] == [each.score for each in whole.epochs]
    assert 0 < resumed.num_steps < whole.num_steps


def test_what_is_finished_is_not_trained_again(dataset: Dataset, tmp_path: Path) -> None:
    first = train(bench_of(tiny_network(), dataset, quick()), checkpoints=tmp_path / "kept")
    again = train(bench_of(tiny_network(), dataset, quick()), checkpoints=tmp_path / "kept")
    assert (again.num_steps, again.losses, again.score) == (0, first.losses, first.score)


def test_patience_stops_and_keeps_the_best(dataset: Dataset, tmp_path: Path) -> None:
    trained = train(
        bench_of(tiny_network(), dataset, quick(epochs=30, patience=2, rate=1e-9)), checkpoints=tmp_path / "kept"
    )
    assert trained.stopped.startswith("stopped early")
    assert len(trained.epochs) == 3
    assert trained.checkpoint == tmp_path / "kept" / "epoch-00001"
    assert trained.checkpoint.is_dir()


class ShortOfMemory(nn.Module):
    """Runs out of memory with more than so many items."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.layer = nn.Linear(3 * SIDE * SIDE, 8)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        if self.training and len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory, or so")
        return torch.relu(self.layer(images.flatten(1)))


def short_of_memory(most: int) -> Network:
    torch.manual_seed(0)
    body = ShortOfMemory(most)
    return Network(module=body, extract=body.features, preprocessing=FORM)


def test_a_batch_that_does_not_fit_is_cut_and_learns_the_same(dataset: Dataset) -> None:
    roomy, cramped = (fine_tune(short_of_memory(most), dataset, quick(batch=16)) for most in (16, 3))
    assert cramped.num_parts == 8
    assert cramped.losses == pytest.approx(roomy.losses, rel=1e-4)
    assert "did not fit into memory" in cramped.notes[0]


def test_a_single_item_that_does_not_fit_is_an_error_with_advice(dataset: Dataset) -> None:
    with pytest.raises(ModelError, match="smaller --batch"):
        fine_tune(short_of_memory(0), dataset, quick(batch=4))


def test_a_loss_that_is_no_number_stops_and_names_the_last_good_checkpoint(dataset: Dataset, tmp_path: Path) -> None:
    network = tiny_network()

    told: list[int] = []

    def spoil(progress: Progress) -> None:
        told.append(progress.done)
        if told.count(12) == 2:  # at the end of the second epoch, and after the first step of the third
            with torch.no_grad():
                network.module.get_parameter("convolution.bias").fill_(math.nan)

    with pytest.raises(ModelError, match="nan at step 14; the last good checkpoint is epoch-00002;"):
        train(bench_of(network, dataset, quick()), checkpoints=tmp_path / "kept", watch=spoil)
    assert len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.parametrize(
    ("keeps", "advice"), [(True, "; nothing was kept yet; use a lower --rate"), (False, "; leave this model out")]
)
def test_nobody_is_told_of_checkpoints_who_keeps_none(
    keeps: bool, advice: str, dataset: Dataset, tmp_path: Path
) -> None:
    """Where training is only timed there is no --rate either."""
    network = tiny_network()
    network.module.convolution.weight.data *= 1e18  # type: ignore[union-attr, operator]
    recipe = quick(rate=99.0, optimiser="sgd", schedule="constant")
    with pytest.raises(ModelError, match=rf"found nan at step \d+{advice}$"):
        train(bench_of(network, dataset, recipe), checkpoints=tmp_path / "kept" if keeps else None)


def test_no_item_is_alone_in_a_batch_unless_that_is_asked_for(tmp_path: Path) -> None:
    few = brightness(tmp_path / "few", per_class=4)
    batches = [set_up(tiny_network(), few, few, quick(batch=asked), device="cpu").course.batch for asked in (None, 1)]
    assert batches == [4, 1]
    pair = few.select([0, 4])
    assert set_up(tiny_network(), pair, few, quick(batch=None), device="cpu").course.batch == 2


def test_a_label_that_the_head_does_not_have_is_refused(dataset: Dataset) -> None:
    strange = replace(dataset, targets=np.where(dataset.targets == 2, 7, dataset.targets))
    with pytest.raises(DataError, match="expected labels below 3"):
        set_up(tiny_network(), dataset, strange, quick(), device="cpu")


def test_an_empty_part_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="cannot test on"):
        set_up(tiny_network(), dataset, dataset.select([]), quick(), device="cpu")
    with pytest.raises(DataError, match="cannot train on"):
        set_up(tiny_network(), dataset.select([]), dataset, quick(), device="cpu")


def test_features_that_are_no_numbers_are_refused(dataset: Dataset) -> None:
    network = tiny_network()
    with torch.no_grad():
        network.module.get_parameter("convolution.bias").fill_(math.inf)
    with pytest.raises(ModelError, match="NaN or infinite"):
        fine_tune(network, dataset, quick())


def test_numbers_can_be_told_too(dataset: Dataset) -> None:
    numbers = replace(
        dataset, task="regression", class_names=("light",), targets=100.0 + 50 * dataset.targets.astype(float)
    )
    trained = fine_tune(tiny_network(), numbers, quick(epochs=12, rate=0.1))
    assert trained.metric == "R2"
    assert trained.score > 0.9


def test_several_labels_can_be_told_too(dataset: Dataset) -> None:
    labels = np.stack([dataset.targets >= 1, dataset.targets >= 2, dataset.targets == 0], axis=1)
    several = replace(dataset, task="multilabel", targets=labels)
    trained = fine_tune(tiny_network(), several, quick(epochs=8, rate=0.1))
    assert trained.metric == "ranking precision"
    assert trained.score > 0.95


@pytest.mark.parametrize(
    ("learned", "tested", "expected"),
    [
        ([0.5 * number for number in range(40)], [float(number // 4) for number in range(40)], "regression"),
        ([number % 2 for number in range(40)], [0.5 + number % 2 for number in range(40)], "classification"),
    ],
)
def test_a_part_to_test_on_has_the_task_of_the_part_to_train_on(
    learned: list[float], tested: list[float], expected: str, tmp_path: Path
) -> None:
    """Whatever its labels alone would be taken for."""
    texts = [f"text number {number}" for number in range(40)]
    for part, labels in (("train", learned), ("test", tested)):
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": labels}), tmp_path / f"{part}-0.parquet")
    asked = TrainSettings(str(tmp_path), model=("hf:some/encoder",), test="test")
    if expected == "classification":
        with pytest.raises(DataError, match=r"cannot test on part 'test'.*found '0\.5'"):
            open_items(asked, silent)
        return
    dataset, test = open_items(asked, silent)
    assert dataset.task == test.task == expected
    assert (dataset.targets.tolist(), test.targets.tolist()) == (learned, tested)


def test_labels_that_no_test_item_has_are_no_reason_to_refuse_the_part(tmp_path: Path) -> None:
    for part, labels in (("train", ["a|b", "b", "c|a", "a"]), ("test", ["c", "a|c", "a", "c"])):
        table = pyarrow.table({"text": [f"{part} {number}" for number in range(4)], "label": labels})
        pyarrow.parquet.write_table(table, tmp_path / f"{part}-0.parquet")
    asked = TrainSettings(str(tmp_path), model=("hf:some/encoder",), test="test", task="multilabel")
    dataset, test = open_items(asked, silent)
    assert dataset.class_names == test.class_names == ("a", "b", "c")
    assert test.targets.astype(int).tolist() == [[0, 0, 1], [1, 0, 1], [1, 0, 0], [0, 0, 1]]


def test_a_known_delay_leaves_prepared_items_what_they_are(dataset: Dataset, tmp_path: Path) -> None:
    """Also where a larger variant lies beside the one that fits: to make items of that would be a delay nobody knows."""
    variants = [Variant.of(FORM), Variant.square(2 * SIDE)]
    prepare_items(dataset, tmp_path / "prepared", variants, glance="", watch=silent)
    prepared = open_dataset(str(tmp_path / "prepared")).select(range(5, 15))
    slow = slow_down_reading(slow_down_reading(prepared, 1e-6), 1e-6).select(range(4))
    (usual,), (late,) = (
        list(load_batches(each, FORM, batch=4, workers=0)) for each in (prepared.select(range(4)), slow)
    )
    assert torch.equal(late.inputs, usual.inputs)  # type: ignore[arg-type]
    assert slow.reader.seconds == pytest.approx(2e-6)  # type: ignore[attr-defined]
    assert slow.read(0).size == (2 * SIDE, 2 * SIDE)  # type: ignore[union-attr]


def test_a_fifth_of_each_class_is_held_out(dataset: Dataset) -> None:
    learned, tested = split_items(dataset, seed=0)
    assert sorted((*learned.item_names, *tested.item_names)) == sorted(dataset.item_names)
    assert np.bincount(tested.targets).tolist() == [4, 4, 4]


def test_ranks_share_what_one_rank_would_see(dataset: Dataset) -> None:
    def course(batch: int, rank: int, num_ranks: int) -> np.ndarray[Any, Any]:
        made = Course(dataset=dataset, form=FORM, batch=batch, seed=3, rank=rank, num_ranks=num_ranks, workers=0)
        return made.positions(5).reshape(-1, batch)

    alone = course(8, 0, 1)
    shared = np.concatenate([course(4, rank, 2) for rank in range(2)], axis=1)
    assert (alone == shared).all()
    assert len(np.unique(alone)) == 56  # whole batches, nothing twice


def test_more_ranks_than_items_are_refused(dataset: Dataset) -> None:
    with pytest.raises(RequestError, match="fewer --ranks"):
        Course(dataset=dataset, form=FORM, batch=4, seed=0, rank=0, num_ranks=16, workers=0)


@pytest.mark.parametrize("kind", ["crop", "flip", "strong"])
def test_ranks_augment_their_part_as_one_rank_would(kind: str) -> None:
    images = torch.rand(8, 3, SIDE, SIDE)
    alone = Augmentation(kind, seed=1, batch=8, rank=0, num_ranks=1)(images, 7)
    parts = [
        Augmentation(kind, seed=1, batch=4, rank=rank, num_ranks=2)(images[4 * rank : 4 * rank + 4], 7)
        for rank in (0, 1)
    ]
    assert torch.equal(alone, torch.cat(parts))
    assert not torch.allclose(alone, images)
    assert not torch.equal(alone, Augmentation(kind, seed=1, batch=8, rank=0, num_ranks=1)(images, 8))


@pytest.mark.parametrize(
    ("schedule", "first", "middle", "end"),
    [("constant", 1.0, 1.0, 1.0), ("linear", 0.1, 0.5, 0.0), ("cosine", 0.1, 0.5, 0.0)],
)
def test_the_rate_rises_and_falls(schedule: Any, first: float, middle: float, end: float) -> None:
    rates = Schedule(RecipeSettings(schedule=schedule), 1.0, 200)
    assert rates.rate_at(0) == pytest.approx(first)
    assert rates.rate_at(9) == 1.0
    assert rates.rate_at(10 + 95) == pytest.approx(middle, abs=0.02)
    assert rates.rate_at(199) == pytest.approx(end, abs=0.02)


def test_frozen_statistics_of_batch_normalisation_stay(dataset: Dataset) -> None:
    def network() -> Network:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return Network(module=body, extract=body, preprocessing=FORM)

    for kind, stays in (("own", False), ("frozen", True)):
        trained = fine_tune(network(), dataset, quick(batchnorm=kind, epochs=1))
        mean = trained.trainable.body.get_buffer("1.running_mean")
        assert torch.equal(mean, torch.zeros(4)) == stays


def test_texts_are_learned_and_augmenting_them_is_refused(tmp_path: Path) -> None:
    from tiny_encoders import write_encoder

    folder = write_encoder(tmp_path / "bert", "bert")
    model = ModelRef("file", str(folder))

    def network() -> Network:
        return build_network(model, source_of(model).read_weights(model.name), PLAIN, seed=0)

    dataset = open_dataset("sms", limit=40)
    trained = train(bench_of(network(), dataset, quick(epochs=2, rate=1e-3)), checkpoints=tmp_path / "kept")
    assert len(trained.losses) == 8
    with pytest.raises(RequestError, match="--augment none"):
        fine_tune(network(), dataset, quick(augment="flip"))
    assert trained.checkpoint is not None
    again = ModelRef("file", str(trained.checkpoint))
    reread = build_network(again, source_of(again).read_weights(again.name), PLAIN, seed=0)
    words = {"input_ids": torch.tensor([[2, 7, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    with torch.inference_mode():
        assert torch.allclose(reread.extract(words), trained.trainable.extract(words), atol=1e-6)


class WarningProfiler(tracing.profile):
    """As of torch 2.11, which warns of its usual ways."""

    def __init__(self, **options: Any) -> None:
        warnings.warn("events of the current cycle only", stacklevel=2)
        super().__init__(**options)


def test_a_profiler_that_warns_ends_no_run_where_warnings_are_errors(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "profile", WarningProfiler)
    bench = set_up(tiny_network(), dataset, dataset.select(range(4)), quick(batch=4), device="cpu")
    before = {name: each.clone() for name, each in bench.trainable.state_dict().items()}
    profiled = tracing.trace_steps(bench, 1, tmp_path / "trace.json")
    assert any(each.name.startswith("aten::") for each in profiled.operators)
    assert (tmp_path / "trace.json").is_file()
    assert all(torch.equal(each, before[name]) for name, each in bench.trainable.state_dict().items())


@pytest.mark.parametrize("workers", [0, 1])
def test_pixels_become_the_same_images_on_their_device(workers: int, dataset: Dataset, tmp_path: Path) -> None:
    """To the last bit, as they are and prepared; the loader hands over a quarter of the bytes."""
    run_prepare(PrepareSettings(str(tmp_path / "photos"), tmp_path / "prepared", size=SIDE))
    form = replace(FORM, interpolation="bicubic")
    for items in (dataset, open_dataset(str(tmp_path / "prepared"))):
        images, pixels = (
            list(load_batches(items, form, batch=16, workers=workers, pixels=each)) for each in (False, True)
        )
        for plain, small in zip(images, pixels, strict=True):
            assert isinstance(small.inputs, torch.Tensor)
            assert (small.inputs.dtype, small.inputs.shape[1:]) == (torch.uint8, (SIDE, SIDE, 3))
            made = small.inputs_on("cpu")
            assert isinstance(made, torch.Tensor)
            assert torch.equal(made, plain.inputs_on("cpu"))  # type: ignore[arg-type]
            assert made.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(small.targets, plain.targets)
