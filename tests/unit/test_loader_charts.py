"""The charts of `hound loader`: their rows, and that they can be drawn."""

from pathlib import Path

import msgspec
import pytest

from modelhound.records import (
    BestPair,
    FeedMeasured,
    KindAnswer,
    LengthPoint,
    LoaderAnswer,
    PairRegret,
    PairSeconds,
    PhaseSamples,
)
from modelhound.report.charts import save_charts, spec
from modelhound.report.loader_charts import loader_charts
from modelhound.settings import LoaderSettings

SECONDS = {("a", 8, 0): 2.0, ("a", 8, 1): 1.0, ("b", 8, 0): 3.0, ("b", 8, 1): 4.0}


def make_answer(models: tuple[str, ...] = ("a", "b"), *, works: bool = True) -> LoaderAnswer:
    seconds = {
        (model, batch, workers): SECONDS["ab"[place % 2], batch, workers]
        for place, model in enumerate(models)
        for batch, workers in ((8, 0), (8, 1))
    }
    regret = tuple(
        PairRegret(
            batch=8,
            workers=workers,
            mean=mean,
            median=mean,
            worst=mean,
            worst_model="a",
            interval=(0.0, 1.0),
            chance_within=0.9,
            as_good=True,
            num_measured=1,
        )
        for workers, mean in ((1, 0.17), (0, None))
    )
    best = tuple(
        BestPair(
            model=model,
            batch=8,
            workers=1,
            seconds=1.0,
            recommended_seconds=1.0,
            regret=0.0,
            bound="decode",
            num_cores_needed=1.0,
            speedup_if_free=2.0,
        )
        for model in models
    )
    kind = KindAnswer(
        kind="raw",
        recommended=LoaderSettings(batch=8, workers=1) if works else None,
        chance_within=0.9,
        interval=(0.0, 0.1),
        regret=regret,
        top=(),
        models=best,
        lengths=(LengthPoint(num_items=100, batch=8, workers=0, seconds=1.0, recommended_regret=0.5),),
        seconds=tuple(
            PairSeconds(model=model, batch=batch, workers=workers, seconds=value, measured=workers == 1)
            for (model, batch, workers), value in seconds.items()
        )
        if works
        else (),
        advice=(),
        verdict="",
        noise=0.02,
        measuring_seconds=1.0,
        grid_seconds=10.0,
        num_runs=2,
        num_items=100,
    )
    return LoaderAnswer(data="photos", device="cpu", machine_kind="here", kinds=(kind,), notes=())


RUN = FeedMeasured(
    item_kind="raw",
    model="a",
    batch=8,
    workers=1,
    num_items=16,
    first_batch_seconds=0.3,
    phases=(
        PhaseSamples(phase="wait for data", seconds=(0.3, 0.1)),
        PhaseSamples(phase="data to device", seconds=(0.01, 0.01)),
        PhaseSamples(phase="forward", seconds=(0.2, 0.2)),
    ),
    wall_seconds=1.0,
    page_cache="warm",
    disk_bytes=0,
)


def test_all_plot_types_come_out_with_their_rows() -> None:
    charts = {chart.name: chart for chart in loader_charts(make_answer(), [RUN])}
    assert list(charts) == [
        f"loader_raw_{name}"
        for name in ("fixed_batch", "fixed_workers", "fixed_model", "regret", "run_length", "sub_times")
    ]
    rows = {(row["model"], row["workers"]): row for row in charts["loader_raw_fixed_batch"].data}
    assert rows["a", 0]["regret"] == pytest.approx(1.0)
    assert (rows["a", 0]["how"], rows["a", 1]["how"]) == ("composed", "measured")
    assert (rows["a", 0]["label"], rows["a", 1]["label"]) == ("2.0x", "best")
    (panels,) = [spec(charts["loader_raw_fixed_model"])["spec"]["layer"]]
    assert [each["mark"]["type"] for each in panels] == ["rect", "text"], "numbers, not colours alone"
    assert spec(charts["loader_raw_run_length"])["layer"][0]["encoding"]["y"]["scale"]["domain"][0] < 0, "room below 0%"
    marks = {row["workers"]: (row["label"], row["mark"]) for row in charts["loader_raw_regret"].data}
    assert marks == {1: ("17.0%", "recommended"), 0: ("fails", "as good within noise")}
    parts = {row["phase"]: row["seconds"] for row in charts["loader_raw_sub_times"].data}
    assert sum(float(value or 0) for value in parts.values()) == pytest.approx(1.0)
    assert (parts["first batch"], parts["wait for data"], parts["other"]) == pytest.approx((0.3, 0.1, 0.18))


def test_of_many_models_a_dozen_are_drawn() -> None:
    models = tuple(f"m{number}" for number in range(50))
    first = loader_charts(make_answer(models))[0]
    assert len({row["model"] for row in first.data}) == 12


def test_without_a_table_there_is_nothing_to_draw() -> None:
    assert loader_charts(make_answer(works=False)) == ()


def test_where_no_pair_works_with_all_models_none_is_called_recommended() -> None:
    answer = make_answer()
    kind = answer.kinds[0]
    failed = tuple(
        msgspec.structs.replace(each, mean=None, median=None, worst=None, interval=None) for each in kind.regret
    )
    some = tuple(  # a fails with the one pair, b with the other
        msgspec.structs.replace(each, seconds=None) if each.workers == "ab".index(each.model) else each
        for each in kind.seconds
    )
    none = tuple(msgspec.structs.replace(each, seconds=None) for each in kind.seconds)
    drawn = {}
    for name, seconds in (("some", some), ("none", none)):
        lost = msgspec.structs.replace(kind, recommended=None, regret=failed, models=(), lengths=(), seconds=seconds)
        drawn[name] = loader_charts(msgspec.structs.replace(answer, kinds=(lost,)))
    assert [chart.name for chart in drawn["some"]] == [
        f"loader_raw_{name}" for name in ("fixed_batch", "fixed_workers", "fixed_model")
    ]
    assert all(len(chart.data) == 2 for chart in drawn["some"])
    assert drawn["none"] == ()


def test_whether_the_best_pair_depends_on_the_length_of_the_run_is_read_off_and_not_taken_for_granted() -> None:
    answer = make_answer()
    kind = answer.kinds[0]
    longer = msgspec.structs.replace(kind.lengths[0], num_items=1000, workers=1, recommended_regret=0.0)
    titles = {}
    for lengths in (kind.lengths, (*kind.lengths, longer)):
        changed = msgspec.structs.replace(answer, kinds=(msgspec.structs.replace(kind, lengths=lengths),))
        titles[len(lengths)] = next(chart.title for chart in loader_charts(changed) if chart.name.endswith("length"))
    assert titles[1].startswith("One pair is the best at every length of the run: raw items of photos on cpu")
    assert titles[2].startswith("The best pair depends on the length of the run: ")


def test_the_charts_can_be_drawn(tmp_path: Path) -> None:
    charts = loader_charts(make_answer(), [RUN])
    paths = save_charts(charts, tmp_path, formats=("svg",))
    assert len(paths) == 6
    assert all("<svg" in path.read_text()[:200] for path in paths)
    assert all(spec(chart, dark=True) for chart in charts)
