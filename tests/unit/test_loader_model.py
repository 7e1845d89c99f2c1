"""A run composed of loading and computing, on laws whose sums can be done by hand."""

import math
from typing import Any

import numpy as np
import pytest

from modelhound.analysis.loader_model import LoadLaw, StepLaw, compose, fit_load, fit_steps, suit_computing
from modelhound.records import LoadMeasured, StepMeasured

MANY_CORES = 1000


def load_law(item: float = 0.01, start: float = 0.0, per_worker: float = 0.0, stop: float = 0.0) -> LoadLaw:
    flat = ((0.0, math.log(item)),)
    return LoadLaw(
        start_seconds=start,
        start_per_worker=per_worker,
        by_batch=flat,
        by_workers=((0.0, 0.0), (math.log(64), 0.0)),
        inline=flat,
        stop=((1.0, stop),),
    )


def step_law(item: float, floor: float = 0.0, cores: float = 1.0) -> StepLaw:
    return StepLaw(batches=(1, 1000), seconds=(floor + item, floor + 1000 * item), copy_share=0.1, num_busy_cores=cores)


def run(load: LoadLaw, step: StepLaw, batch: int, workers: int, num_items: int, cores: int = MANY_CORES) -> float:
    return compose(load, step, batch=batch, workers=workers, num_items=num_items, num_cores=cores).seconds


def test_without_workers_loading_and_computing_add() -> None:
    assert run(load_law(), step_law(0.005), 10, 0, 100) == pytest.approx(100 * 0.01 + 100 * 0.005)


def test_a_slow_model_hides_all_loading_but_the_first_batch() -> None:
    # 10 batches, each loaded in 0.1 s and computed in 0.5 s
    assert run(load_law(), step_law(0.05), 10, 1, 100) == pytest.approx(0.1 + 10 * 0.5)


def test_slow_loading_hides_all_computing_but_the_last_batch() -> None:
    assert run(load_law(), step_law(0.001), 10, 1, 100) == pytest.approx(10 * 0.1 + 0.01)


def test_workers_deliver_in_rounds() -> None:
    # 10 batches by 4 workers: three rounds of 0.1 s; the last two batches come together and are computed one after the other
    assert run(load_law(), step_law(0.001), 10, 4, 100) == pytest.approx(3 * 0.1 + 2 * 0.01)


def test_more_workers_delay_the_first_batch_and_larger_batches_delay_it_more() -> None:
    law = load_law(start=0.2, per_worker=0.05)

    def first(batch: int, workers: int) -> float:
        composed = compose(law, step_law(0.001), batch=batch, workers=workers, num_items=1000, num_cores=MANY_CORES)
        return composed.first_batch_seconds

    assert first(10, 1) == pytest.approx(0.2 + 0.05 + 0.1)
    assert first(10, 8) == pytest.approx(0.2 + 0.4 + 0.1)
    assert first(100, 8) == pytest.approx(0.2 + 0.4 + 1.0)


def test_the_best_number_of_workers_grows_with_the_length_of_the_run() -> None:
    law = load_law(start=0.1, per_worker=0.1)
    best = [
        min((0, 1, 2, 4, 8, 16), key=lambda workers: run(law, step_law(0.0005), 10, workers, length))
        for length in (10, 300, 3000, 100_000)
    ]
    assert best[0] == 0
    assert best == sorted(best)
    assert best[-1] == 16


def test_a_run_is_never_shorter_than_its_work_spread_over_all_cores() -> None:
    # loading keeps one core busy for 1 s, computing two for 1 s: 3 core seconds on 2 cores
    step = step_law(0.01, cores=2.0)
    assert run(load_law(), step, 10, 8, 100, cores=2) == pytest.approx(1.5)
    assert run(load_law(), step, 10, 8, 100) < 1.2


def test_a_batch_larger_than_the_run_is_the_whole_run() -> None:
    assert run(load_law(), step_law(0.001), 1000, 4, 50) == pytest.approx(50 * 0.01 + 50 * 0.001)


def test_a_very_long_run_goes_on_as_it_went_before() -> None:
    short, long = (run(load_law(), step_law(0.001), 10, 4, length) for length in (100_000, 10_000_000))
    assert long == pytest.approx(100 * short, rel=1e-3)


