"""Find the minima of smooth convex functions: L-BFGS with a backtracking line search, for several functions at once.

In:  a function from vectors, one for each problem, to their values and gradients, scaled to a curvature of about 1, and where
     to begin
Out: vectors where no component of the gradient is larger than asked for, or the best ones found
Nothing here knows what is minimised. Problems do not touch one another: each has its own steps, and who is done waits for the
others. On a device several cost hardly more than one, because it is asked and handed work as often. torch has an L-BFGS of its
own, but to make one of its optimisers loads torch's compiler, which takes seconds: as long as many a search.

Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", Mathematical Programming 1989.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["descend", "multiply"]

_SUFFICIENT = 1e-4  # of the decrease that the slope promises: Armijo's condition
_SMALLEST_STEP = 1e-10
_LEAST_CHANGE = 1e-15  # of the value, relative: rounding
_LEAST_CURVATURE = 1e-10  # a move over which the slope hardly turned shows none

_Numbers = NDArray[np.float64]


def descend(
    evaluate: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    start: torch.Tensor,
    *,
    most_steps: int,
    history: int,
    largest_slope: float,
) -> torch.Tensor:
    """The places of the minima, as nearly as the limits allow, [num_problems, num_components] like `start`.

    `evaluate` gives a value for each problem and a slope for each component of each.
    """
    place = start
    value, slope = evaluate(place)
    here = _look(torch.cat([slope.new_zeros(len(slope), 2 * history, slope.shape[1]), slope[:, None]], 1), value)
    bring = _Bringing(here.basis)
    weights, decrease, step = np.zeros(here.basis.shape[:2]), np.zeros(len(start)), np.zeros(len(start))
    num_steps = np.zeros(len(start), dtype=int)
    is_going = here.steepest > largest_slope
    is_turning = is_going
    while is_going.any():
        if is_turning.any():
            here, turned, along = _turn(here, is_turning)
            weights[is_turning], decrease[is_turning] = turned[is_turning], along[is_turning]
            step[is_turning] = 1.0  # right from the start, where the curvature is about 1
        moved = multiply(bring(np.where(is_going, step, 0.0)[:, None] * weights)[:, None], here.basis)[:, 0]
        beyond = place + moved
        value, slope = evaluate(beyond)
        there = _look(here.after(moved, slope), value)
        ends = (there.value <= here.value + _SUFFICIENT * step * decrease) | (step < _SMALLEST_STEP)
        is_lower = is_going & ends & (there.value <= here.value)
        is_through = is_going & ends & ~is_lower  # nothing lower within rounding
        is_through |= is_lower & (
            here.value - there.value <= _LEAST_CHANGE * np.maximum(np.abs(here.value), np.abs(there.value))
        )
        if not ends.all():
            step = np.where(ends, step, _shorten(step, decrease, there.value - here.value))
        num_steps += is_lower
        if is_lower[is_going].all():
            place, here = beyond, there
        elif is_lower.any():
            chosen = torch.from_numpy(is_lower).to(place.device)
            place, here = torch.where(chosen[:, None], beyond, place), here.unless(is_lower, there)
        is_going = is_going & ~is_through & (num_steps < most_steps) & (here.steepest > largest_slope)
        is_turning = is_lower & is_going
    return place


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of matrices, one for each problem; that of a single problem as everywhere else, which is faster on a CPU."""
    return torch.bmm(left, right) if left.is_cuda or len(left) > 1 else (left[0] @ right[0])[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Places, seen from the host.

    The basis of each holds the last moves, how the slope turned over each, which together show the curvature, and the slope;
    moves that were not made yet are 0. The two-loop recursion needs nothing of these vectors but their products,
    and its outcome is a sum of them. So the products go to the host together with the values, the recursion runs there on small
    numbers, and a device is asked once per step instead of forty times.
    """

    basis: torch.Tensor  # [problems; moves, then as many turns, then the slope; components]
    products: _Numbers  # [problems; the same; the same]
    steepest: _Numbers  # the largest component of each slope
    value: _Numbers

    def after(self, moved: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        """The basis after one more move, which led to this slope; the move longest ago is forgotten."""
        count = self.basis.shape[1] // 2
        turned = slope - self.basis[:, -1]
        moves, turns = self.basis[:, 1:count], self.basis[:, count + 1 : 2 * count]
        return torch.cat([moves, moved[:, None], turns, turned[:, None], slope[:, None]], 1)

    def unless(self, chosen: NDArray[np.bool_], other: "_Look") -> "_Look":
        """Of the problems chosen the other look, of the others this one."""
        there = torch.from_numpy(chosen).to(self.basis.device)
        return _Look(
            basis=torch.where(there[:, None, None], other.basis, self.basis),
            products=np.where(chosen[:, None, None], other.products, self.products),
            steepest=np.where(chosen, other.steepest, self.steepest),
            value=np.where(chosen, other.value, self.value),
        )

    def forgetting(self, chosen: NDArray[np.bool_]) -> "_Look":
        """Without the moves of these problems."""
        kept = np.broadcast_to(~chosen[:, None], self.basis.shape[:2]).copy()
        kept[:, -1] = True
        return _Look(
            basis=torch.where(torch.from_numpy(kept).to(self.basis.device)[:, :, None], self.basis, 0.0),
            products=np.where(kept[:, :, None] & kept[:, None], self.products, 0.0),
            steepest=self.steepest,
            value=self.value,
        )


def _look(basis: torch.Tensor, value: torch.Tensor) -> _Look:
    products = multiply(basis, basis.mT).flatten(1)
    steepest = torch.linalg.vector_norm(basis[:, -1], torch.inf, dim=1, keepdim=True)
    found = torch.cat([products, steepest, value[:, None]], 1).cpu().numpy()
    size = basis.shape[1]
    return _Look(basis=basis, products=found[:, :-2].reshape(-1, size, size), steepest=found[:, -2], value=found[:, -1])


class _Bringing:
    """Brings weights to where the vectors are; from pinned memory, or the host would wait for the device once more."""

    def __init__(self, basis: torch.Tensor) -> None:
        self._device = basis.device
        # One piece for all steps, since to pin memory takes longer than a step. It is written over only after the device has
        # been asked for what it made of the weights before.
        self._here = torch.empty(basis.shape[:2], dtype=basis.dtype, pin_memory=basis.is_cuda)

    def __call__(self, weights: _Numbers) -> torch.Tensor:
        return self._here.copy_(torch.from_numpy(weights)).to(self._device, non_blocking=True)


def _turn(here: _Look, is_turning: NDArray[np.bool_]) -> tuple[_Look, _Numbers, _Numbers]:
    """Minus the inverse curvature times the slope, as weights of the basis, and the slope along that; for those who turn."""
    weights = np.zeros(here.products.shape[:2])
    weights[is_turning] = _recur(here.products[is_turning])
    along = (weights * here.products[:, -1]).sum(1)
    is_spoiled = is_turning & (along >= 0)  # by rounding
    if is_spoiled.any():
        here = here.forgetting(is_spoiled)
        weights[is_spoiled] = 0.0
        weights[is_spoiled, -1] = -1.0  # straight down
        along = (weights * here.products[:, -1]).sum(1)
    return here, weights, along


def _recur(products: _Numbers) -> _Numbers:
    """The two-loop recursion on coefficients of (moves, turns, slope), from the products of these vectors.

    Of all problems at once: for sixteen of them this takes as long as for one.
    """
    count = products.shape[1] // 2
    moves, turns = np.arange(count), np.arange(count, 2 * count)
    turned, lengths = products[:, moves, turns], products[:, turns, turns]
    is_usable = turned > _LEAST_CURVATURE * lengths
    inverse = np.where(is_usable, 1 / np.where(is_usable, turned, 1.0), 0.0)  # what is not usable changes nothing
    places = np.flatnonzero(is_usable.any(0)).tolist()
    weights = np.zeros(products.shape[:2])
    weights[:, -1] = -1.0

    def along(vector: int, place: int) -> _Numbers:
        shares: _Numbers = np.einsum("pv,pv->p", weights, products[:, vector]) * inverse[:, place]
        return shares

    shares = {}
    for place in reversed(places):
        shares[place] = along(place, place)
        weights[:, count + place] -= shares[place]
    if places:
        last = count - 1 - is_usable[:, ::-1].argmax(1)
        each = np.arange(len(products))
        has_any = is_usable.any(1)
        scale = np.where(has_any, turned[each, last] / np.where(has_any, lengths[each, last], 1.0), 1.0)
        weights *= scale[:, None]
    for place in places:
        weights[:, place] += shares[place] - along(count + place, place)
    return weights


def _shorten(step: _Numbers, decrease: _Numbers, change: _Numbers) -> _Numbers:
    """To the minimum of the parabola through both values and the slope, within bounds."""
    bend = change - step * decrease
    best = np.where(bend > 0, -decrease * step * step / (2 * np.where(bend > 0, bend, 1.0)), 0.5 * step)
    return np.minimum(0.5 * step, np.maximum(0.1 * step, best))
