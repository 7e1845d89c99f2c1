"""A regime is named only where something shows it."""

import pytest

from modelhound.analysis.roofline import (
    Ceilings,
    bounds_text,
    find_regime,
    least_seconds,
    reorder_seconds,
    waiting_share,
)
from modelhound.errors import RequestError

CEILINGS = Ceilings(flops_per_second=1e12, bytes_per_second=1e11)


def test_much_arithmetic_on_few_bytes_is_compute_bound() -> None:
    regime = find_regime(1.0, flops=8e11, moved_bytes=1e10, ceilings=CEILINGS)
    assert (regime.bound, regime.compute_share, regime.memory_share) == ("compute", 0.8, 0.1)
    assert regime.flops_per_byte == 80
    assert regime.sentence == "compute-bound: reaches 0.80 of the compute ceiling"


def test_shares_are_of_what_the_device_could_have_done_in_that_time() -> None:
    regime = find_regime(0.1, flops=8e10, moved_bytes=1e9, ceilings=CEILINGS, host_seconds=0.05)
    assert (regime.compute_share, regime.memory_share) == (pytest.approx(0.8), pytest.approx(0.1))
    regime = find_regime(4.0, flops=1e12, moved_bytes=2e11, ceilings=CEILINGS, device_seconds=3.6)
    assert (regime.compute_share, regime.memory_share) == (pytest.approx(0.25), pytest.approx(0.5))
    assert (regime.bound, regime.waiting_share) == ("memory", pytest.approx(0.1))
    assert find_regime(0.1, host_seconds=0.08).bound == "unknown"  # eight tenths of the time, and nine would be much
    assert find_regime(0.1, host_seconds=0.095).bound == "launch"


def test_many_bytes_with_little_arithmetic_are_memory_bound() -> None:
    regime = find_regime(1.0, flops=1e10, moved_bytes=7e10, ceilings=CEILINGS)
    assert (regime.bound, regime.sentence) == ("memory", "memory-bound: reaches 0.70 of the memory ceiling")


def test_a_device_that_waits_is_launch_bound_whatever_it_reaches() -> None:
    regime = find_regime(1.0, flops=5e11, moved_bytes=1e10, ceilings=CEILINGS, device_seconds=0.58)
    assert regime.bound == "launch"
    assert regime.waiting_share == pytest.approx(0.42)
    assert regime.sentence == "launch-bound: 42% of the time the device waits for the host"


def test_device_times_count_more_than_host_times() -> None:
    # A full queue keeps the host from handing over: it looks busy although the device is what takes the time.
    regime = find_regime(1.0, flops=5e11, moved_bytes=1e10, ceilings=CEILINGS, device_seconds=0.99, host_seconds=0.95)
    assert regime.bound == "compute"


def test_a_busy_host_is_launch_bound_where_device_times_are_not_known() -> None:
    assert find_regime(1.0, host_seconds=0.95).bound == "launch"
    assert find_regime(1.0, host_seconds=0.3).bound == "unknown"


@pytest.mark.parametrize("flops", [1e10, 1.1e11, 4.9e11])
def test_a_call_below_half_of_both_ceilings_is_bound_by_neither(flops: float) -> None:
    regime = find_regime(1.0, flops=flops, moved_bytes=1e9, ceilings=CEILINGS)
    assert (regime.bound, regime.share) == ("neither", pytest.approx(flops / 1e12))
    assert regime.sentence == (
        f"far below both ceilings: reaches {flops / 1e12:.2f} of the compute ceiling and 0.01 of the memory ceiling; "
        "kernels that use little of the device, or time between them"
    )


def test_a_busy_device_far_below_both_ceilings_has_kernels_that_use_little_of_it() -> None:
    regime = find_regime(1.0, flops=1e10, moved_bytes=4e9, ceilings=CEILINGS, device_seconds=1.0)
    assert (regime.bound, regime.share) == ("neither", 0.04)
    assert regime.sentence.endswith("0.04 of the memory ceiling; kernels that use little of the device")


