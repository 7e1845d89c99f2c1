"""Find the minimum of a smooth convex function: L-BFGS with a backtracking line search.

In:  a function from a vector to its value and gradient, scaled to a curvature of about 1, and where to begin
Out: a vector where no component of the gradient is larger than asked for, or the best one found
Nothing here knows what is minimised. torch has an L-BFGS of its own, but to make one of its optimisers loads torch's compiler,
which takes seconds: as long as many a search.

Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming 1989.
"""

from collections import deque
from collections.abc import Callable

import torch

__all__ = ["descend"]

_SUFFICIENT = 1e-4  # of the decrease that the slope promises: Armijo's condition
_SMALLEST_STEP = 1e-10
_LEAST_CHANGE = 1e-15  # of the value, relative: rounding


def descend(
    evaluate: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    start: torch.Tensor,
    *,
    most_steps: int,
    history: int,
    largest_slope: float,
) -> torch.Tensor:
    """The place of the minimum, as nearly as the limits allow. Values come as tensors of no dimension."""
    place = start
    found, slope = evaluate(place)
    value = float(found)
    moves = _Moves(history)
    for _ in range(most_steps):
        direction, decrease, steepest = moves.turn(slope)
        if steepest <= largest_slope:
            break
        if decrease >= 0:  # rounding has spoiled the history
            moves.clear()
            direction, decrease, _ = moves.turn(slope)
        step = 1.0  # right from the start, where the curvature is about 1
        while True:
            following = place + step * direction
            found, next_slope = evaluate(following)
            next_value = float(found)
            if next_value <= value + _SUFFICIENT * step * decrease or step < _SMALLEST_STEP:
                break
            # the minimum of the parabola through both values and the slope, within bounds
            bend = next_value - value - step * decrease
            best = -decrease * step * step / (2 * bend) if bend > 0 else 0.5 * step
            step = min(0.5 * step, max(0.1 * step, best))
        if next_value > value:
            break  # nothing lower within rounding
        moves.add(following - place, next_slope - slope)
        settled = value - next_value <= _LEAST_CHANGE * max(abs(value), abs(next_value))
        place, value, slope = following, next_value, next_slope
        if settled:
            break
    return place


class _Moves:
    """The last moves and how the slope turned over each, which together show the curvature.

    The two-loop recursion needs nothing of these vectors but their products with one another, and its outcome is a sum of
    them. So one matrix of products goes to the host, where the recursion runs on small numbers, and one product makes the
    direction: a device is asked twice per step instead of forty times.
    """

    def __init__(self, most: int) -> None:
        self._vectors: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=most)

    def add(self, moved: torch.Tensor, turned: torch.Tensor) -> None:
        self._vectors.append((moved, turned))

    def clear(self) -> None:
        self._vectors.clear()

    def turn(self, slope: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Minus the inverse curvature times the slope; the slope along that; the largest component of the slope."""
        basis = torch.stack([*(moved for moved, _ in self._vectors), *(turned for _, turned in self._vectors), slope])
        asked = torch.cat([(basis @ basis.T).flatten(), slope.abs().max()[None]]).tolist()
        size = len(basis)
        products = [asked[row * size : (row + 1) * size] for row in range(size)]
        weights = _recur(products)
        decrease = sum(weight * product for weight, product in zip(weights, products[-1], strict=True))
        return _bring(weights, basis) @ basis, decrease, asked[-1]


def _bring(weights: list[float], basis: torch.Tensor) -> torch.Tensor:
    """The weights where the vectors are; from pinned memory, or the host would wait for the device once more."""
    here = torch.tensor(weights, dtype=basis.dtype)
    return here.pin_memory().to(basis.device, non_blocking=True) if basis.is_cuda else here


def _recur(products: list[list[float]]) -> list[float]:
    """The two-loop recursion on coefficients of (moves, turns, slope), from the products of these vectors."""
    count = len(products) // 2
    weights = [0.0] * (2 * count) + [-1.0]

    def along(vector: int) -> float:
        return sum(weight * product for weight, product in zip(weights, products[vector], strict=True))

    # a move over which the slope hardly turned shows no curvature
    usable = [
        place
        for place in range(count)
        if products[place][count + place] > 1e-10 * products[count + place][count + place]
    ]
    shares = {}
    for place in reversed(usable):
        shares[place] = along(place) / products[place][count + place]
        weights[count + place] -= shares[place]
    if usable:
        last = usable[-1]
        scale = products[last][count + last] / products[count + last][count + last]
        weights = [weight * scale for weight in weights]
    for place in usable:
        weights[place] += shares[place] - along(count + place) / products[place][count + place]
    return weights
