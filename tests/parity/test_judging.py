"""Models that wait for one another are told what each would be told alone, and nobody suffers for others."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import modelhound
from modelhound.measuring import judging
from modelhound.measuring.gathering import Gathering
from modelhound.records import ModelMeasured
from modelhound.scores import Begun, Scores, finish
from modelhound.store import read_run

MODELS = "zoo:resnet-*,zoo:vit-rotation"
NARROW = 44  # features of some of them; others have 40 and 88
OPTIONS: dict[str, Any] = {"limit": 120, "scorers": "ridge,probe", "exhaustive": True, "fresh": True}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were ended at once, where three may wait for others as they do on a GPU."""
    seen: list[int] = []

    def note(begun: Sequence[Begun], **options: Any) -> list[Scores]:
        seen.append(len(begun))
        return finish(begun, **options)

    monkeypatch.setattr(judging, "finish", note)
    monkeypatch.setattr(judging, "Gathering", lambda **limits: Gathering(most=3, room_bytes=10**9))
    return seen


def search(run: Path, **options: Any) -> Any:
    return modelhound.search("fashion", MODELS, run=run, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = search(tmp_path_factory.mktemp("alone") / "run")
    return {row.model: row.scores for row in found.ranking.models}


def scores(found: Any) -> dict[str, Any]:
    return {row.model: row.scores for row in found.ranking.models}


def test_models_that_wait_for_others_get_the_scores_they_get_alone(
    tmp_path: Path, alone: dict[str, Any], sizes: list[int]
) -> None:
    assert len(alone) > 6
    assert scores(search(tmp_path / "run")) == alone
    assert sizes[:-1] == [3] * (len(alone) // 3)
    assert sum(sizes) == len(alone)  # the last ones are not forgotten


def test_a_model_that_needs_nothing_learned_waits_for_nobody(tmp_path: Path, sizes: list[int]) -> None:
    found = search(tmp_path / "run", scorers="ridge,logme")
    assert sizes == [1] * len(found.ranking.models)


@pytest.mark.parametrize("is_memory", [True, False])
def test_one_that_cannot_be_judged_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, Any], sizes: list[int], is_memory: bool
) -> None:
    noting = judging.finish
    error = MemoryError("no more") if is_memory else ValueError("of all things")

    def fail_one(begun: Sequence[Begun], **options: Any) -> list[Scores]:
        if any(each.features.shape[1] == NARROW for each in begun):
            raise error
        return noting(begun, **options)

    widths = {each.model: each.num_features for each in measured(tmp_path / "widths", search)}
    unfit = {model for model, width in widths.items() if width == NARROW}
    assert 0 < len(unfit) < len(widths)
    monkeypatch.setattr(judging, "finish", fail_one)
    found = search(tmp_path / "run")
    assert {each.model for each in found.failures} == unfit
    assert {each.phase for each in found.failures} == {"score"}
    assert scores(found) == {model: each for model, each in alone.items() if model not in unfit}


def test_too_little_memory_for_all_at_once_is_enough_for_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, Any], sizes: list[int]
) -> None:
    noting = judging.finish

    def fail_many(begun: Sequence[Begun], **options: Any) -> list[Scores]:
        if len(begun) > 1:
            raise MemoryError("no more")
        return noting(begun, **options)

    monkeypatch.setattr(judging, "finish", fail_many)
    found = search(tmp_path / "run")
    assert found.failures == ()
    assert scores(found) == alone


def test_what_rungs_of_a_race_took_is_told_with_the_last_one(tmp_path: Path) -> None:
    options = {"limit": 400, "top": 1, "exhaustive": False}
    records = measured(tmp_path / "run", functools.partial(search, **options))
    assert records
    for record in records:
        phases = [each.phase for each in record.phases]
        assert len(phases) == len(set(phases))
        assert sum(record.totals().values()) == pytest.approx(record.wall_seconds)
        assert len(record.samples_of("score")) >= 1 + 2 + 1  # the first rungs; two scorers; what was learned


def measured(run: Path, search: Any) -> list[ModelMeasured]:
    search(run)
    return [each for each in read_run(run).records if isinstance(each, ModelMeasured)]
