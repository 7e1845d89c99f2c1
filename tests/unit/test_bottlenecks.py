"""What a search waits for, from profiles whose answer is known."""

import msgspec
import numpy as np
import pytest

from modelhound.analysis.bottlenecks import find_bottlenecks, repeat_ratio, repeat_sentence
from modelhound.analysis.job_lines import GROUPS, PHASES, seconds_at
from modelhound.analysis.wording import items_text
from modelhound.errors import RequestError
from modelhound.records import ConfigurationProfiled, Machine, PhaseSamples, ScoringTimed
from modelhound.report.analysis_text import profile_analysis
from modelhound.report.profile_charts import profile_charts
from modelhound.report.writing import file_name


def make_profile(
    *,
    form: str = "full",
    configuration: str = "full",
    read: float = 1.0,
    wait: float = 0.01,
    forward: float = 0.1,
    score: float = 0.2,
    other: float = 0.0,
    num_heads: int = 1,
    flops: float = 8e9,
    cold: bool = True,
    warm_read: float = 0.25,
    device: str = "cpu",
) -> ConfigurationProfiled:
    """Ten batches of four items; every batch takes the same time."""
    phases = {
        "read weights": (read,),
        "build model": (0.1,),
        "weights to device": (0.0,),
        "wait for data": (wait,) * 10 + (0.0,),
        "data to device": (0.0,) * 10,
        "forward": (forward,) * 10,
        "score": (score,),
    }
    return ConfigurationProfiled(
        model="timm:resnet18",
        stamp="",
        data="photos",
        device=device,
        precision="fp32",
        configuration=configuration,
        form=form,
        layers="full",
        num_layers=9,
        num_layers_run=9,
        num_heads=num_heads,
        batch=4,
        num_batches=10,
        num_batches_asked=10,
        num_warmup=2,
        num_items=40,
        weight_bytes=1000,
        input_bytes_per_item=0,
        flops_per_item=flops,
        phases=tuple(PhaseSamples(phase=name, seconds=times) for name, times in phases.items()),
        wall_seconds=sum(map(sum, phases.values())) + other,
        cold=cold,
        cold_read_seconds=(read, read, read),
        warm_read_seconds=(warm_read,) * 3,
        usual_build_seconds=(0.3,),
        scorings=(
            ScoringTimed(scorer="sgd_probe", num_classes=1000, num_items=20, seconds=(score / 2,) * 3),
            ScoringTimed(scorer="sgd_probe", num_classes=1000, num_items=40, seconds=(score,) * 3),
        ),
        peak_memory_bytes=1,
    )


def test_the_bottleneck_is_the_group_of_phases_that_takes_longest() -> None:
    (found,) = find_bottlenecks([make_profile(read=3.0)]).bottlenecks
    assert found.bottleneck == "weights"
    assert found.seconds["weights"] == pytest.approx(3.1)
    # 3.1 of 3.1 + 0.1 + 1.0 + 0.2 seconds
    assert found.speedups["weights"] == pytest.approx(4.4 / 1.3)
    assert "with weights for free 3.38x faster [3.38, 3.38]" in found.sentence


@pytest.mark.parametrize(
    ("slow", "expected"),
    [({"wait": 2.0}, "data"), ({"forward": 2.0}, "forward"), ({"score": 50.0}, "score"), ({"read": 50.0}, "weights")],
)
def test_whatever_is_made_slow_is_named(slow: dict[str, float], expected: str) -> None:
    (found,) = find_bottlenecks([make_profile(**slow)]).bottlenecks  # type: ignore[arg-type]
    assert found.bottleneck == expected


def test_a_forward_pass_for_free_leaves_the_loading_that_it_hides() -> None:
    """Loading takes 0.12 s a batch, of which the job waits 0.02 s, since it computes for 0.1 s meanwhile."""
    record = make_profile(read=0.0, wait=0.02, forward=0.1)
    (blind,) = find_bottlenecks([record]).bottlenecks
    assert blind.speedups["forward"] == pytest.approx(1.5 / 0.5)
    (found,) = find_bottlenecks([msgspec.structs.replace(record, load_seconds=(0.12,) * 10)]).bottlenecks
    assert found.bottleneck == "forward"
    assert found.speedups["forward"] == pytest.approx(1.0)
    assert found.interval == pytest.approx((1.0, 1.0))
    assert "since 1 s of loading that it hides would be waited for" in found.sentence
    assert found.speedups["data"] == blind.speedups["data"] == pytest.approx(1.5 / 1.3)
    (quick,) = find_bottlenecks([msgspec.structs.replace(record, load_seconds=(0.021,) * 10)]).bottlenecks
    assert quick.speedups["forward"] == pytest.approx(1.5 / 0.51)
    assert "would be waited for" not in quick.sentence


def test_weights_in_the_page_cache_are_told_apart_from_weights_for_free() -> None:
    (cold,) = find_bottlenecks([make_profile(read=3.0, warm_read=0.5)]).bottlenecks
    assert cold.warm_speedup == pytest.approx(4.4 / 1.9)
    (warm,) = find_bottlenecks([make_profile(cold=False)]).bottlenecks
    assert warm.warm_speedup is None
    assert "page cache" not in warm.sentence


