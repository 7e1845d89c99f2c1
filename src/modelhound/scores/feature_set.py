"""What a scorer is given and what it gives back.

In:  features of one model, one row per item, with what is to be told of each item
Out: FeatureSet, checked for shape; Score, a number and where it makes sense one outcome per item; Missing, why there is none
Nothing here knows how features were made or how they are judged.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from modelhound.scores.groundwork import Groundwork
from modelhound.settings import Task

__all__ = ["FeatureSet", "Missing", "Score"]

_ROW_SUM = 1e-2  # how far half-precision probabilities of many classes may be from 1 together


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSet:
    """One model's view of a data set. The tensors are only ever read."""

    features: torch.Tensor  # [num_items, num_features], float32, on any device
    targets: torch.Tensor
    """classification: [num_items], int64, in [0, num_classes); multilabel: [num_items, num_classes], bool;
    regression: [num_items], finite floats."""
    num_classes: int
    """Number of classes, some of which may have no items as --limit can leave them out; of labels; 1 for regression."""
    task: Task = "classification"
    source_probabilities: torch.Tensor | None = None
    """[num_items, num_source_classes]: what the network's own classifier takes items for, if it has one; rows add up to 1."""
    groundwork: Groundwork = field(default_factory=Groundwork)
    """What is known of the features already."""

    def __post_init__(self) -> None:
        # ValueError and not a HoundError: only a mistake in the calling code can bring us here.
        if self.features.ndim != 2 or self.features.shape[1] == 0 or not self.features.is_floating_point():
            raise ValueError(
                f"cannot use features of {_describe(self.features)}: expected floats of shape [num_items, num_features]"
            )
        match self.task:
            case "classification":
                self._check_classes()
            case "multilabel":
                self._check_labels()
            case "regression":
                self._check_numbers()
            case other:
                raise ValueError(f"cannot use the task {other!r}: expected classification, multilabel or regression")
        self._check_source()

    def _check_classes(self) -> None:
        targets = self.targets
        if targets.shape != self.features.shape[:1] or targets.dtype != torch.int64:
            raise ValueError(
                f"cannot use classes of {_describe(targets)}: expected int64, one for each row of features"
            )
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < self.num_classes:
            low, high = int(targets.min()), int(targets.max())
            raise ValueError(
                f"cannot use classes from {low} to {high}: expected 0 to num_classes - 1 = {self.num_classes - 1}"
            )

    def _check_labels(self) -> None:
        expected = (len(self.features), self.num_classes)
        if self.targets.shape != expected or self.targets.dtype != torch.bool or self.num_classes < 1:
            raise ValueError(f"cannot use labels of {_describe(self.targets)}: expected bool of shape {list(expected)}")

    def _check_numbers(self) -> None:
        targets = self.targets
        if targets.shape != self.features.shape[:1] or not targets.is_floating_point() or self.num_classes != 1:
            raise ValueError(
                f"cannot use numbers of {_describe(targets)} with num_classes {self.num_classes}: "
                "expected floats, one for each row of features, and num_classes 1"
            )
        if not bool(targets.isfinite().all()):
            raise ValueError("cannot use numbers that are NaN or infinite: expected finite numbers")

    def _check_source(self) -> None:
        given = self.source_probabilities
        if given is None:
            return
        if given.ndim != 2 or len(given) != len(self.features) or not given.is_floating_point() or not given.shape[1]:
            raise ValueError(
                f"cannot use source probabilities of {_describe(given)}: expected floats, one row for each row of features"
            )
        # NaN passes: a network that gives it is no mistake in the calling code, and `leep` says so
        if bool((given < 0).any()) or bool(((given.double().sum(1) - 1).abs() > _ROW_SUM).any()):
            raise ValueError("cannot use source probabilities: expected rows of numbers from 0 that add up to 1")


def _describe(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How well features suit the targets; higher is better, but only scores of one scorer compare."""

    value: float
    item_scores: NDArray[np.float32] | None
    """How well an item was predicted without having been learned from, see `outcomes`, NaN for one that was not tested;
    None for a scorer that judges all items together."""

    @classmethod
    def from_items(cls, outcomes: torch.Tensor, *, tested: torch.Tensor | None = None) -> "Score":
        """The mean outcome of the tested items (all of them by default); one outcome and one boolean for each item."""
        outcomes = outcomes.double()
        if tested is None:
            return cls(float(outcomes.mean()), outcomes.float().cpu().numpy())
        items = torch.where(tested, outcomes, torch.nan)
        return cls(float(outcomes[tested].mean()), items.float().cpu().numpy())


@dataclass(frozen=True, slots=True)
class Missing:
    """A scorer cannot judge this model, though it may judge others."""

    reason: str
