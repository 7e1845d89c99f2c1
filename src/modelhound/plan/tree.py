"""Merge the chains of many models into trees of shared prefixes.

In:  chains
Out: one node for every run of segments without a branch, parents before children

Sorted by fingerprints, chains with a common prefix stand side by side, and what one shares with all before it is what it
shares with its neighbour. So the trees grow in one pass over neighbours, along their right edge, and do not depend on the order
in which the models were given. Nothing here knows about memory or time beyond adding up.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from modelhound.plan.chain import Chain, Segment, count_shared

__all__ = ["Node", "Run", "grow_trees", "run_through", "sort_chains"]


class Run:
    """Segments that are run one after the other, and their sums, taken once because planning asks again and again."""

    __slots__ = (
        "_has_repeats",
        "measured_seconds",
        "output_bytes",
        "peak_bytes",
        "segments",
        "unmeasured_flops",
        "weight_bytes",
    )

    def __init__(self, segments: tuple[Segment, ...], *, has_repeats: bool) -> None:
        self.segments = segments
        self.output_bytes = segments[-1].output_bytes_per_item
        self.peak_bytes = max([segment.peak_bytes_per_item for segment in segments])
        self._has_repeats = has_repeats
        self.weight_bytes = self._sum_weights()
        seconds = [segment.seconds_per_item for segment in segments]
        self.measured_seconds = sum([each for each in seconds if each is not None])
        unmeasured = [segment.flops_per_item for segment in segments if segment.seconds_per_item is None]
        self.unmeasured_flops = sum(unmeasured)

    def then(self, following: "Run") -> "Run":
        """Both, one after the other."""
        both = copy(following)
        both.segments = self.segments + following.segments
        both.peak_bytes = max(self.peak_bytes, following.peak_bytes)
        both.weight_bytes += self.weight_bytes
        both.measured_seconds += self.measured_seconds
        both.unmeasured_flops += self.unmeasured_flops
        if self._has_repeats or following._has_repeats:
            both._has_repeats = True
            both.weight_bytes = both._sum_weights()
        return both

    def count_seconds(self, flops_per_second: float) -> float:
        """On the device, for one item, without the fixed part."""
        return self.measured_seconds + self.unmeasured_flops / flops_per_second

    def _sum_weights(self) -> int:
        if not self._has_repeats:
            return sum([segment.weight_bytes for segment in self.segments])
        # A layer that a model goes through many times has one set of weights.
        return sum({segment.fingerprint: segment.weight_bytes for segment in self.segments}.values())


@dataclass(slots=True)
class Node:
    """A run in a tree; `parent` is the position of the node whose output it takes, or None for the data."""

    run: Run
    parent: int | None
    input: str
    input_bytes: int
    finishes: tuple[str, ...]
    num_children: int = 0


def sort_chains(chains: Iterable[Chain]) -> list[tuple[tuple[str, ...], Chain]]:
    """Chains with their fingerprints, neighbours sharing most; the order does not depend on the order given."""
    keyed = [(tuple([segment.fingerprint for segment in chain.segments]), chain) for chain in chains]
    keyed.sort(key=lambda each: (each[1].input, each[0], each[1].model))
    return keyed


def grow_trees(keyed: Sequence[tuple[tuple[str, ...], Chain]]) -> list[Node]:
    """Nodes of the trees of all inputs, parents before children."""
    tops: list[_Twig] = []
    edge: list[_Twig] = []  # from a top to the twig that the last chain ended with
    last: tuple[tuple[str, ...], Chain] | None = None
    for prints, chain in keyed:
        shared = 0
        if last is not None and last[1].input == chain.input:
            shared = count_shared(last[0], prints)
        last = prints, chain
        while edge and edge[-1].start >= shared:
            edge.pop()
        if edge and edge[-1].stop > shared:
            edge[-1].split(shared)
        if shared == len(prints):  # the same network under another name
            edge[-1].finishes.append(chain.model)
            continue
        twig = _Twig(chain, shared, len(prints), [chain.model], [], len(set(prints)) < len(prints))
        (edge[-1].children if edge else tops).append(twig)
        edge.append(twig)
    return _list_nodes(tops)


def run_through(nodes: Sequence[Node], through: set[int]) -> tuple[list[Node], dict[int, int]]:
    """The same trees without the outputs of some nodes: whatever took one of them runs those segments itself.

    Also, for every other node, its new position.
    """
    grown: list[Node] = []
    moved: dict[int, int] = {}
    place: dict[int, int | None] = {}  # of what a child of the node takes, in the new list
    prefix: dict[int, Run] = {}  # what a child of the node has to run first
    for index, node in enumerate(nodes):
        source, run = None, node.run
        if node.parent is not None:
            source = place[node.parent]
            if node.parent in prefix:
                run = prefix[node.parent].then(run)
        if index in through:
            place[index], prefix[index] = source, run
        if index in through and not node.finishes:
            continue
        if source is not None:
            grown[source].num_children += 1
        if index not in through:
            moved[index] = place[index] = len(grown)
        grown.append(Node(run, source, node.input, node.input_bytes, node.finishes))
    return grown, moved


@dataclass(slots=True)
class _Twig:
    """Segments `start` to `stop` of a chain, while the tree grows."""

    chain: Chain
    start: int
    stop: int
    finishes: list[str]
    children: "list[_Twig]"
    has_repeats: bool  # the chain goes through some segment more than once

    def split(self, at: int) -> None:
        """End at `at`; what came after becomes the only child."""
        rest = _Twig(self.chain, at, self.stop, self.finishes, self.children, self.has_repeats)
        self.stop, self.finishes, self.children = at, [], [rest]


def _list_nodes(tops: list[_Twig]) -> list[Node]:
    nodes: list[Node] = []
    waiting: list[tuple[_Twig, int | None]] = [(twig, None) for twig in reversed(tops)]
    while waiting:  # not recursive: a pool may be deeper than the interpreter's stack
        twig, parent = waiting.pop()
        waiting.extend((child, len(nodes)) for child in reversed(twig.children))
        chain = twig.chain
        run = Run(chain.segments[twig.start : twig.stop], has_repeats=twig.has_repeats)
        nodes.append(
            Node(run, parent, chain.input, chain.input_bytes_per_item, tuple(twig.finishes), len(twig.children))
        )
    return nodes
