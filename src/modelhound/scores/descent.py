"""Find the minimum of a smooth convex function: L-BFGS with a backtracking line search.

In:  a function from a vector to its value and gradient, scaled to a curvature of about 1, and where to begin
Out: a vector where no component of the gradient is larger than asked for, or the best one found
Nothing here knows what is minimised. torch has an L-BFGS of its own, but to make one of its optimisers loads torch's compiler,
which takes seconds: as long as many a search.

Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming 1989.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
    value, slope = evaluate(place)
    bring = _Bringing(start, most=2 * history + 1)
    here = _look(slope[None], value)
    for _ in range(most_steps):
        if here.steepest <= largest_slope:
            break
        weights, decrease = _turn(here.products)
        if decrease >= 0:  # rounding has spoiled the history
            here = _look(here.slope[None], value)
            weights, decrease = _turn(here.products)
        direction = bring(weights) @ here.basis
        step = 1.0  # right from the start, where the curvature is about 1
        while True:
            moved = step * direction
            value, slope = evaluate(place + moved)
            there = _look(here.after(moved, slope, most=history), value)
            if there.value <= here.value + _SUFFICIENT * step * decrease or step < _SMALLEST_STEP:
                break
            # the minimum of the parabola through both values and the slope, within bounds
            bend = there.value - here.value - step * decrease
            best = -decrease * step * step / (2 * bend) if bend > 0 else 0.5 * step
            step = min(0.5 * step, max(0.1 * step, best))
        if there.value > here.value:
            break  # nothing lower within rounding
        settled = here.value - there.value <= _LEAST_CHANGE * max(abs(here.value), abs(there.value))
        place, here = place + moved, there
        if settled:
            break
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A place, seen from the host.

    The basis holds the last moves, how the slope turned over each, which together show the curvature, and the slope. The
    two-loop recursion needs nothing of these vectors but their products with one another, and its outcome is a sum of them. So
    the products go to the host together with the value, the recursion runs there on small numbers, and one product makes the
    direction: a device is asked once per step instead of forty times.
    """

    basis: torch.Tensor  # [moves, then as many turns, then the slope; components]
    products: list[list[float]]
    steepest: float  # the largest component of the slope
    value: float

    @property
    def slope(self) -> torch.Tensor:
        return self.basis[-1]

    def after(self, moved: torch.Tensor, slope: torch.Tensor, *, most: int) -> torch.Tensor:
        """The basis after one more move, which led to this slope; of the moves before it, the last ones."""
        count = len(self.basis) // 2
        first = max(0, count + 1 - most)
        turned = slope - self.slope
        moves, turns = self.basis[first:count], self.basis[count + first : 2 * count]
        return torch.cat([moves, moved[None], turns, turned[None], slope[None]])


def _look(basis: torch.Tensor, value: torch.Tensor) -> _Look:
    *products, steepest, found = torch.cat(
        [(basis @ basis.T).flatten(), basis[-1].abs().max()[None], value[None]]
    ).tolist()
    size = len(basis)
    return _Look(
        basis=basis,
        products=[products[row * size : (row + 1) * size] for row in range(size)],
        steepest=steepest,
        value=found,
    )


class _Bringing:
    """Brings weights to where the vectors are; from pinned memory, or the host would wait for the device once more."""

    def __init__(self, like: torch.Tensor, *, most: int) -> None:
        self._device = like.device
        # One piece for all steps, since to pin memory takes longer than a step. It is written over only after the device has
        # been asked for what it made of the weights before.
        self._here = torch.empty(most, dtype=like.dtype, pin_memory=like.is_cuda)

    def __call__(self, weights: list[float]) -> torch.Tensor:
        here = self._here[: len(weights)]
        here.copy_(torch.tensor(weights, dtype=here.dtype))
        return here.to(self._device, non_blocking=True)


def _turn(products: list[list[float]]) -> tuple[list[float], float]:
    """Minus the inverse curvature times the slope, as weights of the basis; the slope along that."""
    weights = _recur(products)
    return weights, sum(weight * product for weight, product in zip(weights, products[-1], strict=True))


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
