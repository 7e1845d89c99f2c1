"""A point that is bound to fail is a row before it is tried, in this run and in the next."""

from typing import Any

import msgspec
import pytest

from latencies import CEILINGS
from modelhound.analysis.memory import fit_memory
from modelhound.analysis.prediction import LEAST_ANCHORS, Anchor
from modelhound.records import Cost, LatencyFailed, LatencyMeasured, LatencyPoint, WhyFailed
from modelhound.settings import LatencySettings
from modelhound.store import Memo
from modelhound.timing.ceilings import DeviceFound
from modelhound.timing.limits import Limits
from modelhound.timing.planning import SweepPlan
from modelhound.timing.pricing import Learnt, recall, remember
from modelhound.timing.sweeping import find_limits, settled

MEGABYTE = 10**6
COST = Cost(
    flops=1e9,
    activation_bytes=5e6,
    moved_bytes=1e7,
    live_bytes=0.9e6,
    input_bytes=0.1e6,
    weight_bytes=100e6,
    num_kernels=10,
    num_parameters=25_000_000,
)


def point(batch: int, precision: str = "fp32", image: int = 64) -> LatencyPoint:
    return LatencyPoint(model="tv:x", batch=batch, image=image, precision=precision, device="cpu")


def make_limits(
    limit_bytes: int = 1000 * MEGABYTE, memo: Memo | None = None, timeout: float = 100.0, stamp: str = ""
) -> Limits:
    return Limits(
        {("tv:x", 64): COST, ("tv:x", 128): COST},
        {"cpu": limit_bytes},
        device_names={"cpu": "a CPU"},
        stamps={"tv:x": stamp},
        timeout=timeout,
        memo=memo,
    )


def measured(at: LatencyPoint, peak_bytes: float, seconds: float = 0.1) -> LatencyMeasured:
    return LatencyMeasured(
        point=at,
        seconds=(seconds,) * 6,
        first_call_seconds=seconds,
        num_warmup=1,
        stopped="settled",
        num_parameters=1,
        flops=at.batch * 1e9,
        activation_bytes=1.0,
        moved_bytes=1.0,
        weight_bytes=100e6,
        num_kernels=10,
        peak_memory_bytes=int(peak_bytes),
        process_memory_bytes=0,
        overhead_seconds=0.0,
        place=0,
    )


def failed(at: LatencyPoint, why: WhyFailed) -> LatencyFailed:
    return LatencyFailed(point=at, why=why, tried=True, message="")


def test_two_probes_predict_the_ceiling() -> None:
    limits = make_limits()
    for batch in (1, 2):
        limits.add(measured(point(batch), 100e6 + batch * 3e6))  # three times what shapes say
    assert limits.memory_model(point(4)).predict(limits.expected_bytes(point(4))) == pytest.approx(112e6)
    assert limits.refuse(point(300)) is None  # 1000 MB, which is just the limit
    row = limits.refuse(point(400))
    assert row is not None
    assert (row.why, row.tried) == ("out of memory", False)
    assert "1.3 GB by 2 smaller points" in row.message
    assert "1 GB" in row.message


def test_without_probes_only_what_is_far_too_large_is_refused() -> None:
    limits = make_limits()
    assert limits.refuse(point(1000)) is None
    row = limits.refuse(point(10_000_000))
    assert row is not None
    assert "the shapes of its tensors" in row.message


def test_half_the_bytes_take_half_the_memory() -> None:
    limits = make_limits()
    assert limits.expected_bytes(point(8, "bf16")) == limits.expected_bytes(point(8)) / 2


def test_whatever_is_as_large_as_what_ran_out_of_memory_is_not_tried() -> None:
    limits = make_limits()
    limits.add(failed(point(64), "out of memory"))
    for batch, refused in ((32, False), (64, True), (128, True)):
        assert (limits.refuse(point(batch)) is not None) is refused
    assert limits.refuse(point(64, "bf16")) is None


def test_what_ran_out_of_memory_is_remembered_for_its_shape_precision_and_limit() -> None:
    make_limits(memo=Memo("ceilings")).add(failed(point(64), "out of memory"))
    later = make_limits(memo=Memo("ceilings"))
    row = later.refuse(point(64))
    assert row is not None
    assert "in an earlier run" in row.message
    assert later.refuse(point(32)) is None
    assert later.refuse(point(64, "bf16")) is None
    assert later.refuse(point(64, image=128)) is None
    assert make_limits(2000 * MEGABYTE, Memo("ceilings")).refuse(point(64)) is None


