"""probe: how well does a trained linear layer do on items of a held-out fifth?

Intuition. This is what people do when they do not fine-tune: freeze the network, train one linear layer on its features and
look at the outcome (`outcomes`: accuracy or average precision) of items that were held out. Slower than the closed forms and
judged on fewer items, but nearest to use.

Formula. Features are standardised with the mean and deviation of the training items (a feature that does not vary there is
left out). Weights W and intercepts b minimise

    mean over training items of  -log softmax(W'x + b)[label]   +   |W|^2 / (2 n),     n training items,

which is what scikit-learn's LogisticRegression minimises with its default C = 1; for several labels per item each label has a
logistic function of its own, and losses add up. The minimum is unique; L-BFGS finds it. To get there in some dozens of steps
instead of hundreds, it works on L'W instead of W, where LL' = s X'X/n + I/n is the curvature of the objective at W = 0: s is
(1/c)(1 - 1/c) for c classes, 1/4 for labels. This changes the path and not the minimum. The two large products of a step are
made in float32, which is more than is needed to get as near as we go.

The split is drawn from the seed, with a fifth of each class. It goes by the position of items, so shuffled items give another
split and another value. A class with one item is only trained on; one with two or more has at least one item on each side. A
label that all or none of the training items have is taken for granted and not learned.

Alain and Bengio, "Understanding intermediate layers using linear classifier probes", ICLR workshop 2017; Liu and Nocedal, "On
the limited memory BFGS method for large scale optimization", Mathematical Programming 1989.
"""

import math
from dataclasses import dataclass

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.descent import descend
from modelhound.scores.feature_set import Score
from modelhound.scores.outcomes import judge_items
from modelhound.scores.split import Split

__all__ = ["Probe", "fit_probe", "judge_probe", "score_by_probe"]

_MOST_STEPS = 100
# Stop when no component of the gradient is larger. Held-out accuracy is then within 0.2 points of that at the minimum, which
# takes three to eight times as many steps to reach (seen on features of up to 1280 dimensions, 10 and 100 classes).
_GRADIENT = 1e-4
_PRODUCTS = torch.float32
_CACHED_BYTES, _FEWEST_ROWS = 2 * 2**20, 512
_MOST_HISTORY = 10  # pairs of steps and gradients that L-BFGS remembers,
_HISTORY_BYTES = 128 * 2**20  # fewer where ten thousand classes make them large


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A trained linear layer, with the standardisation it was trained with."""

    mean: torch.Tensor  # [num_features]
    scale: torch.Tensor  # [num_features], 0 for a feature that did not vary
    weights: torch.Tensor  # [num_features, num_classes]
    intercepts: torch.Tensor  # [num_classes]

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """[num_items, num_classes]"""
        standardised = (features.double() - self.mean) * self.scale
        return torch.addmm(self.intercepts, standardised, self.weights)


def score_by_probe(algebra: Algebra, *, seed: int) -> Score:
    """The mean outcome of a linear layer on a held-out fifth of the items."""
    split = algebra.split(seed)
    return judge_probe(fit_probe(algebra, split), algebra, split)


def judge_probe(probe: Probe, algebra: Algebra, split: Split) -> Score:
    """How a trained layer does on the held-out items."""
    outcomes = torch.zeros_like(split.held_out, dtype=torch.float64)
    tested = split.held_out.nonzero().squeeze(1)
    for rows in algebra.slices(len(tested), max(algebra.num_features, algebra.num_classes)):
        items = tested[rows]
        outcomes[items] = judge_items(algebra, items, probe.logits(algebra.features[items]))
    return Score.from_items(outcomes, tested=split.held_out)


def fit_probe(algebra: Algebra, split: Split) -> Probe:
    """Train on the items that are not held out."""
    inputs, scale = split.inputs, split.scale
    rotation = None
    if algebra.is_tall:
        # all items, where the training items alone would be exact: already there, and near enough to steer by
        second_moments = algebra.scatter * (scale[:, None] * scale / algebra.num_items)
    else:
        # Fewer items than features: weights outside the items' span stay 0, so search within it.
        rotation, triangle = torch.linalg.qr(inputs.double().T)
        inputs = triangle.T.contiguous()
        second_moments = inputs.T @ inputs / len(inputs)
    task = _Task(algebra, split)
    weights = second_moments.new_zeros(algebra.num_features, algebra.num_classes)
    intercepts = task.certain.clone()
    if bool(task.learned.any()):
        found, intercepts[task.learned] = _minimise(inputs.to(_PRODUCTS), task, second_moments)
        weights[:, task.learned] = found if rotation is None else rotation @ found
    return Probe(mean=split.mean, scale=scale, weights=weights, intercepts=intercepts)


class _Task:
    """What is to be told of the training items, and how far a prediction is from it."""

    def __init__(self, algebra: Algebra, split: Split) -> None:
        training = (~split.held_out).nonzero().squeeze(1)
        self._algebra = algebra
        self._items = training
        self._has_classes = algebra.task == "classification"
        self.num_items = len(training)
        if self._has_classes:
            # A class without items would be pushed away for ever: its intercept has no minimum. It is never predicted.
            self.learned = algebra.counts > 0
            self.certain = torch.where(self.learned, 0.0, -torch.inf).double()
            self._places = (self.learned.cumsum(0) - 1)[algebra.labels[training]]
            self._minus_one = torch.full((1, 1), -1.0, dtype=_PRODUCTS, device=training.device)
        else:
            total = torch.zeros_like(algebra.target_means)
            for rows in algebra.slices(len(training), algebra.num_classes):
                total += algebra.targets_of(training[rows]).sum(0)
            self.learned = (total > 0) & (total < len(training))
            self.certain = torch.where(total == 0, -torch.inf, torch.where(self.learned, 0.0, torch.inf)).double()
        self.num_learned = int(self.learned.sum())
        # the variance of a target when all classes are as likely, or a label as likely as not
        self.spread = (1 - 1 / self.num_learned) / self.num_learned if self._has_classes else 0.25

    def compare(self, rows: slice, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of some of the training items and its gradient, which takes the place of the logits; an item a column."""
        if self._has_classes:
            own = self._places[None, rows]
            log_probabilities = logits.log_softmax(0)
            loss = -log_probabilities.gather(0, own).sum(dtype=torch.float64)
            return loss, log_probabilities.exp_().scatter_add_(0, own, self._minus_one.expand_as(own))
        targets = self._algebra.targets_of(self._items[rows])[:, self.learned].to(logits.dtype).T
        loss = torch.nn.functional.softplus(logits).sub_(logits * targets).double().sum()
        return loss, logits.sigmoid_().sub_(targets)


