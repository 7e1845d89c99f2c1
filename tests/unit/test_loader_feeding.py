"""Models fed for real: what a run records, what fails, which pairs are worth a look."""

import dataclasses
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from modelhound.analysis.loader_model import LoadLaw, StepLaw
from modelhound.analysis.pairs import PairTimes
from modelhound.data import Dataset, OwnTransform, load_batches, open_dataset
from modelhound.errors import BrokenItemError, DataError, ModelError, RequestError
from modelhound.feeding import tuning
from modelhound.feeding.concluding import choose_pairs, conclude
from modelhound.feeding.ledger import Ledger, Study
from modelhound.feeding.pages import count_bytes, files_of, forget_pages, touch_pages
from modelhound.feeding.runs import (
    Feed,
    describe_failure,
    make_batch,
    measure_load,
    measure_run,
    measure_steps,
    shorten,
    warm_up,
    why_not,
)
from modelhound.feeding.studying import Studied, _extend, study
from modelhound.feeding.sweeping import Laws
from modelhound.feeding.tuning import tune
from modelhound.meter import disk_bytes_read
from modelhound.models import Network, suitable_layout
from modelhound.records import FeedMeasured, LoadMeasured, PairFailed, Record, StepMeasured, silent
from modelhound.settings import LoaderSearchSettings, LoaderSettings
from small_form import FORM

CPU = Feed(device="cpu")


def network(form: Any = FORM, fail_at: int | None = None) -> Network:
    """The mean of every channel; with `fail_at`, batches of that size and larger do not fit."""

    def extract(inputs: torch.Tensor) -> torch.Tensor:
        if fail_at is not None and len(inputs) >= fail_at:
            raise torch.OutOfMemoryError("out of memory, as it were")
        return inputs.mean((2, 3))

    return Network(module=torch.nn.Identity(), extract=extract, preprocessing=form)


def raise_in_worker(image: Any) -> torch.Tensor:
    raise KeyError("a colour nobody knows")


@pytest.fixture
def photos(image_folder: Callable[..., Path]) -> Dataset:
    return open_dataset(str(image_folder(num_classes=3, per_class=16)))


def run(data: Dataset, *, batch: int = 8, workers: int = 0, num_items: int = 48, feed: Feed = CPU) -> FeedMeasured:
    return measure_run(
        network(), data, feed, item_kind="raw", model="m", batch=batch, workers=workers, num_items=num_items
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sub_times_of_a_run_add_up_to_it(photos: Dataset, workers: int) -> None:
    measured = run(photos, workers=workers)
    assert (measured.num_items, measured.batch, measured.workers) == (48, 8, workers)
    phases = {samples.phase: samples for samples in measured.phases}
    assert list(phases) == ["wait for data", "data to device", "forward"]
    assert [len(samples.seconds) for samples in phases.values()] == [6, 6, 6]
    assert measured.first_batch_seconds == phases["wait for data"].seconds[0]
    assert measured.other_seconds >= 0
    assert measured.page_cache in ("warm", "cold", "unknown")
    assert not multiprocessing.active_children()


def test_a_run_longer_than_the_data_takes_several_passes_and_a_shorter_one_a_part(photos: Dataset) -> None:
    assert run(photos, num_items=96, batch=48).num_items == 96
    assert run(photos, num_items=120, batch=8).num_items == 120
    assert run(photos, num_items=10, batch=8).num_items == 10


def test_persistent_workers_live_through_all_passes_and_others_do_not(photos: Dataset) -> None:
    def workers_of_passes(persistent: bool) -> list[set[int | None]]:
        seen = []
        for number, _ in enumerate(load_batches(photos, FORM, batch=24, workers=2, passes=2, persistent=persistent)):
            if number % 2 == 0:
                seen.append({child.pid for child in multiprocessing.active_children()})
        return seen

    first, second = workers_of_passes(persistent=True)
    assert first == second
    first, second = workers_of_passes(persistent=False)
    assert not first & second
    assert not multiprocessing.active_children()


def test_passes_and_prefetching_change_no_batch(photos: Dataset) -> None:
    once = [some.inputs for some in load_batches(photos, FORM, batch=20, workers=0)]
    for options in ({"persistent": True}, {"prefetch": 4}, {}):
        twice = [some.inputs for some in load_batches(photos, FORM, batch=20, workers=2, passes=2, **options)]  # type: ignore[arg-type]
        assert len(twice) == 6
        assert all(torch.equal(one, other) for one, other in zip(once + once, twice, strict=True))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="--prefetch"):
        load_batches(photos, FORM, batch=4, workers=1, prefetch=0)


