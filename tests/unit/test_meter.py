"""The clock measures what it is put around, and nothing else."""

import importlib.metadata
import time

import pytest

from modelhound.errors import RequestError
from modelhound.meter import Meter, describe_machine, resolve_device


def test_every_entry_of_a_phase_is_one_sample() -> None:
    meter = Meter()
    for _ in range(3):
        with meter.phase("work"):
            pass
    with meter.phase("rest"):
        pass
    assert [(each.phase, len(each.seconds)) for each in meter.samples] == [("work", 3), ("rest", 1)]


def test_waiting_for_items_counts_the_wait_and_not_what_is_done_with_them() -> None:
    def slow_items() -> object:
        for item in range(3):
            time.sleep(0.05)
            yield item

    meter = Meter()
    seen = []
    for item in meter.waiting("wait", slow_items()):  # type: ignore[var-annotated, arg-type]
        time.sleep(0.2)
        seen.append(item)
    assert seen == [0, 1, 2]
    waited = meter.samples[0].total
    assert 0.15 <= waited <= meter.wall_seconds - 0.6


def test_phases_never_sum_to_more_than_the_wall_clock() -> None:
    meter = Meter()
    for name in "abc":
        with meter.phase(name):
            time.sleep(0.01)
    assert 0.03 <= sum(each.total for each in meter.samples) <= meter.wall_seconds


def test_a_failed_phase_is_the_current_one_and_adds_no_sample() -> None:
    meter = Meter()
    with pytest.raises(ValueError, match="no"), meter.phase("forward"):
        raise ValueError("no")
    assert meter.current_phase == "forward"
    assert meter.samples == ()


def test_the_machine_is_described_with_the_versions_that_run() -> None:
    machine = describe_machine()
    assert machine.versions["torch"] == importlib.metadata.version("torch")
    assert machine.num_cores >= 1
    assert machine.memory_bytes > 1 << 28


@pytest.mark.parametrize("wanted", ["gpu", "cuda:x", "cuda:", "CPU", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused(wanted: str) -> None:
    with pytest.raises(RequestError, match="cannot use --device"):
        resolve_device(wanted)


def test_the_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == "cpu"
