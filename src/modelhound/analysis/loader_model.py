"""What a run takes, composed of loading without a model and computing without loading.

In:  load(b, w) of a few pairs as arrival times of batches, compute(b) of a few batch sizes
Out: for any batch size, number of workers and length of the run: its seconds and what they are made of
Nothing here measures. Workers take batches in turn, so batch m comes from worker m mod w in its round m div w: it is there
after the start of that worker and so many rounds. A batch is begun when it is there and the one before it is done (the larger
of the two: nothing is added where loading and computing overlap). Without workers nothing overlaps. And no run is shorter than
what all its work takes when it is spread over all cores, which decides where loading and computing share a CPU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelhound.records import LoadMeasured, StepMeasured

__all__ = ["Composed", "LoadLaw", "StepLaw", "compose", "fit_load", "fit_steps", "suit_computing"]

_AS_FAST = 0.01  # of a step: a batch size within so much of the fastest is as fast
_MOST_SIMULATED = 2048  # batches; beyond, a run goes on as it went before

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """compute(b) of one model: data to device and forward, through the measured sizes by straight lines."""

    batches: tuple[int, ...]
    seconds: tuple[float, ...]
    copy_share: float
    """Of a step, at the largest measured batch."""
    num_busy_cores: float

    def of(self, batch: float) -> float:
        """Seconds of one step with so many items."""
        first, last = self.batches[0], self.batches[-1]
        if first <= batch <= last:
            return float(np.interp(batch, self.batches, self.seconds))
        if batch < first:
            slope = self._slope(min(1, len(self.batches) - 1))
            return max(self.seconds[0] - slope * (first - batch), self.seconds[0] * batch / first)
        # from the first, not from the one before: a slope between neighbours is mostly their noise
        return self.seconds[-1] + self._slope(-1) * (batch - last)

    def _slope(self, place: int) -> float:
        """From the first batch size to this one; never less than nothing, never more than all of the time growing with it."""
        if len(self.batches) == 1:
            return self.seconds[0] / self.batches[0]
        steepest = self.seconds[place] / self.batches[place]
        rise = self.seconds[place] - self.seconds[0]
        return min(max(rise / (self.batches[place] - self.batches[0]), 0.0), steepest)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLaw:
    """load(b, w) of one data set and form of input."""

    start_seconds: float
    """Until the first worker begins."""
    start_per_worker: float
    by_batch: tuple[tuple[float, float], ...]
    """Log batch size -> log seconds of one item in one of the workers, to which `by_workers` is added."""
    by_workers: tuple[tuple[float, float], ...]
    """Log number of workers -> how much they slow each other down, as a logarithm."""
    inline: tuple[tuple[float, float], ...]
    """Log batch size -> log seconds of one item without workers."""
    stop: tuple[tuple[float, float], ...]
    """Number of workers -> seconds to end them."""

    def item_seconds(self, batch: int, workers: int) -> float:
        """Of one item in one of so many processes."""
        if workers == 0:
            return math.exp(_between(self.inline or self.by_batch, math.log(batch)))
        slower = _between(self.by_workers, math.log(workers))
        beyond = max(0.0, math.log(workers) - self.by_workers[-1][0]) if self.by_workers else 0.0
        return math.exp(_between(self.by_batch, math.log(batch)) + slower + beyond)

    def start_of(self, workers: int) -> float:
        """Seconds until so many workers have begun."""
        return 0.0 if workers == 0 else self.start_seconds + self.start_per_worker * workers

    def stop_of(self, workers: int) -> float:
        return 0.0 if workers == 0 else _between(self.stop, float(workers))

    def arrivals(self, batch: int, workers: int, num_batches: int, last_size: int) -> Floats:
        """When each batch is there, from the start of the run; the last may be smaller."""
        each = self.item_seconds(batch, workers) * batch
        places = np.arange(num_batches)
        rounds = places // workers + 1.0
        if last_size < batch:
            rounds[-1] -= 1 - last_size / batch
        begun = self.start_seconds + self.start_per_worker * workers
        return np.maximum.accumulate(begun + rounds * each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One run, composed."""

    seconds: float
    first_batch_seconds: float
    load_seconds: float
    """What loading alone would take."""
    step_seconds: float
    """What computing alone would take, data to device included."""
    shared_seconds: float
    """What all work would take, spread over all cores."""