def test_loading_alone_records_when_each_batch_came(photos: Dataset) -> None:
    measured = measure_load(photos, FORM, CPU, item_kind="raw", form_name="f", batch=10, workers=2, num_items=48)
    assert len(measured.arrivals) == 5
    assert list(measured.arrivals) == sorted(measured.arrivals)


def test_computing_alone_needs_no_loading(photos: Dataset) -> None:
    measured = measure_steps(network(), make_batch(photos, FORM, 100), CPU, model="m")
    assert len(measured.copy_seconds) == len(measured.forward_seconds) >= 1  # on a busy machine the first says enough
    assert make_batch(photos, FORM, 100).inputs.shape == (100, 3, 16, 16)  # type: ignore[union-attr]


def test_warming_up_shows_the_network_a_batch_of_the_size_asked_for(photos: Dataset) -> None:
    seen = []
    watching = dataclasses.replace(network(), extract=lambda inputs: seen.append(tuple(inputs.shape)))
    warm_up(watching, photos, CPU, batch=100)
    assert seen == [(100, 3, 16, 16)]


def test_depthwise_networks_keep_the_ordinary_order_on_a_gpu() -> None:
    depthwise, other = (
        dataclasses.replace(network(), module=torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, groups=groups)))
        for groups in (4, 2)
    )
    assert depthwise.is_depthwise
    assert not other.is_depthwise
    assert suitable_layout("cuda:0", is_depthwise=True) == torch.contiguous_format
    assert {suitable_layout("cuda:0", is_depthwise=False), suitable_layout("cpu", is_depthwise=True)} == {
        torch.channels_last
    }


def test_the_traceback_of_the_worker_is_in_the_failure(photos: Dataset) -> None:
    form = OwnTransform(transform=raise_in_worker, input_size=(16, 16))
    with pytest.raises(ModelError) as caught:
        measure_run(network(form), photos, CPU, item_kind="raw", model="m", batch=8, workers=2, num_items=48)
    failure = describe_failure(caught.value, item_kind="raw", model="m", batch=8, workers=2, phase="run")
    assert "a colour nobody knows" in failure.error
    assert "Traceback" not in failure.error
    assert "in raise_in_worker" in failure.trace


def test_a_killed_worker_is_a_failure_with_advice(photos: Dataset) -> None:
    def kill_the_first_worker() -> None:
        while not (children := multiprocessing.active_children()):
            time.sleep(0.001)
        os.kill(children[0].pid or 0, signal.SIGKILL)

    slow = dataclasses.replace(FORM, input_size=(2000, 2000))
    killer = threading.Thread(target=kill_the_first_worker)
    killer.start()
    with pytest.raises(DataError) as caught:
        measure_run(network(slow), photos, CPU, item_kind="raw", model="m", batch=48, workers=1, num_items=48)
    killer.join()
    failure = describe_failure(caught.value, item_kind="raw", model="m", batch=48, workers=1, phase="run")
    assert "killed" in failure.error
    assert "--workers 0" in failure.error


