"""Break-even counts and extrapolations with known answers."""

import math
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from modelhound.analysis.breakeven import (
    PUBLISHED,
    PUBLISHED_CHAIN,
    S1,
    S2,
    Factor,
    Figures,
    Scenario,
    count_models,
    extrapolate,
    make_scenario,
    published_counts,
)
from modelhound.analysis.breakeven_findings import Asked, Timed, _pace_text, find_breakeven
from modelhound.analysis.breakeven_wording import cost_text
from modelhound.errors import RequestError
from modelhound.records import BreakevenFindings, FeaturesTimed, SearchTimed, TrainingTimed
from modelhound.report.analysis_text import write_analysis
from modelhound.report.breakeven_charts import breakeven_charts
from modelhound.report.breakeven_text import breakeven_analysis
from modelhound.report.charts import spec
from modelhound.settings import BreakevenSettings
from modelhound.verbs.breakeven import _headline, _precision_notes


def test_the_published_figures_alone_give_22_and_125_models() -> None:
    one_training, careful = published_counts()
    assert (one_training.num_models, careful.num_models) == (22, 125)
    assert one_training.interval == (19, 26)
    assert "above 22 [19, 26] models" in one_training.sentence
    assert careful.training_seconds == pytest.approx(500, rel=0.01)


def test_the_careful_scenario_is_two_and_a_half_runs_and_its_range_of_epochs_is_told() -> None:
    assert S2.runs == 2.5
    assert count_models(PUBLISHED, S2).over_epochs == (113, 170)
    assert count_models(PUBLISHED, S1).over_epochs is None


def test_a_range_of_epochs_is_counted_in_its_middle_and_told_from_end_to_end() -> None:
    own = make_scenario({"epochs": (10.0, 30.0), "sets": (4.0, 4.0), "share": (0.5, 0.5)})
    assert own == Scenario(name="yours", epochs=20.0, sets=4.0, share=0.5, epochs_between=(10.0, 30.0))
    figures = Figures(model="m", num_items=10, epoch_seconds=(1.0,), search_seconds=(1.0,))
    assert count_models(figures, own).over_epochs == (20, 60)
    assert make_scenario({"epochs": (7.0, 7.0)}) == Scenario(name="yours", epochs=7.0)
    assert make_scenario({}) is None


def test_a_scenario_is_one_training_or_says_how_many_runs_it_is() -> None:
    assert S1.describe() == "S1: one training of 10 epochs"
    several = "5 hyper-parameter sets, of which pruning leaves 50%: 2.5 full runs"
    assert S2.describe() == f"S2: 22 epochs (as published, out of 20 to 30) over {several}"
    assert "one training" not in Scenario(name="x", epochs=3, sets=2).describe()
    assert "one training" not in Scenario(name="x", epochs=3, share=0.5).describe()


def test_a_search_that_takes_exactly_as_long_still_counts() -> None:
    figures = Figures(model="m", num_items=10, epoch_seconds=(0.1,), search_seconds=(0.1,))
    assert count_models(figures, Scenario(name="x", epochs=3)).num_models == 3  # 0.1 * 3 is a hair above 0.3


def test_what_every_search_and_every_training_pays_once_is_counted_once() -> None:
    figures = Figures(
        model="m", num_items=10, epoch_seconds=(2.0,), once_seconds=4.0, search_seconds=(1.0,), start_seconds=3.0
    )
    assert count_models(figures, Scenario(name="x", epochs=10)).num_models == 21  # (4 + 20 - 3) / 1
    assert count_models(figures, Scenario(name="x", epochs=10, sets=4, share=0.5)).num_models == 45
    slow = Figures(model="m", num_items=10, epoch_seconds=(1.0,), search_seconds=(100.0,))
    assert count_models(slow, Scenario(name="x", epochs=1)).num_models == 0


def test_a_faster_way_of_searching_moves_the_count_in_proportion() -> None:
    assert count_models(PUBLISHED, S1, way="engine", speedup=(3.0, 3.0)).num_models == 68
    # Two figures that are each known to 5 %: their quotient's logarithm deviates by 0.0707, and 1.96 times that is 0.1386.
    many = count_models(PUBLISHED, S1, way="engine", speedup=(3000.0, 3000.0))
    assert many.interval == pytest.approx((68_250 * math.exp(-0.1386), 68_250 * math.exp(0.1386)), rel=0.01)


def test_more_samples_that_agree_make_a_narrower_interval() -> None:
    def interval(count: int) -> tuple[int, int]:
        samples = Figures(model="m", num_items=10, epoch_seconds=(9.1,) * count, search_seconds=(0.04,) * count)
        return count_models(samples, S1).interval

    widths = [high - low for low, high in map(interval, (1, 2, 3, 5, 20))]
    assert widths == sorted(widths, reverse=True)
    low, high = interval(20)
    assert 2250 < low < 2275 < high < 2300


