"""Remembered scores and what is remembered for new labels change no result."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import modelhound
from modelhound.data import Dataset, open_dataset
from modelhound.feature_store import FeatureStore
from modelhound.features.remembered import Recalled, Remembered
from modelhound.measuring import scoring, verdicts
from modelhound.measuring.verdicts import Judged, Verdicts
from modelhound.records import ItemMap, ModelMeasured
from modelhound.scores import FeatureSet, Groundwork, score
from modelhound.store import read_run
from tiny_encoders import write_encoder

SCORERS = ("ridge", "knn", "logme", "hscore_shrunk", "probe")


def no_scorer(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("somebody scores")


def memory_of(data: Dataset, scorers: tuple[str, ...] = SCORERS, seed: int = 0) -> Verdicts:
    return Verdicts(data, scorers, seed=seed, device="cpu", remember=True)


def feature_set(data: Dataset, rows: torch.Tensor, groundwork: Groundwork) -> FeatureSet:
    return FeatureSet(
        features=rows,
        targets=torch.from_numpy(data.targets),
        num_classes=len(data.class_names),
        groundwork=groundwork,
    )


def test_a_parcel_comes_back_as_it_was_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    for content in (b"", b"a", b"ab", bytes(range(256)) * 999 + b"!"):
        store.write_parcel(f"{len(content)} bytes", content)
        assert FeatureStore(tmp_path).read_parcel(f"{len(content)} bytes") == content
    assert store.read_parcel("something else") is None
    for path in tmp_path.rglob("rows-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert FeatureStore(tmp_path).read_parcel("2 bytes") is None


def test_a_repeated_search_in_a_new_run_folder_scores_nothing_and_reads_the_best_features_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"models": "zoo:resnet-glyphs,zoo:vit-rotation", "limit": 80}
    first = modelhound.search("digits", run=tmp_path / "first", **options)
    monkeypatch.setattr(scoring, "begin", no_scorer)
    read: list[str] = []
    recall = Remembered.recall

    def listen(self: Remembered, kept_as: str, positions: Sequence[int]) -> Recalled:
        read.append(kept_as)
        return recall(self, kept_as, positions)

    monkeypatch.setattr(Remembered, "recall", listen)
    second = modelhound.search("digits", run=tmp_path / "second", **options)
    for one, two in zip(first.ranking.models, second.ranking.models, strict=True):
        assert (one.model, one.rank, one.scores, one.interval) == (two.model, two.rank, two.scores, two.interval)
    assert len(read) == 1
    runs = [read_run(tmp_path / run) for run in ("first", "second")]
    assert runs[0].of(ItemMap)[-1] == runs[1].of(ItemMap)[-1]
    assert runs[1].of(ItemMap)[-1].model == first.ranking.models[0].model
    found = [{each.model: (each.num_features, each.notes) for each in run.of(ModelMeasured)} for run in runs]
    assert found[0] == found[1]


@pytest.mark.parametrize("change", [{"seed": 1}, {"scorers": "ridge"}, {"limit": 70}])
def test_scores_of_another_question_are_not_taken_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"models": "zoo:vit-rotation", "limit": 80}
    modelhound.search("digits", run=tmp_path / "first", **options)
    monkeypatch.setattr(scoring, "begin", no_scorer)
    result = modelhound.search("digits", run=tmp_path / "second", **{**options, **change})
    assert "somebody scores" in result.failures[0].error


def test_other_labels_and_another_order_find_the_groundwork_and_score_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_WORTH_KEEPING", 10)
    data = open_dataset("digits", limit=120)
    rows = torch.randn(120, 24, generator=torch.Generator().manual_seed(0))
    before = memory_of(data)
    before.keep_groundwork("a model", 0, score(feature_set(data, rows, Groundwork()), SCORERS, seed=0).groundwork)
    order = np.random.default_rng(0).permutation(120)
    other = data.select(order.tolist())
    other = dataclasses.replace(other, targets=(other.targets + np.arange(120) // 60) % 10)
    after = memory_of(other)
    known = after.groundwork("a model", 0)
    assert all(getattr(known, each.name) is not None for each in dataclasses.fields(known))
    assert memory_of(data.select(range(119))).groundwork("a model", 0).nearest is None
    moved = rows[torch.from_numpy(order)]
    mine, theirs = (score(feature_set(other, moved, each), SCORERS, seed=0).values for each in (known, Groundwork()))
    for name in SCORERS:
        assert mine[name].value == pytest.approx(theirs[name].value, abs=1e-9), name
        if theirs[name].item_scores is not None:
            np.testing.assert_allclose(mine[name].item_scores, theirs[name].item_scores, atol=1e-6)


def test_items_that_are_there_twice_find_their_groundwork_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_WORTH_KEEPING", 10)
    data = open_dataset("digits", limit=60).select([*range(60), *range(20)])
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(1))[[*range(60), *range(20)]]
    memory = memory_of(data)
    memory.keep_groundwork("a model", 0, score(feature_set(data, rows, Groundwork()), SCORERS, seed=0).groundwork)
    turned = data.select(range(79, -1, -1))
    known = memory_of(turned).groundwork("a model", 0)
    mine, theirs = (
        score(feature_set(turned, rows.flip(0), each), ["knn"], seed=0).values["knn"].value
        for each in (known, Groundwork())
    )
    assert mine == theirs


def test_scores_come_back_with_what_is_missing_and_without_trust_in_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset("digits", limit=60)
    rows = torch.randn(60, 8, generator=torch.Generator().manual_seed(2))
    scores = score(feature_set(data, rows, Groundwork()), ["ridge", "logme"], seed=0)
    judged = Judged(scores=scores, layer=3, num_features=8)
    memory_of(data).keep("a model", judged)
    found = memory_of(data).recall("a model")
    assert found is not None
    assert (found.layer, found.num_features, found.scores.missing) == (3, 8, {})
    assert found.scores.values["ridge"].value == judged.scores.values["ridge"].value
    monkeypatch.setattr(verdicts, "_code", lambda: "another release")
    assert memory_of(data).recall("a model") is None


def told_of_cuts(result: modelhound.SearchResult) -> str:
    (note,) = [note for _, note in result.notes if "texts were cut" in note]
    return note


def test_that_texts_were_cut_is_still_said_when_features_are_remembered(tmp_path: Path) -> None:
    write_encoder(tmp_path / "encoder")
    options: dict[str, Any] = {"models": f"file:{tmp_path / 'encoder'}", "limit": 40, "tokens": 8}
    first = modelhound.search("sms", run=tmp_path / "first", **options)
    second = modelhound.search("sms", run=tmp_path / "second", **options)
    third = modelhound.search("sms", run=tmp_path / "third", scorers="knn", **options)
    assert "of 40 texts were cut to 8 tokens" in told_of_cuts(first)
    assert told_of_cuts(first) == told_of_cuts(second) == told_of_cuts(third)
    assert first.notes == second.notes


def test_texts_of_remembered_features_are_counted_with_those_that_are_new(tmp_path: Path) -> None:
    write_encoder(tmp_path / "encoder")
    options: dict[str, Any] = {"models": f"file:{tmp_path / 'encoder'}", "tokens": 8, "scorers": "knn"}
    modelhound.search("sms", run=tmp_path / "fewer", limit=40, **options)
    more = modelhound.search("sms", run=tmp_path / "more", limit=60, **options)
    again = modelhound.search("sms", run=tmp_path / "again", limit=60, **options)
    anew = modelhound.search("sms", run=tmp_path / "anew", limit=60, fresh=True, **options)
    assert "of 60 texts were cut to 8 tokens" in told_of_cuts(anew)
    assert told_of_cuts(more) == told_of_cuts(again) == told_of_cuts(anew)
