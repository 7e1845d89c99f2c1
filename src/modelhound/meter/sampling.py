"""Time one call again and again, until its time is known well enough.

In:  a call without arguments, the device it works on, and a plan: how long to warm up, when to stop
Out: raw samples in seconds: the call itself, the host's part of it, the first call apart
Nothing here knows what the call does, nor how an interval is computed: the plan's `settled` says when enough is known.

On a CUDA device three times are taken of each call. Between two events on the device's own clock: `seconds`, what one would
quote. Until the host has handed all work over: `host_seconds`. Until the host knows that the device has finished:
`wall_seconds`. Where the first two are the same, the host is what one waits for. On a CPU there is only the one time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from modelhound.meter.clock import seconds_now

__all__ = ["TIMM_PLAN", "Samples", "SamplingPlan", "take_samples"]

_LEAST_WARM_UPS = 2
_FEWEST = 3
_PATIENCE = 3.0
_SLOW = 2.0  # warm-ups: a first call that takes this many times as long has warmed up whatever there is


def _never(seconds: Sequence[float]) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """When a time is known well enough: whatever is reached first ends it, but not before `least_samples`.

    A call so slow that these would take `_PATIENCE` budgets is sampled less often, `_FEWEST` times.
    """

    warm_up_seconds: float = 0.2
    least_warm_ups: int = _LEAST_WARM_UPS
    most_warm_ups: int = 1000
    budget_seconds: float = 1.0
    """Of sampling, warm-up not counted."""
    least_seconds: float = 0.0
    """Sample at least this long, so that slow counters (of energy) have something to count."""
    least_samples: int = 6
    most_samples: int = 500
    settled: Callable[[Sequence[float]], bool] = _never
    """Whether these samples say enough; asked now and then."""


TIMM_PLAN = SamplingPlan(
    warm_up_seconds=0.0, least_warm_ups=10, most_warm_ups=10, budget_seconds=0.0, least_samples=40, most_samples=40
)
"""How timm's own benchmark does it: ten calls to warm up, forty that count, whatever they take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What was seen, oldest first."""

    first_seconds: float
    """Of the very first call, in which libraries choose kernels, memory is asked for and code may be compiled."""
    seconds: tuple[float, ...]
    host_seconds: tuple[float, ...]
    """Empty on a CPU, where handing over and doing are one."""
    wall_seconds: tuple[float, ...]
    warm_up_seconds: float
    sampling_seconds: float
    """All of it together, from the first counted call to the last."""
    num_warmup: int
    stopped: Literal["settled", "budget", "count"]


def take_samples(
    call: Callable[[], Any],
    plan: SamplingPlan,
    *,
    device: str = "cpu",
    before_sampling: Callable[[], Any] | None = None,
) -> Samples:
    """Call it once, warm up, then sample as the plan says; `before_sampling` is called between the two."""
    time_once = _cuda_timer(device) if device.startswith("cuda") else _host_timer
    first = time_once(call)[2]
    warm_up_start = seconds_now()
    num_warmup = _warm_up(call, plan, time_once, first)
    warm_up_seconds = seconds_now() - warm_up_start
    if before_sampling is not None:
        before_sampling()
    taken: list[tuple[float, float, float]] = []
    start = seconds_now()
    stopped: Literal["settled", "budget", "count"] = "count"
    next_look = plan.least_samples
    while len(taken) < plan.most_samples:
        taken.append(time_once(call))
        spent = seconds_now() - start
        patience = plan.budget_seconds * (1.0 if len(taken) >= plan.least_samples else _PATIENCE)
        if 0 < patience <= spent and len(taken) >= min(_FEWEST, plan.least_samples):
            stopped = "budget"
            break
        if len(taken) >= next_look and spent >= plan.least_seconds:
            # looking takes time too, so it is done ever more rarely
            next_look = len(taken) + max(1, len(taken) // 4)
            if plan.settled([each[0] for each in taken]):
                stopped = "settled"
                break
    return Samples(
        first_seconds=first,
        seconds=tuple(each[0] for each in taken),
        host_seconds=tuple(each[1] for each in taken) if device.startswith("cuda") else (),
        wall_seconds=tuple(each[2] for each in taken),
        warm_up_seconds=warm_up_seconds,
        sampling_seconds=seconds_now() - start,
        num_warmup=num_warmup,
        stopped=stopped,
    )


def _warm_up(call: Callable[[], Any], plan: SamplingPlan, time_once: Callable[..., Any], first: float) -> int:
    """Calls that do not count, until the time for them is over; a call much longer than that needs but one."""
    start, num_calls = seconds_now(), 0
    while num_calls < plan.most_warm_ups:
        if num_calls >= plan.least_warm_ups and seconds_now() - start >= plan.warm_up_seconds:
            break
        wall = time_once(call)[2]
        num_calls += 1
        if plan.warm_up_seconds and min(first, wall) > _SLOW * plan.warm_up_seconds:
            break
    return num_calls


def _host_timer(call: Callable[[], Any]) -> tuple[float, float, float]:
    start = seconds_now()
    call()
    seconds = seconds_now() - start
    return seconds, seconds, seconds


def _cuda_timer(device: str) -> Callable[[Callable[[], Any]], tuple[float, float, float]]:
    import torch

    stream = torch.cuda.current_stream(torch.device(device))
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream.synchronize()

    def time_once(call: Callable[[], Any]) -> tuple[float, float, float]:
        start = seconds_now()
        before.record(stream)
        call()
        after.record(stream)
        host = seconds_now() - start
        after.synchronize()
        return before.elapsed_time(after) * 1e-3, host, seconds_now() - start

    return time_once
