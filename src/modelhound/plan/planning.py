"""Decide in which order to run many models so that a shared prefix runs only once, within a memory budget.

In:  one chain of segments per model   (made by `models`)
Out: a Plan, which is plain data       (run by `features`)

With enough memory that is the tree of shared prefixes, run once over all items. With less there are four ways out, and each
costs something else: smaller chunks (all weights that do not stay in memory are read again for each), outputs on disk or
computed again (see `fitting`), smaller batches, no prefetching. Chunk sizes are tried from large to small, each made to fit as
cheaply as possible, and the plan with the fewest expected seconds is taken.
Nothing here imports torch, opens a file or reads a clock.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from modelhound.errors import RequestError
from modelhound.plan.chain import Chain, Costs, Keep, Plan, Step
from modelhound.plan.fitting import Arrangement, Sizes, arrange, arrange_unchanged
from modelhound.plan.memory import reserve_bytes
from modelhound.plan.tree import Node, grow_trees, sort_chains

__all__ = ["least_bytes", "make_plan"]

_CHUNK_GROWTH = 1.4  # from one number of chunks tried to the next
_BATCH_SHRINKING = 4
_FEW_NODES = 500
_WORTH_TRYING = 0.05  # of the seconds of the best plan so far


def make_plan(chains: Iterable[Chain], *, num_items: int, costs: Costs, first_item: int = 0) -> Plan:
    """The plan with the fewest expected seconds that fits; the order of `chains` does not matter."""
    keyed = sort_chains(chains)
    ordered = tuple(chain for _, chain in keyed)
    _check_request(ordered, num_items, costs)
    nodes = grow_trees(keyed)
    weights = {segment.fingerprint: segment.weight_bytes for node in nodes for segment in node.run.segments}
    best = _search(_Task(nodes=nodes, num_items=num_items, costs=costs, distinct_bytes=sum(weights.values())))
    if best is None:
        raise _say_what_would_fit(nodes, ordered, num_items, costs)
    arranged = best.arranged
    return Plan(
        steps=_list_steps(arranged),
        first_item=first_item,
        num_items=num_items,
        chunk_items=best.sizes.chunk_items,
        batch_items=best.sizes.batch_items,
        prefetch=best.prefetch,
        resident=_choose_resident(arranged.nodes, best.sizes.num_chunks, best.spare_bytes),
        chains=ordered,
        costs=costs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What all candidates have in common."""

    nodes: Sequence[Node]
    num_items: int
    costs: Costs
    distinct_bytes: int
    """Of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A way to run everything that fits."""

    arranged: Arrangement
    sizes: Sizes
    prefetch: bool
    spare_bytes: float
    seconds: float


def _check_request(chains: Sequence[Chain], num_items: int, costs: Costs) -> None:
    if not chains:
        raise RequestError("cannot plan for no models: expected at least one")
    if num_items < 1:
        raise RequestError(f"cannot plan for {num_items} items: expected at least one")
    input_bytes: dict[str, int] = {}
    names: set[str] = set()
    for chain in chains:
        if not chain.segments:
            raise RequestError(f"cannot plan for {chain.model!r}: expected a chain of at least one segment")
        if chain.model in names:
            raise RequestError(f"cannot plan for {chain.model!r} twice: expected each model once")
        names.add(chain.model)
        if input_bytes.setdefault(chain.input, chain.input_bytes_per_item) != chain.input_bytes_per_item:
            raise RequestError(
                f"cannot plan for {chain.model!r}: expected {input_bytes[chain.input]} bytes an item as for the other "
                f"models with input {chain.input!r}, got {chain.input_bytes_per_item}"
            )
    for name in ("flops_per_second", "weight_bytes_per_second", "batch_items"):
        if not getattr(costs, name) > 0:
            raise RequestError(f"cannot plan with {name}={getattr(costs, name)!r}: expected more than 0")


def _search(task: _Task) -> _Candidate | None:
    """The cheapest of all sizes; in large pools, from a few sizes that are often good, downhill in both directions."""
    sizes = _list_sizes(task.num_items, task.costs)
    best, place = _find_unchanged(task, sizes)

    def improve(at: int) -> bool:
        nonlocal best, place
        improved = False
        for prefetch in (True, False):
            # Where hardly anything can be gained, trying is not worth the time.
            if best is not None and _least_seconds(task, sizes[at]) > (1 - _WORTH_TRYING) * best.seconds:
                break
            candidate = _fit(task, sizes[at], prefetch=prefetch)
            if candidate is not None and (best is None or candidate.seconds < best.seconds):
                best, place, improved = candidate, at, True
        return improved

    # All items at once, so that nothing is read twice; and one batch at a time, so that memory is left to weights.
    one_batch = next(at for at, each in enumerate(sizes) if each.chunk_items <= max(1, task.costs.batch_items))
    for at in range(len(sizes)) if len(task.nodes) <= _FEW_NODES else (0, one_batch):
        improve(at)
    at = 1
    while best is None and at < len(sizes):
        improve(at)
        at += 1
    start = place
    for step in (-1, 1):
        at = start + step
        while 0 <= at < len(sizes) and improve(at):
            at += step
    return best


