"""The engine meets trouble: it is killed, memory runs out, networks and pictures are not what they seem."""

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import modelhound
from modelhound.features import engine
from modelhound.models import find_models, source_of
from modelhound.models.parts import running
from modelhound.records import ModelMeasured
from modelhound.store import read_run

MOMENTS = {
    "while the second model is taken apart": ("modelhound.features.workshop:Workshop.take_apart", 2),
    "before the third step of the plan runs": ("modelhound.features.engine:_Job.run_step", 3),
    "before the features of the second model are kept": ("modelhound.features.remembered:Remembered.keep", 2),
    "before the first rung is judged": ("modelhound.measuring.race:Race.judge", 1),
    "before the second model is scored": ("modelhound.measuring.race:Race._open", 2),
    "before the ranking": ("modelhound.verbs.search:rank_models", 1),
}
"""What is about to be called, for which time."""
RACERS = "zoo:resnet-garments_a,zoo:resnet-glyphs,zoo:vit-rotation,zoo:mobilenet-shapes,zoo:resmlp-rotation"
MODELS = ["zoo:resnet-glyphs", "zoo:vit-rotation"]


def _race(folder: Path, moment: str | None = None) -> None:
    """A search with a race, in a process of its own; both its run and its cache lie in the folder."""
    os.environ["MODELHOUND_CACHE"] = str(folder / "cache")
    if moment is not None:
        _die(*MOMENTS[moment])
    from modelhound.measuring import deciding

    deciding._JUDGE_SECONDS = {"cpu": 0.0, "cuda": 0.0}  # small networks: else it would not pay to race
    result = modelhound.search("fashion", RACERS, limit=400, top=1, run=folder / "run", scorers="ridge", workers=0)
    unfinished = folder / "answer.part"
    unfinished.write_text(json.dumps(result.to_json()))
    unfinished.rename(folder / "answer.json")


