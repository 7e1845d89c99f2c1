"""The clock measures what it is put around, and nothing else."""

import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modelhound.errors import RequestError
from modelhound.meter import (
    Meter,
    available_memory,
    choose_precision,
    describe_machine,
    machine,
    phases,
    resolve_device,
)


class Clock:
    """Stands still unless time is spent."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(phases, "seconds_now", made)
    return made


def seconds_of(meter: Meter) -> dict[str, tuple[float, ...]]:
    return {each.phase: each.seconds for each in meter.samples}


def test_every_entry_of_a_phase_is_one_sample(clock: Clock) -> None:
    meter = Meter()
    for seconds in (1.0, 2.0, 4.0):
        with meter.phase("work"):
            clock.spend(seconds)
        clock.spend(100.0)
    with meter.phase("rest"):
        clock.spend(8.0)
    assert list(seconds_of(meter).items()) == [("work", (1.0, 2.0, 4.0)), ("rest", (8.0,))]
    assert meter.wall_seconds == 315.0
    assert meter.current_phase == "rest"  # who fails between two phases is told the last one


def test_the_seconds_of_a_phase_within_a_phase_count_for_the_inner_one_only(clock: Clock) -> None:
    meter = Meter()
    with meter.phase("outer"):
        clock.spend(1.0)
        for _ in range(2):
            with meter.phase("middle"):
                clock.spend(2.0)
                with meter.phase("inner", later=True):  # without a device nobody notes it, and it is timed at once
                    clock.spend(4.0)
                assert meter.current_phase == "middle"
                clock.spend(8.0)
        assert meter.current_phase == "outer"
        clock.spend(16.0)
    assert seconds_of(meter) == {"inner": (4.0, 4.0), "middle": (10.0, 10.0), "outer": (17.0,)}
    assert sum(each.total for each in meter.samples) == meter.wall_seconds == 45.0
    with meter.phase("next"):
        clock.spend(32.0)
    assert seconds_of(meter)["next"] == (32.0,)


def test_a_phase_begins_and_ends_when_the_device_is_through_unless_it_is_the_hosts(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """The device needs a second for what was handed over before, and another for what is handed over here."""
    waits = []

    def wait(meter: Meter) -> None:
        waits.append(meter.current_phase)
        clock.spend(1.0)

    monkeypatch.setattr(Meter, "_synchronise", wait)
    meter = Meter()
    with meter.phase("forward"):
        clock.spend(2.0)
    with meter.phase("tokenise", on_host=True):
        clock.spend(4.0)
    assert waits == ["forward", "forward"]
    assert seconds_of(meter) == {"forward": (3.0,), "tokenise": (4.0,)}


class Event:
    """The device comes here so many milliseconds after it began."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.is_over = False

    def synchronize(self) -> None:
        self.is_over = True

    def elapsed_time(self, other: "Event") -> float:
        assert other.is_over
        return other.milliseconds - self.milliseconds


