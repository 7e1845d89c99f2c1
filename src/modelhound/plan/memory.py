"""How much memory a plan takes, exactly as it is counted everywhere in this room.

In:  a Plan
Out: bytes at the fullest moment

While a step runs over a chunk, memory holds
- the decoded chunk in the forms of all inputs, since each item is read once for all of them, and every output kept in memory
  that a step still takes;
- the step's own output: of the whole chunk where it is kept in memory or finishes a model, of one batch where it is on its way
  to disk; one batch of its input where that comes from disk;
- the activations of one batch, and the step's weights;
and throughout: resident weights; one set of features being scored, of all items, because a model is scored when its last chunk
is done (until then its features wait on disk, or in memory where nothing may be spilled); and with prefetch room for the
weights of another step and, where there are several chunks, for the next one decoded.
"""

from collections.abc import Iterable, Sequence

from modelhound.plan.chain import Plan, Segment, Step

__all__ = ["peak_bytes", "reserve_bytes"]


def peak_bytes(plan: Plan) -> int:
    """Bytes at the fullest moment of running the plan."""
    weights = [_sum_weights(step.segments, plan.resident) for step in plan.steps]
    input_bytes = {chain.input: chain.input_bytes_per_item for chain in plan.chains}
    held: dict[int | None, int] = {}  # by step
    live = plan.chunk_items * sum(input_bytes.values())
    fullest = 0
    for index, step in enumerate(plan.steps):
        running = _count_batch(plan, step) + weights[index]
        output = step.segments[-1].output_bytes_per_item
        whole = step.keep == "memory" or bool(step.finishes)
        running += output * (plan.chunk_items if whole else plan.batch_items)
        fullest = max(fullest, live + running)
        if step.keep == "memory":
            held[index] = plan.chunk_items * output
            live += held[index]
        if step.frees_source:
            live -= held.pop(step.source, 0)
    resident = {each.fingerprint: each.weight_bytes for each in _segments(plan) if each.fingerprint in plan.resident}
    throughout = reserve_bytes(
        weights,
        input_bytes=list(input_bytes.values()),
        feature_bytes=[step.segments[-1].output_bytes_per_item for step in plan.steps if step.finishes],
        num_items=plan.num_items,
        chunk_items=plan.chunk_items,
        prefetch=plan.prefetch,
        may_spill=plan.costs.spill_bytes_per_second > 0,
    )
    return fullest + throughout + sum(resident.values())


def reserve_bytes(
    weight_bytes: Sequence[int],
    *,
    input_bytes: Sequence[int],
    feature_bytes: Sequence[int],
    num_items: int,
    chunk_items: int,
    prefetch: bool,
    may_spill: bool,
) -> int:
    """What is set aside for scoring and for prefetching, whatever step runs; per step, per input, per step that finishes."""
    chunked = chunk_items < num_items
    reserve = num_items * (sum(feature_bytes) if chunked and not may_spill else max(feature_bytes))
    if prefetch:
        if chunked or len(weight_bytes) > 1:
            reserve += max(weight_bytes)
        if chunked:
            reserve += chunk_items * sum(input_bytes)
    return reserve


def _sum_weights(segments: Sequence[Segment], resident: frozenset[str]) -> int:
    each = {segment.fingerprint: segment.weight_bytes for segment in segments}
    if not resident:
        return sum(each.values())
    return sum(count for fingerprint, count in each.items() if fingerprint not in resident)


def _count_batch(plan: Plan, step: Step) -> int:
    """Activations of one batch, and the batch that is being read where the source lies on disk."""
    count = max(segment.peak_bytes_per_item for segment in step.segments)
    if step.source is not None and plan.steps[step.source].keep == "disk":
        count += plan.steps[step.source].segments[-1].output_bytes_per_item
    return plan.batch_items * count


def _segments(plan: Plan) -> Iterable[Segment]:
    return (segment for step in plan.steps for segment in step.segments)
