"""Sampling ends when enough is known, when the time is over or after so many calls; a slow call is not repeated for ever."""

import statistics
from collections.abc import Callable, Sequence

import pytest

from modelhound.meter import TIMM_PLAN, SamplingPlan, sampling, take_samples


class Clock:
    """A clock that only the timed call moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_calls = 0

    def lasting(self, seconds: Sequence[float]) -> Callable[[], None]:
        def call() -> None:
            self.now += seconds[min(self.num_calls, len(seconds) - 1)]
            self.num_calls += 1

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sampling, "seconds_now", lambda: made.now)
    return made


def test_the_first_call_stands_apart_and_warm_ups_do_not_count(clock: Clock) -> None:
    samples = take_samples(
        clock.lasting([5.0, 2.0, 2.0, 0.1]),
        SamplingPlan(warm_up_seconds=0.0, least_warm_ups=2, budget_seconds=0.0, least_samples=4, most_samples=4),
    )
    assert samples.first_seconds == 5.0
    assert samples.num_warmup == 2
    assert samples.warm_up_seconds == pytest.approx(4.0)
    assert samples.seconds == pytest.approx((0.1,) * 4)
    assert samples.sampling_seconds == pytest.approx(0.4)
    assert samples.stopped == "count"


def test_warming_up_lasts_as_long_as_was_asked(clock: Clock) -> None:
    samples = take_samples(clock.lasting([0.01]), SamplingPlan(warm_up_seconds=0.2, least_samples=3, most_samples=3))
    assert 19 <= samples.num_warmup <= 21


def test_sampling_ends_when_the_budget_is_spent(clock: Clock) -> None:
    samples = take_samples(clock.lasting([0.1]), SamplingPlan(budget_seconds=1.0))
    assert samples.stopped == "budget"
    assert 10 <= len(samples.seconds) <= 11


def test_sampling_ends_when_enough_is_known(clock: Clock) -> None:
    samples = take_samples(
        clock.lasting([0.001]), SamplingPlan(budget_seconds=1.0, settled=lambda seconds: len(seconds) >= 20)
    )
    assert samples.stopped == "settled"
    assert 20 <= len(samples.seconds) <= 25


def test_a_slow_counter_gets_the_time_it_needs(clock: Clock) -> None:
    samples = take_samples(
        clock.lasting([0.01]), SamplingPlan(budget_seconds=1.0, least_seconds=0.5, settled=lambda seconds: True)
    )
    assert samples.sampling_seconds >= 0.5


def test_a_very_slow_call_is_sampled_three_times(clock: Clock) -> None:
    samples = take_samples(clock.lasting([60.0]), SamplingPlan(budget_seconds=1.0))
    assert (samples.num_warmup, len(samples.seconds), samples.stopped) == (1, 3, "budget")


def test_timms_convention_is_ten_and_forty_whatever_they_take(clock: Clock) -> None:
    samples = take_samples(clock.lasting([0.5, *[9.0] * 10, 0.02]), TIMM_PLAN)
    assert samples.num_warmup == 10
    assert len(samples.seconds) == 40
    assert statistics.fmean(samples.seconds) == pytest.approx(0.02)


def test_something_can_be_looked_at_between_warm_up_and_sampling(clock: Clock) -> None:
    seen = []
    take_samples(
        clock.lasting([1.0]),
        SamplingPlan(warm_up_seconds=0.0, least_warm_ups=3, budget_seconds=0.0, least_samples=5, most_samples=5),
        before_sampling=lambda: seen.append(clock.num_calls),
    )
    assert seen == [4]
    assert clock.num_calls == 9


def test_on_a_cpu_handing_over_and_doing_are_one() -> None:
    samples = take_samples(lambda: sum(range(1000)), SamplingPlan(warm_up_seconds=0.0, least_samples=3, most_samples=3))
    assert samples.host_seconds == ()
    assert samples.wall_seconds == samples.seconds
    assert min(samples.seconds) > 0
