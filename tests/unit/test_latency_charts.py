"""The charts of latencies: what is drawn, tested by its rows."""

from pathlib import Path

import msgspec

from latencies import CEILINGS, record
from modelhound.analysis.latency import find_laws
from modelhound.records import LatencyFailed, LatencyMeasured, LatencyPoint
from modelhound.report.charts import COLOURS, save_charts, spec
from modelhound.report.latency_charts import find_outliers, latency_charts
from modelhound.settings.latency import LATENCY_MODELS


def encoders() -> list[LatencyMeasured]:
    slow = {"hf:bert": 1.0, "hf:albert": 1.2, "hf:distilbert": 0.6, "hf:longformer": 9.0}
    return [
        record(1e-3 * factor * batch, model=model, batch=batch, image=None, tokens=128, kernel_seconds=5e-4 * batch)
        for model, factor in slow.items()
        for batch in (1, 2, 4, 8)
    ]


def test_a_model_several_times_slower_than_its_family_is_an_outlier() -> None:
    assert find_outliers(encoders()) == ("hf:longformer",)
    assert find_outliers([record(1.0)]) == ()


def test_charts_are_drawn_with_and_without_outliers() -> None:
    charts = {chart.name: chart for chart in latency_charts(encoders())}
    whole, without = charts["latency_batch_text"], charts["latency_batch_text_without_outliers"]
    assert {row["model"] for row in whole.data} - {row["model"] for row in without.data} == {"hf:longformer"}
    assert "without hf:longformer" in without.title
    assert "latency_image_image" not in charts


def test_a_chart_without_outliers_keeps_the_colours_and_leaves_them_out_of_its_legend() -> None:
    charts = {chart.name: chart for chart in latency_charts(encoders())}
    colour = spec(charts["latency_batch_text_without_outliers"])["layer"][0]["encoding"]["color"]
    assert colour["scale"]["domain"] == ["hf:albert", "hf:bert", "hf:distilbert", "hf:longformer"]
    assert colour["legend"]["values"] == ["hf:albert", "hf:bert", "hf:distilbert"]


def test_crosses_are_explained_where_there_are_some() -> None:
    assert "crosses" not in latency_charts(encoders())[0].caption
    lost = LatencyPoint(model="hf:bert", batch=16, tokens=128, precision="fp32", device="cuda:0")
    failed = LatencyFailed(point=lost, why="out of memory", tried=True, message="")
    assert "crosses at the top" in latency_charts(encoders(), failed=[failed])[0].caption


def test_waiting_is_drawn_along_batches_that_were_swept_and_small_sizes_come_first() -> None:
    swept = [
        record(1e-3, batch=batch, image=image, kernel_seconds=5e-4) for batch in (1, 2, 4) for image in (64, 128, 224)
    ]
    pairs = [record(1e-3, batch=batch, image=288, kernel_seconds=5e-4) for batch in (1, 4)]
    (chart,) = [each for each in latency_charts([*swept, *pairs]) if each.name == "latency_waiting_image"]
    assert spec(chart)["facet"]["sort"] == [f"image {side}, fp32, cuda:0" for side in (64, 128, 224)]
    (chart,) = [each for each in latency_charts(pairs) if each.name == "latency_waiting_image"]
    assert {row["setting"] for row in chart.data} == {"image 288, fp32, cuda:0"}


def test_rows_are_medians_with_intervals_in_milliseconds_laws_and_points_without_a_time() -> None:
    records = [record(1e-3 * batch, batch=batch) for batch in (1, 2, 4, 8)]
    lost = LatencyPoint(model="tv:resnet18", batch=16, image=224, precision="fp32", device="cuda:0")
    failed = LatencyFailed(point=lost, why="out of memory", tried=True, message="")
    chart = latency_charts(records, failed=[failed], laws=find_laws(records, margin=0.1))[0]
    measured = [row for row in chart.data if row["what"] == "measured"]
    assert [row["size"] for row in measured] == [1, 2, 4, 8]
    assert all(0.97 * row["size"] < row["milliseconds"] < 1.03 * row["size"] for row in measured)
    assert all(row["low"] <= row["milliseconds"] <= row["high"] for row in measured)
    assert [(row["size"], row["why"]) for row in chart.data if row["what"] == "no time"] == [(16, "out of memory")]
    law = [row["milliseconds"] for row in chart.data if row["what"] == "law"]
    assert law == sorted(law)