def test_batches_that_fit_nowhere_are_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(32, 2, bytes_per_item=1e3, num_items=1000, prefetch=2) is None
    monkeypatch.setattr("modelhound.feeding.runs.free_shared_memory", lambda: 1_000_000)
    assert "/dev/shm" in str(why_not(32, 2, bytes_per_item=1e4, num_items=1000, prefetch=2))
    assert why_not(32, 0, bytes_per_item=1e4, num_items=1000, prefetch=2) is None  # nothing travels
    assert why_not(1000, 2, bytes_per_item=1e4, num_items=50, prefetch=2) is None  # there are no such batches
    assert "smaller batch" in str(why_not(1000, 0, bytes_per_item=1e13, num_items=1000, prefetch=2))


def test_the_files_behind_a_data_set_can_be_made_cold_and_warm(photos: Dataset) -> None:
    files = files_of(shorten(photos, 12))
    assert len(files) == 12
    assert count_bytes(files) == sum(path.stat().st_size for path in files)
    assert files_of(open_dataset("digits", limit=40)) == ()
    assert not forget_pages(())
    forget_pages(files)
    touch_pages(files)
    before = disk_bytes_read()
    touch_pages(files)
    if before is not None:
        assert disk_bytes_read() == before  # they were in memory


def test_pairs_that_cannot_differ_are_left_out_and_said_so() -> None:
    settings = LoaderSearchSettings("digits", batch="10,50,200,400", workers="0,1,2,8")
    pairs, notes = choose_pairs(settings, device="cpu", num_cores=2, num_items=100)
    assert pairs == ((10, 0), (10, 1), (10, 2), (10, 8), (50, 0), (50, 1), (50, 2), (200, 0), (200, 1))
    text = " ".join(notes)
    assert "200, 400 are larger than the 100 items" in text
    assert "has 1 batch, more workers" in text
    assert "8 workers are more than the 2 cores" in text


def test_auto_suits_the_device() -> None:
    settings = LoaderSearchSettings("digits")
    on_cpu, _ = choose_pairs(settings, device="cpu", num_cores=6, num_items=4000)
    on_gpu, _ = choose_pairs(settings, device="cuda:0", num_cores=16, num_items=4000)
    assert {workers for _, workers in on_cpu} == {0, 1, 2, 4, 6}
    assert (min(on_cpu), max(on_gpu)[0]) == ((8, 0), 1024)


def make_study(data: Dataset, networks: dict[str, Network], told: list[Record], **more: Any) -> Study:
    asked: dict[str, Any] = {
        "item_kind": "raw",
        "dataset": data,
        "networks": networks,
        "pairs": ((4, 0), (4, 1), (16, 0), (16, 1)),
        "num_items": 48,
        "feed": CPU,
        "num_cores": 2,
        "grid": False,
        "repeats": 1,
        "budget": 0.2,
        "seed": 0,
        "known": (),
        "tell": told.append,
        "watch": silent,
    }
    return Study(**{**asked, **more})


def test_what_was_measured_twice_tells_how_restless_the_machine_is(photos: Dataset) -> None:
    def unrest(*seconds: float) -> float:
        known = [
            StepMeasured(model="m", batch=8, copy_seconds=(0.0,), forward_seconds=(each,), num_busy_cores=1.0)
            for each in seconds
        ]
        return Ledger(make_study(photos, {"m": network()}, [], known=known)).unrest()

    assert unrest(1.0, 1.5) > 20 * unrest(1.0, 1.01)


def test_a_later_start_is_charged_with_what_it_can_use_and_nothing_else(photos: Dataset) -> None:
    ours = run(photos)
    step = StepMeasured(model="m", batch=8, copy_seconds=(0.5,), forward_seconds=(1.0,), num_busy_cores=1.0)
    others = [
        msgspec.structs.replace(step, model="gone"),
        msgspec.structs.replace(ours, model="gone"),
        msgspec.structs.replace(ours, item_kind="preprocessed"),
        msgspec.structs.replace(ours, batch=9),
    ]
    known = [step, ours, *others]
    ledger = Ledger(make_study(photos, {"m": network()}, [], pairs=((8, 0),), known=known))
    assert ledger.spent_seconds == pytest.approx(1.5 + ours.wall_seconds)


