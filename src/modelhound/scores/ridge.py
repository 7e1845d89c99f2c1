"""ridge: how many items does a linear model get right that has seen all the others?

Intuition. Fit a linear map from features to classes, leave one item out, predict it, and do so for every item. It sounds
like n fits, but for least squares the answer for a left-out item follows from the one fit to all items: an item's error
grows by how strongly the fit leaned on that item. The value is an accuracy, on items that were not learned from.

Formula. With targets Y (one-hot), features F and an intercept, the fit to all items predicts H Y, where

    H = 11'/n + U diag(v / (v + penalty)) U',     v the eigenvalues of the centred F'F, U its left singular vectors,

and the prediction for item i by the fit without it is  y_i - (y_i - (HY)_i) / (1 - H_ii).  The intercept is not penalised.
The penalty is the one of a grid, relative to the mean eigenvalue so that rescaled features score the same, with the least
squared leave-one-out error. It is chosen by squared error and not by accuracy so that the choice hardly flatters the value.

Useless features score below chance, down to 0 where classes are equally large: without an item its own class is the rarer one.

Allen, "The relationship between variable selection and data augmentation and a method for prediction", Technometrics 1974
(the leave-one-out formula, there called PRESS); Hoerl and Kennard, "Ridge regression", Technometrics 1970.
"""

from collections.abc import Iterator, Sequence

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["RELATIVE_PENALTIES", "leave_one_out", "score_by_ridge"]

RELATIVE_PENALTIES = tuple(10.0**exponent for exponent in range(-6, 4))
"""Each times the mean non-zero eigenvalue of the centred F'F."""

_LEAST_FREEDOM = 1e-12  # of 1 - H_ii: an item that the fit passes through exactly has a left-out error of 0/0


def score_by_ridge(algebra: Algebra, *, seed: int) -> Score:
    """Leave-one-out accuracy of ridge regression on one-hot targets."""
    values = algebra.spectrum.values
    scale = (
        float(values.mean()) if len(values) else 1.0
    )  # features that do not vary: any penalty gives the class shares
    penalties = [relative * scale for relative in RELATIVE_PENALTIES]
    errors = torch.zeros(len(penalties), dtype=torch.float64, device=values.device)
    hits = torch.empty(len(penalties), algebra.num_items, dtype=torch.bool, device=values.device)
    for rows, left in algebra.left_blocks():
        for index, predicted in enumerate(_leave_out_rows(algebra, rows, left, penalties)):
            errors[index] += (predicted - algebra.one_hot[rows]).square().sum()
            hits[index, rows] = predicted.argmax(1) == algebra.labels[rows]
    return Score.from_hits(hits[int(errors.argmin())])


def leave_one_out(algebra: Algebra, penalty: float) -> torch.Tensor:
    """For each item the prediction by the fit to all other items, [num_items, num_classes]; the penalty is absolute."""
    blocks = [next(_leave_out_rows(algebra, rows, left, [penalty])) for rows, left in algebra.left_blocks()]
    return torch.cat(blocks)


def _leave_out_rows(
    algebra: Algebra, rows: slice, left: torch.Tensor, penalties: Sequence[float]
) -> Iterator[torch.Tensor]:
    """The same for some rows of U, for one penalty after the other."""
    values = algebra.spectrum.values
    targets = algebra.one_hot[rows]
    shares = algebra.counts / algebra.num_items
    kept = torch.stack([values / (values + penalty) for penalty in penalties], dim=1)  # [rank, num_penalties]
    leverages = left.square() @ kept + 1 / algebra.num_items
    for index in range(len(penalties)):
        fitted = left @ (kept[:, index, None] * algebra.targets_in_left) + shares
        freedom = (1 - leverages[:, index, None]).clamp_min(_LEAST_FREEDOM)
        yield targets - (targets - fitted) / freedom
