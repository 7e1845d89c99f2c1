"""`hound loader` as a person meets it: the document, the tables, the exit codes, bad input."""

import json
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import modelhound
from command_line import hound
from modelhound.records import ModelMeasured, StepMeasured
from modelhound.store import read_run

MODELS = ["--models", "zoo:mobilenet-rotation,zoo:resnet-glyphs"]
SMALL = [*MODELS, "--batch", "8,24", "--workers", "0,1"]


@pytest.fixture
def photos(image_folder: Callable[..., Path]) -> str:
    return str(image_folder(num_classes=3, per_class=16))


def test_json_is_one_document_with_the_promised_keys(capsys: pytest.CaptureFixture[str], photos: str) -> None:
    argv = ["loader", photos, *SMALL, "--kind", "raw,preprocessed", "--out", "found/loader.json", "--json"]
    code, out, _ = hound(capsys, *argv)
    document = json.loads(out)
    assert code == 0
    assert {"recommended", "regret", "top", "verdict", "kinds", "runs", "failures"} <= set(document)
    assert (document["recommended"]["kind"], list(document["kinds"])) == ("raw", ["raw", "preprocessed"])
    assert (document["recommended"]["batch"], document["recommended"]["workers"]) in {(8, 0), (8, 1), (24, 0), (24, 1)}
    assert len(document["regret"]) == 8
    assert document["regret"][0]["mean"] >= 0
    assert sum(row["count"] for row in document["top"]) == 2 * 2 * 3
    assert document["failures"] == []
    for run in document["runs"]:
        assert set(run["phases"]) == {"wait for data", "data to device", "forward", "other"}
        assert sum(run["phases"].values()) == pytest.approx(run["wall_seconds"])
    assert any("Preprocessing" in each["text"] for each in document["kinds"]["raw"]["advice"])
    steps = [(step.model, step.batch) for step in read_run(Path(document["run"])).of(StepMeasured)]
    assert {steps.count(step) for step in steps} == {2}  # computing alone is the same for both kinds
    written = modelhound.read_loader("found/loader.json", "preprocessed")
    assert (written.batch, written.kind) == (document["kinds"]["preprocessed"]["recommended"]["batch"], "preprocessed")
    assert not multiprocessing.active_children()


def test_the_tables_the_charts_and_a_second_start_that_measures_nothing(
    capsys: pytest.CaptureFixture[str], photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(photos) / "class0" / "broken.jpg").write_bytes(b"no image")
    argv = ["loader", photos, *SMALL, "--grid", "--run", "mine", "--charts", "svg"]
    code, out, _ = hound(capsys, *argv)
    assert code == 0
    assert "1 item was left out: class0/broken.jpg (" in out
    for expected in ("mean regret", "recommended", "bound by", "suits both models", "Everything measured is in mine"):
        assert expected in out
    drawn = {path.name for path in Path("mine/report-charts").iterdir()}
    wanted = ("fixed_batch", "fixed_workers", "fixed_model", "regret", "run_length", "sub_times")
    assert drawn == {f"loader_raw_{name}.svg" for name in wanted}
    before = [record for record in read_run(Path("mine")).records if type(record).__name__ != "RunStarted"]
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = hound(capsys, *argv[:-2])
    assert code == 0
    assert "8 runs were finished by an earlier start" in out
    assert re.search(r"^ +\d+ +\d+ +[\d.]+% +[\d.]+% – [\d.]+% .*recommended", out, flags=re.MULTILINE)  # in one line
    assert [record for record in read_run(Path("mine")).records if type(record).__name__ != "RunStarted"] == before
    assert "loader" in hound(capsys, "runs", ".")[1]


def test_the_recommendation_is_remembered_for_this_data(photos: str) -> None:
    from modelhound.data import open_dataset
    from modelhound.data.recommended import remembered_loader

    result = modelhound.loader(photos, "zoo:resnet-glyphs", batch=(8, 24), workers=(0, 1))
    found = remembered_loader(open_dataset(photos), device="cpu")
    assert found is not None
    assert found == result.recommended


def raise_for_all(image: Any) -> Any:
    raise ValueError("this transform never works")


