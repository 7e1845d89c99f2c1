"""Several ranks learn what one rank with all their items would learn, and the verdict names what holds a run up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layouts import write_cifar100_binary, write_food101
from modelhound.analysis.bounds import Verdict, judge_blocks
from modelhound.data import Dataset, Preprocessing, open_dataset
from modelhound.errors import DataError
from modelhound.features import build_network
from modelhound.models import ModelRef
from modelhound.settings import PLAIN
from modelhound.training import Delays, Trained, fine_tune, intervening, set_up, train
from modelhound.training.distributed import Link
from train_things import bench_of, brightness, count_time, on_ranks, quick, tiny_network


@pytest.fixture
def counted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked, and each has this clock to itself."""
    count_time(monkeypatch)


def train_tiny(dataset: Dataset, batch: int, mode: str) -> tuple[Any, ...]:
    trained = fine_tune(
        tiny_network(), dataset, quick(batch=batch, mode=mode, augment="flip" if mode == "full" else "none")
    )
    return _shown(trained)


def train_efficientnet(data: str, batch: int) -> tuple[Any, ...]:
    network = build_network(ModelRef("timm", "efficientnet_b0"), None, PLAIN, seed=0)
    assert isinstance(network.preprocessing, Preprocessing)
    small = replace(network.preprocessing, input_size=(96, 96))  # at a fifth of what its 224 pixels would cost
    network = replace(network, preprocessing=small)
    recipe = quick(epochs=1, batch=batch, rate=1e-3, batchnorm="sync", augment="flip")
    items = open_dataset(data)
    bench = set_up(network, items.select(range(8)), items.select(range(8, 12)), recipe, device="cpu")
    return _shown(train(bench))


def _shown(trained: Trained) -> tuple[Any, ...]:
    seconds = {each.phase: each.total for each in trained.phases}
    return trained.losses, trained.score, seconds, trained.wall_seconds


def test_a_rank_knows_how_many_share_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_initialized", True), ("get_rank", 5), ("get_world_size", 8)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert Link("cpu").num_local_ranks == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (Link("cpu").num_ranks, Link("cpu").num_local_ranks) == (8, 4)


def train_with_one_test_item(dataset: Dataset) -> float:
    items, tested = dataset.select(range(40)), dataset.select([50])
    bench = set_up(tiny_network(), items, tested, quick(epochs=1, mode="cached"), device="cpu")
    return train(bench).epochs[0].test_loss


def test_cached_features_need_no_test_item_for_every_rank(tmp_path: Path) -> None:
    first, second = on_ranks(2, tmp_path, train_with_one_test_item, brightness(tmp_path / "photos"))
    assert first == second
    assert 0 < first < 10


@pytest.mark.usefixtures("counted_time")
@pytest.mark.parametrize("mode", ["full", "head", "cached"])
def test_two_ranks_learn_what_one_rank_with_the_doubled_batch_learns(mode: str, tmp_path: Path) -> None:
    dataset = brightness(tmp_path / "photos")
    (alone,) = on_ranks(1, tmp_path, train_tiny, dataset, 8, mode)
    first, second = on_ranks(2, tmp_path, train_tiny, dataset, 4, mode)
    assert first[0] == pytest.approx(alone[0], rel=1e-4)
    assert first[:2] == second[:2]
    assert first[1] == pytest.approx(alone[1])
    for _, _, seconds, wall in (first, second):
        assert sum(seconds.values()) == pytest.approx(wall, abs=0.0015)  # a look at the clock
        assert seconds["communication"] > 0
    assert alone[2]["communication"] == 0


@pytest.mark.parametrize("write", [write_food101, write_cifar100_binary])
def test_an_efficientnet_reaches_the_same_loss_on_two_ranks_as_on_one_with_the_doubled_batch(
    write: Any, tmp_path: Path
) -> None:
    """Its batch normalisation looks at the items of both ranks (--batchnorm sync); each its own would be another network."""
    data = str(write(tmp_path / "data"))
    (alone,) = on_ranks(1, tmp_path, train_efficientnet, data, 4)
    both = on_ranks(2, tmp_path, train_efficientnet, data, 2)
    for each in both:
        assert each[0] == pytest.approx(alone[0], rel=1e-3)