def test_what_is_slower_than_allowed_ends_larger_points_too() -> None:
    limits = make_limits()
    limits.add(failed(point(64), "timed out"))
    assert limits.refuse(point(32)) is None
    row = limits.refuse(point(128))
    assert row is not None
    assert (row.why, row.tried) == ("timed out", False)


def test_a_point_that_would_take_far_too_long_is_not_tried() -> None:
    limits = make_limits(limit_bytes=10**15, timeout=10.0)
    limits.add(measured(point(1), 101e6, seconds=1.0))
    assert limits.refuse(point(3)) is None
    row = limits.refuse(point(100))
    assert row is not None
    assert row.why == "timed out"
    assert "about 500 s" in row.message


def test_a_point_that_timed_out_is_tried_again_where_it_may_take_longer() -> None:
    limits = make_limits(limit_bytes=10**15, timeout=10.0)
    limits.add(measured(point(1), 101e6, seconds=1.0))
    refused = limits.refuse(point(100))
    assert refused is not None
    known = [refused, failed(point(64), "out of memory"), failed(point(32), "crashed"), failed(point(16), "timed out")]
    assert set(settled(known, 10.0, {})) == {point(100), point(64)}
    assert set(settled(known, 600.0, {})) == {point(64)}


def test_what_is_known_of_a_network_counts_until_its_files_change() -> None:
    known = [
        msgspec.structs.replace(measured(point(1), 1.0), stamp="12 kB, Monday"),
        failed(point(64), "out of memory"),
    ]
    assert set(settled(known, 10.0, {point(1).model: "12 kB, Monday"})) == {point(1)}
    assert not settled(known, 10.0, {point(1).model: "13 kB, Tuesday"})


def test_memory_that_a_network_took_before_it_was_edited_is_not_held_against_it() -> None:
    make_limits(memo=Memo("edited")).add(failed(point(64), "out of memory"))
    assert make_limits(memo=Memo("edited")).refuse(point(64)) is not None
    assert make_limits(memo=Memo("edited"), stamp="later").refuse(point(64)) is None


def test_one_probe_below_its_weights_does_not_make_memory_shrink() -> None:
    model = fit_memory(100.0, [(10.0, 90.0)])
    assert model.predict(1000.0) == 1100.0
    assert fit_memory(100.0, [(0.0, 90.0), (0.0, 95.0)]).predict(10.0) == 110.0
    flat = fit_memory(100.0, [(10.0, 120.0), (20.0, 110.0)])
    assert flat.factor == 0
    assert flat.predict(1000.0) == pytest.approx(110.0)


def test_probes_of_nearly_the_same_size_do_not_make_a_line() -> None:
    """Longformer pads 16 tokens to 512: two points that hold the same but for noise once foretold 6 TB for all others."""
    model = fit_memory(600.0, [(100.0, 738.0), (100.0001, 722.0)])
    assert (model.num_probes, model.predict(100.0)) == (1, pytest.approx(738.0))
    other_way = fit_memory(600.0, [(100.0, 722.0), (100.0001, 738.0)])
    assert other_way.predict(200.0) == pytest.approx(876.0)


class OneDevice:
    """Stands for the processes of a bench, of which none is needed to know a device."""

    def find_device(self, device: str) -> DeviceFound:
        return DeviceFound(name="a CPU", memory_bytes=1000 * MEGABYTE)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_ran_out_of_memory_compiled_says_nothing_of_the_plain_network_nor_the_other_way(compiled: bool) -> None:
    plan = SweepPlan(candidates={}, points=(point(4),), costs={("tv:x", 64): COST}, broken=())
    alike, other = (
        LatencySettings(models=("tv:x",), compile=compiled),
        LatencySettings(models=("tv:x",), compile=not compiled),
    )
    bench: Any = OneDevice()
    full = LatencyFailed(point=point(4), why="out of memory", tried=True, message="it did", num_parameters=1)
    find_limits(plan, alike, bench).add(full)
    assert find_limits(plan, alike, bench).refuse(point(4)) is not None
    assert find_limits(plan, other, bench).refuse(point(4)) is None


@pytest.mark.parametrize("compiled", [True, False])
def test_times_of_compiled_networks_foretell_no_others_nor_the_other_way(compiled: bool) -> None:
    anchors = tuple(
        Anchor(model=f"tv:{number}", flops=1e9, activation_bytes=1e6, seconds=0.1) for number in range(LEAST_ANCHORS)
    )
    remember(Learnt(ceilings=CEILINGS, anchors=anchors), is_compiled=compiled)
    assert recall("a GPU", "fp32", is_compiled=compiled) == Learnt(ceilings=CEILINGS, anchors=anchors)
    assert recall("a GPU", "fp32", is_compiled=not compiled) is None
