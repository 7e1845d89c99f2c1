"""knn: how many items have neighbours of their own class?

Intuition. If a network puts alike things near each other, then the items nearest to an item tell its class. Nothing is
fitted, and the class boundaries may have any shape. The value is an accuracy, on items that do not vote for themselves.

Formula. Similarity is the cosine of two feature vectors (not centred; a vector of zeros has similarity 0 to all). Each item
is given the class with most votes among its k most similar other items. Ties are settled without looking at the order of
the items, so shuffling them changes nothing:

  - items as similar as the k-th (within 1e-9) all vote and share the seats that are left, so duplicates are no problem;
  - of classes with equally many votes the one with the larger sum of similarities wins, then the lower class number.

k is 5, or less where the smallest class (of those with two items or more) has fewer than 5 others to offer.

Memory stays bounded: similarities are made in square blocks, half of them, as they are symmetric.

Cover and Hart, "Nearest neighbor pattern classification", IEEE Transactions on Information Theory 1967; as a transferability
score: Renggli et al., "Which Model to Transfer? Finding the Needle in the Growing Haystack", CVPR 2022.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score

__all__ = ["MOST_NEIGHBOURS", "choose_num_neighbours", "score_by_knn"]

MOST_NEIGHBOURS = 5
_BLOCK_ROWS = 2048  # a block of similarities has 32 MiB
_TIE = 1e-9  # similarities are at most 1 and computed to about 1e-15
_VOTES = 1e-6  # shared seats are fractions, so equal numbers of votes are equal only up to rounding


def score_by_knn(algebra: Algebra, *, seed: int) -> Score:
    """Leave-one-out accuracy of a vote among the nearest neighbours."""
    num_neighbours = min(choose_num_neighbours(algebra.counts), algebra.num_items - 1)
    vectors = _UnitVectors(algebra)
    similar, neighbours = _find_nearest(vectors, num_neighbours + 1)
    predicted = _elect(similar[:, :num_neighbours], algebra.labels[neighbours[:, :num_neighbours]], algebra.num_classes)
    tied = similar[:, num_neighbours - 1] - similar[:, num_neighbours] <= _TIE
    tied_items = tied.nonzero().squeeze(1)
    step = max(1, _BLOCK_ROWS**2 // algebra.num_items)  # they look at all items at once, so fewer of them at a time
    for start in range(0, len(tied_items), step):
        items = tied_items[start : start + step]
        predicted[items] = _elect_with_shared_seats(vectors, algebra, items, similar[items, :num_neighbours])
    return Score.from_hits(predicted == algebra.labels)


def choose_num_neighbours(counts: torch.Tensor) -> int:
    """As many as every item could find in its own class, at least 1 and at most 5."""
    # a class of one item has no say: that item cannot be got right with any k
    return max(1, min(MOST_NEIGHBOURS, int(counts[counts >= 2].min()) - 1))


class _UnitVectors:
    """The features scaled to length 1, made when asked for: all of them in float64 would be twice the features."""

    def __init__(self, algebra: Algebra) -> None:
        self._features = algebra.features
        self.num_items = algebra.num_items
        lengths = torch.cat([algebra.features[rows].double().norm(dim=1) for rows in self.blocks()])
        self._scales = torch.where(lengths > 0, 1 / lengths, 0.0)

    def __getitem__(self, items: slice | torch.Tensor) -> torch.Tensor:
        return self._features[items].double() * self._scales[items, None]

    def blocks(self) -> list[slice]:
        return [slice(i, min(i + _BLOCK_ROWS, self.num_items)) for i in range(0, self.num_items, _BLOCK_ROWS)]


def _find_nearest(vectors: _UnitVectors, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` most similar other items of each: similarities (largest first, -inf where there are too few), indices."""
    device = vectors[:1].device
    similar = torch.full((vectors.num_items, count), -torch.inf, dtype=torch.float64, device=device)
    neighbours = torch.zeros(vectors.num_items, count, dtype=torch.int64, device=device)

    def offer(rows: slice, columns: slice, block: torch.Tensor) -> None:
        values, where = block.topk(min(count, block.shape[1]), dim=1)
        values = torch.cat([similar[rows], values], dim=1)
        where = torch.cat([neighbours[rows], where + columns.start], dim=1)
        similar[rows], order = values.topk(count, dim=1)
        neighbours[rows] = where.gather(1, order)

    blocks = vectors.blocks()
    for index, rows in enumerate(blocks):
        ours = vectors[rows]
        own = ours @ ours.T
        offer(rows, rows, own.fill_diagonal_(-torch.inf))
        for columns in blocks[index + 1 :]:
            block = ours @ vectors[columns].T
            offer(rows, columns, block)
            offer(columns, rows, block.T)
    return similar, neighbours


def _elect(similar: torch.Tensor, classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """The class with most votes; one vote for each neighbour, [num_items, k] both."""
    votes = torch.zeros(len(similar), num_classes, dtype=torch.float64, device=similar.device)
    return _pick(votes.scatter_add(1, classes, torch.ones_like(similar)), votes.scatter_add(1, classes, similar))


def _elect_with_shared_seats(
    vectors: _UnitVectors, algebra: Algebra, items: torch.Tensor, nearest: torch.Tensor
) -> torch.Tensor:
    """The same for items with more candidates for the last seats than seats, looking at all their similarities."""
    seats = nearest.shape[1]
    similar = torch.cat([vectors[items] @ vectors[columns].T for columns in vectors.blocks()], dim=1)
    similar[torch.arange(len(items), device=items.device), items] = -torch.inf
    last = nearest[:, -1:]
    nearer, level = similar > last + _TIE, (similar - last).abs() <= _TIE
    share = (seats - nearer.sum(1, keepdim=True)) / level.sum(1, keepdim=True)
    weights = nearer.double() + level * share
    similar[~(nearer | level)] = 0.0  # also takes the -inf away
    return _pick(weights @ algebra.one_hot, (weights * similar) @ algebra.one_hot)


def _pick(votes: torch.Tensor, similarity: torch.Tensor) -> torch.Tensor:
    """Most votes first, then the larger sum of similarities, then the lower class."""
    leads = votes >= votes.max(dim=1, keepdim=True).values - _VOTES
    similarity = torch.where(leads, similarity, -torch.inf)
    # as with votes: sums that differ only by rounding are a tie, which goes to the lower class
    level = similarity >= similarity.max(dim=1, keepdim=True).values - _TIE
    return level.to(torch.uint8).argmax(dim=1)
