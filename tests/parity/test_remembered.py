"""What an earlier search has made is not made again, and changes nothing."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import modelhound
from modelhound.data import open_dataset
from modelhound.feature_store import keeping
from modelhound.features import many, remembered, supply
from modelhound.features.remembered import Remembered
from modelhound.features.workshop import Workshop
from modelhound.settings import ModelSettings
from modelhound.verbs.search import SearchResult
from tiny_encoders import write_encoder

MODELS = ["zoo:resnet-glyphs", "zoo:vit-rotation", "zoo:mobilenet-shapes"]
ITEMS = 80


class Work:
    """Counts what a search does: models read, items decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models: list[str] = []
        self.num_decoded = 0
        take_apart, decode = Workshop.take_apart, supply.decode

        def noting_models(workshop: Workshop, model: Any, *arguments: Any) -> Any:
            self.models.append(str(model))
            return take_apart(workshop, model, *arguments)

        def noting_items(dataset: Any, positions: Any, *arguments: Any, **options: Any) -> Any:
            self.num_decoded += len(positions)
            return decode(dataset, positions, *arguments, **options)

        monkeypatch.setattr(Workshop, "take_apart", noting_models)
        monkeypatch.setattr(supply, "decode", noting_items)

    def of(self, search: Callable[[], SearchResult]) -> tuple[SearchResult, list[str], int]:
        """The result, the models that were read for it and the number of items decoded."""
        self.models.clear()
        self.num_decoded = 0
        return search(), sorted(self.models), self.num_decoded


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


@pytest.fixture
def find(tmp_path: Path) -> Callable[..., SearchResult]:
    """A search into a run folder of its own."""
    count = 0

    def search(data: str = "digits", models: Any = MODELS, **options: Any) -> SearchResult:
        nonlocal count
        count += 1
        options = {"limit": ITEMS, "scorers": "ridge,knn", "run": tmp_path / f"run{count}", **options}
        return modelhound.search(data, models, **options)

    return search


def ranking(result: SearchResult) -> list[tuple[str, int, dict[str, float]]]:
    assert result.failures == ()
    return [(row.model, row.rank, row.scores) for row in result.ranking.models]


def near(result: SearchResult) -> dict[str, Any]:
    """Scores up to one item: rounding differs where batches are cut in other places."""
    return {row.model: pytest.approx(row.scores, abs=0.03) for row in result.ranking.models}


def scores(result: SearchResult) -> dict[str, dict[str, float]]:
    return {row.model: row.scores for row in result.ranking.models}


def cache_files(tmp_path: Path, name: str) -> list[Path]:
    return sorted((tmp_path / "cache" / "features").rglob(name))


def test_a_repeated_search_reads_no_weights_and_decodes_nothing(work: Work, find: Callable[..., SearchResult]) -> None:
    first, models, num_decoded = work.of(find)
    assert (models, num_decoded) == (sorted(MODELS), ITEMS)
    again, models, num_decoded = work.of(find)
    assert (models, num_decoded) == ([], 0)
    assert again.num_resumed == 0  # a new run folder: nothing but the features was there
    assert ranking(again) == ranking(first)


def test_a_new_model_costs_that_model(work: Work, find: Callable[..., SearchResult]) -> None:
    find(models=MODELS[:2])
    result, models, num_decoded = work.of(find)
    assert (models, num_decoded) == (MODELS[2:], ITEMS)
    assert ranking(result) == ranking(find(fresh=True))


def test_new_items_cost_those_items(work: Work, find: Callable[..., SearchResult]) -> None:
    find()
    result, models, num_decoded = work.of(lambda: find(limit=ITEMS + 50))
    assert models == sorted(MODELS)
    assert num_decoded <= 50 + 10  # a larger limit takes the smaller one's items, up to one of each class
    assert scores(result) == near(find(limit=ITEMS + 50, fresh=True))


def test_fewer_items_cost_nothing(work: Work, find: Callable[..., SearchResult], tmp_path: Path) -> None:
    find("fashion", limit=150)
    result, models, num_decoded = work.of(lambda: find("fashion", limit=150, models=MODELS[:1]))
    assert (models, num_decoded) == ([], 0)
    assert len(result.ranking.models) == 1


def test_new_labels_cost_scoring_only(
    work: Work, find: Callable[..., SearchResult], image_folder: Callable[..., Path]
) -> None:
    folder = image_folder(num_classes=2, per_class=20)
    options: dict[str, Any] = {"models": MODELS[:1], "limit": None}
    first = find(str(folder), **options)
    moved = sorted((folder / "class0").glob("*.png"))[::2]
    for path in moved:  # every other of a class gets another label
        shutil.move(path, folder / "class1" / f"moved-{path.name}")
    result, models, num_decoded = work.of(lambda: find(str(folder), **options))
    assert (models, num_decoded) == ([], 0)
    assert scores(result) == scores(find(str(folder), fresh=True, **options))
    assert scores(result) != scores(first)