def fit_steps(measured: Sequence[StepMeasured]) -> StepLaw:
    """compute(b) of one model; of several measurements of a batch size the fastest counts, which nothing disturbed."""
    slowest_first = sorted(measured, key=lambda each: float(np.median(each.forward_seconds)), reverse=True)
    by_batch = {each.batch: each for each in slowest_first}
    batches = sorted(by_batch)
    copies = [float(np.median(by_batch[batch].copy_seconds)) for batch in batches]
    forwards = [float(np.median(by_batch[batch].forward_seconds)) for batch in batches]
    return StepLaw(
        batches=tuple(batches),
        seconds=tuple(copy + forward for copy, forward in zip(copies, forwards, strict=True)),
        copy_share=copies[-1] / max(copies[-1] + forwards[-1], 1e-12),
        num_busy_cores=by_batch[batches[-1]].num_busy_cores,
    )


def suit_computing(steps: Sequence[StepLaw]) -> int:
    """The smallest batch size with which all models together compute an item as fast as with any that was measured."""
    batches = sorted(
        {batch for step in steps for batch in step.batches if batch <= min(each.batches[-1] for each in steps)}
    )
    seconds = np.array([[step.of(batch) / batch for batch in batches] for step in steps])
    slower = (seconds / seconds.min(axis=1, keepdims=True)).mean(axis=0)
    return batches[int(np.argmax(slower <= slower.min() + _AS_FAST))]


def fit_load(measured: Sequence[LoadMeasured]) -> LoadLaw:
    """load(b, w) from runs with a warm page cache; at least one is needed, and of the same pair the fastest counts."""
    fastest: dict[tuple[int, int], LoadMeasured] = {}
    for each in sorted(measured, key=lambda run: run.arrivals[-1], reverse=True):
        fastest[each.batch, each.workers] = each
    measured = list(fastest.values())
    inline = {each.batch: _inline_item_seconds(each) for each in measured if each.workers == 0}
    with_workers = [each for each in measured if each.workers > 0]
    start, per_worker = _fit_start(with_workers)
    found = [
        (each.batch, each.workers, _item_seconds(each, start + per_worker * each.workers)) for each in with_workers
    ]
    if not found:
        found = [(batch, 1, seconds) for batch, seconds in inline.items()]
    by_batch, by_workers = _fit_additive(found)
    stops = {each.workers: each.stop_seconds for each in with_workers}
    return LoadLaw(
        start_seconds=start,
        start_per_worker=per_worker,
        by_batch=by_batch,
        by_workers=by_workers,
        inline=tuple(sorted((math.log(batch), math.log(seconds)) for batch, seconds in inline.items())),
        stop=tuple(sorted((float(workers), seconds) for workers, seconds in stops.items())) or ((1.0, 0.0),),
    )