def test_a_data_set_that_raises_in_a_worker_shows_the_workers_traceback(
    capsys: pytest.CaptureFixture[str], photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelhound.data.loading.make_transform", lambda form: raise_for_all)
    code, out, err = hound(capsys, "loader", photos, *MODELS, "--batch", "8", "--workers", "1")
    assert code == 1
    assert "no pair works with all models" in out
    assert "this transform never works" in out
    assert "in raise_for_all" in out
    assert err == ""


def test_a_pair_that_needs_more_shared_memory_than_there_is_fails_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], photos: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelhound.feeding.runs.free_shared_memory", lambda: 600_000)  # some twenty images of 48 x 48
    code, out, _ = hound(capsys, "loader", photos, *MODELS, "--batch", "4,24", "--workers", "0,1", "--json")
    document = json.loads(out)
    assert code == 0
    failed = {(row["batch"], row["workers"]) for row in document["regret"] if row["mean"] is None}
    assert failed == {(24, 1)}
    assert "/dev/shm" in document["failures"][0]["error"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["digits", "--batch", "0"], "--batch"),
        (["digits", "--batch", "many"], "--batch"),
        (["digits", "--workers=-1"], "--workers"),
        (["digits", "--kind", "cooked"], "--kind"),
        (["sms", "--kind", "preprocessed", *MODELS], "texts"),
        (["no/such/folder", *MODELS], "no/such/folder"),
        (["digits", "--limit", "40", "--models", "zoo:none"], "zoo:none"),
        (["digits", "--limit", "40", "--pin", "yes", "--device", "cpu", *MODELS], "--pin"),
    ],
)
def test_a_request_that_cannot_be_served_exits_with_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    code, out, err = hound(capsys, "loader", *argv)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_raw_items_of_a_prepared_folder_are_refused_and_preprocessed_ones_are_the_default(
    capsys: pytest.CaptureFixture[str], photos: str
) -> None:
    modelhound.prepare(photos, "ready", models="zoo:resnet-glyphs")
    code, _, err = hound(capsys, "loader", "ready", *MODELS, "--kind", "raw")
    assert code == 2
    assert "hound prepare" in err
    result = modelhound.loader("ready", "zoo:resnet-glyphs", batch=8, workers=0)
    assert result.recommended is not None
    assert result.recommended.kind == "preprocessed"


def test_a_run_that_is_too_short_says_so_and_pairs_that_cannot_differ_are_named(
    capsys: pytest.CaptureFixture[str], photos: str
) -> None:
    code, out, _ = hound(capsys, "loader", photos, *MODELS, "--batch", "30,100", "--workers", "0,1,16")
    assert code == 0
    assert "too short to tell" in out
    assert "100 are larger than the 48 items" in out
    assert "16 workers are more than" in out


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(modelhound.RequestError, match="batches"):
        modelhound.loader("digits", batches=3)


def recommend(photos: str) -> None:
    from modelhound.data import open_dataset
    from modelhound.data.recommended import data_kind, machine_kind, remember_loader
    from modelhound.settings import LoaderSettings

    kind, machine = data_kind(open_dataset(photos)), machine_kind("cpu")
    remember_loader(
        LoaderSettings(batch=24, workers=1, compute_batch=12, data="photos", data_kind=kind, machine_kind=machine)
    )


def test_a_search_uses_what_is_remembered_and_says_so(capsys: pytest.CaptureFixture[str], photos: str) -> None:
    recommend(photos)
    asked = ["search", photos, "--models", "zoo:resnet-glyphs", "--scorers", "ridge"]
    documents = {
        name: json.loads(hound(capsys, *asked, "--run", name, "--json", *more)[1])
        for name, more in (("plain", ["--plain"]), ("engine", []), ("without", ["--plain", "--loader", "none"]))
    }
    assert documents["without"]["loader"] is None
    assert {key: documents["plain"]["loader"][key] for key in ("batch", "workers", "origin")} == {
        "batch": 24,
        "workers": 1,
        "origin": "remembered",
    }
    assert (documents["engine"]["loader"]["batch"], documents["engine"]["loader"]["workers"]) == (12, None)
    assert [documents[name]["loader"]["is_of_computing"] for name in ("plain", "engine")] == [False, True]
    scores = {document["ranking"][0]["score"] for document in documents.values()}
    assert max(scores) - min(scores) < 1e-6
    (measured,) = read_run(Path("plain")).of(ModelMeasured)
    forward = next(samples for samples in measured.phases if samples.phase == "forward")
    assert len(forward.seconds) == 2  # 48 items, 24 at a time
    out = hound(capsys, *asked, "--run", "again", "--fresh")[1]
    said = "Computed in batches of up to 12, from which on computing alone gets no faster: as `hound loader` found here for"
    assert said in " ".join(out.split())
    remembered = json.loads(hound(capsys, *asked, "--run", "remembered", "--json")[1])
    assert remembered["loader"] is None, "nothing was computed, in whatever batches"


def test_texts_are_loaded_too(tmp_path: Path) -> None:
    from tiny_encoders import write_encoder

    encoder = write_encoder(tmp_path / "bert")
    result = modelhound.loader("sms", f"file:{encoder}", limit=64, batch=(8, 32), workers=(0, 1))
    (kind,) = result.answer.kinds
    assert (kind.kind, len(kind.regret), result.failures) == ("raw", 4, ())
    assert kind.recommended is not None
    assert kind.models[0].bound in ("tokenising", "compute", "copy", "start-up")
    assert "decod" not in " ".join(each.text + each.evidence for each in kind.advice).lower()
