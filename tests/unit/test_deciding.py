"""What a search decides on its way: who races, in which order items come, who has lost and who is measured once more."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelhound.analysis.racing import Evidence
from modelhound.data import open_dataset
from modelhound.measuring.deciding import choose_dtype, find_losers, order_by_rungs, possible_rungs, settle_in_fp32
from modelhound.measuring.foreseeing import _feature_set, _time_scores, foresee
from modelhound.measuring.scoring import Job
from modelhound.models import ModelRef
from modelhound.settings import SearchSettings
from modelhound.verbs.search import _identity

MODELS = tuple(ModelRef("zoo", name) for name in "abcdef")


def make_job(limit: int = 400, **settings: Any) -> tuple[Job, list[str]]:
    warned: list[str] = []
    job = Job(
        models={model: f"stamp of {model.name}" for model in MODELS},
        dataset=open_dataset("digits", limit=limit),
        settings=SearchSettings("digits", **settings),
        scorers=("ridge",),
        device="cpu",
        tell=lambda record: None,
        warn=warned.append,
    )
    return job, warned


@pytest.mark.parametrize(
    ("device", "has_bf16", "precision", "chosen"),
    [
        ("cuda:0", True, "auto", torch.bfloat16),
        ("cuda:0", False, "auto", torch.float32),
        ("cpu", True, "auto", torch.float32),
        ("cuda:0", True, "fp32", torch.float32),
    ],
)
def test_arithmetic_is_what_the_device_has(
    device: str, has_bf16: bool, precision: str, chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: has_bf16)
    assert choose_dtype(dataclasses.replace(make_job(precision=precision)[0], device=device)) == chosen


def test_what_a_gpu_computes_one_by_one_is_not_taken_for_what_it_computes_in_bf16() -> None:
    """A search goes on in the folder of another with the same identity, and takes over what that has measured."""
    dataset = open_dataset("digits", limit=40)

    def identity(device: str, **asked: Any) -> dict[str, Any]:
        return _identity(SearchSettings("digits", **asked), dataset, ("ridge",), device)

    assert identity("cuda:0", plain=True) != identity("cuda:0", exhaustive=True)
    assert identity("cuda:0", plain=True) == identity("cuda:0", exhaustive=True, precision="fp32")
    assert identity("cpu", plain=True) == identity("cpu", exhaustive=True), "fp32 both"


def test_models_race_only_where_more_than_half_of_them_can_lose() -> None:
    job, _ = make_job(top=2)
    assert possible_rungs(job, 5) == (100, 200, 400)
    assert possible_rungs(job, 4) == (400,)
    assert possible_rungs(make_job(top=2, exhaustive=True)[0], 50) == (400,)


def test_models_do_not_race_over_numbers_that_are_nearly_all_the_same() -> None:
    job, _ = make_job(top=2)

    def rungs(num_others: int) -> tuple[int, ...]:
        numbers = np.r_[np.zeros(400 - num_others), np.arange(1.0, 1 + num_others)]
        dataset = dataclasses.replace(job.dataset, task="regression", targets=numbers, class_names=("claims",))
        return possible_rungs(dataclasses.replace(job, dataset=dataset), 5)

    assert rungs(4) == (400,)
    assert rungs(40) == (100, 200, 400)


def test_every_rung_holds_the_classes_evenly_and_no_item_comes_twice() -> None:
    job, _ = make_job()
    order = list(order_by_rungs(job.dataset, (100, 400), seed=0))
    assert sorted(order) == list(range(400))
    assert np.bincount(job.dataset.targets[order[:100]]).tolist() == [10] * 10
    assert list(order_by_rungs(job.dataset, (400,), seed=0)) == list(range(400))


def test_scoring_is_foreseen_with_targets_of_the_whole_data_set() -> None:
    dataset = make_job()[0].dataset
    by_class = dataset.select(np.argsort(dataset.targets, kind="stable").tolist())
    features = _feature_set(by_class, torch.zeros(250, 3), 250)
    assert (features.features.shape, set(features.targets.tolist())) == ((250, 3), set(range(10)))


SHY = """
from torch import nn

class Shy(nn.Flatten):
    def forward(self, images):
        if len(images) > 4:
            raise RuntimeError("too many at once")
        return super().forward(images)

def make():
    return Shy(), {"input_size": 8}
"""


def test_a_network_that_cannot_be_run_is_foreseen_to_fail_and_the_others_are_timed(tmp_path: Path) -> None:
    file = tmp_path / "shy.py"
    file.write_text(SHY)
    job, _ = make_job(limit=40, fresh=True)
    models = {ModelRef("py", f"{file}:make"): "", ModelRef("zoo", "resnet-glyphs"): ""}
    foreseen = foresee(dataclasses.replace(job, models=models))
    assert [(each.phase, "too many at once" in each.error) for each in foreseen.failures] == [("forward", True)]
    assert foreseen.num_models == 1


def test_scoring_is_foreseen_also_where_there_are_more_classes_than_wide_features_leave_items() -> None:
    job, _ = make_job(limit=640)
    classes = np.arange(640) // 2
    dataset = dataclasses.replace(job.dataset, targets=classes, class_names=tuple(map(str, range(320))))
    assert _time_scores(dataclasses.replace(job, dataset=dataset), 20_000) > 0


def test_who_loses_is_told_with_what_is_known_of_it() -> None:
    job, _ = make_job(top=1)
    right = {"zoo:a": 180, "zoo:b": 178, "zoo:c": 40}
    evidence = {
        name: Evidence(
            item_scores=(np.arange(200) < count).astype(float), item_gains=np.zeros(100), other_score=count / 200
        )
        for name, count in right.items()
    }
    (lost,) = find_losers(job, evidence, num_items=200, describe=lambda model: (len(model), 2.5))
    assert (lost.model, lost.stamp, lost.score, lost.chance) == ("zoo:c", "stamp of c", 0.2, 0.0)
    assert (lost.num_items, lost.num_parameters, lost.seconds, lost.top) == (200, 5, 2.5, 1)


def test_models_whose_order_rounding_may_have_made_are_measured_again_in_fp32_without_a_race() -> None:
    job, warned = make_job(precision="bf16", risk=0.2)
    scored = {
        f"zoo:{name}": (np.arange(2000) >= missed).astype(float)
        for name, missed in zip("abc", (5, 900, 0), strict=True)
    }
    asked: list[Job] = []
    settle_in_fp32(job, scored, asked.append)
    (again,) = asked
    assert again.models == {ModelRef("zoo", "a"): "stamp of a", ModelRef("zoo", "c"): "stamp of c"}
    assert (again.settings.precision, again.settings.exhaustive) == ("fp32", True)
    assert again.settings.risk == SearchSettings("digits").risk  # there is none without a race
    assert dataclasses.replace(again, models=job.models, settings=job.settings) == job
    assert warned == ["zoo:c, zoo:a were within 0.3% in half precision, so that they were measured again in fp32"]


@pytest.mark.parametrize("missed", [3, 7])
def test_models_that_share_a_rank_or_lie_apart_are_not(missed: int) -> None:
    job, warned = make_job(precision="bf16")
    scored = {"zoo:a": np.ones(2000), "zoo:b": (np.arange(2000) >= missed).astype(float)}
    settle_in_fp32(job, scored, lambda again: pytest.fail("measured again"))
    assert warned == []
