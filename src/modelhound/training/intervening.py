"""What bounds a run, found by making parts of it free and seeing what that brings.

In:  a Bench, before or after its training
Out: Blocks: a few steps in a row under one condition, conditions in turns, in another order in each round
Nothing here concludes; `analysis.bounds` does. The bench is left as it was: weights, statistics and the optimiser's memory.

    live             steps as they are, batches from the loader
    host batches     the same few batches again and again from the host's memory: loading for free
    device batches   the same few batches again and again on the device: copying for free too
    no all-reduce    live, but ranks keep their gradients to themselves: the network for free

A live block has a loader of its own, so that none profits from batches that were loaded while another condition ran; its first
batches are not counted, and it lasts whole turns of its loader processes, whose batches come in bursts. With doses, stages are
made slower by a known time instead: a stage on the critical path lengthens the step by all of it, a hidden one by nothing.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from modelhound.data import Batch
from modelhound.data.recommended import item_kind
from modelhound.meter import count_cores, seconds_now
from modelhound.meter.laps import make_laps
from modelhound.records import Block, BlocksMeasured, Progress, Watch, silent
from modelhound.training.bench import Bench
from modelhound.training.delaying import slow_down_reading
from modelhound.training.feed import Course, Moved, move, move_batches
from modelhound.training.layout import tuned_convolutions
from modelhound.training.loop import prepare_to_learn

__all__ = ["intervene", "left_as_it_was"]

NUM_ROUNDS = 5
_DOSED = ("loading", "model", "network")
_CACHED = ("host batches", "device batches")
_LEAST_STEPS, _MOST_STEPS = 2, 40
_NUM_KEPT = 4  # batches that are run again and again
_DOSES = (0.25, 0.5)  # of a step


def intervene(
    bench: Bench,
    *,
    budget_seconds: float,
    live_seconds: float = 0.0,
    doses: bool = False,
    num_rounds: int = NUM_ROUNDS,
    model: str = "",
    watch: Watch = silent,
) -> BlocksMeasured:
    """Blocks of all conditions that make sense here; they take about `budget_seconds` where steps are that quick.

    `live_seconds` is a step as it is, where that is known already.
    """
    stage = _Stage(bench)
    with left_as_it_was(bench), tuned_convolutions():
        kept = stage.load_some()
        step_seconds = stage.try_a_step(kept)
        live_seconds = max(step_seconds, bench.link.largest(live_seconds))
        dose_seconds = stage.try_live(kept) if doses else 0.0
        plan = _plan(bench, dose_seconds)
        left = budget_seconds / num_rounds
        num_steps = _choose_num_steps(plan, left, step_seconds, live_seconds, num_warm=bench.course.workers + 1)
        num_steps = int(bench.link.largest(num_steps))
        blocks = []
        for number in range(num_rounds):
            order = random.Random(f"{bench.recipe.seed} {number}").sample(plan, len(plan))
            for place, (condition, delay) in enumerate(order):
                done = number * len(plan) + place
                watch(
                    Progress(task="finding what bounds it", done=done, total=num_rounds * len(plan), detail=condition)
                )
                seconds = stage.run(condition, delay, kept, num_steps, number)
                blocks.append(Block(condition=condition, round=number, seconds=seconds, delay_seconds=delay))
        watch(Progress(task="finding what bounds it", done=1, total=1))
    return BlocksMeasured(
        model=model,
        num_ranks=bench.link.num_ranks,
        num_workers=bench.course.workers,
        num_cores=count_cores(),
        num_local_ranks=bench.link.num_local_ranks,
        batch=bench.course.batch,
        blocks=tuple(blocks),
        is_prepared=item_kind(bench.course.dataset) == "preprocessed",
        unused=_unused(bench),
    )


def _unused(bench: Bench) -> tuple[str, ...]:
    """On a CPU neither is sure to help: bf16 may even end the process, and to compile takes longer than most runs."""
    if not bench.device.startswith("cuda"):
        return ()
    in_bf16 = bench.stepper.precision == "bf16" or not torch.cuda.is_bf16_supported(including_emulation=False)
    return (*(() if in_bf16 else ("--precision bf16",)), *(() if bench.recipe.compile else ("--compile",)))


def _plan(bench: Bench, dose_seconds: float) -> list[tuple[str, float]]:
    """Conditions, each with the delay it gets: shares of the dose, none where that is zero."""
    alone, on_gpu = bench.link.num_ranks == 1, bench.device.startswith("cuda")
    plan = [("live", 0.0), ("host batches", 0.0)]
    plan += [("device batches", 0.0)] if on_gpu else []
    plan += [] if alone else [("no all-reduce", 0.0)]
    if dose_seconds > 0:
        stages = [stage for stage in _DOSED if stage != "network" or not alone]
        plan += [(stage, share * dose_seconds) for stage, share in itertools.product(stages, _DOSES)]
    return plan


def _choose_num_steps(
    plan: list[tuple[str, float]], round_seconds: float, step_seconds: float, live_seconds: float, *, num_warm: int
) -> int:
    """Steps of each block such that a round takes about so long."""
    num_cached = sum(condition in _CACHED for condition, _ in plan)
    num_live = len(plan) - num_cached
    delays = sum(delay for _, delay in plan)
    first = num_cached * step_seconds + num_live * num_warm * live_seconds
    each = num_cached * step_seconds + num_live * live_seconds + delays
    return int(max(_LEAST_STEPS, min(_MOST_STEPS, (round_seconds - first) // each)))


class _Stage:
    """Runs blocks on a bench."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def load_some(self) -> list[Batch]:
        """A few batches to keep; the first ones of an epoch, read in this process."""
        course = replace(self._bench.course, workers=0)
        positions = course.positions(0)[: _NUM_KEPT * course.batch].tolist()
        return list(course.stream(positions))

    def try_a_step(self, kept: list[Batch]) -> float:
        """Seconds of a step without loading, on the slowest rank; the first two are not counted."""
        prepare_to_learn(self._bench)
        seconds = self._time(self._again(kept, 3), skip=2, num_steps=1)
        return max(1e-5, self._bench.link.largest(seconds[0]))

    def try_live(self, kept: list[Batch]) -> float:
        """Seconds of a step as it is, on the slowest rank: what doses are shares of, so that they stand out of its scatter."""
        return self._bench.link.largest(sorted(self.run("live", 0.0, kept, 3, 0))[1])

    def run(self, condition: str, delay: float, kept: list[Batch], num_steps: int, number: int) -> tuple[float, ...]:
        """Seconds of each step of one block."""
        bench = self._bench
        bench.link.barrier()
        traffic, stepper = bench.link.traffic, bench.stepper
        before = (traffic.enabled, traffic.delay_seconds, stepper.model_delay_seconds)
        traffic.enabled = condition != "no all-reduce"
        traffic.delay_seconds += delay if condition == "network" else 0.0
        stepper.model_delay_seconds += delay if condition == "model" else 0.0
        try:
            if condition == "host batches":
                return self._time(self._again(kept, num_steps + 1), skip=1, num_steps=num_steps)
            if condition == "device batches":
                moved = [move(batch, bench.device) for batch in kept]
                return self._time(itertools.cycle(moved), skip=1, num_steps=num_steps)
            course = bench.course
            if condition == "loading":
                course = replace(course, dataset=slow_down_reading(course.dataset, delay / course.batch))
            skip = course.workers + 1
            turns = max(1, course.workers)
            num_steps = -(-num_steps // turns) * turns
            # loaders must not run dry towards the end: some batches more than are used
            num_batches = skip + num_steps + (course.prefetch * course.workers)
            return self._time(self._live(course, num_batches, number), skip=skip, num_steps=num_steps)
        finally:
            traffic.enabled, traffic.delay_seconds, stepper.model_delay_seconds = before

    def _again(self, kept: list[Batch], count: int) -> Iterator[Moved]:
        repeated = itertools.islice(itertools.cycle(kept), count)
        return move_batches(iter(repeated), self._bench.device, make_laps(self._bench.device))

    def _live(self, course: Course, num_batches: int, number: int) -> Iterator[Moved]:
        positions: list[int] = []
        epoch = number
        while len(positions) < num_batches * course.batch:
            positions += course.positions(epoch).tolist()
            epoch += 1
        stream = course.stream(positions[: num_batches * course.batch])
        return move_batches(stream, self._bench.device, make_laps(self._bench.device))

    def _time(self, feed: Iterator[Moved], *, skip: int, num_steps: int) -> tuple[float, ...]:
        """Steps with all accounting on. On a GPU the device is waited for at both ends only, and steps share the time."""
        bench = self._bench
        on_gpu = bench.device.startswith("cuda")
        laps = make_laps(bench.device)
        laps.begin()
        seconds = []
        try:
            for number in range(skip + num_steps):
                if number == skip:
                    if on_gpu:
                        torch.cuda.synchronize(bench.device)
                    last = seconds_now()
                bench.stepper.step(next(feed), laps)
                laps.end_step()
                if number >= skip and not on_gpu:
                    seconds.append((now := seconds_now()) - last)
                    last = now
            if on_gpu:
                torch.cuda.synchronize(bench.device)
                seconds = [(seconds_now() - last) / num_steps] * num_steps
        finally:
            close = getattr(feed, "close", None)
            if close is not None:
                close()
        return tuple(seconds)


class left_as_it_was:  # noqa: N801  # reads as words where it is used
    """Put weights, statistics, the optimiser's memory and the count of steps back at the end."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def __enter__(self) -> None:
        stepper = self._bench.stepper
        self._tensors = {name: each.detach().clone() for name, each in self._bench.learner.state_dict().items()}
        kept = stepper.optimiser.state_dict()
        self._memory = {
            **kept,
            "state": {
                number: {name: each.clone() if isinstance(each, torch.Tensor) else each for name, each in state.items()}
                for number, state in kept["state"].items()
            },
        }
        self._counts = (stepper.num_batches, stepper.num_steps, stepper.num_parts)

    def __exit__(self, *ended: object) -> None:
        stepper = self._bench.stepper
        stepper.optimiser.zero_grad(set_to_none=True)
        self._bench.learner.load_state_dict(self._tensors)
        stepper.optimiser.load_state_dict(self._memory)
        stepper.resume_at(*self._counts)
        self._bench.learner.eval()
