"""knn: how well do an item's neighbours tell what it is?

Intuition. If a network puts alike things near each other, then the items nearest to an item tell its class. Nothing is
fitted, and the class boundaries may have any shape. The value is the mean outcome (`outcomes`: accuracy, average precision or
R^2) of items that do not vote for themselves.

Formula. Similarity is the cosine of two feature vectors (not centred; a vector of zeros has similarity 0 to all). Each item
is given the class with most votes among its k most similar other items; each label by the share of these that have it; or
their mean number. Ties are settled without looking at the order of the items, so shuffling them changes nothing:

  - items as similar as the k-th (within 1e-9) all vote and share the seats that are left, so duplicates are no problem;
  - of classes with equally many votes the one with the larger sum of similarities wins, then the lower class number.

k is 5, or less where the smallest class (of those with two items or more) has fewer than 5 others to offer.

Similarities are made in float32, in square blocks, half of them as they are symmetric. Where these could not decide because of
their rounding, all similarities of that item are made again in float64, so that the outcome is that of float64 throughout.

Cover and Hart, "Nearest neighbor pattern classification", IEEE Transactions on Information Theory 1967; as a transferability
score: Renggli et al., "Which Model to Transfer? Finding the Needle in the Growing Haystack", CVPR 2022.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score
from modelhound.scores.groundwork import Nearest
from modelhound.scores.outcomes import judge_items

__all__ = ["BLOCK_ROWS", "choose_num_neighbours", "score_by_knn"]

_MOST_NEIGHBOURS = 5
BLOCK_ROWS = 2048  # a block of similarities has 16 MiB
_UNSURE = 4e-6  # float32 similarities of some thousand features are off by less than half of this
_TIE = 1e-9  # similarities are at most 1 and computed to about 1e-15
_VOTES = 1e-6  # shared seats are fractions, so equal numbers of votes are equal only up to rounding


def score_by_knn(algebra: Algebra, *, seed: int) -> Score:
    """The mean leave-one-out outcome of a vote among the nearest neighbours."""
    most = choose_num_neighbours(algebra.counts) if algebra.task == "classification" else _MOST_NEIGHBOURS
    num_neighbours = min(most, algebra.num_items - 1)
    vectors = _UnitVectors(algebra)
    # one more than the most that could be asked for, so that other labels find what they need
    similar, neighbours = algebra.nearest(
        lambda: _find_nearest(vectors, min(_MOST_NEIGHBOURS, algebra.num_items - 1) + 1)
    )
    unsure = similar[:, num_neighbours - 1] - similar[:, num_neighbours] <= _UNSURE
    similar, neighbours = similar[:, :num_neighbours], neighbours[:, :num_neighbours]
    if algebra.task == "classification":
        predicted, close = _elect(similar, algebra.labels[neighbours])
        outcomes, unsure = (predicted == algebra.labels).double(), unsure | close
    else:
        outcomes = torch.empty(algebra.num_items, dtype=torch.float64, device=similar.device)
        for rows in algebra.slices(algebra.num_items, algebra.num_classes):
            voters = [algebra.targets_of(neighbour) for neighbour in neighbours[rows].T]
            outcomes[rows] = _judge_shares(algebra, rows, sum(voters[1:], voters[0]) / num_neighbours)
    unsure_items = unsure.nonzero().squeeze(1)
    step = max(1, BLOCK_ROWS**2 // max(algebra.num_items, algebra.num_classes))  # each looks at all items at once
    for items in torch.split(unsure_items, step):
        outcomes[items] = _judge_exactly(vectors, algebra, items, num_neighbours)
    return Score.from_items(outcomes)


def choose_num_neighbours(counts: torch.Tensor) -> int:
    """As many as every item could find in its own class, at least 1 and at most 5."""
    # a class of one item has no say: that item cannot be got right with any k
    return max(1, min(_MOST_NEIGHBOURS, int(counts[counts >= 2].min()) - 1))


class _UnitVectors:
    """The features scaled to length 1, made when asked for: all of them in float64 would be twice the features."""

    def __init__(self, algebra: Algebra) -> None:
        self._features = algebra.features
        self.num_items = algebra.num_items
        lengths = torch.cat([algebra.features[rows].double().norm(dim=1) for rows in self.blocks()])
        self._scales = torch.where(lengths > 0, 1 / lengths, 0.0)

    def __getitem__(self, items: slice | torch.Tensor) -> torch.Tensor:
        return self._features[items].double() * self._scales[items, None]

    def roughly(self, items: slice) -> torch.Tensor:
        """The same in float32."""
        # a length can be too large or too small for float32, but no number of a vector is far larger than its length
        largest = self._features[items].abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        scaled = (self._features[items] / largest).float()
        return scaled * (self._scales[items, None] * largest).float()

    def blocks(self) -> list[slice]:
        return [slice(i, min(i + BLOCK_ROWS, self.num_items)) for i in range(0, self.num_items, BLOCK_ROWS)]


def _find_nearest(vectors: _UnitVectors, count: int) -> Nearest:
    """The `count` most similar other items of each: similarities (largest first, -inf where there are too few), indices."""
    device = vectors[:1].device
    similar = torch.full((vectors.num_items, count), -torch.inf, device=device)
    neighbours = torch.zeros(vectors.num_items, count, dtype=torch.int64, device=device)

    def offer(rows: slice, columns: slice, block: torch.Tensor) -> None:
        values, where = block.topk(min(count, block.shape[1]), dim=1)
        values = torch.cat([similar[rows], values], dim=1)
        where = torch.cat([neighbours[rows], where + columns.start], dim=1)
        similar[rows], order = values.topk(count, dim=1)
        neighbours[rows] = where.gather(1, order)

    blocks = vectors.blocks()
    for index, rows in enumerate(blocks):
        ours = vectors.roughly(rows)
        own = ours @ ours.T
        offer(rows, rows, own.fill_diagonal_(-torch.inf))
        for columns in blocks[index + 1 :]:
            block = ours @ vectors.roughly(columns).T
            offer(rows, columns, block)
            offer(columns, rows, block.T.contiguous())
    return Nearest(similar, neighbours)


def _elect(similar: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The class with most votes among neighbours, [num_items, k] both; and whether rounding could have decided."""
    same = classes[:, :, None] == classes[:, None, :]
    votes = same.sum(2)
    sums = (same * similar[:, None, :]).sum(2)
    leads = votes == votes.max(dim=1, keepdim=True).values
    sums = torch.where(leads, sums, -torch.inf)
    best = sums.max(dim=1, keepdim=True)
    rivals = (sums >= best.values - similar.shape[1] * _UNSURE) & (classes != classes.gather(1, best.indices))
    return classes.gather(1, best.indices).squeeze(1), rivals.any(1)