@pytest.mark.parametrize(("num_samples", "least"), [(2, 175), (3, 175), (10, 180)])
def test_an_interval_from_few_samples_holds_the_truth_about_as_often_as_it_says(num_samples: int, least: int) -> None:
    """Of 200 times, 190 are 95 %. Drawing the samples themselves again would hold it 142, 171 and 188 times."""
    random = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        epochs, searches = 9.0 * np.exp(0.05 * random.standard_normal((2, num_samples)))
        measured = Figures(model="m", num_items=10, epoch_seconds=tuple(epochs), search_seconds=tuple(searches / 100))
        low, high = count_models(measured, S1, seed=seed).interval
        held += low <= 1000 <= high
    assert held >= least


def test_the_research_s_extrapolation_is_reproduced_step_by_step() -> None:
    steps = {step.name: step.seconds for step in extrapolate(91.0, PUBLISHED_CHAIN)}
    assert steps["device"] == pytest.approx((200, 200), rel=0.01)
    assert steps["items"] == pytest.approx((2000, 3000), rel=0.01)
    assert [seconds / 3600 for seconds in steps["models"]] == pytest.approx([56, 83], rel=0.01)
    assert [seconds / 3600 for seconds in steps["model"]] == pytest.approx([83, 125], rel=0.01)


def test_an_assumption_that_is_left_out_changes_nothing_else() -> None:
    without = [factor for factor in PUBLISHED_CHAIN if factor.name != "items"]
    assert extrapolate(91.0, without)[-1].seconds == pytest.approx((91 * 2 * 1.1 * 100 * 1.5,) * 2)
    assert extrapolate(5.0, ()) == ()
    assert extrapolate(5.0, [Factor(name="a", assumption="b", low=1, high=2)])[0].seconds == (5.0, 10.0)


def make_timed() -> Timed:
    """An epoch takes 1 ms an item, extracting a twentieth of ten epochs; the engine is three times as fast."""
    sizes = (100, 1000)
    return Timed(
        trainings=[
            TrainingTimed(
                model="zoo:a",
                stamp="",
                mode=mode,
                num_items=size,
                num_epochs=3,
                epoch_seconds=(share * size / 1000,) * 3,
                once_seconds=0.0,
                wall_seconds=1.0,
                score=0.5,
                phases=(),
            )
            for size in sizes
            for mode, share in (("full", 1.0), ("head", 0.4))
        ],
        features=[
            FeaturesTimed(
                model="zoo:a",
                stamp="",
                num_items=size,
                extract_seconds=(size / 2000,) * 2,
                score_seconds=(0.0,) * 2,
                weight_seconds=(0.0,) * 2,
                wall_seconds=(size / 2000,) * 2,
            )
            for size in sizes
        ],
        searches=[
            SearchTimed(way=way, num_models=count, models=("zoo:a",) * count, num_items=100, seconds=seconds * count)
            for way, seconds in (("plain", 0.3), ("engine", 0.1))
            for count in (1, 2, 4)
        ],
    )


def find(**options: object) -> BreakevenFindings:
    return find_breakeven(make_timed(), Asked(epochs=10, **{"assume": {}, **options}))  # type: ignore[arg-type]


def test_ratios_are_those_of_the_times() -> None:
    row = find().rows[1]
    assert (row.model, row.num_items, row.num_epochs) == ("zoo:a", 1000, 10)
    assert row.seconds == pytest.approx({"extract": 0.5, "full": 10.0, "head": 4.0})
    assert row.ratios == pytest.approx({"full": 20.0, "head": 8.0})


def test_what_a_first_epoch_takes_beyond_the_others_counts_once() -> None:
    timed = make_timed()
    slow = [msgspec.structs.replace(each, epoch_seconds=(26.0, *each.epoch_seconds[1:])) for each in timed.trainings]
    found = find_breakeven(replace(timed, trainings=slow), Asked(epochs=10, assume={}))
    assert found.rows[1].seconds["full"] == pytest.approx(26 + 9 * 1.0)
    assert any("counts once" in line for line in found.assumptions)
    assert not any("counts once" in line for line in find().assumptions)


def test_counts_are_given_for_both_ways_of_searching_and_for_one_s_own_scenario() -> None:
    own = Scenario(name="yours", epochs=30, sets=4, share=0.5)
    counts = {(each.scenario, each.way): each.num_models for each in find(own=own).counts if each.num_items == 1000}
    assert counts == {
        ("S1", "plain"): 20,
        ("S1", "engine"): 60,
        ("S2", "plain"): 110,
        ("S2", "engine"): 330,
        ("yours", "plain"): 120,
        ("yours", "engine"): 360,
    }