def test_an_item_that_is_broken_is_no_pairs_fault(photos: Dataset) -> None:
    told: list[Record] = []

    def take() -> Record:
        raise BrokenItemError("cannot decode 'a.png'")

    with pytest.raises(BrokenItemError):
        Ledger(make_study(photos, {"m": network()}, told)).measure(take, model="m", pair=(4, 0), phase="run")
    assert told == []


def test_options_tried_at_one_pair_say_nothing_of_another(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Record] = []
    monkeypatch.setattr(tuning, "_run", lambda study, settings, model: 1.0)
    at_once = LoaderSettings(batch=4, workers=1)
    tune(make_study(photos, {"m": network()}, told), at_once, ["prefetch"], models=["m"])
    again: list[Record] = []
    known = make_study(photos, {"m": network()}, again, known=tuple(told))
    tune(known, at_once, ["prefetch"], models=["m"])
    assert again == []
    tune(known, LoaderSettings(batch=16, workers=1), ["prefetch"], models=["m"])
    assert len(again) == len(told) > 0


def test_the_grid_runs_every_pair_with_every_model_as_often_as_asked(photos: Dataset) -> None:
    told: list[Record] = []
    pairs, networks = ((4, 0), (16, 1)), {"a": network(), "b": network()}
    studied = study(make_study(photos, networks, told, pairs=pairs, grid=True, repeats=2))
    runs = [record for record in told if isinstance(record, FeedMeasured)]
    counts = {(each.model, each.batch, each.workers) for each in runs}
    assert (len(runs), len(counts)) == (8, 4)
    assert studied.times is not None
    assert studied.times.is_measured.all()


def test_the_race_measures_parts_first_and_few_runs_and_nothing_twice(photos: Dataset) -> None:
    told: list[Record] = []
    networks = {"a": network(), "b": network()}
    studied = study(make_study(photos, networks, told))
    kinds = [type(record) for record in told]
    assert {StepMeasured, LoadMeasured, FeedMeasured} == set(kinds)
    assert kinds.index(FeedMeasured) > max(place for place, kind in enumerate(kinds) if kind is LoadMeasured)
    again: list[Record] = []
    resumed = study(make_study(photos, networks, again, known=told))
    assert not [record for record in again if isinstance(record, StepMeasured | LoadMeasured)]
    assert resumed.times is not None
    assert studied.times is not None
    assert np.isfinite(studied.times.seconds).all()


def test_a_batch_that_does_not_fit_fails_for_its_model_and_the_rest_goes_on(photos: Dataset) -> None:
    told: list[Record] = []
    asked = make_study(photos, {"small": network(), "large": network(fail_at=16)}, told, grid=True)
    studied = study(asked)
    failures = [record for record in told if isinstance(record, PairFailed)]
    assert {(each.for_model, each.batch) for each in failures} == {("large", 16)}
    assert "out of memory" in failures[0].error
    answer, _ = conclude(asked, studied, num_items=48, options=())
    assert answer.recommended is not None
    assert answer.recommended.batch == 4
    assert {(row.batch, row.workers) for row in answer.regret if row.mean is None} == {(16, 0), (16, 1)}


def test_data_that_raise_everywhere_leave_failures_and_no_answer(photos: Dataset) -> None:
    told: list[Record] = []
    form = OwnTransform(transform=raise_in_worker, input_size=(16, 16))
    asked = make_study(photos, {"m": network(form)}, told)
    answer, _ = conclude(asked, study(asked), num_items=48, options=())
    assert answer.recommended is None
    assert told
    assert all(isinstance(record, PairFailed) and "in raise_in_worker" in record.trace for record in told)