def _judge_exactly(vectors: _UnitVectors, algebra: Algebra, items: torch.Tensor, num_neighbours: int) -> torch.Tensor:
    """The outcome of some items, looking at all their similarities in float64; ties share the seats that are left."""
    similar = torch.cat([vectors[items] @ vectors[columns].T for columns in vectors.blocks()], dim=1)
    similar[torch.arange(len(items), device=items.device), items] = -torch.inf
    last = similar.topk(num_neighbours, dim=1).values[:, -1:]
    nearer, level = similar > last + _TIE, (similar - last).abs() <= _TIE
    share = (num_neighbours - nearer.sum(1, keepdim=True)).double() / level.sum(1, keepdim=True)
    weights = nearer.double() + level * share
    if algebra.task == "classification":
        similar[~(nearer | level)] = 0.0  # also takes the -inf away
        predicted = _pick(_sum_classes(algebra, weights), _sum_classes(algebra, weights * similar))
        return (predicted == algebra.labels[items]).double()
    votes = weights.new_zeros(len(items), algebra.num_classes)
    for rows in algebra.slices(algebra.num_items, algebra.num_classes):
        votes += weights[:, rows] @ algebra.targets_of(rows)
    return _judge_shares(algebra, items, votes / num_neighbours)


def _judge_shares(algebra: Algebra, items: slice | torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    if algebra.task == "multilabel":
        shares = (shares / _VOTES).round()  # labels with equally many votes are tied, whatever rounding says
    return judge_items(algebra, items, shares)


def _sum_classes(algebra: Algebra, weights: torch.Tensor) -> torch.Tensor:
    """Sums over the items of each class: [some items, num_items] becomes [some items, num_classes]."""
    order = algebra.labels.argsort(stable=True)
    sums = torch.nn.functional.pad(weights[:, order].cumsum(1), (1, 0))
    ends = algebra.counts.cumsum(0).long()
    return sums[:, ends] - sums[:, ends - algebra.counts.long()]


def _pick(votes: torch.Tensor, similarity: torch.Tensor) -> torch.Tensor:
    """Most votes first, then the larger sum of similarities, then the lower class."""
    leads = votes >= votes.max(dim=1, keepdim=True).values - _VOTES
    similarity = torch.where(leads, similarity, -torch.inf)
    # as with votes: sums that differ only by rounding are a tie, which goes to the lower class
    level = similarity >= similarity.max(dim=1, keepdim=True).values - _TIE
    return level.to(torch.uint8).argmax(dim=1)