def test_the_bottleneck_moves_where_two_lines_cross() -> None:
    # weights 1.1 s once; forward 25 ms an item: equal at 44 items
    (move,) = find_bottlenecks([make_profile(score=0.001)]).moves
    assert (move.before, move.after) == ("weights", "forward")
    assert move.num_items == pytest.approx(44)
    assert move.interval == pytest.approx((44, 44))
    assert not move.is_measured
    assert "extrapolated from 40 items" in move.sentence


def test_a_bottleneck_may_move_twice() -> None:
    slow_loading = make_profile(read=10.0, wait=0.2, forward=0.1, score=0.0)
    moves = find_bottlenecks([slow_loading]).moves
    assert [(move.before, move.after) for move in moves] == [("weights", "data")]
    growing_score = make_profile(read=4.0, forward=0.1, score=4.0)  # scoring: 0.1 s an item, from nothing
    moves = find_bottlenecks([growing_score]).moves
    assert [(move.before, move.after) for move in moves] == [("weights", "score")]
    assert moves[0].num_items == pytest.approx(41)


def test_seconds_at_the_measured_number_of_items_are_those_measured() -> None:
    record = make_profile()
    spent = seconds_at(record, record.num_items)
    for group, phases in GROUPS.items():
        assert spent[group] == pytest.approx(sum(map(record.seconds_of, phases)))
    assert seconds_at(record, 400)["forward"] == pytest.approx(10 * spent["forward"])
    assert seconds_at(record, 400)["weights"] == spent["weights"]


def test_a_part_is_compared_with_the_full_model() -> None:
    part = make_profile(form="part", configuration="last 50%", forward=0.04, flops=2e9)
    (saving,) = find_bottlenecks([make_profile(), part]).savings
    assert saving.configuration == "last 50%"
    assert saving.predicted == pytest.approx(4)
    assert saving.forward == pytest.approx(2.5)
    assert saving.end_to_end == pytest.approx(2.4 / 1.8)
    assert "4.00x fewer multiplications, the forward pass 2.50x faster [2.50, 2.50]" in saving.sentence


def test_a_joint_model_is_compared_with_all_models_apart_and_only_with_all() -> None:
    joint = make_profile(form="joint", configuration="joint 3", forward=0.12, flops=10e9, num_heads=2)
    apart = make_profile(form="apart", configuration="apart 2")
    (saving,) = find_bottlenecks([make_profile(), joint, apart]).savings
    assert saving.predicted == pytest.approx(1.6)
    assert saving.forward == pytest.approx(0.2 / 0.12)
    assert find_bottlenecks([make_profile(), joint]).savings == ()


def test_devices_are_not_compared_with_each_other() -> None:
    part = make_profile(form="part", configuration="last 1", device="cuda:0")
    assert find_bottlenecks([make_profile(), part]).savings == ()


def test_the_same_work_done_twice_tells_how_quiet_the_machine_was() -> None:
    twin = make_profile(form="apart", configuration="apart 2", forward=0.2)
    assert repeat_ratio([make_profile(), twin]) == pytest.approx(2)
    assert repeat_ratio([make_profile(forward=0.4), twin]) == pytest.approx(2)
    assert repeat_ratio([make_profile()]) is None
    assert repeat_ratio([make_profile(device="cuda:0"), twin]) is None
    sentence, is_busy = repeat_sentence([make_profile(), twin])
    assert is_busy
    assert sentence.endswith("by a factor of up to 2.00: the machine was busy, so do not compare jobs of this run.")
    assert repeat_sentence([make_profile()]) == ("", False)


def test_what_no_phase_accounts_for_is_told() -> None:
    findings = find_bottlenecks([make_profile(), make_profile(other=0.6)])
    assert findings.unaccounted == pytest.approx(0.6 / 3.0)
    assert findings.bottlenecks[1].seconds["other"] == pytest.approx(0.6)


def test_samples_that_vary_give_an_interval_around_the_estimate() -> None:
    record = make_profile()
    uneven = tuple(0.05 if place % 2 else 0.15 for place in range(10))
    phases = tuple(
        PhaseSamples(phase="forward", seconds=uneven) if each.phase == "forward" else each for each in record.phases
    )
    (found,) = find_bottlenecks(
        [msgspec.structs.replace(record, phases=phases, cold_read_seconds=(0.9, 1.1))]
    ).bottlenecks
    low, high = found.interval
    assert low < found.speedups[found.bottleneck] < high


@pytest.mark.parametrize("num_reads", [2, 3])
def test_an_interval_where_reading_bounds_holds_the_truth_about_as_often_as_it_says(num_reads: int) -> None:
    """Of 80 times, 76 are 95 %. A job reads once: as uncertain as the mean of all readings, it would hold it 50 times."""
    random = np.random.default_rng(0)
    record, held = make_profile(read=3.0), 0
    for seed in range(80):
        reads = tuple((3.0 * np.exp(0.1 * random.standard_normal(num_reads))).tolist())
        phases = (PhaseSamples(phase="read weights", seconds=reads[:1]), *record.phases[1:])
        wall_seconds = sum(each.total for each in phases)
        again = msgspec.structs.replace(record, phases=phases, wall_seconds=wall_seconds, cold_read_seconds=reads)
        low, high = find_bottlenecks([again], seed=seed).bottlenecks[0].interval
        held += low <= 4.4 / 1.3 <= high
    assert held >= 68


