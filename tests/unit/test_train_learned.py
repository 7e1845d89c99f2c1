"""A checkpoint says from which items it has learned, and nobody takes what it remembers for what it can tell."""

from pathlib import Path

import pytest

import modelhound
from modelhound.data import open_dataset
from modelhound.records import ModelMeasured
from modelhound.settings import PLAIN, ModelSettings
from modelhound.store import read_run
from modelhound.training.learned import learned_by, sketch_items, tell_learned, tell_shared

ITEMS = open_dataset("digits")


@pytest.mark.parametrize("num_learned", [0, 40, 1797])
def test_a_sketch_of_a_thousand_items_tells_how_much_of_a_set_is_known(num_learned: int) -> None:
    sketch = sketch_items(ITEMS.digests[:num_learned])
    assert (sketch.num_items, len(sketch.first)) == (num_learned, min(1024, num_learned))
    told = tell_learned([sketch], ITEMS.select(range(80)))
    expected = {0: "", 40: "about 50% of these very items", 1797: "about 100% of these very items"}[num_learned]
    assert expected in told
    assert (told == "") == (not expected)
    assert tell_learned([sketch], ITEMS.select(range(80, 100))) == "" or num_learned == 1797


def test_a_checkpoint_offered_for_the_items_it_learned_from_says_so(tmp_path: Path) -> None:
    trained = modelhound.train(
        "digits", "zoo:resnet-shapes", limit=60, epochs=1, verdict="none", run=tmp_path / "train"
    )
    (saved,) = trained.read_back.values()
    (learned,) = learned_by(saved.model, PLAIN)
    assert learned.num_items == sum(each.num_items for each in trained.trained)
    assert learned_by(saved.model, ModelSettings(weights="random")) == (), "weights that are not read know nothing"
    asked = {"limit": 60, "arch": saved.arch, "scorers": ("ridge",), "run": tmp_path / "search"}
    found = modelhound.search("digits", [saved.model, "zoo:resnet-glyphs"], **asked)
    ((model, note),) = found.notes
    assert model == saved.model
    assert "it has learned from about 83% of these very items before" in note
    records = {each.model: each.notes for each in read_run(tmp_path / "search").of(ModelMeasured)}
    assert records == {saved.model: (note,), "zoo:resnet-glyphs": ()}, "the page says it too"
    again = modelhound.train(
        "digits", saved.model, arch=saved.arch, limit=800, seed=1, epochs=1, verdict="none", run=tmp_path / "a"
    )
    assert any("of these very items before" in each for each in again.trained[0].notes), "other items are held out"
    (later,) = again.read_back.values()
    assert len(learned_by(later.model, PLAIN)) == 2


def test_test_items_that_are_training_items_too_are_told_of(tmp_path: Path) -> None:
    """The last two of eight texts are the same."""
    rows = [f"text {row},{'ab'[row % 2]}" for row in range(6)] + ["once more,a"] * 2
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows, ""]))
    texts = open_dataset(str(tmp_path / "texts.csv"))
    told = tell_shared(texts.select([0, 1, 2, 6]), texts.select([3, 4, 7]))
    assert told.startswith("1 of 3 test items are among the training items too")
    assert tell_shared(ITEMS.select(range(80)), ITEMS.select(range(80, 100))) == ""


def test_what_others_wrote_beside_their_weights_says_nothing(tmp_path: Path) -> None:
    assert learned_by("zoo:resnet-shapes", PLAIN) == ()
    assert learned_by(f"file:{tmp_path}/model.safetensors", PLAIN) == ()
    for content in (b"[]", b'{"model": "x"}', b'{"learned": 3}', b"\xff"):
        (tmp_path / "trained.json").write_bytes(content)
        assert learned_by(f"file:{tmp_path}", PLAIN) == ()