def _find_unchanged(task: _Task, sizes: Sequence[Sizes]) -> tuple[_Candidate | None, int]:
    """The largest chunks with which everything is kept in memory and prefetched, and their place; by bisection."""
    best = _fit_unchanged(task, sizes[0])
    if best is not None:
        return best, 0
    low, high = 1, len(sizes)
    while low < high:
        middle = (low + high) // 2
        candidate = _fit_unchanged(task, sizes[middle])
        if candidate is None:
            low = middle + 1
        else:
            best, high = candidate, middle
    return best, high


def _list_sizes(num_items: int, costs: Costs) -> list[Sizes]:
    """Chunks to try, from all items to a single one."""
    listed: list[Sizes] = []
    num_chunks = 1
    while not listed or listed[-1].chunk_items > 1:
        chunk_items = -(-num_items // min(num_chunks, num_items))
        if not listed or chunk_items < listed[-1].chunk_items:
            batch_items = min(costs.batch_items, chunk_items)
            listed.append(Sizes(num_items=num_items, chunk_items=chunk_items, batch_items=batch_items))
        num_chunks = max(int(num_chunks * _CHUNK_GROWTH), num_chunks + 1)
    return listed


def _fit_unchanged(task: _Task, sizes: Sizes) -> _Candidate | None:
    arranged = arrange_unchanged(task.nodes, sizes)
    spare = task.costs.memory_bytes - _reserve(task.nodes, sizes, task.costs, prefetch=True) - arranged.peak_bytes
    return None if spare < 0 else _rate(task, arranged, sizes, spare_bytes=spare, prefetch=True)


def _fit(task: _Task, sizes: Sizes, *, prefetch: bool) -> _Candidate | None:
    """Make these chunks fit, with smaller batches where nothing else helps."""
    costs = task.costs
    while True:
        room = costs.memory_bytes - _reserve(task.nodes, sizes, costs, prefetch=prefetch)
        arranged = arrange(task.nodes, sizes=sizes, costs=costs, room_bytes=room)
        if arranged is not None:
            # Steps that compute something again hold more weights, so that prefetching needs more room.
            room = costs.memory_bytes - _reserve(arranged.nodes, sizes, costs, prefetch=prefetch)
            if arranged.peak_bytes <= room:
                return _rate(task, arranged, sizes, spare_bytes=room - arranged.peak_bytes, prefetch=prefetch)
        if sizes.batch_items == 1:
            return None
        sizes = replace(sizes, batch_items=-(-sizes.batch_items // _BATCH_SHRINKING))


def _reserve(nodes: Sequence[Node], sizes: Sizes, costs: Costs, *, prefetch: bool) -> int:
    return reserve_bytes(
        [node.run.weight_bytes for node in nodes],
        input_bytes=list({node.input: node.input_bytes for node in nodes}.values()),
        feature_bytes=[node.run.output_bytes for node in nodes if node.finishes],
        num_items=sizes.num_items,
        chunk_items=sizes.chunk_items,
        prefetch=prefetch,
        may_spill=costs.spill_bytes_per_second > 0,
    )


def _rate(task: _Task, arranged: Arrangement, sizes: Sizes, *, spare_bytes: float, prefetch: bool) -> _Candidate:
    """Expected seconds from sums only: many candidates are compared, and `forecast` walks through the one that is taken."""
    nodes = arranged.nodes
    read, run = _sum_seconds(task, nodes, sizes, spare_bytes=spare_bytes)
    spill = 0.0
    if task.costs.spill_bytes_per_second > 0:
        spilled = sum(nodes[index].run.output_bytes * (1 + nodes[index].num_children) for index in arranged.spilled)
        if sizes.num_chunks > 1:  # features wait on disk for the last chunk
            spilled += 2 * sum(node.run.output_bytes for node in nodes if node.finishes)
        spill = sizes.num_items * spilled / task.costs.spill_bytes_per_second
    return _Candidate(
        arranged=arranged,
        sizes=sizes,
        prefetch=prefetch,
        spare_bytes=spare_bytes,
        seconds=max(read, run, spill) if prefetch else read + max(run, spill),
    )


def _least_seconds(task: _Task, sizes: Sizes) -> float:
    """What these chunks take at least, if everything overlaps and all memory is left to weights."""
    return max(_sum_seconds(task, task.nodes, sizes, spare_bytes=task.costs.memory_bytes))


def _sum_seconds(task: _Task, nodes: Sequence[Node], sizes: Sizes, *, spare_bytes: float) -> tuple[float, float]:
    """Seconds of reading weights, of which `spare_bytes` stay in memory, and of running."""
    costs = task.costs
    resident = min(spare_bytes, task.distinct_bytes)
    loose_share = 1 - resident / task.distinct_bytes if task.distinct_bytes else 0.0
    read = resident + sizes.num_chunks * loose_share * sum([node.run.weight_bytes for node in nodes])
    num_batches = sizes.num_chunks * -(-sizes.chunk_items // sizes.batch_items)
    run = sizes.num_items * sum([node.run.count_seconds(costs.flops_per_second) for node in nodes])
    return read / costs.weight_bytes_per_second, run + num_batches * len(nodes) * costs.launch_seconds


def _choose_resident(nodes: Sequence[Node], num_chunks: int, spare_bytes: float) -> frozenset[str]:
    """Weights that are used more than once, most often used first, as far as the spare memory reaches."""
    weight_bytes = {segment.fingerprint: segment.weight_bytes for node in nodes for segment in node.run.segments}
    candidates: Iterable[str] = weight_bytes if num_chunks > 1 else ()
    if len(weight_bytes) < sum(len(node.run.segments) for node in nodes):  # rare, and counting takes a while
        num_uses = Counter(
            fingerprint
            for node in nodes
            for fingerprint in dict.fromkeys([segment.fingerprint for segment in node.run.segments])
        )
        used_again = [fingerprint for fingerprint in weight_bytes if num_chunks * num_uses[fingerprint] > 1]
        candidates = sorted(used_again, key=num_uses.__getitem__, reverse=True)
    resident = set()
    for fingerprint in candidates:
        if 0 < weight_bytes[fingerprint] <= spare_bytes:
            spare_bytes -= weight_bytes[fingerprint]
            resident.add(fingerprint)
    return frozenset(resident)


def _list_steps(arranged: Arrangement) -> tuple[Step, ...]:
    nodes = arranged.nodes
    place = {index: step for step, index in enumerate(arranged.order)}
    last_user: dict[int | str, int] = {}
    for index in arranged.order:
        parent = nodes[index].parent
        last_user[nodes[index].input if parent is None else parent] = index
    steps = []
    for index in arranged.order:
        node = nodes[index]
        keep: Keep = "disk" if index in arranged.spilled else "memory" if node.num_children else "nothing"
        steps.append(
            Step(
                source=None if node.parent is None else place[node.parent],
                input=node.input,
                segments=node.run.segments,
                finishes=node.finishes,
                keep=keep,
                frees_source=last_user[node.input if node.parent is None else node.parent] == index,
            )
        )
    return tuple(steps)


def least_bytes(chains: Iterable[Chain], *, num_items: int, costs: Costs) -> int:
    """Memory with which there certainly is a plan: items run one at a time."""
    return _count_least(grow_trees(sort_chains(chains)), num_items, costs)


def _count_least(nodes: Sequence[Node], num_items: int, costs: Costs) -> int:
    sizes = Sizes(num_items=num_items, chunk_items=1, batch_items=1)
    return arrange_unchanged(nodes, sizes).peak_bytes + _reserve(nodes, sizes, costs, prefetch=False)


def _say_what_would_fit(nodes: Sequence[Node], chains: Sequence[Chain], num_items: int, costs: Costs) -> RequestError:
    enough = _count_least(nodes, num_items, costs)
    too_large = [chain.model for chain in chains if _count_alone(chain, num_items) > costs.memory_bytes]
    advice = "allow that much"
    if 0 < len(too_large) < len(chains):
        named = ", ".join(repr(model) for model in too_large[:3])
        more = f" and {len(too_large) - 3} more" if len(too_large) > 3 else ""
        advice += f" or leave out {named}{more}"
    elif num_items > 1:
        advice += " or take fewer items"
    return RequestError(
        f"cannot plan {len(chains)} models within {costs.memory_bytes:,.0f} bytes of memory: expected at least "
        f"{enough:,} bytes, with which items run one at a time; {advice}"
    )


def _count_alone(chain: Chain, num_items: int) -> int:
    """Bytes with which one model can be run by itself, one item at a time."""
    weights = sum({segment.fingerprint: segment.weight_bytes for segment in chain.segments}.values())
    output_bytes = chain.segments[-1].output_bytes_per_item
    peak = max(segment.peak_bytes_per_item for segment in chain.segments)
    return chain.input_bytes_per_item + output_bytes + peak + weights + num_items * output_bytes