def _minimise(inputs: torch.Tensor, task: _Task, second_moments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and intercepts of least penalised loss."""
    num_items, num_columns = task.num_items, task.num_learned
    curvature = task.spread * second_moments
    curvature.diagonal().add_(1 / num_items)
    # The inverse of L, once: to solve with L is a chain of small steps, which on a GPU takes a hundred times as long as to
    # multiply. Rounding in it changes the path and not the minimum, since the same matrix leads there and back.
    steer = torch.linalg.solve_triangular(
        torch.linalg.cholesky(curvature), torch.eye(len(curvature)).to(curvature), upper=False
    )
    unit = 1 / math.sqrt(task.spread)
    # on a CPU so few rows that they are still in its cache when they are wanted again for the slope
    most = _CACHED_BYTES // (inputs.itemsize * inputs.shape[1]) if inputs.device.type == "cpu" else num_items
    step = max(1, _FEWEST_ROWS, most)
    blocks = [
        slice(start, min(start + step, some.stop))
        for some in Algebra.slices(num_items, num_columns)
        for start in range(some.start, some.stop, step)
    ]

    def take_apart(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights, from L'W; intercepts, from units in which their curvature is 1 as well."""
        steered, shifts = place[:-num_columns].view(-1, num_columns), place[-num_columns:]
        return (steered.T @ steer).T, shifts * unit

    def evaluate(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        now, intercepts = take_apart(place)
        # a class is a row here: products with few rows are several times as fast on CPUs as those with few columns
        small, offsets = now.to(inputs.dtype).T.contiguous(), intercepts.to(inputs.dtype)[:, None]
        loss = now.square().sum() / 2
        slope, pull = now, torch.zeros_like(intercepts)
        for rows in blocks:
            some_loss, errors = task.compare(rows, (small @ inputs[rows].T).add_(offsets))
            loss = loss + some_loss
            slope += (errors @ inputs[rows]).T
            pull += errors.sum(1, dtype=torch.float64)
        steered_slope = (slope.div_(num_items).T @ steer.T).T
        return loss / num_items, torch.cat([steered_slope.flatten(), pull * (unit / num_items)])

    start = curvature.new_zeros((inputs.shape[1] + 1) * num_columns)
    history = max(2, min(_MOST_HISTORY, _HISTORY_BYTES // (16 * start.numel())))
    found = descend(evaluate, start, most_steps=_MOST_STEPS, history=history, largest_slope=_GRADIENT)
    return take_apart(found)