@pytest.mark.parametrize("computing", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_operators_that_all_run_at_a_ceiling_are_bound_by_one_of_them(computing: float) -> None:
    """Some compute at the ceiling for this share of the time, the others copy at the ceiling: the rule of one half."""
    regime = find_regime(1.0, flops=computing * 1e12, moved_bytes=(1 - computing) * 1e11, ceilings=CEILINGS)
    assert regime.bound == ("compute" if computing >= 0.5 else "memory")


def test_points_are_counted_by_what_bounds_them_with_the_share_in_the_middle() -> None:
    reached = [find_regime(1.0, flops=flops, moved_bytes=0.0, ceilings=CEILINGS) for flops in (6e11, 8e11, 9e11, 2e11)]
    waits = find_regime(1.0, device_seconds=0.3)
    assert bounds_text([*reached, waits, find_regime(1.0)]) == (
        "3 points are compute-bound (0.80 of the ceiling in the middle), 1 point is far below both ceilings (0.20 of the "
        "nearer one: kernels that use little of the device, or time between them), 1 point is launch-bound (0.70 of the "
        "time), 1 point is not explained"
    )


def test_without_counts_or_ceilings_nothing_is_told() -> None:
    assert find_regime(1.0).bound == "unknown"
    assert find_regime(1.0, flops=1e12, moved_bytes=1e10).compute_share is None


def test_a_device_cannot_wait_for_less_than_nothing() -> None:
    assert waiting_share(1.0, 1.2) == 0
    assert waiting_share(1.0, None) is None


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(RequestError, match="from seconds 0"):
        find_regime(0.0)
    with pytest.raises(RequestError, match="from flops -1"):
        find_regime(1.0, flops=-1.0)
    with pytest.raises(RequestError, match="from bytes_per_second 0"):
        find_regime(1.0, ceilings=Ceilings(flops_per_second=1.0, bytes_per_second=0.0))


def test_kinds_of_operators_have_ceilings_of_their_own() -> None:
    ceilings = Ceilings(flops_per_second=100.0, bytes_per_second=10.0, kinds={"product": 20.0})
    assert ceilings.mix({"product": 50.0, "convolution": 50.0}) == pytest.approx(100 / (50 / 20 + 50 / 100))
    assert ceilings.mix({}) == 100.0
    operators = [("product", 200.0, 1.0, 0.0, 1), ("convolution", 200.0, 1.0, 4.0, 2), ("other", 0.0, 5.0, 0.0, 1)]
    assert least_seconds(operators, ceilings) == pytest.approx((200 / 20 + 2 * 200 / 100, 0.5))
    assert reorder_seconds(operators, ceilings, batch=3) == pytest.approx(2 * 2 * (3 * 1.0 + 4.0) / 10)


def test_half_as_wide_numbers_are_moved_in_half_the_time_and_every_convolution_counts() -> None:
    ceilings = Ceilings(flops_per_second=100.0, bytes_per_second=10.0)
    operators = [("convolution", 10.0, 5.0, 4.0, 3), ("grouped", 0.0, 6.0, 0.0, 1), ("other", 0.0, 8.0, 0.0, 1)]
    # The convolutions take 0.2 s to compute and 1.4 s to move for two items; at half the width, 0.7 s.
    assert least_seconds(operators, ceilings, batch=2) == pytest.approx((0.0, 3 * 1.4 + 1.2 + 1.6))
    assert least_seconds(operators, ceilings, batch=2, width=0.5) == pytest.approx((0.0, (3 * 1.4 + 1.2 + 1.6) / 2))
    assert least_seconds(operators, ceilings, batch=2, width=0.1) == pytest.approx((3 * 0.2, 0.12 + 0.16))
    assert reorder_seconds(operators, ceilings, batch=2, width=0.5) == pytest.approx(2 * (3 * 1.4 + 1.2) / 2)
