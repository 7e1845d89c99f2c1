"""What one would score who knows how often each answer comes, and nothing of the items.

In:  targets, as a data set has them
Out: a score for each item, of the kind that a ranking rests on
Nothing here knows features: this is what they have to be better than.
"""

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray

from modelhound.scores.outcomes import rank_labels
from modelhound.settings import Task

__all__ = ["guess_scores"]


def guess_scores(targets: npt.NDArray[np.generic], task: Task) -> NDArray[np.float64]:
    """Always the most frequent class; labels ordered by how often they come; always the mean."""
    if task == "classification":
        return np.asarray(targets == np.bincount(targets.astype(np.int64)).argmax(), dtype=np.float64)
    if task == "multilabel":
        truth = torch.from_numpy(targets).double()
        return rank_labels(truth, truth.mean(0).expand_as(truth).contiguous()).numpy()
    numbers = targets.astype(np.float64)
    return np.asarray(1 - ((numbers - numbers.mean()) / numbers.std()) ** 2, dtype=np.float64)