@pytest.mark.parametrize("batch", [7, 128])
def test_the_batch_size_does_not_matter(work: Work, find: Callable[..., SearchResult], batch: int) -> None:
    first = find(batch=32)
    again, models, num_decoded = work.of(lambda: find(batch=batch))
    assert (models, num_decoded) == ([], 0)
    assert ranking(again) == ranking(first)


@pytest.mark.parametrize("change", [{"precision": "bf16"}, {"weights": "random"}, {"weights": "random", "seed": 1}])
def test_what_decides_a_feature_is_part_of_its_name(
    work: Work, find: Callable[..., SearchResult], change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if change.get("precision") == "bf16":  # matrices of this type end the process on some CPUs: only the name is asked
        monkeypatch.setattr(many, "run_plan", lambda *_, **__: None)
    find(models=MODELS[:1], **({"weights": "random"} if "seed" in change else {}))
    _, models, _ = work.of(lambda: find(models=MODELS[:1], **change))
    assert models == MODELS[:1]


@pytest.mark.parametrize("name", ["rows-*", "index"])
def test_a_damaged_entry_is_dropped_and_made_again(
    work: Work, find: Callable[..., SearchResult], tmp_path: Path, name: str
) -> None:
    first = find()
    generator = torch.Generator().manual_seed(0)
    for path in cache_files(tmp_path, name):
        content = bytearray(path.read_bytes())
        for place in torch.randint(0, len(content), (20,), generator=generator).tolist():
            content[place] ^= 0x55
        path.write_bytes(content)
    result, models, num_decoded = work.of(find)
    assert models == sorted(MODELS) or name == "rows-*"  # damaged rows are found when they are read
    assert 0 < num_decoded <= ITEMS * len(MODELS)
    assert scores(result) == near(first)
    again, models, num_decoded = work.of(find)
    assert (models, num_decoded) == ([], 0)
    assert ranking(again) == ranking(result)


def test_two_searches_at_once_share_one_cache(work: Work, find: Callable[..., SearchResult]) -> None:
    alone = find(fresh=True)
    results: dict[int, SearchResult] = {}
    threads = [threading.Thread(target=lambda number=number: results.update({number: find()})) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ranking(results[0]) == ranking(results[1]) == ranking(alone)
    again, models, num_decoded = work.of(find)
    assert (models, num_decoded, again.warnings) == ([], 0, ())
    assert ranking(again) == ranking(alone)


def test_a_full_cache_ends_the_remembering_and_not_the_search(
    find: Callable[..., SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = find(fresh=True)
    ordinary = keeping.FeatureStore
    monkeypatch.setattr("modelhound.features.remembered.FeatureStore", lambda: ordinary(limit_bytes=30_000))
    result = find()
    assert ranking(result) == ranking(expected)
    (warning,) = result.warnings
    assert "limit of 30000 bytes is reached" in warning


def test_a_cache_that_cannot_be_written_ends_the_remembering_and_not_the_search(
    find: Callable[..., SearchResult], tmp_path: Path
) -> None:
    expected = find(fresh=True)
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "features").write_text("a file where a folder should be")
    result = find()
    assert ranking(result) == ranking(expected)
    (warning,) = result.warnings
    assert "cannot keep features" in warning
    assert "MODELHOUND_CACHE" in warning


def test_a_fresh_search_neither_reads_nor_writes(work: Work, find: Callable[..., SearchResult], tmp_path: Path) -> None:
    result, models, num_decoded = work.of(lambda: find(fresh=True))
    assert (models, num_decoded) == (sorted(MODELS), ITEMS)
    assert cache_files(tmp_path, "*") == []
    find()
    before = {path: path.stat().st_mtime_ns for path in cache_files(tmp_path, "*") if path.is_file()}
    again, models, num_decoded = work.of(lambda: find(fresh=True))
    assert (models, num_decoded) == (sorted(MODELS), ITEMS)
    assert {path: path.stat().st_mtime_ns for path in cache_files(tmp_path, "*") if path.is_file()} == before
    assert ranking(again) == ranking(result)


def test_all_layers_of_an_encoder_are_remembered(
    find: Callable[..., SearchResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(2):
        write_encoder(tmp_path / "pool" / str(seed), "bert", seed=seed)
    pool = f"file:{tmp_path}/pool/*"
    first = find("sms", models=pool, layers="best")
    monkeypatch.setattr(Workshop, "take_apart", lambda *_: pytest.fail("read a model"))
    again = find("sms", models=pool, layers="best")
    assert ranking(again) == ranking(first)
    layers = [(model, note) for model, note in first.notes if "scores best" in note]
    assert len(layers) == 2
    assert set(layers) <= set(again.notes)


def test_layers_are_told_apart_although_it_is_forgotten_how_many_there_are(
    find: Callable[..., SearchResult], tmp_path: Path
) -> None:
    write_encoder(tmp_path / "encoder", "bert", seed=0)
    options: dict[str, Any] = {"models": f"file:{tmp_path}/encoder", "layers": "best"}
    find("sms", limit=60, **options)
    for path in (tmp_path / "cache").glob("models-*.jsonl"):
        path.unlink()
    assert ranking(find("sms", limit=60, **options)) == ranking(find("sms", limit=60, fresh=True, **options))
    for path in (tmp_path / "cache").glob("models-*.jsonl"):
        path.unlink()
    assert scores(find("sms", **options)) == near(
        find("sms", fresh=True, **options)
    )  # some rows are there, some are not


NETWORK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, images):
        return images[:, :, ::8, ::8].flatten(1) * self.scale

def make():
    return Net(), {"input_size": 64}
"""


def test_an_edited_forward_is_run_although_all_tensors_are_the_same(
    find: Callable[..., SearchResult], tmp_path: Path
) -> None:
    file = tmp_path / "net.py"
    file.write_text(NETWORK)
    first = find(models=f"py:{file}:make")
    file.write_text(NETWORK.replace("images[:, :, ::8, ::8]", "images[:, :, :1, :1]"))
    assert scores(find(models=f"py:{file}:make")) != scores(first)
    file.write_text(NETWORK)
    assert ranking(find(models=f"py:{file}:make")) == ranking(first)


READING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = nn.Parameter(torch.ones(8, 8))
    def forward(self, images):
        return (images[:, 0] * self.mask).flatten(1)

def make():
    net = Net()
    net.load_state_dict(torch.load("PLACE"))
    return net, {"input_size": 8}
"""


def test_what_an_own_function_reads_from_other_files_is_looked_at_every_time(
    work: Work, find: Callable[..., SearchResult], tmp_path: Path
) -> None:
    """Its stamp is of the file it is written in, and knows nothing of weights that were trained anew."""
    file, weights = tmp_path / "reading.py", tmp_path / "weights.pt"
    file.write_text(READING.replace("PLACE", str(weights)))
    torch.save({"mask": torch.ones(8, 8)}, weights)

    def search() -> SearchResult:
        return find(models=f"py:{file}:make")

    first = search()
    _, models, num_decoded = work.of(search)
    assert (models, num_decoded) == ([f"py:{file}:make"], 0)
    torch.save({"mask": torch.eye(8)}, weights)
    again, _, num_decoded = work.of(search)
    assert num_decoded == ITEMS
    assert scores(again) != scores(first)


def test_what_other_code_of_ours_has_made_is_not_trusted(
    work: Work, find: Callable[..., SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    find(models=MODELS[:1])
    monkeypatch.setattr(remembered, "digest_of_code", lambda *rooms: "another release")
    _, models, num_decoded = work.of(lambda: find(models=MODELS[:1]))
    assert (models, num_decoded) == (MODELS[:1], ITEMS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_happen_to_be_short_numbers_or_not(dtype: torch.dtype) -> None:
    data = open_dataset("digits", limit=30)
    memory = Remembered(data, ModelSettings(), seed=0, device="cpu", dtype=dtype)
    short, long = torch.arange(40.0).reshape(10, 4), torch.rand(10, 4)
    memory.keep("short before long", range(10), short)
    memory.keep("short before long", range(10, 20), long)
    memory.keep("long before short", range(10), long)
    memory.keep("long before short", range(10, 20), short)
    found = memory.recall("short before long", range(20))
    assert torch.equal(found.rows[:10], short)
    if dtype is torch.float32:
        assert torch.equal(found.rows[10:], long)
    else:
        assert found.missing == tuple(range(10, 20))  # half precision gives no such rows; one that does costs time only
    assert torch.equal(memory.recall("long before short", range(20)).rows, torch.cat([long, short]))


def test_a_model_whose_file_changed_is_another_model(
    work: Work, find: Callable[..., SearchResult], tmp_path: Path
) -> None:
    write_encoder(tmp_path / "encoder", "bert", seed=0)
    model = f"file:{tmp_path}/encoder"
    first = find("sms", models=model)
    write_encoder(tmp_path / "encoder", "bert", seed=1)
    result, models, _ = work.of(lambda: find("sms", models=model))
    assert models == [model]
    assert scores(result) != scores(first)
