"""After which calls of a forward does everything depend on what they returned alone?

In:  what was seen of one forward (`watching`), with the graph that autograd drew of it
Out: the nodes of the graph that lie on the way from the inputs to the result; numbers of calls
Nothing here runs a network or knows what a cut is good for.

A node is a cut if no edge jumps over it.
"""

from collections.abc import Sequence
from typing import Any

from modelhound.models.watching import Seen

__all__ = ["find_cuts", "order_nodes"]


def order_nodes(seen: Seen) -> list[Any]:
    """All nodes on paths from a source to the result, each after those it was computed from."""
    leads_to_source: dict[Any, bool] = {}
    order: list[Any] = []
    stack: list[tuple[Any, bool]] = [] if seen.result.grad_fn is None else [(seen.result.grad_fn, False)]
    while stack:
        node, done = stack.pop()
        if done:
            befores = [before for before, _ in node.next_functions if before is not None]
            leads_to_source[node] = node in seen.sources or any(
                leads_to_source.get(before, False) for before in befores
            )
            if leads_to_source[node]:
                order.append(node)
        elif node not in leads_to_source:
            leads_to_source[node] = False
            stack.append((node, True))
            if node not in seen.sources:
                stack.extend((before, False) for before, _ in node.next_functions if before is not None)
    return order


def find_cuts(seen: Seen, order: Sequence[Any]) -> tuple[int, ...]:
    """Numbers of the calls after which everything depends on what they returned alone."""
    place = {node: number for number, node in enumerate(order)}
    # An edge leads from a node to those it was computed from; `reach` is how far edges from later nodes jump back.
    alone = set()
    reach = len(order)
    for number in range(len(order) - 1, -1, -1):
        node = order[number]
        if reach >= number:
            alone.add(node)
        if node in seen.sources:
            reach = min(reach, -1 if len(seen.sources) > 1 else number)
            continue
        reach = min([reach, *(place[before] for before, _ in node.next_functions if before in place)])
    cuts: dict[Any, int] = {}
    for number, node in enumerate(seen.nodes):
        if node is not None and node in alone and node is not seen.result.grad_fn:
            cuts[node] = number  # of several calls that return the same tensor the last one
    return tuple(sorted(cuts.values()))
