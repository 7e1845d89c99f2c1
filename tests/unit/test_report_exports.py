"""Records for other programs: CSV, Parquet, MLflow."""

import csv
import json
from pathlib import Path

import msgspec
import pytest
from pyarrow import parquet

from modelhound.errors import RequestError
from modelhound.records import FinalsCosts, RunStarted
from modelhound.report.exporting import export_records
from modelhound.report.flattening import flat_row
from modelhound.report.tracking import _metrics, log_to_mlflow
from modelhound.store import open_run, read_run
from report_runs import MACHINE, ODD_NAMES, write_search
from verb_runs import write_verb_runs


def test_every_kind_of_record_becomes_a_file_in_both_formats_with_the_same_rows(tmp_path: Path) -> None:
    runs = [read_run(write_search(tmp_path / name, list(ODD_NAMES), num_dropped=2)) for name in ("one", "two")]
    paths = export_records(runs, tmp_path / "out", ["csv", "parquet"])
    assert {path.name for path in paths} == {
        f"{kind}.{ending}" for kind in ("started", "model", "dropped") for ending in ("csv", "parquet")
    }
    with (tmp_path / "out" / "model.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "out" / "model.parquet").to_pylist()
    assert len(rows) == len(table) == 2 * len(ODD_NAMES)
    assert [row["model"] for row in rows] == [row["model"] for row in table] == 2 * list(ODD_NAMES)
    assert {row["run"] for row in rows} == {str(tmp_path / "one"), str(tmp_path / "two")}
    assert float(rows[0]["scores.ridge"]) == table[0]["scores.ridge"]
    assert table[0]["forward.seconds"] > 0
    assert "item_scores" not in rows[0]


def test_what_a_record_holds_for_many_names_is_exported_too(tmp_path: Path) -> None:
    """Too many to be columns: what an epoch takes, of each of two dozen finalists."""
    path = write_search(tmp_path / "run", ["zoo:a"])
    seconds = {f"zoo:m{place}": 0.5 + place for place in range(24)}
    run = read_run(path)
    run = msgspec.structs.replace(run, records=(*run.records, FinalsCosts(epoch_seconds=seconds)))
    (costs,) = (each for each in export_records([run], tmp_path / "out", ["csv"]) if each.name == "finals costs.csv")
    with costs.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert json.loads(row["epoch_seconds"]) == seconds


def test_columns_of_mixed_values_still_have_one_type(tmp_path: Path) -> None:
    run = read_run(write_search(tmp_path / "run", ["zoo:a"], failures=("zoo:b",)))
    (path,) = (each for each in export_records([run], tmp_path / "out", ["parquet"]) if each.name == "failure.parquet")
    assert parquet.read_table(path).to_pylist()[0]["error"] == "cannot read 'zoo:b'"


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="expected csv or parquet"):
        export_records([], tmp_path, ["xlsx"])


@pytest.mark.filterwarnings("ignore")  # of MLflow and what it stands on
def test_mlflow_gets_parameters_metrics_and_artefacts(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow.tracking import MlflowClient

    run = read_run(write_search(tmp_path / "run", ["zoo:best", "hf:org/<other>"]))
    address = f"sqlite:///{tmp_path / 'tracking.db'}"
    client = MlflowClient(tracking_uri=address)
    client.create_experiment("modelhound", artifact_location=(tmp_path / "artefacts").as_uri())
    identity = log_to_mlflow(run, address, {"": [run.path / "answer.json"], "more": [run.path / "asked.json"]})
    logged = client.get_run(identity)
    assert logged.data.params["data"] == "fashion"
    assert logged.data.params["limit"] == "120"
    assert logged.data.tags["headline"] == "zoo:best"
    written = json.loads((run.path / "answer.json").read_text())["answer"]["models"][0]["score"]
    assert logged.data.metrics["models/zoo_best/score"] == written
    assert logged.info.status == "FINISHED"
    kept = tmp_path / "artefacts" / identity / "artifacts"
    assert (kept / "answer.json").exists()
    assert (kept / "more" / "asked.json").exists()
    assert log_to_mlflow(run, address) == identity, "a second export of one run is not a second run"
    for batch, is_same in ((None, True), (8, False)):  # MLflow never changes a parameter
        settings = {**run.settings, "batch": batch}
        with open_run(run.path, verb="search", at=f"2026-03-0{batch or 2}", settings=settings, identity={}) as resumed:
            resumed.append(RunStarted(at="2026-03-02", device="cpu", machine=MACHINE))
        assert (log_to_mlflow(read_run(run.path), address) == identity) == is_same
    assert logged.data.metrics["model/zoo_best/forward.seconds"] == pytest.approx(
        0.6 * logged.data.metrics["model/zoo_best/wall_seconds"]
    )
    trained = client.get_run(
        log_to_mlflow(read_run(write_verb_runs(tmp_path / "verbs")["train"]), address)
    ).data.metrics
    assert trained["trained/timm_x 2/score"] == pytest.approx(0.9)
    assert trained["rank/timm_x 2 1/backward.seconds"] == pytest.approx(2.0)


@pytest.mark.parametrize(("verb", "of"), [("breakeven", "counts"), ("profile", "bottlenecks"), ("latency", "laws")])
def test_no_number_of_an_answer_takes_the_place_of_another_in_mlflow(tmp_path: Path, verb: str, of: str) -> None:
    """Counts of one model for two scenarios and two ways of searching, say, and jobs of one model in full and in part."""
    run = read_run(write_verb_runs(tmp_path)[verb])
    assert run.answer is not None
    things = msgspec.json.decode(run.answer)[of]
    assert len(things) > 1
    number = next(name for name, value in flat_row(things[0]).items() if isinstance(value, float))
    metrics = _metrics(run)
    kept = [value for name, value in metrics.items() if name.startswith(f"{of}/") and name.endswith(f"/{number}")]
    assert kept == [value for thing in things if isinstance(value := flat_row(thing).get(number), float)]


@pytest.mark.filterwarnings("ignore")
def test_an_address_mlflow_does_not_know_is_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    run = read_run(write_search(tmp_path / "run", ["zoo:best"]))
    with pytest.raises(RequestError, match="cannot write to --mlflow 'nonsense://x'") as caught:
        log_to_mlflow(run, "nonsense://x")
    assert "\n" not in str(caught.value)