def test_the_time_of_a_search_is_a_line_in_the_number_of_models() -> None:
    plain, engine = find().ways
    assert (plain.way, engine.way) == ("plain", "engine")
    assert (plain.start_seconds, plain.seconds_per_model) == pytest.approx((0.0, 0.3), abs=1e-9)
    assert engine.seconds_per_model == pytest.approx(0.1)


@pytest.mark.parametrize("counts", [(1, 2), (1, 10, 100)])
def test_the_interval_of_a_line_holds_the_truth_about_as_often_as_it_says(counts: tuple[int, ...]) -> None:
    """Of 40 times, 38 are 95 %. Leaving points out and doubling others would hold it 0 and 23 times."""
    random, held = np.random.default_rng(0), 0
    for seed in range(40):
        searches = [
            SearchTimed(
                way="plain",
                num_models=count,
                models=(),
                num_items=1,
                seconds=(0.2 + 0.3 * count) * float(np.exp(noise)),
            )
            for count, noise in zip(counts, 0.05 * random.standard_normal(len(counts)), strict=True)
        ]
        (plain,) = find_breakeven(replace(make_timed(), searches=searches), Asked(epochs=1, assume={}, seed=seed)).ways
        held += plain.interval[0] <= 0.3 <= plain.interval[1]
    assert held >= 34


def test_extrapolations_follow_the_measured_line_and_every_assumption_is_in_words() -> None:
    found = find(assume={"items": (4000.0, 8000.0), "epochs": (20.0, 20.0), "models": (100.0, 100.0)})
    assert [step.name for step in found.training] == ["items", "epochs", "models"]
    assert [step.name for step in found.searching] == ["items", "models"]
    assert found.training[0].seconds == pytest.approx((40, 80))
    assert found.training[-1].seconds == pytest.approx((8000, 16000))
    assert found.searching[-1].seconds == pytest.approx((200, 400))
    assert "an epoch takes" in found.training[0].assumption
    assert "1 ms an item" in found.training[0].assumption
    assert "takes as long as a search over 40 models" in found.extrapolated  # twice the epochs; items weigh on both
    assert (find().training, find().extrapolated) == ((), "")


@pytest.mark.parametrize(
    ("epoch_seconds", "said"),
    [
        (0.051, "a search over 1 model, one"),
        (0.101, "a search over 2 models, one"),
        (617.3, "a search over 12,346 models, one"),
    ],
)
def test_what_an_extrapolation_comes_to_is_counted_as_one_speaks(epoch_seconds: float, said: str) -> None:
    timed = make_timed()
    trainings = [msgspec.structs.replace(each, epoch_seconds=(epoch_seconds,) * 3) for each in timed.trainings]
    found = find_breakeven(replace(timed, trainings=trainings), Asked(epochs=10, assume={"device": (1.0, 1.0)}))
    assert said in found.extrapolated


def test_a_training_that_a_search_over_one_model_outlasts_can_be_drawn() -> None:
    """On the logarithmic axis of models there is no place for none: one row without a place takes it from all others."""
    timed = make_timed()
    trainings = [
        msgspec.structs.replace(each, epoch_seconds=tuple(seconds / 40 for seconds in each.epoch_seconds))
        for each in timed.trainings
    ]
    found = find_breakeven(replace(timed, trainings=trainings), Asked(epochs=10, assume={}))
    first = next(each for each in found.counts if (each.scenario, each.way) == ("S1", "plain"))
    assert (first.num_models, first.interval[0]) == (0, 0)
    charts = [chart for chart in breakeven_charts(found) if chart.name.startswith("breakeven_models")]
    crossings = [row for chart in charts for row in chart.data if row["kind"] == "break-even"]
    assert crossings
    assert all(0 < row["low"] <= row["high"] for row in crossings)  # type: ignore[operator]


def test_one_model_is_counted_as_one_in_the_list_of_runs() -> None:
    found = find()
    one = tuple(msgspec.structs.replace(each, num_models=1) for each in found.counts)
    assert _headline(found) == "S1: above 20 models the search takes longer (zoo:a, 1,000 items)"
    assert _headline(msgspec.structs.replace(found, counts=one)).startswith("S1: above 1 model the search")


def test_one_epoch_is_counted_as_one() -> None:
    found = find_breakeven(make_timed(), Asked(epochs=1, own=Scenario(name="yours", epochs=1), assume={}))
    charts = breakeven_charts(found)
    text = breakeven_analysis(found, charts, data="fashion", device="cpu")
    assert "yours: one training of 1 epoch." in found.assumptions
    assert charts[0].title.startswith("What 1 epoch of training takes,")
    assert " for 1 epoch on " in text
    assert "1 epoch each" in text


def test_what_the_numbers_rest_on_is_said() -> None:
    text = " ".join(find().assumptions)
    assert "Only 3 of 10 epochs were run" in text
    assert "searched 3.0 times as fast" in text
    assert "2.5 full runs" in text


