"""What a scorer is given and what it gives back.

In:  features of one model, one row per item, with the items' labels
Out: FeatureSet, checked for shape; Score, a number and where it makes sense one outcome per item
Nothing here knows how features were made or how they are judged.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["FeatureSet", "Score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSet:
    """One model's view of a data set. The tensors are only ever read."""

    features: torch.Tensor  # [num_items, num_features], float32, on any device
    labels: torch.Tensor  # [num_items], int64, in [0, num_classes)
    num_classes: int  # classes without items may exist: --limit can leave some out

    def __post_init__(self) -> None:
        # ValueError and not a HoundError: only a mistake in the calling code can bring us here.
        if self.features.ndim != 2 or self.features.shape[1] == 0 or not self.features.is_floating_point():
            given = f"{tuple(self.features.shape)} {self.features.dtype}"
            raise ValueError(f"cannot use features of {given}: expected floats of shape [num_items, num_features]")
        if self.labels.shape != self.features.shape[:1] or self.labels.dtype != torch.int64:
            given = f"{tuple(self.labels.shape)} {self.labels.dtype}"
            raise ValueError(f"cannot use labels of {given}: expected int64, one for each row of features")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.num_classes:
            low, high = int(self.labels.min()), int(self.labels.max())
            raise ValueError(
                f"cannot use labels from {low} to {high}: expected 0 to num_classes - 1 = {self.num_classes - 1}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How well features suit the labels; higher is better, but only scores of one scorer compare."""

    value: float
    item_scores: NDArray[np.float32] | None
    """1 for an item that was predicted right without having been learned from, 0 for one that was not, NaN for one
    that was not tested; None for a scorer that judges all items together."""

    @classmethod
    def from_hits(cls, hits: torch.Tensor, *, tested: torch.Tensor | None = None) -> "Score":
        """The share of hits among the tested items (all of them by default); both are one boolean per item."""
        items = hits.to(torch.float32)
        if tested is None:
            return cls(float(hits.double().mean()), items.cpu().numpy())
        items = torch.where(tested, items, torch.nan)
        return cls(float(hits[tested].double().mean()), items.cpu().numpy())
