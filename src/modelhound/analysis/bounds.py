"""What bounds a training run, with a counterfactual and an interval.

In:  BlocksMeasured: steps as they are, in turns with steps of which a part was made free
Out: a Verdict: what bounds the run, how much faster it would be without that, how sure this is, what to do
Nothing here measures. What counts is the ratio within each round, so that a machine that was slower for a while makes no
difference. A round counts once, however many steps its blocks have: steps that follow each other share what disturbs them. A
block counts with its mean step: batches of several loader processes come in bursts, where most steps wait for nothing.

"data-bound: with loading for free 2.3x faster [2.2, 2.4]" is the ratio of live steps to steps from cached batches. What more
loader processes would bring follows from two times: loading costs each of W workers W times the live step where that is what
one waits for, and no step is shorter than one from cached batches.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from modelhound.analysis.samples import series_interval
from modelhound.analysis.wording import interval_text, plural, seconds_text, times_text
from modelhound.errors import RequestError
from modelhound.records import BlocksMeasured

__all__ = ["DoseResponse", "Gain", "Verdict", "judge_blocks", "workers_needed"]

_WORTH_NAMING = 1.05
"""A gain below this is not worth a name: a run that only that bounds is bound by the model."""

_VISIBLE = 1.005
"""A gain below this reads as 1.00x or less."""

_TOO_WIDE = 1.25
"""Where nothing is worth a name but an interval reaches beyond this, or as far below 1, too little is known."""

_FREE = {
    "host batches": ("data-bound", "with loading for free"),
    "device batches": ("copy-bound", "with copies to the device for free"),
    "no all-reduce": ("communication-bound", "with the network between ranks for free"),
}


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """How much faster a step would be with one part for free."""

    condition: str
    speedup: float
    interval: tuple[float, float]
    step_seconds: float
    """Of a step under this condition."""


class DoseResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a known delay in one stage does to the step: a share of 1 is on the critical path, 0 is hidden."""

    stage: str
    share: float
    interval: tuple[float, float]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a run."""

    model: str
    num_ranks: int
    bound: str
    """data-bound, copy-bound, communication-bound, model-bound or cannot be told."""
    speedup: float
    interval: tuple[float, float]
    """Of the counterfactual: that part for free; of a model-bound run, all other parts."""
    sentence: str
    advice: str
    step_seconds: float
    gains: tuple[Gain, ...]
    doses: tuple[DoseResponse, ...] = ()
    workers_needed: int | None = None
    """Loader processes per rank that would keep up with the model, by the two times measured."""


def judge_blocks(measured: BlocksMeasured) -> Verdict:
    """The verdict that follows from the blocks."""
    times = _by_condition(measured)
    live = times["live"]
    gains = [
        _gain(condition, _reference(condition, times), times[condition]) for condition in _FREE if condition in times
    ]
    named = max(gains, key=lambda gain: gain.interval[0])
    step = float(np.median(live))
    needed = None
    if named.interval[0] > _WORTH_NAMING:
        bound, words = _FREE[named.condition]
        speedup, interval = named.speedup, named.interval
        sentence = f"{bound}: {words} {times_text(speedup)} faster {interval_text(interval)}"
        if bound == "data-bound":
            needed = workers_needed(step, named.step_seconds, measured.num_workers)
            sentence += _more_workers(step, named.step_seconds, measured, needed)
    elif (widest := max(gains, key=_scatter)) and _scatter(widest) > _TOO_WIDE:
        bound, speedup, interval = "cannot be told", widest.speedup, widest.interval
        low, high = interval
        words = f"{_FREE[widest.condition][1]} between {times_text(low)} and {times_text(high)} as fast"
        sentence = f"cannot be told: steps vary too much, {words}"
    else:
        bound = "model-bound"
        fastest = min(gains, key=lambda gain: gain.step_seconds)
        total = _gain(fastest.condition, live, times[fastest.condition])
        speedup, interval = total.speedup, total.interval
        gain = f"only {times_text(speedup)} faster" if speedup >= _VISIBLE else "no faster"
        sentence = f"model-bound: with everything but the model for free {gain} {interval_text(interval)}"
    return Verdict(
        model=measured.model,
        num_ranks=measured.num_ranks,
        bound=bound,
        speedup=speedup,
        interval=interval,
        sentence=sentence,
        advice=_advise(bound, measured, needed, step),
        step_seconds=step,
        gains=tuple(gains),
        doses=_doses(measured, live),
        workers_needed=needed,
    )


def _scatter(gain: Gain) -> float:
    """How far the interval reaches from 1: nothing gets slower by what is made free, so below 1 it is chance alone."""
    low, high = gain.interval
    return max(high, 1 / low)


def workers_needed(live_seconds: float, cached_seconds: float, num_workers: int) -> int:
    """Loader processes that would keep up with steps of `cached_seconds`."""
    if num_workers == 0:  # loading and computing take turns in one process
        return max(1, _at_least((live_seconds - cached_seconds) / cached_seconds))
    return _at_least(live_seconds * num_workers / cached_seconds)


def _at_least(number: float) -> int:
    """The next whole number; what rounding added does not count."""
    return math.ceil(number - 1e-9)


def _by_condition(measured: BlocksMeasured) -> dict[str, npt.NDArray[np.float64]]:
    """Mean step of each round, by condition, rounds in order."""
    found: dict[str, list[tuple[int, float]]] = {}
    for block in measured.blocks:
        if block.delay_seconds == 0:
            found.setdefault(block.condition, []).append((block.round, float(np.mean(block.seconds))))
    return {condition: np.array([value for _, value in sorted(rounds)]) for condition, rounds in found.items()}


def _reference(condition: str, times: dict[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """What a condition is compared with: copies for free come on top of loading for free."""
    return times["host batches"] if condition == "device batches" else times["live"]


def _gain(condition: str, with_it: npt.NDArray[np.float64], without: npt.NDArray[np.float64]) -> Gain:
    """From the ratio within each round; their median, so that one round in which something else ran does not decide."""
    ratios = with_it / without
    low, high = _interval(np.log(ratios))
    return Gain(
        condition=condition,
        speedup=float(np.median(ratios)),
        interval=(math.exp(low), math.exp(high)),
        step_seconds=float(np.median(without)),
    )


def _interval(of_rounds: npt.NDArray[np.float64]) -> tuple[float, float]:
    found = series_interval(of_rounds.tolist())
    if found is None:
        raise RequestError(
            f"cannot tell what bounds a training from {len(of_rounds)} rounds of blocks: expected 3 or more, measure again"
        )
    return found


def _doses(measured: BlocksMeasured, live: npt.NDArray[np.float64]) -> tuple[DoseResponse, ...]:
    stages = dict.fromkeys(block.condition for block in measured.blocks if block.delay_seconds > 0)
    return tuple(_dose(stage, measured, live) for stage in stages)


def _dose(stage: str, measured: BlocksMeasured, live: npt.NDArray[np.float64]) -> DoseResponse:
    """In each round the slope through the origin of what a step lost against the delay it was given."""
    found: dict[float, list[tuple[int, float]]] = {}
    for block in measured.blocks:
        if block.condition == stage and block.delay_seconds > 0:
            found.setdefault(block.delay_seconds, []).append((block.round, float(np.mean(block.seconds))))
    delays = np.array(sorted(found))
    times = np.array([[value for _, value in sorted(found[delay])] for delay in delays])  # [doses, rounds]
    shares = (delays[:, None] * (times - live)).sum(0) / (delays**2).sum()
    return DoseResponse(stage=stage, share=float(np.median(shares)), interval=_interval(shares))


def _more_workers(live: float, cached: float, measured: BlocksMeasured, needed: int) -> str:
    """What so many workers would bring, or as many as there are cores for."""
    before = measured.num_workers
    more = min(needed, max(1, measured.cores_per_rank))
    if more <= before:
        return ""
    loading = (live - cached) / more if before == 0 else live * before / more
    reached = live / max(cached, loading)
    return f"; {plural(more, 'worker')} instead of {before or 'none'} would give {times_text(reached)}"


def _advise(bound: str, measured: BlocksMeasured, needed: int | None, step: float) -> str:
    if bound == "data-bound":
        spare = measured.cores_per_rank
        otherwise = "" if measured.is_prepared else "decode once with `hound prepare`"
        if needed is not None and needed > spare:
            words = f"it would take {plural(needed, 'worker')} per rank, more than the {plural(spare, 'core')} each has here"
            fewer = "use fewer --ranks on this machine" if measured.num_ranks > 1 else ""
            return f"{words}: " + ", or ".join(filter(None, (otherwise or fewer, "use more cores")))
        return f"use --workers {needed}" + (f", or {otherwise}" if otherwise else "")
    if bound == "cannot be told":
        return "something else ran on this machine, or the run is too short: train for longer, or on a quiet machine"
    if bound == "copy-bound":
        return "use a larger --batch, or prepared items of a smaller size"
    if bound == "communication-bound":
        return "use --accumulate 2 or more, a larger --batch, or fewer --ranks"
    faster = ", ".join((*measured.unused, "a smaller model"))
    return f"a step of {seconds_text(step)} is the model's own: use {faster}, or more --ranks"