def test_a_search_that_is_slower_together_is_not_called_fast() -> None:
    assert _pace_text((3.0, 3.04)) == "3.0 times as fast as"
    assert _pace_text((0.5, 0.7)) == "1.4 to 2.0 times as slow as"
    assert _pace_text((0.8, 1.3)) == "0.8 to 1.3 times as fast as"


def test_money_and_energy_are_the_same_curves_in_other_units() -> None:
    found = find(price_per_hour=3.6, watts=360.0)
    assert cost_text(found, 100.0) == "0.1 in money, 10 Wh"
    charts = {chart.name: chart for chart in breakeven_charts(found)}
    assert set(charts) == {
        "breakeven_times",
        "breakeven_models_seconds_zoo-a",
        "breakeven_models_money_zoo-a",
        "breakeven_models_energy_zoo-a",
        "breakeven_search",
    }
    rows = [
        [row["value"] for row in charts[f"breakeven_models_{unit}_zoo-a"].data if row["kind"] == "break-even"]
        for unit in ("seconds", "money", "energy")
    ]
    assert rows[1] == pytest.approx([value / 1000 for value in rows[0]])  # type: ignore[operator]
    assert rows[2] == pytest.approx([value / 10 for value in rows[0]])  # type: ignore[operator]
    assert all(spec(chart)["config"] for chart in charts.values())


def test_the_chart_of_searches_shows_what_was_measured_and_the_lines_through_it() -> None:
    (chart,) = (each for each in breakeven_charts(find()) if each.name == "breakeven_search")
    dots = [(row["what"], row["models"], row["seconds"]) for row in chart.data if row["kind"] == "measured"]
    assert ("search, one after the other", 4, pytest.approx(1.2)) in dots
    assert ("search, all together", 2, pytest.approx(0.2)) in dots
    assert len(dots) == 6
    ends = [row["seconds"] for row in chart.data if row["kind"] == "line"]
    assert ends == pytest.approx([0.0, 1.2, 0.0, 0.4], abs=1e-9)


def test_prices_are_said_with_what_the_numbers_rest_on() -> None:
    text = " ".join(find(price_per_hour=2.5, watts=300).assumptions)
    assert "An hour costs 2.5" in text
    assert "draws 300 W" in text


def test_the_analysis_is_markdown_whose_pictures_are_beside_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = find(assume={"models": (100.0, 100.0)})
    charts = breakeven_charts(found)
    text = breakeven_analysis(found, charts, data="fashion", device="cpu")
    page = write_analysis(text, charts, tmp_path / "analysis")
    assert "above 22 [19, 26] models" in text  # the published figures, for comparison
    assert "20.0x [19.2, 20.9]" in text
    pictures = re.findall(r"\]\(([^)]+\.png)\)", page.read_text())
    assert len(pictures) == 3
    assert all((page.parent / picture).stat().st_size > 1000 for picture in pictures)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": "100,many"}, "--sizes 'many': expected whole numbers"),
        ({"sizes": ()}, "empty --sizes"),
        ({"epochs": 0}, "--epochs 0"),
        ({"modes": "head"}, "cannot leave full out"),
        ({"scenario": "sets=3"}, "expected epochs=N"),
        ({"scenario": "epochs=3,share=2"}, "share of 2"),
        ({"scenario": "epochs=3%"}, "--scenario 'epochs=3%': expected NAME=NUMBER"),
        ({"scenario": "epochs=3,sets=2-4"}, "a range of sets in --scenario: expected one number"),
        ({"epochs": 3, "measured_epochs": 5}, "--measured-epochs 5 of 3 epochs"),
        ({"assume": "planets=3"}, "a name of items, epochs, models, device, model"),
        ({"assume": "items=20-10"}, "NAME=LOW-HIGH"),
        ({"watts": -1}, "--watts -1: expected a number above 0"),
        ({"price_per_hour": 0}, "--price-per-hour 0"),
    ],
)
def test_bad_requests_say_what_is_allowed(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        BreakevenSettings("digits", **options)  # type: ignore[arg-type]


def test_a_share_of_a_scenario_is_written_as_shares_are_everywhere() -> None:
    scenarios = [BreakevenSettings("digits", scenario=f"epochs=3,share={share}") for share in ("50%", "0.5")]  # type: ignore[arg-type]
    assert scenarios[0].own_scenario() == scenarios[1].own_scenario() == {"epochs": (3, 3), "share": (0.5, 0.5)}


def test_a_search_one_after_the_other_is_told_to_be_in_fp32_only_where_the_rest_is_not() -> None:
    (note,) = _precision_notes(BreakevenSettings(data="digits", precision="bf16"), "cpu")
    assert "one model after the other in fp32" in note
    assert _precision_notes(BreakevenSettings(data="digits"), "cpu") == ()