def gather_rows(total: int) -> list[float]:
    link = Link("cpu")
    return link.gather(torch.arange(float(total))[link.rank :: link.num_ranks]).tolist()


@pytest.mark.parametrize("total", [6, 7])
def test_rows_dealt_out_to_ranks_come_back_in_order(total: int, tmp_path: Path) -> None:
    assert on_ranks(2, tmp_path, gather_rows, total) == [list(map(float, range(total)))] * 2


def bound_of(dataset: Dataset, delays: dict[str, float], doses: bool = False, workers: int = 0) -> Verdict:
    bench = bench_of(tiny_network(), dataset, quick(batch=4, workers=workers), delays=Delays(**delays))
    before = {name: each.clone() for name, each in bench.trainable.state_dict().items()}
    measured = intervening.intervene(
        bench, budget_seconds=0.5, live_seconds=sum(delays.values()), doses=doses, num_rounds=3
    )
    verdict = judge_blocks(measured)
    assert all(torch.equal(each, before[name]) for name, each in bench.trainable.state_dict().items())
    return verdict


@pytest.mark.usefixtures("counted_time")
def test_a_slow_loader_is_named(tmp_path: Path) -> None:
    verdict = bound_of(brightness(tmp_path / "photos"), {"loading_seconds": 1.0})
    assert verdict.bound == "data-bound"
    assert verdict.interval[0] <= verdict.speedup <= verdict.interval[1]
    assert verdict.workers_needed is not None


@pytest.mark.usefixtures("counted_time")
def test_a_slow_network_is_named(tmp_path: Path) -> None:
    verdicts = on_ranks(2, tmp_path, bound_of, brightness(tmp_path / "photos"), {"network_seconds": 1.0})
    assert {verdict.bound for verdict in verdicts} == {"communication-bound"}


@pytest.mark.usefixtures("counted_time")
def test_a_slow_model_is_named(tmp_path: Path) -> None:
    verdict = bound_of(brightness(tmp_path / "photos"), {"model_seconds": 1.0})
    assert verdict.bound == "model-bound"
    assert verdict.sentence == "model-bound: with everything but the model for free no faster [1.00, 1.00]"


@pytest.mark.usefixtures("counted_time")
def test_a_loader_that_takes_three_times_as_long_as_the_model_costs_what_it_costs(tmp_path: Path) -> None:
    """In one process, where one comes after the other, both are on the critical path."""
    verdict = bound_of(brightness(tmp_path / "photos"), {"loading_seconds": 3.0, "model_seconds": 1.0}, doses=True)
    assert verdict.bound == "data-bound"
    assert verdict.speedup == pytest.approx(4.0, rel=0.03)
    assert {dose.stage: round(dose.share, 2) for dose in verdict.doses} == {"loading": 1.0, "model": 1.0}


def test_a_delay_that_a_loader_process_hides_is_not_on_the_critical_path(tmp_path: Path) -> None:
    verdict = bound_of(brightness(tmp_path / "photos"), {"model_seconds": 0.03}, doses=True, workers=1)
    shares = {dose.stage: dose.share for dose in verdict.doses}
    assert shares["loading"] < shares["model"]


def train_on_what_is_not_there(dataset: Dataset) -> str:
    try:
        set_up(tiny_network(), dataset.select([]), dataset, quick(), device="cpu")
    except DataError as error:
        return str(error)
    return ""


def test_every_rank_says_what_is_wrong_with_the_data(tmp_path: Path) -> None:
    found = on_ranks(2, tmp_path, train_on_what_is_not_there, brightness(tmp_path / "photos"))
    assert all("cannot train on" in each for each in found)
