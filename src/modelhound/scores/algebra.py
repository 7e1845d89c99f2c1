"""The linear algebra that scorers share, each part computed at most once and only when first asked for.

In:  a FeatureSet
Out: class counts, the mean, one eigendecomposition of the centred features, and the targets seen through it
Nothing here knows a scorer.

Write F for the features with their mean taken off, n x d, and F = U diag(sqrt(values)) V' for its thin singular value
decomposition. It is found from the smaller of F'F (d x d) and FF' (n x n), in float64. Directions that cannot be told from
rounding are dropped, so U and V have `rank` columns, all of them real. The columns of U are orthogonal to the all-ones
vector, which is why most scorers need not centre their targets.

The features themselves are converted to float64 block by block: a whole copy would be the largest thing in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from modelhound.scores.feature_set import FeatureSet

__all__ = ["MOST_MAIN_DIRECTIONS", "Algebra", "Spectrum"]

_BLOCK_BYTES = 64 * 2**20

MOST_MAIN_DIRECTIONS = 64
"""How many of the largest principal components `Algebra.main_components` keeps."""

# An eigenvalue this much below the largest is rounding: float32 networks leave relative errors of about 1e-6 in their
# features, and eigenvalues are squares. Anything larger would let scores depend on the batch size.
_CUT_RELATIVE_TO_LARGEST = 1e-10
# The same for features that do not vary at all, where the largest eigenvalue is rounding too.
_CUT_RELATIVE_TO_ENERGY = 1e-14


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """The eigendecomposition of the centred features, largest first; the side that was not decomposed is None."""

    values: torch.Tensor  # [rank], eigenvalues of F'F, which are also those of FF'
    right: torch.Tensor | None  # V, [num_features, rank]
    left: torch.Tensor | None  # U, [num_items, rank]


class Algebra:
    """Shared intermediate results for one FeatureSet. All tensors are float64, on the features' device."""

    def __init__(self, feature_set: FeatureSet) -> None:
        self.features = feature_set.features
        self.labels = feature_set.labels.to(feature_set.features.device)
        self.num_classes = feature_set.num_classes
        self.num_items, self.num_features = feature_set.features.shape

    @property
    def is_tall(self) -> bool:
        """Whether F'F is the smaller matrix."""
        return self.num_features <= self.num_items

    @cached_property
    def counts(self) -> torch.Tensor:
        """Items per class, [num_classes]."""
        return torch.bincount(self.labels, minlength=self.num_classes).double()

    @cached_property
    def one_hot(self) -> torch.Tensor:
        """Targets: 1 in the column of an item's class, [num_items, num_classes]."""
        targets = torch.zeros(self.num_items, self.num_classes, dtype=torch.float64, device=self.features.device)
        return targets.scatter_(1, self.labels[:, None], 1.0)

    @cached_property
    def mean(self) -> torch.Tensor:
        """The mean of the features, [num_features]."""
        total = torch.zeros(self.num_features, dtype=torch.float64, device=self.features.device)
        for rows in self._slices(self.num_items, self.num_features):
            total += self.features[rows].double().sum(0)
        return total / self.num_items

    @cached_property
    def class_sums(self) -> torch.Tensor:
        """Sums of the centred features of each class, [num_classes, num_features]."""
        total = torch.zeros(self.num_classes, self.num_features, dtype=torch.float64, device=self.features.device)
        for rows, centred in self.centred_blocks():
            # a product and not index_add, which on a GPU adds up in no fixed order
            total.addmm_(self.one_hot[rows].T, centred)
        return total

    @cached_property
    def scatter(self) -> torch.Tensor:
        """F'F, [num_features, num_features]: the covariance times num_items. Large where features are many."""
        total = torch.zeros(self.num_features, self.num_features, dtype=torch.float64, device=self.features.device)
        for _, centred in self.centred_blocks():
            total.addmm_(centred.T, centred)
        return total

    @cached_property
    def gram(self) -> torch.Tensor:
        """FF', [num_items, num_items]. Large where items are many."""
        total = torch.zeros(self.num_items, self.num_items, dtype=torch.float64, device=self.features.device)
        for columns in self._slices(self.num_features, self.num_items):
            centred = self.features[:, columns].double() - self.mean[columns]
            total.addmm_(centred, centred.T)
        return total

    @cached_property
    def spectrum(self) -> Spectrum:
        """The one eigendecomposition, without directions that are only rounding."""
        values, vectors = torch.linalg.eigh(self.scatter if self.is_tall else self.gram)
        energy = values.sum() + self.num_items * self.mean.square().sum()
        cut = torch.maximum(_CUT_RELATIVE_TO_LARGEST * values[-1], _CUT_RELATIVE_TO_ENERGY * energy)
        # Centring takes one dimension of the items away, whatever rounding says.
        rank = min(int((values > cut).sum()), self.num_items - 1)
        first = len(values) - rank
        kept = vectors[:, first:].flip(1)
        return Spectrum(
            values=values[first:].flip(0),
            right=kept if self.is_tall else None,
            left=None if self.is_tall else kept,
        )

    @cached_property
    def targets_in_left(self) -> torch.Tensor:
        """U'Y, the one-hot targets in the basis of the features, [rank, num_classes]."""
        spectrum = self.spectrum
        if spectrum.left is not None:
            return spectrum.left.T @ self.one_hot
        assert spectrum.right is not None
        return (self.class_sums @ spectrum.right).T / spectrum.values.sqrt()[:, None]

    @cached_property
    def mean_in_right(self) -> torch.Tensor:
        """V'mean, the mean of the features in their own basis, [rank]."""
        spectrum = self.spectrum
        if spectrum.right is not None:
            return spectrum.right.T @ self.mean
        assert spectrum.left is not None
        along = torch.cat([centred @ self.mean for _, centred in self.centred_blocks()])
        return (spectrum.left.T @ along) / spectrum.values.sqrt()

    @cached_property
    def squared_lengths(self) -> torch.Tensor:
        """The squared length of each row of F, [num_items]."""
        return torch.cat([centred.square().sum(1) for _, centred in self.centred_blocks()])

    @cached_property
    def main_components(self) -> torch.Tensor:
        """The first columns of FV, principal components by falling variance, [num_items, at most 64 and at most rank]."""
        spectrum = self.spectrum
        if spectrum.left is not None:
            kept = spectrum.left[:, :MOST_MAIN_DIRECTIONS]
            return kept * spectrum.values[:MOST_MAIN_DIRECTIONS].sqrt()
        assert spectrum.right is not None
        kept = spectrum.right[:, :MOST_MAIN_DIRECTIONS]
        return torch.cat([centred @ kept for _, centred in self.centred_blocks()])

    @cached_property
    def compact_class_sums(self) -> torch.Tensor:
        """Sums of the rows of `compact_blocks` of each class, [num_classes, its columns]."""
        if self.is_tall:
            return self.class_sums
        return (self.targets_in_left * self.spectrum.values.sqrt()[:, None]).T

    @property
    def compact_scatter(self) -> torch.Tensor:
        """F'F in the columns of `compact_blocks`."""
        return self.scatter if self.is_tall else self.spectrum.values.diag()

    def compact_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """F in no more columns than it has rows, some rows at a time: F itself where it is tall, else FV.

        A rotation: lengths and angles stay, so whatever rests on these alone may use the smaller matrix.
        """
        if self.is_tall:
            yield from self.centred_blocks()
            return
        roots = self.spectrum.values.sqrt()
        for rows, left in self.left_blocks():
            yield rows, left * roots

    def class_products(self) -> Iterator[tuple[int, torch.Tensor]]:
        """For each class that has items its number, and the smaller of G'G and GG' where G is its rows of F."""
        by_class = self.labels.argsort(stable=True)
        for label, items in enumerate(torch.split(by_class, self.counts.long().tolist())):
            if len(items) == 0:
                continue
            if not self.is_tall:
                yield label, self.gram[items[:, None], items]
            elif len(items) <= self.num_features:
                centred = self.features[items].double() - self.mean
                yield label, centred @ centred.T
            else:
                total = torch.zeros_like(self.scatter)
                for some in self._slices(len(items), self.num_features):
                    centred = self.features[items[some]].double() - self.mean
                    total.addmm_(centred.T, centred)
                yield label, total

    def centred_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """F, some rows at a time."""
        for rows in self._slices(self.num_items, self.num_features):
            yield rows, self.features[rows].double() - self.mean

    def left_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """U, some rows at a time."""
        spectrum = self.spectrum
        if spectrum.left is not None:
            for rows in self._slices(self.num_items, len(spectrum.values)):
                yield rows, spectrum.left[rows]
            return
        assert spectrum.right is not None
        whitening = spectrum.right / spectrum.values.sqrt()
        for rows, centred in self.centred_blocks():
            yield rows, centred @ whitening

    @staticmethod
    def _slices(length: int, width: int) -> Iterator[slice]:
        step = max(1, _BLOCK_BYTES // (8 * max(1, width)))
        for start in range(0, length, step):
            yield slice(start, min(start + step, length))
