"""The shapes that time can take against size, each fitted in relative error.

In:  sizes, the logarithms of the times there (with leading axes for resampled times), and a weight for each
Out: the parameters of a shape, its value at any size and its local exponent there
Nothing here chooses between shapes or knows where the times come from.

    constant       y = a                            power        y = a x^k
    proportional   y = b x                          quadratic    y = a + b x + c x²
    affine         y = a + b x                      hinge        y = a up to the knee, then the line a (1 + q (x / knee - 1))

with a, b, c >= 0. The hinge is the larger of a floor and a line whose own fixed part is not negative (0 < q <= 1): a host
that needs as long for one item as for many, and a device that needs longer for each. With q = 1 the line comes from the
origin and the shape has one parameter less, so it stands in the list twice.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from modelhound.analysis.fitting import Floats, TermFit, fit_terms, straight_line

__all__ = ["SHAPES", "Form", "Shape"]

Form = Literal["constant", "proportional", "affine", "power", "hinge", "quadratic"]

_NUM_KNEES = 61  # of the first grid, over which hinges are tried
_NUM_BENDS = 41
_LEAST_BEND = 0.02
_NUM_ZOOMS = 8  # each shrinks the grid around the best knee to a third


class Shape(NamedTuple):
    """One shape: its parameters by name, and what can be computed with them."""

    form: Form
    parameters: tuple[str, ...]
    least_sizes: int
    """With fewer different sizes there is nothing left over to judge the fit by."""
    fit: Callable[[Floats, Floats, Floats, Floats | None], Floats]
    """sizes [n], log times [..., n], weights [..., n], a fit nearby or None -> parameters [..., p]"""
    value: Callable[[Floats, Floats], Floats]
    """parameters [..., p], sizes [n] -> times [..., n]"""
    slope: Callable[[Floats, float], Floats]
    """parameters [..., p], a size -> the exponent there, d log(time) / d log(size), [...]"""


def _fit_constant(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None) -> Floats:
    return np.exp(_weighted_mean(log_times, weights))[..., None]


def _fit_proportional(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None) -> Floats:
    return _fit_constant(sizes, log_times - np.log(sizes), weights, near)


def _fit_power(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None) -> Floats:
    log_scale, exponent = straight_line(np.log(sizes), log_times, weights)
    return np.stack([np.exp(log_scale), exponent], axis=-1)


def _fit_affine(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None) -> Floats:
    return _fit_polynomial(sizes, log_times, weights, near, degree=1)


def _fit_quadratic(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None) -> Floats:
    return _fit_polynomial(sizes, log_times, weights, near, degree=2)


def _fit_polynomial(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None, *, degree: int) -> Floats:
    terms = sizes[:, None] ** np.arange(degree + 1)
    start = None
    if near is not None:  # a coefficient of nothing would never come back from there
        parts = near * terms
        lowest = 1e-3 * (parts.sum(axis=-1, keepdims=True) / terms).min(axis=0)
        start = np.log(np.maximum(near, lowest))
    fit: TermFit = fit_terms(terms, log_times, weights, start=start)
    coefficients = np.exp(fit.log_coefficients)
    parts = coefficients[..., None, :] * terms
    needless = (parts < 1e-6 * parts.sum(axis=-1, keepdims=True)).all(axis=-2)
    return np.where(needless, 0.0, coefficients)


def _fit_hinge(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None) -> Floats:
    return _search_hinge(sizes, log_times, weights, np.linspace(np.log(_LEAST_BEND), 0.0, _NUM_BENDS))


def _fit_origin_hinge(sizes: Floats, log_times: Floats, weights: Floats, near: Floats | None) -> Floats:
    return _search_hinge(sizes, log_times, weights, np.zeros(1))[..., :2]


def _search_hinge(sizes: Floats, log_times: Floats, weights: Floats, log_bends: Floats) -> Floats:
    """A hinge has corners in its parameters, so it is looked for on a grid that closes in: floor, knee and q."""
    distinct = np.unique(sizes)
    lowest, highest = np.log(distinct[1]), np.log(distinct[-2]) - 1e-9  # two sizes on the floor and two past the knee
    knees, bends = np.meshgrid(np.linspace(lowest, highest, _NUM_KNEES), log_bends, indexing="ij")
    knee_step = (highest - lowest) / (_NUM_KNEES - 1)
    bend_step = -np.log(_LEAST_BEND) / (_NUM_BENDS - 1)
    around_knee, around_bend = (
        part.ravel()
        for part in np.meshgrid(
            np.linspace(-1, 1, 7), np.linspace(-1, 1, 7) if len(log_bends) > 1 else np.zeros(1), indexing="ij"
        )
    )
    knee, bend, floor = _best_hinge(sizes, log_times, weights, knees.ravel(), bends.ravel())
    for zoom in range(_NUM_ZOOMS):
        reach = 3.0**-zoom
        near_knees = np.clip(knee[..., None] + reach * knee_step * around_knee, lowest, highest)
        near_bends = np.clip(bend[..., None] + reach * bend_step * around_bend, np.log(_LEAST_BEND), 0.0)
        knee, bend, floor = _best_hinge(sizes, log_times, weights, near_knees, near_bends)
    return np.stack([np.exp(floor), np.exp(knee), np.exp(bend)], axis=-1)


def _best_hinge(
    sizes: Floats, log_times: Floats, weights: Floats, knees: Floats, bends: Floats
) -> tuple[Floats, Floats, Floats]:
    """Of the candidates [..., c] the one that fits best, with its floor; all three as logarithms, [...]."""
    past = np.maximum(sizes[:, None] * np.exp(-knees)[..., None, :] - 1, 0)
    rises = np.log1p(np.exp(bends)[..., None, :] * past)  # [..., n, c]
    shares = (weights / weights.sum(axis=-1, keepdims=True))[..., None, :]
    mean = np.matmul(shares, log_times[..., None])[..., 0, :]
    cross = np.matmul(shares * (log_times - mean)[..., None, :], rises)[..., 0, :]
    mean_rises = np.matmul(shares, rises)[..., 0, :]
    # The loss with the best floor for each candidate, less what all candidates have in common.
    losses = np.matmul(shares, rises**2)[..., 0, :] - mean_rises**2 - 2 * cross
    best = losses.argmin(axis=-1)[..., None]
    knees, bends, mean_rises = (np.broadcast_to(part, losses.shape) for part in (knees, bends, mean_rises))
    floor = mean[..., 0] - np.take_along_axis(mean_rises, best, axis=-1)[..., 0]
    return np.take_along_axis(knees, best, -1)[..., 0], np.take_along_axis(bends, best, -1)[..., 0], floor


def _constant_value(parameters: Floats, sizes: Floats) -> Floats:
    return np.broadcast_to(parameters[..., :1], (*parameters.shape[:-1], len(sizes)))


def _proportional_value(parameters: Floats, sizes: Floats) -> Floats:
    return parameters[..., :1] * sizes


def _power_value(parameters: Floats, sizes: Floats) -> Floats:
    return np.asarray(parameters[..., :1] * sizes ** parameters[..., 1:2])


def _polynomial_value(parameters: Floats, sizes: Floats) -> Floats:
    return np.asarray(parameters @ sizes ** np.arange(parameters.shape[-1])[:, None])


def _hinge_value(parameters: Floats, sizes: Floats) -> Floats:
    floor, knee = parameters[..., :1], parameters[..., 1:2]
    bend = parameters[..., 2:] if parameters.shape[-1] == 3 else np.ones(1)
    return np.asarray(floor * (1 + bend * np.maximum(sizes / knee - 1, 0)))


def _power_slope(parameters: Floats, size: float) -> Floats:
    return parameters[..., 1]


def _polynomial_slope(parameters: Floats, size: float) -> Floats:
    powers = np.arange(parameters.shape[-1])
    parts = parameters * size**powers
    return np.asarray((parts * powers).sum(axis=-1) / parts.sum(axis=-1))


def _hinge_slope(parameters: Floats, size: float) -> Floats:
    knee = parameters[..., 1]
    bend = parameters[..., 2] if parameters.shape[-1] == 3 else np.ones_like(knee)
    ratio = size / knee
    return np.where(ratio > 1, bend * ratio / (1 + bend * (ratio - 1)), 0.0)


def _weighted_mean(values: Floats, weights: Floats) -> Floats:
    return np.asarray((weights * values).sum(axis=-1) / weights.sum(axis=-1))


# The simplest first.
SHAPES = (
    Shape("constant", ("seconds",), 2, _fit_constant, _constant_value, lambda p, size: np.zeros(p.shape[:-1])),
    Shape(
        "proportional",
        ("each_seconds",),
        2,
        _fit_proportional,
        _proportional_value,
        lambda p, size: np.ones(p.shape[:-1]),
    ),
    Shape("affine", ("fixed_seconds", "each_seconds"), 3, _fit_affine, _polynomial_value, _polynomial_slope),
    Shape("power", ("unit_seconds", "exponent"), 3, _fit_power, _power_value, _power_slope),
    Shape("hinge", ("floor_seconds", "knee"), 4, _fit_origin_hinge, _hinge_value, _hinge_slope),
    Shape("hinge", ("floor_seconds", "knee", "bend"), 5, _fit_hinge, _hinge_value, _hinge_slope),
    Shape(
        "quadratic",
        ("fixed_seconds", "each_seconds", "square_seconds"),
        4,
        _fit_quadratic,
        _polynomial_value,
        _polynomial_slope,
    ),
)
