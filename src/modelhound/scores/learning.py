"""What a scorer has to learn before it can judge: a problem by itself, so that those of several models are solved as one.

In:  a Regression, and what makes a score of its solution
Out: a Learning
Nothing here solves anything.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from modelhound.scores.feature_set import Score
from modelhound.scores.logistic import Regression

__all__ = ["Learning"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learning:
    """A score that waits for its problem to be solved."""

    problem: Regression
    judge: Callable[[tuple[torch.Tensor, torch.Tensor]], Score]
    """From the weights and intercepts of least loss."""