def compose(load: LoadLaw, step: StepLaw, *, batch: int, workers: int, num_items: int, num_cores: int) -> Composed:
    """One pass over `num_items`, from the start of the workers to their end."""
    batch = min(batch, num_items)
    num_batches = -(-num_items // batch)
    last_size = num_items - (num_batches - 1) * batch
    workers = min(workers, num_batches)
    full, last = step.of(batch), step.of(last_size)
    step_seconds = full * (num_batches - 1) + last
    item_core_seconds = load.item_seconds(batch, min(workers, 1))
    work = num_items * item_core_seconds + step_seconds * step.num_busy_cores
    shared = load.start_of(workers) + work / num_cores
    if workers == 0:
        load_seconds = num_items * item_core_seconds
        return Composed(
            seconds=load_seconds + step_seconds,
            first_batch_seconds=batch * item_core_seconds,
            load_seconds=load_seconds,
            step_seconds=step_seconds,
            shared_seconds=load_seconds + step_seconds,
        )
    simulated = min(num_batches, max(_MOST_SIMULATED, 4 * workers))
    arrivals = load.arrivals(batch, workers, simulated, last_size if simulated == num_batches else batch)
    steps = np.full(simulated, full)
    steps[-1] = last if simulated == num_batches else full
    beyond = (num_batches - simulated) * max(full, load.item_seconds(batch, workers) * batch / workers)
    stop = load.stop_of(workers)
    return Composed(
        seconds=max(_finish(arrivals, steps) + beyond, shared) + stop,
        first_batch_seconds=float(arrivals[0]),
        load_seconds=float(arrivals[-1]) + beyond + stop,
        step_seconds=step_seconds,
        shared_seconds=shared + stop,
    )


def _finish(arrivals: Floats, steps: Floats) -> float:
    """When the last batch is done: each begins when it is there and the one before is done."""
    done = np.cumsum(steps)
    return float((arrivals - (done - steps)).max() + done[-1])


def _inline_item_seconds(run: LoadMeasured) -> float:
    """The first batch is left out where there are others: it also pays for opening files and libraries."""
    arrivals = run.arrivals
    if len(arrivals) > 1 and run.num_items > run.batch:
        return (arrivals[-1] - arrivals[0]) / (run.num_items - run.batch)
    return arrivals[0] / min(run.batch, run.num_items)


def _fit_start(runs: Sequence[LoadMeasured]) -> tuple[float, float]:
    """Seconds to begin, and for each worker; from runs with several rounds, where a round can be told from the start."""
    starts: dict[int, list[float]] = {}
    for run in runs:
        rounds = _round_seconds(run)
        if rounds is not None:
            starts.setdefault(run.workers, []).append(max(0.0, run.arrivals[0] - rounds))
    if not starts:
        return 0.0, 0.0
    workers = np.array(sorted(starts), dtype=np.float64)
    seconds = np.array([np.median(starts[int(each)]) for each in workers])
    if len(workers) == 1:
        return 0.0, float(seconds[0] / workers[0])
    slope = max(0.0, float(np.polyfit(workers, seconds, 1)[0]))
    return max(0.0, float((seconds - slope * workers).mean())), slope


def _round_seconds(run: LoadMeasured) -> float | None:
    """What one worker takes for a batch: the time between its batches; None where none has made two full ones."""
    num_full = run.num_items // run.batch
    if num_full <= run.workers:
        return None
    arrivals = np.array(run.arrivals[:num_full])
    gaps = arrivals[run.workers :] - arrivals[: -run.workers]
    return float(gaps.mean())


def _item_seconds(run: LoadMeasured, start: float) -> float:
    rounds = _round_seconds(run)
    size = min(run.batch, run.num_items)
    if rounds is None:
        # Never less than half of it: a start that was slower once must not make loading free.
        rounds = max(run.arrivals[0] - start, run.arrivals[0] / 2)
    return max(rounds / size, 1e-9)


def _fit_additive(
    found: Sequence[tuple[int, int, float]],
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
    """Log seconds of an item as a function of the batch plus one of the workers, the latter 0 for the fewest workers."""
    batches = sorted({batch for batch, _, _ in found})
    workers = sorted({each for _, each, _ in found})
    design = np.zeros((len(found), len(batches) + len(workers) - 1))
    for row, (batch, each, _) in enumerate(found):
        design[row, batches.index(batch)] = 1
        if each != workers[0]:
            design[row, len(batches) + workers.index(each) - 1] = 1
    solved, *_ = np.linalg.lstsq(design, np.log([seconds for *_, seconds in found]), rcond=None)
    slower = [0.0, *solved[len(batches) :].tolist()]
    return (
        tuple((math.log(batch), float(value)) for batch, value in zip(batches, solved, strict=False)),
        tuple((math.log(each), float(value)) for each, value in zip(workers, slower, strict=True)),
    )


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """By straight lines through the points; beyond the ends as at the ends."""
    return float(np.interp(at, [x for x, _ in points], [y for _, y in points])) if points else 0.0
