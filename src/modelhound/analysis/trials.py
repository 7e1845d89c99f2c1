"""What finals are made of: short fine-tunings on parts of the items, what they cost and when they tell anything.

In:  the items' groups; a trial; the scores of tested items
Out: a fold for each item; epochs; whether scores are better than guessing
Nothing here knows who races, or trains.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = [
    "CYCLES",
    "FULL_EPOCHS",
    "HIGH_NOTCHES",
    "NUM_FOLDS",
    "RATE_FACTOR",
    "USUAL_NOTCHES",
    "Outcome",
    "Trial",
    "beats_guessing",
    "draw_folds",
    "trial_epochs",
]

NUM_FOLDS = 3
"""A trial learns from two thirds of the items and is tested on the others."""

CYCLES = (2, 4, 8)
"""Epochs of each stage; a stage goes on from the one before."""

FULL_EPOCHS = 20
"""What is meant by full fine-tuning."""

RATE_FACTOR = 3.0
"""From one learning rate that is tried to the next."""

USUAL_NOTCHES, HIGH_NOTCHES = (1, 0), (2, 1)
"""The rates of the first two rungs; the higher ones on few images, which small steps never get far with."""

_FALSE_ALARM = 0.01  # chance to call noise something to learn from

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One short fine-tuning."""

    model: str
    notch: int
    """The learning rate is the usual one times RATE_FACTOR to this power."""
    fold: int
    """The items to test on; all others are learned from."""
    stage: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a trial."""

    item_scores: Floats
    """One for each item of the fold, in the data set's order."""
    loss: float
    """Mean over the items of the fold."""
    seconds: float

    @cached_property
    def score(self) -> float:
        """Mean over the items; a race asks for it again and again."""
        return float(self.item_scores.mean())


def draw_folds(groups: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """A fold for each item; the items of a group are spread evenly."""
    order = np.random.default_rng(seed).permutation(len(groups))
    by_group = order[np.argsort(groups[order], kind="stable")]
    folds = np.empty(len(groups), dtype=np.int64)
    folds[by_group] = np.arange(len(groups)) % NUM_FOLDS
    return folds


def trial_epochs(trial: Trial) -> float:
    """What a trial costs, in epochs over all items; those of other folds than the first go through all stages at once."""
    epochs = CYCLES[trial.stage] if trial.fold == 0 else sum(CYCLES[: trial.stage + 1])
    return epochs * (1 - 1 / NUM_FOLDS)


def beats_guessing(item_scores: Floats, guess: Floats, *, num_tries: int) -> bool:
    """Whether the best of `num_tries` attempts tells more of the items than one who knows the classes' frequencies alone."""
    gains = item_scores - guess
    error = float(gains.std()) / len(gains) ** 0.5
    if error == 0:
        return bool(gains.mean() > 0)
    return bool(gains.mean() / error > stats.norm.isf(_FALSE_ALARM / max(1, num_tries)))
