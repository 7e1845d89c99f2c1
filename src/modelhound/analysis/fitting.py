"""Fit a sum of terms with coefficients that cannot be negative, in relative error.

In:  the logarithms of measured values, and for each value the terms that should add up to it
Out: the logarithms of the coefficients, and how far each value lies off in logarithms
Nothing here knows what a term stands for.

Times are off by so many per cent, not by so many seconds, so squares of log(value) - log(sum of terms) are minimised: a
value of a microsecond counts as much as one of a minute. The unknowns are the logarithms of the coefficients, which keeps
every coefficient positive; the slope of log(sum) in such an unknown is the term's share of the sum, between 0 and 1, so that
steps (Levenberg, "A method for the solution of certain non-linear problems in least squares", 1944; Marquardt 1963) are tame
even where terms differ by many powers of ten. A term that is not needed shrinks until its share is nothing.

What the first term stands for may go on beside the others instead of before them; then the larger of the two is what one
waits for. With a `sharpness` s the sum is (first^s + others^s)^(1/s): 1 adds, and the higher it is the more the larger rules.

All arrays may have leading axes: thousands of resampled fits are one call.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["T_FREEDOM", "Floats", "TermFit", "fit_terms", "join_terms", "straight_line", "t_weights"]

Floats = NDArray[np.float64]

_NUM_STEPS = 60
_LONGEST_STEP = 2.0  # in log coefficients: a factor of 7 at once
_DEEPEST = 25.0  # a coefficient never falls below e^-25 of the largest it could be: its share is nothing by then
T_FREEDOM = 4.0  # of the heavy-tailed distribution that the robust fit assumes
_TINY = 1e-300
_CLOSE = 1e-9  # a step that changes the loss by less than this share is the last
_EXACT = 1e-18  # values met to nine digits leave nothing to gain


class TermFit(NamedTuple):
    """Coefficients [..., p] as logarithms, and residuals [..., n] as log(value) - log(sum)."""

    log_coefficients: Floats
    residuals: Floats


def fit_terms(
    terms: Floats, log_values: Floats, weights: Floats, *, start: Floats | None = None, sharpness: float = 1.0
) -> TermFit:
    """Minimise the weighted squares of log_values [..., n] - log(terms [..., n, p] @ coefficients [..., p]).

    Without a `start` the best of several is taken: all terms alike, and each term alone.
    """
    highest = _largest_coefficients(terms, log_values)
    if start is not None:
        return _descend(terms, log_values, weights, np.broadcast_to(start, highest.shape), highest, sharpness)
    num_terms = terms.shape[-1]
    shares = np.full((num_terms + 1, num_terms), 0.03)
    shares[np.arange(num_terms), np.arange(num_terms)] = 0.9
    shares[num_terms] = 0.5
    starts = highest + np.log(shares).reshape(num_terms + 1, *[1] * (highest.ndim - 1), num_terms)
    fits = _descend(terms, log_values, weights, starts, highest, sharpness)
    best = _loss(fits.residuals, weights).argmin(axis=0)[None, ..., None]
    return TermFit(*(np.take_along_axis(part, best, axis=0)[0] for part in fits))


def join_terms(parts: Floats, sharpness: float = 1.0) -> tuple[Floats, Floats]:
    """The logarithm of the sum of the parts [..., n, p], and each part's share of it: how the first moves with the second."""
    if sharpness == 1.0:
        total = parts.sum(axis=-1) + _TINY
        return np.log(total), parts / total[..., None]
    first, others = parts[..., 0] + _TINY, parts[..., 1:].sum(axis=-1) + _TINY
    larger = np.maximum(first, others)
    both = (first / larger) ** sharpness + (others / larger) ** sharpness
    share = (first / larger) ** sharpness / both
    rest = parts[..., 1:] / others[..., None] * (1 - share)[..., None]
    return np.log(larger) + np.log(both) / sharpness, np.concatenate([share[..., None], rest], axis=-1)


def straight_line(x: Floats, y: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Intercept and slope of the weighted least-squares line through y [..., n] against x [n]."""
    total = weights.sum(axis=-1)
    x_mean = (weights * x).sum(axis=-1) / total
    y_mean = (weights * y).sum(axis=-1) / total
    from_mean = x - x_mean[..., None]
    slope = (weights * from_mean * y).sum(axis=-1) / (weights * from_mean**2).sum(axis=-1)
    return y_mean - slope * x_mean, slope


def t_weights(squares: Floats) -> Floats:
    """How much each value counts where errors have heavy tails, from its squared error in units of the scatter."""
    return (T_FREEDOM + 1) / (T_FREEDOM + squares)


def _largest_coefficients(terms: Floats, log_values: Floats) -> Floats:
    """For each term the logarithm of the coefficient with which it alone would nowhere exceed the values, [..., p]."""
    with np.errstate(divide="ignore"):
        ratios = log_values[..., None] - np.log(terms)
    highest = ratios.min(axis=-2)
    return np.where(np.isfinite(highest), highest, 0.0)  # a term that is zero everywhere may have any coefficient


def _descend(
    terms: Floats, log_values: Floats, weights: Floats, start: Floats, highest: Floats, sharpness: float
) -> TermFit:
    log_coefficients = start
    parts, residuals = _evaluate(terms, log_values, log_coefficients, sharpness)
    loss = _loss(residuals, weights)
    damping = np.full(loss.shape, 1e-2)
    identity = np.eye(terms.shape[-1])
    for _ in range(_NUM_STEPS):
        weighted = parts * weights[..., None]
        curvature = np.swapaxes(weighted, -1, -2) @ parts
        slope = np.swapaxes(weighted, -1, -2) @ residuals[..., None]
        typical = np.trace(curvature, axis1=-2, axis2=-1)[..., None, None]
        damped = curvature + damping[..., None, None] * (curvature * identity) + (1e-12 * typical + _TINY) * identity
        step = np.linalg.solve(damped, slope)[..., 0]
        tried = log_coefficients + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        tried = np.clip(tried, highest - _DEEPEST, highest + _LONGEST_STEP)
        tried_parts, tried_residuals = _evaluate(terms, log_values, tried, sharpness)
        tried_loss = _loss(tried_residuals, weights)
        better = tried_loss < loss
        done = (np.abs(loss - tried_loss) <= _CLOSE * loss) | (loss < _EXACT * weights.sum(axis=-1)) | (damping > 1e8)
        log_coefficients = np.where(better[..., None], tried, log_coefficients)
        parts = np.where(better[..., None, None], tried_parts, parts)
        residuals = np.where(better[..., None], tried_residuals, residuals)
        loss = np.where(better, tried_loss, loss)
        damping = np.where(better, damping / 5, damping * 5)
        if done.all():
            break
    return TermFit(log_coefficients, residuals)


def _evaluate(terms: Floats, log_values: Floats, log_coefficients: Floats, sharpness: float) -> tuple[Floats, Floats]:
    """Each term's share of the sum, and the residuals."""
    log_total, shares = join_terms(terms * np.exp(log_coefficients)[..., None, :], sharpness)
    return shares, log_values - log_total


def _loss(residuals: Floats, weights: Floats) -> Floats:
    return np.asarray((weights * residuals**2).sum(axis=-1))