def test_scoring_that_does_not_grow_is_taken_for_constant() -> None:
    record = make_profile()
    scorings = tuple(
        ScoringTimed(scorer="sgd_probe", num_classes=1000, num_items=count, seconds=(seconds,))
        for count, seconds in ((20, 0.3), (40, 0.1))
    )
    at = [seconds_at(msgspec.structs.replace(record, scorings=scorings), count)["score"] for count in (10, 10_000)]
    assert at == pytest.approx([0.2, 0.2])


def test_nothing_profiled_gives_nothing_and_no_error() -> None:
    findings = find_bottlenecks([])
    assert findings.bottlenecks == findings.moves == findings.savings == ()
    assert findings.unaccounted == 0


def test_every_phase_belongs_to_one_group() -> None:
    assert len(PHASES) == len(set(PHASES)) == 7


def test_the_analysis_shows_a_cpu_and_a_gpu_side_by_side() -> None:
    records = [make_profile(), make_profile(device="cuda:0", forward=0.001, read=0.5)]
    text = profile_analysis(records, find_bottlenecks(records), ())
    row = next(line for line in text.splitlines() if line.startswith("| timm:resnet18 |"))
    # 40 items in 2.4 s, of which weights take 1.1; and in 0.91 s, of which they take 0.6
    assert row == "| timm:resnet18 | 16.7/s, weights 46% | 44/s, weights 66% |"
    assert "photos on cuda:0: what takes most of the time is **weights** of timm:resnet18." in text
    alone = profile_analysis(records[:1], find_bottlenecks(records[:1]), ())
    assert "Items per second end to end" not in alone


def test_the_analysis_names_the_hardware_and_not_the_machine() -> None:
    machine = Machine(
        hostname="somebodys-own",
        system="Linux",
        cpu="Some CPU",
        num_cores=2,
        memory_bytes=8 * 2**30,
        gpus=("Some GPU",),
        driver=None,
        python="3.12.1",
        versions={"torch": "2.13.0", "timm": "none"},
        commit=None,
    )
    text = profile_analysis([make_profile()], find_bottlenecks([make_profile()]), (), machine=machine)
    assert "The machine: Some CPU, 2 cores, 8 GiB of memory, Some GPU; torch 2.13.0, Python 3.12.1." in text
    assert "somebodys-own" not in text


def test_every_data_set_and_device_has_pictures_of_its_own_in_the_analysis() -> None:
    """Names that end alike, folders of one name, and a name that says what a chart is of."""
    places = ("photos", "old-photos", "a/train", "b/train", "savings")
    records = [
        msgspec.structs.replace(make_profile(form=form, configuration=configuration), data=data)
        for data in places
        for form, configuration in (("full", "full"), ("part", "last 50%"))
    ]
    findings = find_bottlenecks(records)
    charts = profile_charts(records, findings, item_counts=(10, 100))
    assert len({chart.name for chart in charts}) == len(charts) == 5 * len(places)
    text = profile_analysis(records, findings, charts)
    for data in places:
        section = text.partition(f"## {data} on cpu\n")[2].partition("\n## ")[0]
        titles = [line.partition("](")[0] for line in section.splitlines() if line.startswith("![")]
        assert len(titles) == 5, data
        assert all(f"{data} on cpu" in title for title in titles)
    pictures = [line.partition("](")[2] for line in text.splitlines() if line.startswith("![")]
    assert len(set(pictures)) == len(charts)


def test_the_name_of_a_picture_fits_onto_a_disk_and_says_which_it_is() -> None:
    assert file_name("zoo:resnet_a/b") == "zoo-resnet-a-b"
    names = {file_name("file:/somewhere/" + 300 * "x" + end) for end in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 120


def test_one_model_on_one_core_is_counted_as_one() -> None:
    machine = Machine(
        hostname="",
        system="Linux",
        cpu="Some CPU",
        num_cores=1,
        memory_bytes=2**30,
        gpus=(),
        driver=None,
        python="3.12.1",
        versions={},
        commit=None,
    )
    text = profile_analysis([make_profile()], find_bottlenecks([make_profile()]), (), machine=machine)
    assert "1 model (timm:resnet18) was run from the file of weights to the score: 1 job in all." in text
    assert "Some CPU, 1 core, 1 GiB" in text


def test_items_are_rounded_once_and_are_whole() -> None:
    assert [items_text(value) for value in (3534.6, 3535.4, 31.4, 999.7, 117_499.0)] == [
        *("3,530", "3,540", "31", "1,000", "117,000")
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"wall_seconds": 0.0}, "expected one or more positive numbers"), ({"batch": 0}, "expected one item and batch")],
)
def test_a_profile_that_cannot_be_is_refused_in_a_sentence(changed: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        find_bottlenecks([msgspec.structs.replace(make_profile(), **changed)])