def test_a_pair_that_fails_with_all_of_a_race_is_as_composed_for_the_others() -> None:
    """Two of three models raced: the first pair took twice as long as composed, the second worked with neither."""
    seconds = np.array([[2.0, np.nan], [4.0, np.nan]])
    raced = PairTimes(
        models=("a", "b"),
        pairs=((8, 0), (16, 0)),
        seconds=seconds,
        versions=np.repeat(seconds[None], 3, axis=0),
        is_measured=~np.isnan(seconds),
    )
    table = np.array([[1.0, np.nan], [3.0, 5.0], [2.0, np.nan]])
    found = _extend(raced, ("a", "c", "b"), [0, 2], table)
    assert found.seconds == pytest.approx(np.array([[2.0, np.nan], [6.0, 5.0], [4.0, np.nan]]), nan_ok=True)
    assert found.versions[2] == pytest.approx(found.seconds, nan_ok=True)
    assert found.is_measured.tolist() == [[True, False], [False, False], [True, False]]


def test_a_longer_run_is_judged_by_the_laws(photos: Dataset) -> None:
    told: list[Record] = []
    asked = make_study(photos, {"m": network()}, told, grid=True)
    answer, _ = conclude(asked, study(asked), num_items=10_000_000, options=())
    assert answer.num_items == 10_000_000
    assert min(each.seconds for each in answer.models) > 1
    lengths = [point.num_items for point in answer.lengths]
    assert (lengths[0], lengths[-2:]) == (4, [1_000_000, 10_000_000])


@pytest.mark.parametrize("num_items", [17, 48, 300, 5000])
@pytest.mark.parametrize(
    ("seconds", "best_of_48"),
    [((2.0, 1.0, 1.0, 1.0), (4, 1)), ((2.0, 2.0, 2.0, 2.0), (4, 1)), ((1.0, 3.0, 2.0, 2.0), (16, 2))],
)
def test_the_best_pair_of_the_length_asked_for_is_the_recommended_one(
    photos: Dataset, num_items: int, seconds: tuple[float, ...], best_of_48: tuple[int, int]
) -> None:
    """Also where several pairs take as long: the slowest of equal ones stands first in the table."""
    pairs = ((16, 2), (16, 1), (8, 1), (4, 1))
    asked = make_study(photos, {"m": network()}, [], pairs=pairs, grid=True)
    table = np.array([seconds])
    times = PairTimes(
        models=("m",),
        pairs=pairs,
        seconds=table,
        versions=np.repeat(table[None], 8, axis=0),
        is_measured=np.ones(table.shape, np.bool_),
    )
    step = StepLaw(batches=(4,), seconds=(1e-3,), copy_share=0.0, num_busy_cores=1.0)
    load = LoadLaw(
        start_seconds=0.0,
        start_per_worker=0.1,
        by_batch=((np.log(4), np.log(1e-3)),),
        by_workers=((0.0, 0.0),),
        inline=(),
        stop=((1.0, 0.0),),
    )
    laws = Laws(steps={"m": step}, loads={"f": load}, forms={"m": "f"}, cold_slowdown=None)
    studied = Studied(times=times, laws=laws, failures=(), runs=(), noise=0.01, measuring_seconds=1.0, grid_seconds=1.0)
    answer, _ = conclude(asked, studied, num_items=num_items, options=())
    assert answer.recommended is not None
    pair = (answer.recommended.batch, answer.recommended.workers)
    (point,) = [each for each in answer.lengths if each.num_items == num_items]
    assert (point.batch, point.workers, point.recommended_regret) == (*pair, 0.0)
    (best,) = answer.models
    assert (best.batch, best.workers, best.regret) == (*pair, 0.0)
    assert pair == best_of_48 or num_items != 48


def test_other_options_are_tried_at_the_recommended_pair(photos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelhound.feeding.tuning._PREFETCHES", (2, 4))
    told: list[Record] = []
    asked = make_study(photos, {"m": network()}, told, pairs=((16, 1),), num_items=96, grid=True)
    answer, notes = conclude(asked, study(asked), num_items=96, options=("prefetch", "pin", "persistent"))
    assert answer.recommended is not None
    text = " ".join(notes)
    for expected in ("prefetch 4: ", "persistent yes: ", "pin: nothing to try on a CPU"):
        assert expected in text
