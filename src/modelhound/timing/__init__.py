"""One network, one shape, one precision, one device -> raw samples, memory, FLOPs; and many of them in a row.

    planning    which models, devices, sizes; what each point costs
    axes        which points a sweep has, and in which order
    pricing     what a sweep will take, before it runs
    results     what it found, with laws, hypotheses and JSON; comparisons of runs
    bench       where points are measured: a warm process per device, a new one after every failure
    sweeping    all points of a plan on this machine, as far as they are not known yet
    places      this machine, or all machines of a Ray cluster at once
    limits      which points cannot be measured, known before they are tried
    measuring   one point: what a process of the bench does
    sketching   what networks cost and which sizes they take, without running them
    ceilings    the most a device can do
    subject     a network and how it is fed; `counting`, `kernels` and `memory` look at one call each

Nothing here finds out what follows from the times: laws, hypotheses and comparisons are those of `analysis`.
"""

from modelhound.timing.bench import Bench
from modelhound.timing.places import Place, open_place
from modelhound.timing.planning import SweepPlan, find_devices, plan_sweep
from modelhound.timing.pricing import Learnt, price_points, recall, remember
from modelhound.timing.results import (
    LatencyAnswer,
    LatencyPlan,
    LatencyResult,
    assemble_result,
    compare_latency,
    read_comparable,
    read_latency,
)
from modelhound.timing.sweeping import find_limits

__all__ = [
    "Bench",
    "LatencyAnswer",
    "LatencyPlan",
    "LatencyResult",
    "Learnt",
    "Place",
    "SweepPlan",
    "assemble_result",
    "compare_latency",
    "find_devices",
    "find_limits",
    "open_place",
    "plan_sweep",
    "price_points",
    "read_comparable",
    "read_latency",
    "recall",
    "remember",
]
