"""Fit trees of shared prefixes into memory, for a given size of chunk and batch.

In:  nodes, room in bytes
Out: the order in which to run them, and which outputs lie on disk or are computed again; or None where nothing helps

Order. Below a node, its output is held until its last child has run; so every subtree but the last is run with that output in
memory. The peak below the node is

    max( output + largest single child step,  output + peak below any child but the last,  peak below the last child ),

and no depth-first order has a lower one than that which runs the child with the highest peak last. The other children keep
their order.

Decoded data are held in all forms throughout (see `memory`), so that it does not matter which top comes first.

Outputs. Where a step does not fit, outputs that wait at that moment are given up, cheapest per byte first: spilled to disk, or
not kept at all, so that each child runs the node's segments again. Which of the two is a matter of seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from modelhound.plan.chain import Costs
from modelhound.plan.tree import Node, run_through

__all__ = ["Arrangement", "Sizes", "arrange", "arrange_unchanged"]

_MAX_ROUNDS = 8  # of giving up outputs; a fit that takes more is no good one


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many items at a time."""

    num_items: int
    chunk_items: int
    batch_items: int

    @property
    def num_chunks(self) -> int:
        return -(-self.num_items // self.chunk_items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Nodes that fit, in which order, and how full memory is with them."""

    nodes: Sequence[Node]
    order: Sequence[int]
    spilled: frozenset[int]
    peak_bytes: int


def arrange_unchanged(nodes: Sequence[Node], sizes: Sizes) -> Arrangement:
    """Order the nodes, all outputs kept in memory, however much that takes."""
    order = _order_nodes(nodes, sizes, frozenset())
    walk = _Walk(nodes, sizes, None, frozenset(), may_repeat=False)
    walk.go(order, math.inf)
    return Arrangement(nodes=nodes, order=order, spilled=frozenset(), peak_bytes=walk.fullest)


def arrange(nodes: Sequence[Node], *, sizes: Sizes, costs: Costs, room_bytes: float) -> Arrangement | None:
    """Order the nodes; spill outputs or compute them again as far as `room_bytes` makes it necessary."""
    if _least_bytes(nodes, sizes) > room_bytes:
        return None
    arranged = _arrange(nodes, sizes, costs, room_bytes, may_repeat=True)
    if arranged is None and costs.spill_bytes_per_second > 0:
        # Computing again makes steps longer, and their weights may be what does not fit.
        arranged = _arrange(nodes, sizes, costs, room_bytes, may_repeat=False)
    return arranged


def _least_bytes(nodes: Sequence[Node], sizes: Sizes) -> int:
    """What some step takes whatever is spilled or computed again: a quick no where the search for a fit would be long."""
    chunk_items, batch_items = sizes.chunk_items, sizes.batch_items
    running = [
        batch_items * node.run.peak_bytes
        + node.run.weight_bytes
        + node.run.output_bytes * (chunk_items if node.finishes else batch_items)
        for node in nodes
    ]
    return max(running) + _data_bytes(nodes, sizes)


def _data_bytes(nodes: Sequence[Node], sizes: Sizes) -> int:
    """Of a decoded chunk, in all forms."""
    return sizes.chunk_items * sum({node.input: node.input_bytes for node in nodes}.values())


def _arrange(
    nodes: Sequence[Node], sizes: Sizes, costs: Costs, room_bytes: float, *, may_repeat: bool
) -> Arrangement | None:
    spilled: frozenset[int] = frozenset()
    for _ in range(_MAX_ROUNDS):
        order = _order_nodes(nodes, sizes, spilled)
        walk = _Walk(nodes, sizes, costs, spilled, may_repeat=may_repeat)
        if not walk.go(order, room_bytes):
            return None
        if not walk.given_up:
            return Arrangement(nodes=nodes, order=order, spilled=spilled, peak_bytes=walk.fullest)
        # What is given up changes the order and the steps: look again.
        spilled |= {index for index, repeats in walk.given_up.items() if not repeats}
        through = {index for index, repeats in walk.given_up.items() if repeats}
        if through:
            nodes, moved = run_through(nodes, through)
            spilled = frozenset(moved[index] for index in spilled)
    return None


def _order_nodes(nodes: Sequence[Node], sizes: Sizes, spilled: frozenset[int]) -> list[int]:
    """Depth first, and in every node the child with the highest peak last."""
    size = len(nodes)
    children: list[list[int]] = [[] for _ in nodes]
    tops: list[int] = []
    below = [0] * size  # peak while the descendants run, the node's own output included
    running = [_count_running(nodes, sizes, spilled, index) for index in range(size)]
    for index in range(size - 1, -1, -1):
        parent = nodes[index].parent
        (tops if parent is None else children[parent]).append(index)  # collected from the last to the first
        if children[index]:
            held = 0 if index in spilled else sizes.chunk_items * nodes[index].run.output_bytes
            below[index] = _put_highest_first(children[index], held, below, running)
    order: list[int] = []
    waiting = tops
    while waiting:
        index = waiting.pop()
        order.append(index)
        waiting.extend(children[index])
    return order


def _put_highest_first(siblings: list[int], held: int, below: list[int], running: list[int]) -> int:
    """Siblings stand in reverse: the first is run last. The peak of running them on `held` bytes."""
    highest = max(range(len(siblings)), key=lambda place: below[siblings[place]])
    siblings.insert(0, siblings.pop(highest))
    others = max([below[each] for each in siblings[1:]], default=0)
    return max(held + max([running[each] for each in siblings]), held + others, below[siblings[0]])


def _count_running(nodes: Sequence[Node], sizes: Sizes, spilled: frozenset[int], index: int) -> int:
    """Bytes while the node runs, beside its input and whatever else waits."""
    node = nodes[index]
    count = sizes.batch_items * node.run.peak_bytes + node.run.weight_bytes
    whole = bool(node.finishes) or index not in spilled
    count += node.run.output_bytes * (sizes.chunk_items if whole else sizes.batch_items)
    if node.parent in spilled:
        count += sizes.batch_items * nodes[node.parent].run.output_bytes
    return count


class _Walk:
    """One walk through an order, giving up outputs where a step does not fit."""

    def __init__(
        self, nodes: Sequence[Node], sizes: Sizes, costs: Costs | None, spilled: frozenset[int], *, may_repeat: bool
    ) -> None:
        self.given_up: dict[int, bool] = {}  # node -> computed again (or else spilled)
        self.fullest = 0
        self._nodes = nodes
        self._sizes = sizes
        self._costs = costs
        self._spilled = spilled
        self._may_repeat = may_repeat
        self._live = _data_bytes(nodes, sizes)
        self._waiting: list[int] = []  # nodes whose output is in memory
        self._instead: dict[int, int] = {}  # node computed again -> bytes of its source, held longer for its children
        self._num_left = [node.num_children for node in nodes]

    def go(self, order: Sequence[int], room_bytes: float) -> bool:
        """Whether everything fits, once what is in `given_up` is."""
        nodes, chunk_items = self._nodes, self._sizes.chunk_items
        for index in order:
            node = nodes[index]
            if not self._run(index, room_bytes):
                return False
            if node.parent is not None:
                self._num_left[node.parent] -= 1
                if self._num_left[node.parent] == 0:
                    self._release(node.parent)
            if not node.num_children:
                continue
            if self.given_up.get(index):
                self._hold_instead(index)
            elif index not in self.given_up and index not in self._spilled:
                self._waiting.append(index)
                self._live += chunk_items * node.run.output_bytes
        return True

    def _run(self, index: int, room_bytes: float) -> bool:
        need = _count_running(self._nodes, self._sizes, self._spilled, index)
        node = self._nodes[index]
        if node.parent is not None and self.given_up.get(node.parent) is False:
            need += self._sizes.batch_items * self._nodes[node.parent].run.output_bytes
        while self._live + need > room_bytes:
            freed = self._give_up_cheapest(index)
            if freed is None:
                return False
            need -= freed
        self.fullest = max(self.fullest, self._live + need)
        return True

    def _give_up_cheapest(self, running: int) -> int | None:
        """Bytes that the running step needs less; what waits in memory is taken off `_live`. None where nothing is left."""
        node, batch_items = self._nodes[running], self._sizes.batch_items
        own_bytes = 0
        if node.num_children and running not in self._spilled and running not in self.given_up and not node.finishes:
            own_bytes = (self._sizes.chunk_items - batch_items) * node.run.output_bytes
        candidates = [*self._waiting, running] if own_bytes else self._waiting
        price, repeats, chosen = min([(*self._price(each), each) for each in candidates], default=(math.inf, False, -1))
        if price == math.inf:
            return None
        self.given_up[chosen] = repeats
        if chosen == running:
            return own_bytes
        self._release(chosen)
        if repeats:
            self._hold_instead(chosen)
        elif chosen == node.parent:  # which now comes from disk, batch by batch
            return -batch_items * self._nodes[chosen].run.output_bytes
        return 0

    def _price(self, index: int) -> tuple[float, bool]:
        """Seconds per byte freed of the cheaper way, and whether that is to compute again."""
        node, costs, sizes = self._nodes[index], self._costs, self._sizes
        assert costs is not None  # needed only where room is limited
        output_bytes = node.run.output_bytes
        spill = repeat = math.inf
        if costs.spill_bytes_per_second > 0 and output_bytes:
            spill = sizes.num_items * (1 + node.num_children) / costs.spill_bytes_per_second
        freed = output_bytes - self._count_instead(index)
        if self._may_repeat and freed > 0:
            times = node.num_children - 1 + bool(node.finishes)
            read = sizes.num_chunks * node.run.weight_bytes / costs.weight_bytes_per_second
            run = sizes.num_items * node.run.count_seconds(costs.flops_per_second)
            repeat = times * (run + read) / freed
        return min(spill, repeat), repeat < spill

    def _count_instead(self, index: int) -> int:
        """Bytes per item of the node's source, if that could go already but for computing the node again."""
        node = self._nodes[index]
        if node.parent is None:
            return 0  # data stay
        if self._num_left[node.parent] or node.parent in self._spilled or node.parent in self.given_up:
            return 0
        return self._nodes[node.parent].run.output_bytes

    def _hold_instead(self, index: int) -> None:
        self._instead[index] = self._sizes.chunk_items * self._count_instead(index)
        self._live += self._instead[index]

    def _release(self, index: int) -> None:
        if index in self._waiting:
            self._waiting.remove(index)
            self._live -= self._sizes.chunk_items * self._nodes[index].run.output_bytes
        self._live -= self._instead.pop(index, 0)