def arrivals_of(batch: int, workers: int, num_items: int, item: float, start: float) -> tuple[float, ...]:
    num_batches = -(-num_items // batch)
    return tuple(start * workers + (number // workers + 1) * batch * item for number in range(num_batches))


def measured(batch: int, workers: int, num_items: int, arrivals: tuple[float, ...], **more: Any) -> LoadMeasured:
    return LoadMeasured(
        item_kind="raw",
        form="f",
        batch=batch,
        workers=workers,
        num_items=num_items,
        arrivals=arrivals,
        page_cache="warm",
        disk_bytes=0,
        **{"stop_seconds": 0.02 * workers, **more},
    )


def test_fitting_finds_the_law_that_made_the_arrivals() -> None:
    runs = [
        measured(batch, workers, batch * workers * 3, arrivals_of(batch, workers, batch * workers * 3, 0.01, 0.05))
        for batch, workers in ((16, 1), (16, 2), (16, 4), (64, 4))
    ]
    runs.append(measured(16, 0, 48, (0.2, 0.36, 0.52)))
    law = fit_load(runs)
    assert law.item_seconds(16, 1) == pytest.approx(0.01)
    assert law.item_seconds(64, 2) == pytest.approx(0.01)
    assert law.item_seconds(16, 0) == pytest.approx(0.01)  # the slow first batch does not count
    assert law.start_of(4) == pytest.approx(0.2)
    assert law.stop_of(4) == pytest.approx(0.08)
    composed = law.arrivals(64, 4, 12, 64)
    assert composed == pytest.approx(np.array(arrivals_of(64, 4, 64 * 12, 0.01, 0.05)))


def test_a_run_that_the_system_disturbed_does_not_count_beside_a_faster_one() -> None:
    good = arrivals_of(16, 2, 96, 0.01, 0.05)
    law = fit_load([measured(16, 2, 96, tuple(5 * each for each in good)), measured(16, 2, 96, good)])
    assert law.item_seconds(16, 2) == pytest.approx(0.01)


def test_workers_that_slow_each_other_down_are_seen() -> None:
    runs = [
        measured(16, workers, 16 * workers * 3, arrivals_of(16, workers, 16 * workers * 3, item, 0.0))
        for workers, item in ((1, 0.01), (2, 0.01), (4, 0.02))
    ]
    law = fit_load(runs)
    assert law.item_seconds(16, 4) == pytest.approx(0.02)
    assert law.item_seconds(16, 8) == pytest.approx(0.04)  # beyond what was seen, they only share


def test_steps_follow_straight_lines_through_the_measured_sizes() -> None:
    records = [
        StepMeasured(model="m", batch=batch, copy_seconds=(0.0,), forward_seconds=(seconds,), num_busy_cores=1.0)
        for batch, seconds in ((10, 0.1), (100, 0.19))
    ]
    law = fit_steps(records)
    assert [law.of(batch) for batch in (10, 55, 100, 200)] == pytest.approx([0.1, 0.145, 0.19, 0.29])
    assert law.of(1) == pytest.approx(0.091)
    assert fit_steps(records[:1]).of(40) == pytest.approx(0.4)  # one size: in proportion


def step(batch: int, seconds: float) -> StepMeasured:
    return StepMeasured(model="m", batch=batch, copy_seconds=(0.0,), forward_seconds=(seconds,), num_busy_cores=1.0)


def test_of_two_visits_the_one_that_nothing_disturbed_counts_and_neighbours_make_no_slope() -> None:
    law = fit_steps([step(10, 0.5), step(10, 0.1), step(40, 0.45), step(50, 0.5), step(50, 0.9)])
    assert law.of(10) == pytest.approx(0.1)
    assert law.of(100) == pytest.approx(1.0)  # as from 10 to 50, not as from 40 to 50


def test_the_batch_for_computing_is_the_smallest_that_is_as_fast_as_any() -> None:
    launch_bound = fit_steps([step(8, 0.1), step(32, 0.101), step(64, 0.15)])
    saturated = fit_steps([step(8, 0.08), step(32, 0.32), step(64, 0.64)])
    assert suit_computing([saturated]) == 8
    assert suit_computing([launch_bound]) == 64
    assert suit_computing([launch_bound, saturated]) == 64
    assert suit_computing([launch_bound, fit_steps([step(8, 0.08), step(32, 0.32)])]) == 32  # the largest all have seen