def _die(function: str, call: int) -> None:
    """Let this process be killed when the function is called for so many times."""
    module, _, path = function.partition(":")
    owner: Any = importlib.import_module(module)
    *above, name = path.split(".")
    for each in above:
        owner = getattr(owner, each)
    ordinary, calls = getattr(owner, name), itertools.count(1)

    def deadly(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(*arguments, **options)

    setattr(owner, name, deadly)


def _start(folder: Path, moment: str | None = None) -> ForkServerProcess:
    # a server that has torch loaded already, as in test_kill_and_resume
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm", "modelhound.verbs.search", "modelhound.measuring"])
    process = context.Process(target=_race, args=(folder, moment))
    process.start()
    return process


def _finish(folder: Path) -> dict[str, Any]:
    process = _start(folder)
    process.join(120)
    assert process.exitcode == 0
    document: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return document


def _comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Who was ranked and who was dropped, without what a clock measured."""
    return {
        part: [{name: value for name, value in row.items() if name != "seconds"} for row in document[part]]
        for part in ("ranking", "dropped")
    }


def test_a_race_killed_once_in_every_phase_ends_with_the_same_ranking(tmp_path: Path) -> None:
    undisturbed = _finish(tmp_path / "undisturbed")
    assert undisturbed["dropped"]
    for moment in MOMENTS:
        process = _start(tmp_path / "killed", moment)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, f"it did not come to the moment {moment}"
    document = _finish(tmp_path / "killed")
    expected, found = _comparable(undisturbed), _comparable(document)
    assert document["failures"] == []
    assert [row["model"] for row in found["ranking"]] == [row["model"] for row in expected["ranking"]]
    assert {row["model"] for row in found["dropped"]} == {row["model"] for row in expected["dropped"]}
    for row, other in zip(found["ranking"], expected["ranking"], strict=True):
        assert row["score"] == pytest.approx(other["score"], abs=1e-9)


def _starve(monkeypatch: pytest.MonkeyPatch, *, most_items: int, error: Exception, only: str = "") -> list[int]:
    """Let running more items at once fail; the sizes of what ran are noted."""
    ran: list[int] = []

    @contextlib.contextmanager
    def starved(network: Any, *arguments: Any) -> Iterator[Any]:
        with running(network, *arguments) as run:

            def run_few(inputs: Any, value: Any) -> Any:
                if len(inputs) > most_items and only in type(network.module).__name__:
                    raise error
                ran.append(len(inputs))
                return run(inputs, value)

            yield run_few

    monkeypatch.setattr(engine, "running", starved)
    return ran


def _scores(result: Any) -> dict[str, Any]:
    return {row.model: pytest.approx(row.scores, abs=0.03) for row in result.ranking.models}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
    ],
)
def test_out_of_memory_halves_the_batch_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    options: dict[str, Any] = {"limit": 90, "batch": 32, "scorers": "ridge,knn", "fresh": True}
    plenty = modelhound.search("digits", MODELS, run=tmp_path / "plenty", **options)
    ran = _starve(monkeypatch, most_items=10, error=error)
    tight = modelhound.search("digits", MODELS, run=tmp_path / "tight", **options)
    assert tight.failures == ()
    assert {row.model: row.scores for row in tight.ranking.models} == _scores(plenty)
    assert max(ran) == 8
    assert dict(tight.notes) == dict.fromkeys(MODELS, "batches were cut into 4 because they did not fit into memory")
    records = [record for record in read_run(tmp_path / "tight").records if isinstance(record, ModelMeasured)]
    assert all("cut into 4" in note for record in records for note in record.notes)
    assert len(records) == 2


def _build(model: str) -> torch.nn.Module:
    (ref,) = find_models([model])
    return source_of(ref).build(ref.name, source_of(ref).read_weights(ref.name)).module


def test_a_model_of_which_not_even_one_item_fits_fails_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = {model: type(_build(model)).__name__ for model in MODELS}
    assert len(set(names.values())) == 2
    _starve(monkeypatch, most_items=0, error=torch.OutOfMemoryError("CUDA out of memory"), only=names[MODELS[0]])
    result = modelhound.search("digits", MODELS, limit=60, run=tmp_path / "run", scorers="ridge", fresh=True)
    assert [row.model for row in result.ranking.models] == MODELS[1:]
    (failure,) = result.failures
    assert (failure.model, failure.phase) == (MODELS[0], "forward")
    assert "out of memory" in failure.error


@pytest.mark.parametrize("place", ["modelhound.measuring.judging:begin_layers", "modelhound.features.shelf:_as_wanted"])
def test_memory_that_was_short_for_a_moment_costs_no_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    options: dict[str, Any] = {"limit": 60, "scorers": "ridge", "fresh": True}
    plenty = modelhound.search("digits", MODELS, run=tmp_path / "plenty", **options)
    calls = _fail_at(monkeypatch, place, torch.OutOfMemoryError("CUDA out of memory"), {1})
    tight = modelhound.search("digits", MODELS, run=tmp_path / "tight", **options)
    assert len(calls) > 1
    assert tight.failures == ()
    assert [(row.model, row.scores) for row in tight.ranking.models] == [
        (row.model, row.scores) for row in plenty.ranking.models
    ]


def test_rows_for_which_there_is_no_room_are_the_failure_of_one_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hand_over = engine._Job._hand_over

    def hand_over_or_fail(self: engine._Job, model: str) -> engine.Rows:
        if model == MODELS[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hand_over(self, model)

    monkeypatch.setattr(engine._Job, "_hand_over", hand_over_or_fail)
    result = modelhound.search("digits", MODELS, limit=60, run=tmp_path / "run", scorers="ridge", fresh=True)
    assert [failure.model for failure in result.failures] == MODELS[:1]
    assert [row.model for row in result.ranking.models] == MODELS[1:]


@pytest.mark.parametrize("place", ["race:_opinions", "judging:begin_layers", "judging:finish", "race:make_record"])
def test_what_goes_wrong_beside_the_scorers_is_the_failure_of_one_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    _fail_at(monkeypatch, f"modelhound.measuring.{place}", torch.OutOfMemoryError("CUDA out of memory"), {1, 2})
    result = modelhound.search("digits", MODELS, limit=60, run=tmp_path / "run", scorers="ridge,leep", fresh=True)
    ((failure,), (ranked,)) = result.failures, result.ranking.models
    assert {failure.model, ranked.model} == set(MODELS)
    assert failure.phase == "score"
    assert "out of memory" in failure.error


def _fail_at(monkeypatch: pytest.MonkeyPatch, function: str, error: Exception, numbers: set[int]) -> list[int]:
    """Let these calls of the function raise; all of them are counted."""
    module, _, name = function.partition(":")
    owner = importlib.import_module(module)
    ordinary, calls = getattr(owner, name), []

    def fail_or_do(*arguments: Any, **options: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] in numbers:
            raise error
        return ordinary(*arguments, **options)

    monkeypatch.setattr(owner, name, fail_or_do)
    return calls


PEEKING = """
import torch
from torch import nn

class Peeking(nn.Module):
    # looks at the pictures again at the end, in a way that no graph shows
    def __init__(self):
        super().__init__()
        self.shrink = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(48, 48), nn.ReLU()) for _ in range(3))

    def forward(self, images):
        shade = images.detach().mean((1, 2, 3))[:, None]
        value = self.shrink(images)
        for block in self.blocks:
            value = block(value)
        return value + shade

