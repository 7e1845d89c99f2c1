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
    evaluate: Callable[[torch.Tensor], tuple[float, torch.Tensor]],
    start: torch.Tensor,
    *,
    most_steps: int,
    history: int,
    largest_slope: float,
) -> torch.Tensor:
    """The place of the minimum, as nearly as the limits allow."""
    place = start
    value, slope = evaluate(place)
    moves: deque[tuple[torch.Tensor, torch.Tensor, float]] = deque(maxlen=history)
    for _ in range(most_steps):
        if float(slope.abs().max()) <= largest_slope:
            break
        direction = _newton_like(slope, moves)
        decrease = float(slope @ direction)
        if decrease >= 0:  # rounding has spoiled the history
            moves.clear()
            direction, decrease = -slope, -float(slope @ slope)
        step = 1.0  # right from the start, where the curvature is about 1
        while True:
            following = place + step * direction
            next_value, next_slope = evaluate(following)
            if next_value <= value + _SUFFICIENT * step * decrease or step < _SMALLEST_STEP:
                break
            # the minimum of the parabola through both values and the slope, within bounds
            bend = next_value - value - step * decrease
            best = -decrease * step * step / (2 * bend) if bend > 0 else 0.5 * step
            step = min(0.5 * step, max(0.1 * step, best))
        if next_value > value:
            break  # nothing lower within rounding
        moved, turned = following - place, next_slope - slope
        along = float(moved @ turned)
        if along > 1e-10 * float(turned @ turned):
            moves.append((moved, turned, along))
        settled = value - next_value <= _LEAST_CHANGE * max(abs(value), abs(next_value))
        place, value, slope = following, next_value, next_slope
        if settled:
            break
    return place


def _newton_like(slope: torch.Tensor, moves: "deque[tuple[torch.Tensor, torch.Tensor, float]]") -> torch.Tensor:
    """Minus the inverse curvature, as the last moves show it, times the slope: the two-loop recursion."""
    direction = -slope
    shares = []
    for moved, turned, along in reversed(moves):
        share = float(moved @ direction) / along
        shares.append(share)
        direction = direction - share * turned
    if moves:
        _, turned, along = moves[-1]
        direction = direction * (along / float(turned @ turned))
    for (moved, turned, along), share in zip(moves, reversed(shares), strict=True):
        direction = direction + (share - float(turned @ direction) / along) * moved
    return direction