def test_beside_lines_that_were_swept_pairs_of_points_are_not_drawn() -> None:
    swept = [record(1e-3 * batch, batch=batch) for batch in (1, 2, 4)]
    pair = [record(1e-4 * batch, batch=batch, image=64) for batch in (1, 4)]
    assert {row["setting"] for row in latency_charts([*swept, *pair])[0].data} == {"image 224, fp32, cuda:0"}
    assert {row["setting"] for row in latency_charts(pair)[0].data} == {"image 64, fp32, cuda:0"}
    lost = LatencyPoint(model="tv:resnet18", batch=16, image=64, precision="fp32", device="cuda:0")
    failed = LatencyFailed(point=lost, why="out of memory", tried=True, message="")
    drawn = latency_charts([*swept, *pair], failed=[failed])[0]
    assert {row["setting"] for row in drawn.data} == {"image 224, fp32, cuda:0", "image 64, fp32, cuda:0"}


def test_the_law_over_pixels_is_drawn_over_sides() -> None:
    records = [record(1e-7 * side**2, image=side) for side in (64, 96, 128, 160)]
    chart = latency_charts(records, laws=find_laws(records, margin=0.1))[0]
    sides = [row["size"] for row in chart.data if row["what"] == "law"]
    assert (round(min(sides)), round(max(sides))) == (64, 160)


def test_axes_are_logarithmic_or_linear() -> None:
    for scale in ("log", "linear"):
        drawn = spec(latency_charts(encoders(), scale=scale)[0])
        assert drawn["layer"][0]["encoding"]["x"]["scale"]["type"] == scale


def test_the_roofline_stands_above_its_points_and_pictures_are_saved(tmp_path: Path) -> None:
    charts = latency_charts(encoders(), ceilings=[CEILINGS])
    roof = next(chart for chart in charts if chart.name == "latency_roofline_text")
    highest = max(row["flops_per_second"] for row in roof.data if row["what"] == "ceiling")
    assert highest == 1e13
    assert all(row["flops_per_second"] <= highest for row in roof.data)
    waiting = next(chart for chart in charts if chart.name == "latency_waiting_text")
    assert all(0 <= row["waiting"] <= 1 for row in waiting.data)
    (path,) = save_charts([roof], tmp_path, ("svg",))
    assert path.read_text().startswith("<svg")


def test_the_roofline_rises_to_what_a_network_reached_beyond_a_ceiling_that_was_measured_beside_other_work() -> None:
    measured = encoders()
    fastest = max(each.flops / sorted(each.seconds)[len(each.seconds) // 2] for each in measured)
    low = msgspec.structs.replace(CEILINGS, flops_per_second=fastest / 3, kind_flops_per_second={})
    roof = next(chart for chart in latency_charts(measured, ceilings=[low]) if chart.name == "latency_roofline_text")
    points, line = (
        [row["flops_per_second"] for row in roof.data if row["what"] == what] for what in ("point", "ceiling")
    )
    assert max(points) > low.flops_per_second
    assert max(line) == max(points)


def test_no_two_of_the_nine_well_known_networks_share_a_colour_in_a_chart() -> None:
    records = [
        record(1e-3 * batch, model=model, batch=batch, kernel_seconds=5e-4, **_shape(model))
        for model in LATENCY_MODELS
        for batch in (1, 2, 4)
    ]
    charts = latency_charts(records, ceilings=[CEILINGS])
    assert {row["model"] for chart in charts for row in chart.data if "model" in row} == set(LATENCY_MODELS)
    assert all(len({row["model"] for row in chart.data if "model" in row}) <= len(COLOURS) for chart in charts)


def _shape(model: str) -> dict[str, int | None]:
    return {"image": 224, "tokens": None} if model.startswith("tv:") else {"image": None, "tokens": 128}
