"""Predict what a plan will cost before anything runs.

In:  a Plan
Out: a Forecast: seconds by phase and in all, work with and without sharing

Phases are the busy seconds of each; they overlap, so the total is not their sum. The total comes from walking through the plan
with one clock each for whatever works at the same time: reading weights (one step ahead, where the plan prefetches), decoding
(a chunk at a time, for all inputs at once; batches are run as they come), running, and scoring (one set of features at a
time; the next waits until it is taken). Spilled bytes flow while a step runs. Nothing here was measured: rates come from Costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from modelhound.plan.chain import Costs, Plan, Segment
from modelhound.plan.memory import peak_bytes

__all__ = ["Forecast", "forecast_plan", "halving_spares", "run_seconds_per_item"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a plan will cost, and what the same models would cost without sharing."""

    read_seconds: float
    decode_seconds: float
    forward_seconds: float
    score_seconds: float
    spill_seconds: float
    total_seconds: float
    """From start to end, overlap counted."""
    peak_bytes: int
    num_segments: int
    """That all models have together; `_run`: that the plan runs."""
    num_segments_run: int
    flops: float
    """For all items, if every model ran by itself; `_run`: by this plan."""
    flops_run: float
    weight_bytes: int
    """If every model read its own; `_read`: by this plan."""
    weight_bytes_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What one run of a step over one chunk asks of each worker."""

    read_seconds: float
    first_read_seconds: float  # in the first chunk: resident weights are read too
    decode_seconds: float  # not 0 for the first step: a chunk is decoded into all forms at once
    forward_seconds: float
    spill_seconds: float
    fetch_seconds: float  # before scoring: features that waited on disk for the last chunk
    score_seconds: float


@dataclass(slots=True)
class _Clocks:
    """When each worker is free."""

    reader: float = 0.0
    decoder: float = 0.0
    device: float = 0.0
    scorer: float = 0.0
    started: float = 0.0  # when the step before began: from then on the weights of the next may be read
    taken: float = 0.0  # when the last decoded data began to be used: from then on the next may be decoded

    def skip(self, seconds: float) -> None:
        self.reader += seconds
        self.decoder += seconds
        self.device += seconds
        self.scorer += seconds
        self.started += seconds
        self.taken += seconds


def forecast_plan(plan: Plan) -> Forecast:
    """Predicted seconds, bytes and FLOPs of the plan."""
    bytes_again, bytes_first = _count_reads(plan)
    loads = _list_loads(plan, bytes_again, bytes_first)
    weight_bytes_read = sum(bytes_first) + (plan.num_chunks - 1) * sum(bytes_again)
    chunks = plan.num_items / plan.chunk_items  # the last may be smaller
    costs = plan.costs
    run_flops = [sum([segment.flops_per_item for segment in step.segments]) for step in plan.steps]
    all_flops = [sum([segment.flops_per_item for segment in chain.segments]) for chain in plan.chains]
    return Forecast(
        read_seconds=weight_bytes_read / costs.weight_bytes_per_second,
        decode_seconds=chunks * sum(load.decode_seconds for load in loads),
        forward_seconds=chunks * sum(load.forward_seconds for load in loads),
        score_seconds=costs.score_seconds * sum(bool(step.finishes) for step in plan.steps),
        spill_seconds=chunks * sum(load.spill_seconds for load in loads) + sum(load.fetch_seconds for load in loads),
        total_seconds=_run_through_time(plan, loads),
        peak_bytes=peak_bytes(plan),
        num_segments=sum(len(chain.segments) for chain in plan.chains),
        num_segments_run=sum(len(step.segments) for step in plan.steps),
        flops=plan.num_items * sum(all_flops),
        flops_run=plan.num_items * sum(run_flops),
        weight_bytes=sum(_distinct_bytes(chain.segments) for chain in plan.chains),
        weight_bytes_read=weight_bytes_read,
    )


def halving_spares(plan: Plan) -> float:
    """Seconds of running that can be hoped to be spared if every other model is dropped, whichever.

    A step runs as long as one model is left that needs it: dropping some of many near-copies spares their last parts only.
    """
    num_models = [len(step.finishes) for step in plan.steps]
    for index in range(len(plan.steps) - 1, -1, -1):  # a source comes before those that continue it
        source = plan.steps[index].source
        if source is not None:
            num_models[source] += num_models[index]
    seconds = [run_seconds_per_item(step.segments, plan.costs) for step in plan.steps]
    return plan.num_items * sum(each * 0.5**number for each, number in zip(seconds, num_models, strict=True))


def run_seconds_per_item(segments: Sequence[Segment], costs: Costs) -> float:
    """Time on the device for one item, without the fixed part."""
    return sum([each.run_seconds(costs.flops_per_second) for each in segments])


def _count_reads(plan: Plan) -> tuple[list[int], list[int]]:
    """Bytes of weights that each step reads in a chunk, and in the first chunk."""
    again, first = [], []
    there: set[str] = set()
    for step in plan.steps:
        each = {segment.fingerprint: segment.weight_bytes for segment in step.segments}
        total = sum(each.values())
        if not plan.resident:
            again.append(total)
            first.append(total)
            continue
        resident = plan.resident.intersection(each)
        again.append(total - sum(each[fingerprint] for fingerprint in resident))
        first.append(total - sum(each[fingerprint] for fingerprint in resident & there))
        there |= resident
    return again, first


def _list_loads(plan: Plan, bytes_again: list[int], bytes_first: list[int]) -> list[_Load]:
    costs, chunk_items = plan.costs, plan.chunk_items
    launches = -(-chunk_items // plan.batch_items)
    feed_seconds = chunk_items * costs.feed_seconds(step.input for step in plan.steps)
    aside = plan.num_chunks > 1 and costs.spill_bytes_per_second > 0
    loads = []
    for index, step in enumerate(plan.steps):
        output_bytes = step.segments[-1].output_bytes_per_item
        features_bytes = output_bytes if aside and step.finishes else 0
        spilled = features_bytes + (output_bytes if step.keep == "disk" else 0)
        if step.source is not None and plan.steps[step.source].keep == "disk":
            spilled += plan.steps[step.source].segments[-1].output_bytes_per_item
        loads.append(
            _Load(
                read_seconds=bytes_again[index] / costs.weight_bytes_per_second,
                first_read_seconds=bytes_first[index] / costs.weight_bytes_per_second,
                decode_seconds=0.0 if index else feed_seconds,
                forward_seconds=chunk_items * run_seconds_per_item(step.segments, costs)
                + launches * costs.launch_seconds,
                spill_seconds=chunk_items * spilled / costs.spill_bytes_per_second if spilled else 0.0,
                fetch_seconds=plan.num_items * features_bytes / costs.spill_bytes_per_second if features_bytes else 0.0,
                score_seconds=costs.score_seconds if step.finishes else 0.0,
            )
        )
    return loads


def _run_through_time(plan: Plan, loads: Sequence[_Load]) -> float:
    """Seconds until the last score, by walking through the first, a middle and the last chunk."""
    clocks = _Clocks()
    if plan.num_chunks > 1:
        _walk_chunk(plan, loads, clocks, first=True, last=False)
    if plan.num_chunks > 2:
        before = clocks.device
        _walk_chunk(plan, loads, clocks, first=False, last=False)
        # Every chunk after the first takes as long; the last one may be smaller.
        whole_chunks = (plan.num_items - 3 * plan.chunk_items) / plan.chunk_items
        clocks.skip((clocks.device - before) * max(0.0, whole_chunks))
    _walk_chunk(plan, loads, clocks, first=plan.num_chunks == 1, last=True)
    return max(clocks.device, clocks.scorer)


def _walk_chunk(plan: Plan, loads: Sequence[_Load], clocks: _Clocks, *, first: bool, last: bool) -> None:
    one_pool = plan.costs.one_pool
    for load in loads:
        read = load.first_read_seconds if first else load.read_seconds
        clocks.reader = max(clocks.reader, clocks.started if plan.prefetch else clocks.device) + read
        start = max(clocks.reader, clocks.device)
        end = start + max(load.forward_seconds, load.spill_seconds)
        if load.decode_seconds and one_pool:
            end += load.decode_seconds
        elif load.decode_seconds:
            ready = clocks.taken if plan.prefetch else clocks.device
            clocks.decoder = max(clocks.decoder, ready) + load.decode_seconds
            clocks.taken, end = start, max(end, clocks.decoder)
        clocks.started, clocks.device = start, end
        score = load.fetch_seconds + load.score_seconds
        if last and score and one_pool:
            clocks.device += score
        elif last and score:
            clocks.device = max(end, clocks.scorer)
            clocks.scorer = clocks.device + score


def _distinct_bytes(segments: Sequence[Segment]) -> int:
    return sum({segment.fingerprint: segment.weight_bytes for segment in segments}.values())