def make(pretrained=True):
    torch.manual_seed(3)
    return Peeking(), {"input_size": 16}
"""


def test_a_network_whose_parts_do_not_add_up_is_run_whole_and_noted(tmp_path: Path) -> None:
    Path("peeking_network.py").write_text(PEEKING)
    options: dict[str, Any] = {"limit": 80, "scorers": "ridge,knn", "fresh": True}
    model = "py:peeking_network:make"
    fast = modelhound.search("digits", [model, MODELS[1]], run=tmp_path / "fast", **options)
    plain = modelhound.search("digits", model, run=tmp_path / "plain", plain=True, **{**options, "fresh": False})
    ((noted, note),) = fast.notes
    assert noted == model
    assert note.startswith("it was run whole, since it cannot be cut: ")
    assert "is no place to cut" in note
    (mine,) = (row for row in fast.ranking.models if row.model == model)
    assert mine.scores == plain.ranking.models[0].scores


def _write_photos(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for label in range(2):
        (folder / f"class{label}").mkdir(parents=True)
        for index in range(60):
            noise = generator.normal(60 + 130 * label, 12, size=(40, 48, 3))
            photo = Image.fromarray(noise.clip(0, 255).astype(np.uint8))
            photo.save(folder / f"class{label}" / f"{index:03}.jpg", quality=90)
    return folder


def _break_huffman_table(path: Path) -> None:
    """Head and end stay as they are; a table in between says that there are more codes than can be."""
    content = bytearray(path.read_bytes())
    table = content.index(b"\xff\xc4")
    content[table + 5 : table + 21] = b"\xff" * 16
    path.write_bytes(content)


@pytest.mark.parametrize("plain", [False, True])
def test_a_picture_that_looks_whole_and_cannot_be_decoded_is_left_out(tmp_path: Path, plain: bool) -> None:
    photos = _write_photos(tmp_path / "photos")
    _break_huffman_table(photos / "class1" / "007.jpg")
    options: dict[str, Any] = {"models": MODELS[0], "scorers": "ridge", "plain": plain, "workers": 0}
    result = modelhound.search(str(photos), **options)  # the default run folder is named after what was asked
    assert [each.item for each in result.skipped] == ["class1/007.jpg"]
    assert result.num_items == 119
    assert result.failures == ()
    (photos / "class1" / "007.jpg").unlink()
    without = modelhound.search(str(photos), **options)
    assert result.ranking.models[0].scores == without.ranking.models[0].scores
