"""The linear algebra that scorers share, each part computed at most once and only when first asked for.

In:  a FeatureSet
Out: the targets as a matrix, the mean, one eigendecomposition of the centred features, and the targets seen through it
Nothing here knows a scorer.

Write Y for the targets, n x k: a column for each class with 1 for its items, one for each label likewise, or one of numbers.
Ten thousand classes would make it larger than all else, so it is only ever made for some rows at a time.

Write F for the features with their mean taken off, n x d, and F = U diag(sqrt(values)) V' for its thin singular value
decomposition. It is found from the smaller of F'F (d x d) and FF' (n x n), in float64. Directions that cannot be told from
rounding are dropped, so U and V have `rank` columns, all of them real. The columns of U are orthogonal to the all-ones
vector, which is why most scorers need not centre their targets.

The features, too, are converted to float64 block by block: a whole copy would be the next largest thing in memory.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import torch

from modelhound.scores.feature_set import FeatureSet
from modelhound.scores.groundwork import Groundwork, Nearest, Spectrum
from modelhound.scores.products import add_by_class, add_square, mirror
from modelhound.scores.split import Split, draw_held_out, draw_held_out_of_each_class, standardise

__all__ = ["BLOCK_BYTES", "MOST_MAIN_DIRECTIONS", "Algebra"]

BLOCK_BYTES = 64 * 2**20

MOST_MAIN_DIRECTIONS = 64
"""How many of the largest principal components `Algebra.main_components` keeps."""

# An eigenvalue this much below the largest is rounding: float32 networks leave relative errors of about 1e-6 in their
# features, and eigenvalues are squares. Anything larger would let scores depend on the batch size.
_CUT_RELATIVE_TO_LARGEST = 1e-10
# The same for features that do not vary at all, where the largest eigenvalue is rounding too.
_CUT_RELATIVE_TO_ENERGY = 1e-14


class Algebra:
    """Shared intermediate results for one FeatureSet. All tensors are float64, on the features' device."""

    def __init__(self, feature_set: FeatureSet) -> None:
        self._feature_set = feature_set
        self.task = feature_set.task
        self.features = feature_set.features
        self.source_probabilities = feature_set.source_probabilities
        self.num_classes = feature_set.num_classes
        self.num_items, self.num_features = feature_set.features.shape
        self._targets = feature_set.targets.to(feature_set.features.device)
        self._given = feature_set.groundwork
        self._nearest, self._freedoms = feature_set.groundwork.nearest, feature_set.groundwork.freedoms
        self._splits: dict[int, Split] = {}

    def without_results(self) -> "Algebra":
        """The same with nothing computed: results are large, and who needs the features later may not need them."""
        return Algebra(self._feature_set)

    @property
    def is_tall(self) -> bool:
        """Whether F'F is the smaller matrix."""
        return self.num_features <= self.num_items

    @property
    def labels(self) -> torch.Tensor:
        """The class of each item, [num_items]."""
        assert self.task == "classification"
        return self._targets

    @cached_property
    def counts(self) -> torch.Tensor:
        """Items per class, [num_classes]."""
        return torch.bincount(self.labels, minlength=self.num_classes).double()

    def targets_of(self, items: slice | torch.Tensor) -> torch.Tensor:
        """Some rows of Y, [some items, num_classes]."""
        some = self._targets[items]
        if self.task == "multilabel":
            return some.double()
        if self.task == "regression":
            return some.double()[:, None]
        targets = torch.zeros(len(some), self.num_classes, dtype=torch.float64, device=some.device)
        return targets.scatter_(1, some[:, None], 1.0)

    def targets_through(self, items: slice, matrix: torch.Tensor) -> torch.Tensor:
        """Some rows of Y times a matrix of num_classes rows."""
        if self.task == "classification":
            return matrix[self.labels[items]]
        return self.targets_of(items) @ matrix

    def target_lengths(self, items: slice) -> torch.Tensor:
        """The squared length of some rows of Y, [some items]."""
        if self.task == "classification":
            return torch.ones_like(self.labels[items], dtype=torch.float64)
        return self.targets_of(items).square().sum(1)

    @cached_property
    def target_means(self) -> torch.Tensor:
        """The mean of each column of Y, [num_classes]: the share of a class or label."""
        if self.task == "classification":
            return self.counts / self.num_items
        if self.task == "multilabel":
            return self._targets.sum(0).double() / self.num_items
        return self._targets.double().mean()[None]

    @cached_property
    def target_energies(self) -> torch.Tensor:
        """The squared length of each column of Y with its mean taken off, [num_classes]."""
        if self.task == "regression":
            return (self._targets.double() - self.target_means).square().sum()[None]
        return self.num_items * self.target_means * (1 - self.target_means)

    def add_products(self, total: torch.Tensor, items: slice, values: torch.Tensor) -> None:
        """Add Y'values to `total`, [num_classes, num_columns]; Y is cut to `items`, whose values are given.

        Values of all items add up to 0, so numbers are taken without their mean: rounding would be in proportion to it.
        """
        if self.task == "classification":
            add_by_class(total, self.labels[items], values)
            return
        targets = self.targets_of(items)
        total.addmm_((targets - self.target_means if self.task == "regression" else targets).T, values)

    @cached_property
    def mean(self) -> torch.Tensor:
        """The mean of the features, [num_features]."""
        if self._given.mean is not None:
            return self._given.mean
        total = torch.zeros(self.num_features, dtype=torch.float64, device=self.features.device)
        for rows in self.slices(self.num_items, self.num_features):
            total += self.features[rows].double().sum(0)
        return total / self.num_items

    @cached_property
    def target_sums(self) -> torch.Tensor:
        """Y'F, [num_classes, num_features]: with classes the sums of the centred features of each."""
        total = torch.zeros(self.num_classes, self.num_features, dtype=torch.float64, device=self.features.device)
        for rows, centred in self.centred_blocks():
            self.add_products(total, rows, centred)
        return total

    @cached_property
    def scatter(self) -> torch.Tensor:
        """F'F, [num_features, num_features]: the covariance times num_items. Large where features are many."""
        if self._given.scatter is not None:
            return self._given.scatter
        total = torch.zeros(self.num_features, self.num_features, dtype=torch.float64, device=self.features.device)
        for _, centred in self.centred_blocks():
            add_square(total, centred)
        return mirror(total)

    @cached_property
    def gram(self) -> torch.Tensor:
        """FF', [num_items, num_items]. Large where items are many."""
        total = torch.zeros(self.num_items, self.num_items, dtype=torch.float64, device=self.features.device)
        for columns in self.slices(self.num_features, self.num_items):
            centred = self.features[:, columns].double() - self.mean[columns]
            add_square(total, centred.T)
        return mirror(total)

    @cached_property
    def spectrum(self) -> Spectrum:
        """The one eigendecomposition, without directions that are only rounding."""
        if self._given.spectrum is not None:
            return self._given.spectrum
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

    def nearest(self, find: Callable[[], Nearest]) -> Nearest:
        """The neighbours of all items: known, or found now."""
        if self._nearest is None:
            self._nearest = find()
        return self._nearest

    def freedoms(self, find: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What a ridge regression with the usual penalties leaves to each item: known, or found now."""
        if self._freedoms is None:
            self._freedoms = find()
        return self._freedoms

    @property
    def groundwork(self) -> Groundwork:
        """What was known or has been found out so far and does not depend on the targets."""
        found = self.__dict__  # where cached properties are, once they were asked for
        return Groundwork(
            mean=found.get("mean", self._given.mean),
            scatter=found.get("scatter", self._given.scatter),
            spectrum=found.get("spectrum", self._given.spectrum),
            nearest=self._nearest,
            freedoms=self._freedoms,
        )

    @cached_property
    def targets_in_left(self) -> torch.Tensor:
        """U'Y, the targets in the basis of the features, [rank, num_classes]."""
        spectrum = self.spectrum
        if spectrum.left is not None:
            total = spectrum.left.new_zeros(self.num_classes, len(spectrum.values))
            for rows in self.slices(self.num_items, self.num_classes):
                self.add_products(total, rows, spectrum.left[rows])
            return total.T
        assert spectrum.right is not None
        return (self.target_sums @ spectrum.right).T / spectrum.values.sqrt()[:, None]

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
            return self.target_sums
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
                for some in self.slices(len(items), self.num_features):
                    add_square(total, self.features[items[some]].double() - self.mean)
                yield label, mirror(total)

    def centred_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """F, some rows at a time, only ever read; so few that a number for each of them and every class fits as well."""
        blocks = list(self.slices(self.num_items, max(self.num_features, self.num_classes)))
        if len(blocks) == 1:  # then it is kept: scorers go through it several times
            yield blocks[0], self._centred
            return
        for rows in blocks:
            yield rows, self.features[rows].double() - self.mean

    @cached_property
    def _centred(self) -> torch.Tensor:
        return self.features - self.mean  # which is float64

    def left_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """U, some rows at a time, as few as those of F."""
        yield from self.fitted_blocks(None)

    def fitted_blocks(self, weights: torch.Tensor | None) -> Iterator[tuple[slice, torch.Tensor]]:
        """U times `weights`, [rank, any number], some rows at a time; no weights stand for the identity."""
        spectrum = self.spectrum
        num_columns = len(spectrum.values) if weights is None else weights.shape[1]
        if spectrum.left is not None:
            for rows in self.slices(self.num_items, max(len(spectrum.values), self.num_classes, num_columns)):
                yield rows, spectrum.left[rows] if weights is None else spectrum.left[rows] @ weights
            return
        assert spectrum.right is not None
        whitening = spectrum.right / spectrum.values.sqrt()
        if weights is not None:
            whitening = whitening @ weights
        for rows, centred in self.centred_blocks():
            for part in self.slices(len(centred), num_columns):
                yield slice(rows.start + part.start, rows.start + part.stop), centred[part] @ whitening

    def split(self, seed: int) -> Split:
        """The items to learn from and to test on, drawn once for each seed."""
        if seed not in self._splits:
            if self.task == "classification":
                held_out = draw_held_out_of_each_class(self.labels, self.counts, seed=seed)
            else:
                held_out = draw_held_out(self.num_items, seed=seed).to(self.features.device)
            self._splits[seed] = standardise(self.features, held_out, self.slices(self.num_items, self.num_features))
        return self._splits[seed]

    @staticmethod
    def slices(length: int, width: int) -> Iterator[slice]:
        """Cut so that a float64 matrix as wide as this fits into a block."""
        step = max(1, BLOCK_BYTES // (8 * max(1, width)))
        for start in range(0, length, step):
            yield slice(start, min(start + step, length))