def test_what_the_device_notes_is_asked_for_later_and_what_lies_within_is_taken_off(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """The second time the host waits for two seconds while the device is still at what it was given before."""
    events = [Event(each) for each in (1000.0, 2000.0, 4000.0, 8000.0, 9000.0, 9100.0, 9100.0, 9500.0)]
    noted = iter(events)
    monkeypatch.setattr(Meter, "_note_now", lambda meter: next(noted))
    monkeypatch.setattr(Meter, "_synchronise", lambda meter: pytest.fail("nobody waits here"))
    meter = Meter()
    meter.device = "cuda"
    for _ in range(2):
        with meter.phase("forward", later=True), meter.phase("wait", on_host=True):
            clock.spend(2.0)
    assert not any(each.is_over for each in events)  # nobody has waited
    # Seven seconds by the device, two of them without anything to do; then half a second without a pause.
    assert seconds_of(meter) == {"forward": (5.0, 0.5), "wait": (2.0, 0.0)}
    assert seconds_of(meter)["forward"] == (5.0, 0.5)  # and not once more


def test_a_meter_counts_the_peak_of_memory_anew_unless_it_shall_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    resets = []
    monkeypatch.setattr(phases, "reset_peak", lambda: resets.append(1))
    Meter(keep_peak=True)
    assert resets == []
    Meter()
    assert resets == [1]


def test_waiting_for_items_counts_the_wait_and_not_what_is_done_with_them(clock: Clock) -> None:
    def slow_items() -> Iterator[int]:
        for item in range(3):
            clock.spend(1.0 + item)
            yield item
        clock.spend(50.0)  # until it turns out that there are no more

    meter = Meter()
    seen = []
    for item in meter.waiting("wait", slow_items()):
        clock.spend(20.0)
        seen.append(item)
    assert seen == [0, 1, 2]
    assert seconds_of(meter) == {"wait": (1.0, 2.0, 3.0)}
    assert meter.wall_seconds == 116.0


def test_the_clock_of_a_meter_goes() -> None:
    meter = Meter()
    with meter.phase("a"):
        time.sleep(0.01)
    assert 0.01 <= meter.samples[0].total <= meter.wall_seconds


def test_a_failed_phase_is_the_current_one_and_adds_no_sample() -> None:
    meter = Meter()
    with pytest.raises(ValueError, match="no"), meter.phase("forward"):
        raise ValueError("no")
    assert meter.current_phase == "forward"
    assert meter.samples == ()


def test_what_a_failed_phase_took_counts_for_the_one_around_it(clock: Clock) -> None:
    meter = Meter()
    with meter.phase("whole"):
        clock.spend(1.0)
        with contextlib.suppress(ValueError), meter.phase("part"):
            clock.spend(2.0)
            raise ValueError
        clock.spend(4.0)
    assert seconds_of(meter) == {"whole": (7.0,)}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the peak of a process anew")
def test_the_memory_of_a_job_is_not_that_of_a_larger_one_before_it() -> None:
    """In a process of its own: a verb that ran in this one may have told it to keep what is freed."""
    code = (
        "from modelhound.meter import Meter\n"
        "def hold(megabytes):\n"
        "    meter = Meter()\n"
        "    held = b'x' * (megabytes * 10**6)\n"
        "    return meter.peak_memory_bytes + 0 * len(held)\n"
        "print(hold(300), hold(50))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    large, small = map(int, done.stdout.split())
    assert 200e6 < large - small < 300e6


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


@pytest.mark.parametrize(
    ("wanted", "device", "has_bf16", "chosen"),
    [
        ("auto", "cpu", False, "fp32"),
        ("bf16", "cpu", False, "bf16"),
        ("auto", "cuda:0", True, "bf16"),
        ("auto", "cuda:0", False, "fp32"),
        ("fp32", "cuda:0", True, "fp32"),
    ],
)
def test_the_precision_suits_the_device(
    wanted: str, device: str, has_bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: has_bf16)
    assert choose_precision(wanted, device) == chosen


def test_a_precision_that_a_gpu_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(RequestError, match="cannot use --precision bf16 on cuda:0"):
        choose_precision("bf16", "cuda:0")


def write_group(folder: Path, **files: int | str) -> None:
    """A control group as the system shows it; in names _ stands for the first point."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("listed", "left"),
    [
        ("0::/job/step\n", [450]),  # the files that were read make room
        ("3:cpu:/x\n4:memory:/docker/of-the-host\n1:name=systemd:/\n", [1600]),
        ("0::/job/step\n5:cpu,memory:/docker/of-the-host", [450, 1600]),
        ("0::/another\n", []),
        ("", []),
    ],
)
def test_what_a_container_or_a_job_has_left_is_less_than_what_the_machine_has(
    listed: str, left: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    groups.write_text(listed)
    write_group(mounted / "job", memory_max=1000, memory_current=700, memory_stat="active_file 50\ninactive_file 100")
    write_group(mounted / "job" / "step", memory_max="max", memory_current=600)
    write_group(
        mounted / "memory", memory_limit_in_bytes=2000, memory_usage_in_bytes=500, memory_stat="total_inactive_file 100"
    )
    monkeypatch.setattr(machine, "_GROUPS", groups)
    monkeypatch.setattr(machine, "_GROUP_FILES", mounted)
    if left:
        assert available_memory() == min(left)
    else:
        assert available_memory() > 1_000_000


def test_a_machine_without_control_groups_has_all_of_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "not-linux")
    assert 1_000_000 < available_memory() < psutil.virtual_memory().total


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_to_ask_which_commit_this_is_leaves_the_index_alone(tmp_path: Path) -> None:
    """git writes what it saw of files into its index, under a lock that stayed for ever where we were killed meanwhile."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    file, index = tmp_path / "module.py", tmp_path / ".git" / "index"
    file.write_text("one = 1\n")
    git("init")
    git("add", "module.py")
    before = index.read_bytes()
    os.utime(file, (1e9, 1e9))
    assert machine._git(tmp_path, "status", "--porcelain") == "A  module.py"
    assert index.read_bytes() == before
