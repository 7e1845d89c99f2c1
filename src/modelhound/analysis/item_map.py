"""Items as a model sees them, in two dimensions, and which of them it finds hard.

In:  one feature vector per item; right-or-wrong scores of many models
Out: two coordinates per item; hardness per item
Neighbours are kept: items that a model takes for alike lie together. The features' main directions (PCA) give the start and
the layout at large, and t-SNE (van der Maaten and Hinton 2008, https://jmlr.org/papers/v9/vandermaaten08a.html) moves
neighbours together. The same features give the same map. Nothing here knows what an item is.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

__all__ = ["MAP_METHOD", "MOST_ITEMS", "hardest_items", "main_directions", "map_items"]

MOST_ITEMS = 800
"""Larger maps take longer than they are worth looking at: every item is compared with every other."""

MAP_METHOD = "t-SNE, begun from the two main directions"

_NUM_DIRECTIONS = 30
_NUM_STEPS, _NUM_EARLY_STEPS, _EARLY_FACTOR = 300, 80, 8.0
_MOMENTUM = (0.5, 0.8)
_NUM_NEIGHBOURS = 25.0
_LEAST_EXTENT = 1e-37  # of features that differ at all

Floats = NDArray[np.float32]


def map_items(features: NDArray[np.floating]) -> Floats:
    """Two coordinates per item [items, 2], for at most MOST_ITEMS items; about as wide as high, around 0."""
    directions = main_directions(np.asarray(features, dtype=np.float32))
    # or squares of large ones would be infinite, and of small ones 0
    directions /= max(float(np.abs(directions).max()), _LEAST_EXTENT)
    start = np.zeros((len(directions), 2), dtype=np.float32)
    start[:, : min(2, directions.shape[1])] = directions[:, :2]
    start /= max(float(start.std()), 1e-9)
    if len(directions) < 10:  # too few to have neighbours
        return start
    affinities = _affinities(directions, min(_NUM_NEIGHBOURS, (len(directions) - 1) / 3))
    return _move(affinities, start * 1e-2)


def hardest_items(
    own_scores: NDArray[np.floating], all_scores: Sequence[NDArray[np.floating]], *, num_hardest: int = 24
) -> tuple[Floats, NDArray[np.intp]]:
    """Hardness of each item to one model, and the places of the hardest, hardest first.

    An item is hard when the model misses it, and of those it misses the same way, those are harder that other models miss as
    well. Items without a score (NaN) are not hard.
    """
    stacked = np.stack([np.asarray(each, dtype=np.float64) for each in all_scores])
    known = ~np.isnan(stacked)
    mean = np.where(known, stacked, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    hardness = -(np.asarray(own_scores, dtype=np.float64) + 1e-3 * mean)
    hardness = np.where(np.isnan(hardness), -np.inf, hardness)
    order = np.argsort(-hardness, kind="stable")
    order = order[np.isfinite(hardness[order])]
    finite = hardness[np.isfinite(hardness)]
    floor = float(finite.min()) if len(finite) else 0.0
    return np.where(np.isfinite(hardness), hardness - floor, 0.0).astype(np.float32), order[:num_hardest]


def main_directions(features: Floats) -> Floats:
    """The features along the directions in which they vary most, as many as are worth it: all that a map needs of them."""
    finite = np.nan_to_num(features.reshape(len(features), -1), nan=0.0, posinf=0.0, neginf=0.0)
    centred = finite - finite.mean(axis=0)
    if centred.shape[0] < centred.shape[1]:  # by far the cheaper way for few items
        last = len(centred) - 1
        squares, left = eigh(
            np.asarray(centred, dtype=np.float64) @ centred.T,
            subset_by_index=(max(0, last - _NUM_DIRECTIONS + 1), last),
        )
        strength, left = np.sqrt(np.maximum(squares[::-1], 0)), left[:, ::-1]
    else:
        doubled = np.asarray(centred, dtype=np.float64)
        last = centred.shape[1] - 1
        squares, right = eigh(doubled.T @ doubled, subset_by_index=(max(0, last - _NUM_DIRECTIONS + 1), last))
        strength, right = np.sqrt(np.maximum(squares[::-1], 0)), right[:, ::-1]
        left = doubled @ right / np.maximum(strength, 1e-30)
    count = max(1, min(_NUM_DIRECTIONS, int((strength > 1e-6 * max(float(strength[0]), 1e-30)).sum())))
    directions = left[:, :count] * strength[:count]
    # a direction has no sign of its own: fix it, so that the same features give the same map everywhere
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(count)])
    return np.asarray(directions * np.where(signs == 0, 1, signs), dtype=np.float32)


def _affinities(points: Floats, num_neighbours: float) -> Floats:
    """How much every two items are neighbours: Gaussian, as wide as holds `num_neighbours`, made symmetric."""
    squares = (points**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0).astype(np.float64)
    np.fill_diagonal(distances, np.inf)
    distances /= max(float(np.median(distances.min(axis=1))), 1e-30)
    low = np.full(len(points), 1e-10)
    high = np.full(len(points), 1e10)
    target = np.log(num_neighbours)
    for _ in range(60):  # bisect the widths of all items at once
        precision = np.sqrt(low * high)
        exponents = -distances * precision[:, None]
        exponents -= exponents.max(axis=1, keepdims=True)
        weights = np.exp(exponents)
        weights /= weights.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.where(weights > 0, weights * np.log(weights), 0).sum(axis=1)
        too_wide = entropy > target
        low, high = np.where(too_wide, precision, low), np.where(too_wide, high, precision)
    together = weights + weights.T
    return np.asarray(np.maximum(together / together.sum(), 1e-12), dtype=np.float32)


def _move(affinities: Floats, points: Floats) -> Floats:
    """Gradient descent with momentum and gains of its own for every coordinate."""
    num_items = len(points)
    rate = max(num_items / _EARLY_FACTOR / 4, 50.0)
    speed = np.zeros_like(points)
    gains = np.ones_like(points)
    for step in range(_NUM_STEPS):
        early = step < _NUM_EARLY_STEPS
        squares = (points**2).sum(axis=1)
        kernel = 1 / (1 + np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0))
        np.fill_diagonal(kernel, 0)
        pull = ((_EARLY_FACTOR if early else 1.0) * affinities - kernel / kernel.sum()) * kernel
        gradient = 4 * (pull.sum(axis=1, keepdims=True) * points - pull @ points)
        gains = np.maximum(np.where(np.sign(gradient) == np.sign(speed), 0.8 * gains, gains + 0.2), 0.01)
        speed = _MOMENTUM[not early] * speed - rate * gains * gradient
        points = points + speed
        points -= points.mean(axis=0)
    return np.asarray(points / max(float(np.abs(points).max()), 1e-9), dtype=np.float32)
