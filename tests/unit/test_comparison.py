"""Runs are compared point by point; noise fails no build and a real slow-down does."""

import math

import msgspec
import numpy as np
import pytest

from modelhound.analysis.comparison import ComparedPoint, Comparison, Run, RunPoint, compare_runs
from modelhound.errors import RequestError


def point(name: str, seconds: float, *, noise: float = 0.02, num_samples: int = 30, seed: int = 0) -> RunPoint:
    generator = np.random.default_rng([seed, *name.encode()])
    return RunPoint(
        name=name, seconds=tuple(float(v) for v in seconds * np.exp(generator.normal(0, noise, num_samples)))
    )


def run(name: str, *points: RunPoint) -> Run:
    return Run(name=name, points=points)


def only(comparison: Comparison) -> ComparedPoint:
    return comparison.runs[0].points[0]


@pytest.mark.parametrize(
    ("factor", "change"), [(1.3, "slower"), (1.0, "same"), (0.7, "faster"), (1.05, "cannot be told")]
)
def test_a_point_is_judged_by_its_whole_interval(factor: float, change: str) -> None:
    compared = only(compare_runs(run("old", point("a", 1.0)), run("new", point("a", factor, seed=1))))
    assert compared.change == change
    assert compared.ratio == pytest.approx(factor, rel=0.02)
    assert compared.interval is not None
    assert compared.interval[0] < factor < compared.interval[1]


def test_noise_hides_a_slow_down_and_is_called_noise() -> None:
    old, new = run("old", point("a", 1.0, noise=0.5)), run("new", point("a", 1.2, noise=0.5, seed=1))
    comparison = compare_runs(old, new)
    assert only(comparison).change == "cannot be told"
    assert not comparison.slower


def test_a_hundred_points_of_the_same_speed_raise_no_alarm() -> None:
    names = [f"p{number}" for number in range(100)]
    alarms = 0
    for seed in range(10):
        old = run("old", *(point(name, 1.0, noise=0.05, num_samples=10, seed=2 * seed) for name in names))
        new = run("new", *(point(name, 1.0, noise=0.05, num_samples=10, seed=2 * seed + 1) for name in names))
        alarms += compare_runs(old, new, limit=0).slower
    assert alarms <= 1


def test_one_slow_point_among_many_fails_the_build_and_is_named() -> None:
    names = [f"p{number}" for number in range(20)]
    old = run("old", *(point(name, 1.0, noise=0.005) for name in names))
    new = run("new", *(point(name, 1.4 if name == "p7" else 1.0, noise=0.005, seed=1) for name in names))
    comparison = compare_runs(old, new)
    assert comparison.slower
    assert comparison.runs[0].sentence.endswith("1 slower by more than 5%, 19 the same within 5% (see p7)")


def test_a_small_slow_down_of_all_points_is_seen_in_the_whole() -> None:
    names = [f"p{number}" for number in range(30)]
    old = run("old", *(point(name, 1.0, noise=0.1) for name in names))
    new = run("new", *(point(name, 1.1, noise=0.1, seed=1) for name in names))
    compared = compare_runs(old, new).runs[0]
    assert all(point.change == "cannot be told" for point in compared.points)
    assert compared.ratio == pytest.approx(1.1, rel=0.02)
    assert compared.slower


def test_the_limit_decides_what_counts_as_the_same() -> None:
    old, new = run("old", point("a", 1.0)), run("new", point("a", 1.3, seed=1))
    assert compare_runs(old, new, limit=0.2).slower
    assert not compare_runs(old, new, limit=0.5).slower


def test_points_that_fail_or_are_missing_are_rows() -> None:
    def broken(name: str) -> RunPoint:
        return RunPoint(name=name, failure="out of memory")

    old = run("old", point("a", 1.0), broken("b"), broken("c"), point("d", 1.0), point("gone", 1.0))
    new = run("new", broken("a"), point("b", 1.0), broken("c"), point("d", 1.0, seed=1), point("extra", 1.0))
    compared = compare_runs(old, new).runs[0]
    assert {row.name: row.change for row in compared.points} == {
        "a": "fails now",
        "b": "works now",
        "c": "fails in both",
        "d": "same",
        "extra": "only here",
    }
    assert compared.not_here == ("gone",)
    assert compared.slower  # what worked and fails now is worse than slow
    assert "over 1 point: 1 the same within 5%, 1 failing now" in compared.sentence
    assert "1 not in old, 1 only in old (see a)" in compared.sentence


def test_several_runs_are_each_compared_with_the_first() -> None:
    first, same, slow = (run(name, point("a", seconds)) for name, seconds in [("x", 1.0), ("y", 1.0), ("z", 2.0)])
    comparison = compare_runs(first, same, slow)
    assert [(one.name, one.slower) for one in comparison.runs] == [("y", False), ("z", True)]
    assert comparison.slower
    assert comparison.runs[1].sentence.startswith("z takes 2.00 [1.9")


def test_a_given_interval_is_used_where_there_are_no_samples() -> None:
    old = run("old", RunPoint(name="a", seconds=(1.0,), interval=(0.99, 1.01)))
    new = run("new", RunPoint(name="a", seconds=(1.2,), interval=(1.19, 1.21)))
    compared = only(compare_runs(old, new, run_scatter=0))
    assert compared.change == "slower"
    low, high = math.log(0.99 / 1.01), math.log(1.19 / 1.21)
    assert compared.interval is not None
    assert math.log(compared.interval[1] / compared.interval[0]) == pytest.approx(math.hypot(low, high), rel=1e-3)


def test_single_numbers_cannot_be_told_apart() -> None:
    old, new = run("old", RunPoint(name="a", seconds=(1.0,))), run("new", RunPoint(name="a", seconds=(2.0,)))
    comparison = compare_runs(old, new)
    assert (only(comparison).change, only(comparison).ratio) == ("cannot be told", 2.0)
    assert not comparison.slower


def test_identical_samples_still_leave_what_two_processes_differ_by() -> None:
    old, new = (run(name, RunPoint(name="a", seconds=(1.0,) * 20)) for name in ("old", "new"))
    interval = only(compare_runs(old, new)).interval
    assert interval is not None
    assert interval[1] - 1 == pytest.approx(0.02, abs=0.002)


def test_runs_without_a_common_point_say_so() -> None:
    compared = compare_runs(run("old", point("a", 1.0)), run("new", point("b", 1.0))).runs[0]
    assert compared.ratio is None
    assert compared.sentence == "new and old have no point that was timed in both: 1 not in old, 1 only in old"


def test_a_comparison_comes_back_from_json() -> None:
    comparison = compare_runs(run("old", point("a", 1.0)), run("new", point("a", 1.0, seed=1)))
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison


def test_requests_that_make_no_sense_are_refused() -> None:
    old = run("old", point("a", 1.0))
    with pytest.raises(RequestError, match="expected two or more runs"):
        compare_runs(old)
    with pytest.raises(RequestError, match=r"0\.05 is 5%"):
        compare_runs(old, old, limit=-0.05)
    with pytest.raises(RequestError, match="between 0 and 1"):
        compare_runs(old, old, confidence=1.0)
    with pytest.raises(RequestError, match="a stands in it twice"):
        compare_runs(old, run("new", point("a", 1.0), point("a", 1.0)))
    with pytest.raises(RequestError, match="a of run new"):
        compare_runs(old, run("new", RunPoint(name="a")))
