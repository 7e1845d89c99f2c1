"""What scorers find out about features that does not depend on what is to be told of the items.

In:  tensors that some scorer has computed
Out: a Groundwork, which saves the next look at the same features from computing them again
Nothing here computes. With other labels on ten thousand items, this is most of the work.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

__all__ = ["Groundwork", "Nearest", "Spectrum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """The eigendecomposition of the centred features, largest first; the side that was not decomposed is None."""

    values: torch.Tensor  # [rank], eigenvalues of F'F, which are also those of FF'
    right: torch.Tensor | None  # V, [num_features, rank]
    left: torch.Tensor | None  # U, [num_items, rank]


class Nearest(NamedTuple):
    """The most similar other items of each item, most similar first; [num_items, some] both."""

    similar: torch.Tensor
    """float32; -inf where there are too few others."""
    neighbours: torch.Tensor
    """int64, positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groundwork:
    """Each as `Algebra` would compute it; None where nobody has."""

    mean: torch.Tensor | None = None
    scatter: torch.Tensor | None = None
    spectrum: Spectrum | None = None
    nearest: Nearest | None = None
    freedoms: torch.Tensor | None = None
    """What `ridge` leaves each item to itself at each of its penalties, [num_items, num_penalties]."""
