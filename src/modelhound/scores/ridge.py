"""ridge: how well is an item predicted by a linear model that has seen all the others?

Intuition. Fit a linear map from features to targets, leave one item out, predict it, and do so for every item. It sounds
like n fits, but for least squares the answer for a left-out item follows from the one fit to all items: an item's error
grows by how strongly the fit leaned on that item. The value is the mean outcome (`outcomes`: accuracy, average precision or
R^2) of items that were not learned from.

Formula. With targets Y (a column for each class or label, or one of numbers), features F and an intercept, the fit to all items
predicts H Y, where

    H = 11'/n + U diag(v / (v + penalty)) U',     v the eigenvalues of the centred F'F, U its left singular vectors,

and the prediction for item i by the fit without it is  y_i - (y_i - (HY)_i) / (1 - H_ii).  The intercept is not penalised.
The penalty is the one of a grid, relative to the mean eigenvalue so that rescaled features score the same, with the least
squared leave-one-out error. It is chosen by squared error and not by accuracy so that the choice hardly flatters the value.
Squared errors do not mind a rotation of the targets, so to choose it more classes than directions are seen in as many columns
as there are directions, and one.

Useless features score below chance, down to 0 where classes are equally large: without an item its own class is the rarer one.

Allen, "The relationship between variable selection and data augmentation and a method for prediction", Technometrics 1974
(the leave-one-out formula, there called PRESS); Hoerl and Kennard, "Ridge regression", Technometrics 1970.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score
from modelhound.scores.outcomes import judge_items

__all__ = ["RELATIVE_PENALTIES", "score_by_ridge"]

RELATIVE_PENALTIES = tuple(10.0**exponent for exponent in range(-6, 4))
"""Each times the mean non-zero eigenvalue of the centred F'F."""

_LEAST_FREEDOM = 1e-12  # of 1 - H_ii: an item that the fit passes through exactly has a left-out error of 0/0


def score_by_ridge(algebra: Algebra, *, seed: int) -> Score:
    """The mean leave-one-out outcome of ridge regression."""
    values = algebra.spectrum.values
    # features that do not vary: any penalty gives the means of the targets
    scale = float(values.mean()) if len(values) else 1.0
    kept = torch.stack([values / (values + relative * scale) for relative in RELATIVE_PENALTIES], dim=1)
    freedoms = algebra.freedoms(lambda: _find_freedoms(algebra, kept))
    errors = _try_penalties(algebra, kept, freedoms)
    best = int(errors.argmin())
    outcomes = torch.empty(algebra.num_items, dtype=torch.float64, device=values.device)
    for rows, fitted in algebra.fitted_blocks(kept[:, best, None] * algebra.targets_in_left):
        outcomes[rows] = judge_items(algebra, rows, _leave_out(algebra, rows, fitted, freedoms[rows, best]))
    return Score.from_items(outcomes)


def _leave_out(algebra: Algebra, rows: slice, fitted: torch.Tensor, freedom: torch.Tensor) -> torch.Tensor:
    """What the fit without an item says of it, from what the fit to all says beyond the means."""
    # or the rounding of a large mean would be divided by the freedom
    beyond = algebra.targets_of(rows) - algebra.target_means
    return beyond - (beyond - fitted) / freedom[:, None] + algebra.target_means


def _find_freedoms(algebra: Algebra, kept: torch.Tensor) -> torch.Tensor:
    """1 - H_ii, [num_items, num_penalties]; `kept` is v / (v + penalty)."""
    freedoms = torch.empty(algebra.num_items, kept.shape[1], dtype=torch.float64, device=kept.device)
    for rows, left in algebra.left_blocks():
        freedoms[rows] = (1 - 1 / algebra.num_items - left.square() @ kept).clamp_min_(_LEAST_FREEDOM)
    return freedoms


def _try_penalties(algebra: Algebra, kept: torch.Tensor, freedoms: torch.Tensor) -> torch.Tensor:
    """Squared leave-one-out errors, [num_penalties]."""
    num_directions, num_penalties = kept.shape
    seen, means, rotation = _rotate_targets(algebra.targets_in_left, algebra.target_means)
    # one wide product is twice as fast as one for each penalty
    weights = (kept[:, :, None] * seen[:, None, :]).reshape(num_directions, num_penalties * len(means))
    errors = torch.zeros(num_penalties, dtype=torch.float64, device=kept.device)
    for rows, through in algebra.fitted_blocks(weights):
        aims = algebra.targets_of(rows) if rotation is None else algebra.targets_through(rows, rotation)
        fitted = through.view(len(aims), num_penalties, len(means))
        squares = fitted.sub_((aims - means)[:, None]).square_().sum(2)
        if rotation is not None:  # what of a target the rotated columns do not reach
            squares += (algebra.target_lengths(rows) - aims.square().sum(1)).clamp_min_(0)[:, None]
        errors += (squares / freedoms[rows].square()).sum(0)
    return errors


def _rotate_targets(seen: torch.Tensor, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """U'Y and the means of Y in as few columns as hold them, with the rotation of Y that does so; None if none is needed."""
    num_directions, num_classes = seen.shape
    if num_classes <= num_directions + 1:
        return seen, means, None
    rotation, _ = torch.linalg.qr(torch.cat([seen, means[None]]).T)
    return seen @ rotation, means @ rotation, rotation
