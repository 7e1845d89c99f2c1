"""Show a plan as a tree that a person can read.

In:  a Plan
Out: nested nodes of plain data, which a command or a page draws
Nothing here draws, and nothing here was measured: seconds are predicted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from modelhound.plan.chain import Keep, Plan
from modelhound.plan.forecast import run_seconds_per_item

__all__ = ["ExplainedNode", "explain_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNode:
    """One step of the plan, or one input, and everything that is run on its output."""

    label: str
    finishes: tuple[str, ...]
    """Models that end here; those of `children` come on top."""
    num_models: int
    """Models here and below: how many share this work."""
    keep: Keep
    flops: float
    """Of this step alone, for all items."""
    weight_bytes: int
    output_bytes: int
    """For all items; of an input: its decoded data."""
    seconds: float
    """On the device, this step alone; of an input, making it of decoded items, and of the first one decoding them for all."""
    children: "tuple[ExplainedNode, ...]"


def explain_plan(plan: Plan) -> tuple[ExplainedNode, ...]:
    """One tree for each input, in the order of running."""
    below: dict[int | str, list[ExplainedNode]] = {}
    depths: list[int] = []  # segments from the data up to and with each step
    for step in plan.steps:
        depths.append(len(step.segments) + (0 if step.source is None else depths[step.source]))
    for index in range(len(plan.steps) - 1, -1, -1):  # children come after their source
        source = plan.steps[index].source
        children = tuple(reversed(below.pop(index, [])))
        node = _explain_step(plan, index, last_segment=depths[index], children=children)
        below.setdefault(plan.steps[index].input if source is None else source, []).append(node)
    input_bytes = {chain.input: chain.input_bytes_per_item for chain in plan.chains}
    inputs = dict.fromkeys(step.input for step in plan.steps)
    return tuple(
        ExplainedNode(
            label=f"data {name}",
            finishes=(),
            num_models=sum(node.num_models for node in below[name]),
            keep="memory",
            flops=0.0,
            weight_bytes=0,
            output_bytes=plan.num_items * input_bytes[name],
            seconds=plan.num_items * seconds,
            children=tuple(reversed(below[name])),
        )
        for name, seconds in _share_feeding(plan, inputs).items()
    )


def _share_feeding(plan: Plan, inputs: Iterable[str]) -> dict[str, float]:
    """Seconds for one item, by input; items are decoded for the first one, and the others have them then."""
    shares = {name: plan.costs.form_seconds_per_item.get(name, 0.0) for name in inputs}
    first = next(iter(shares))
    shares[first] += plan.costs.decode_seconds_per_item
    return shares


def _explain_step(plan: Plan, index: int, *, last_segment: int, children: tuple[ExplainedNode, ...]) -> ExplainedNode:
    step = plan.steps[index]
    count = len(step.segments)
    launches = plan.num_chunks * -(-plan.chunk_items // plan.batch_items)
    return ExplainedNode(
        label=f"segment {last_segment}" if count == 1 else f"segments {last_segment - count + 1} to {last_segment}",
        finishes=step.finishes,
        num_models=len(step.finishes) + sum(child.num_models for child in children),
        keep=step.keep,
        flops=plan.num_items * sum(segment.flops_per_item for segment in step.segments),
        weight_bytes=sum({each.fingerprint: each.weight_bytes for each in step.segments}.values()),
        output_bytes=plan.num_items * step.segments[-1].output_bytes_per_item,
        seconds=plan.num_items * run_seconds_per_item(step.segments, plan.costs) + launches * plan.costs.launch_seconds,
        children=children,
    )
