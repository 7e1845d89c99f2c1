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

from dataclasses import dataclass

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score
from modelhound.scores.learning import Learning
from modelhound.scores.logistic import Regression, prepare, regress
from modelhound.scores.outcomes import judge_items
from modelhound.scores.products import add_square, mirror
from modelhound.scores.split import Split

__all__ = ["Probe", "fit_probe", "judge_probe", "score_by_probe"]

_FAR_OFF = 100.0  # of a feature's mean square over all items, in units of its variance over the training items


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


def score_by_probe(algebra: Algebra, *, seed: int) -> Score | Learning:
    """The mean outcome of a linear layer on a held-out fifth of the items, once it is trained."""
    split = algebra.split(seed)
    untrained = _Untrained(algebra, split)
    bare = algebra.without_results()
    if untrained.problem is None:
        return judge_probe(untrained.with_weights(None), bare, split)
    return Learning(
        problem=untrained.problem, judge=lambda found: judge_probe(untrained.with_weights(found), bare, split)
    )


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
    untrained = _Untrained(algebra, split)
    return untrained.with_weights(None if untrained.problem is None else regress([untrained.problem])[0])


class _Untrained:
    """A linear layer whose weights are still to be found. It holds no more than that takes: many may wait for theirs."""

    problem: Regression | None
    """None where there is nothing to learn."""

    def __init__(self, algebra: Algebra, split: Split) -> None:
        self._split, self._num_features = split, algebra.num_features
        self._task = _Task(algebra.without_results(), split)
        self._rotation = self.problem = None
        if not self._task.num_learned:
            return
        inputs = split.inputs
        if algebra.is_tall:
            second_moments = _find_second_moments(algebra, split)
        else:
            # Fewer items than features: weights outside the items' span stay 0, so search within it.
            self._rotation, triangle = torch.linalg.qr(inputs.double().T)
            inputs = triangle.T.contiguous()
            second_moments = inputs.T @ inputs / len(inputs)
        self.problem = self._task.regression(inputs, second_moments)

    def with_weights(self, found: tuple[torch.Tensor, torch.Tensor] | None) -> Probe:
        """The layer with what was found for its problem."""
        task = self._task
        weights = self._split.mean.new_zeros(self._num_features, len(task.certain))
        intercepts = task.certain.clone()
        if found is not None:
            learned, intercepts[task.learned] = found
            weights[:, task.learned] = learned if self._rotation is None else self._rotation @ learned
        return Probe(mean=self._split.mean, scale=self._split.scale, weights=weights, intercepts=intercepts)


def _find_second_moments(algebra: Algebra, split: Split) -> torch.Tensor:
    """X'X/n of the standardised features, to steer by: of all items, which is there already, unless held-out items lie far off.

    Then it would show a curvature that the training items do not have, and the search would end too early.
    """
    second_moments = algebra.scatter * (split.scale[:, None] * split.scale / algebra.num_items)
    if float(second_moments.diagonal().max()) <= _FAR_OFF:
        return second_moments
    total = torch.zeros_like(second_moments)
    for rows in algebra.slices(len(split.inputs), algebra.num_features):
        add_square(total, split.inputs[rows].double())
    return mirror(total).div_(len(split.inputs))


class _Task:
    """What is to be told of the training items; what needs no learning is known at once."""

    def __init__(self, algebra: Algebra, split: Split) -> None:
        training = (~split.held_out).nonzero().squeeze(1)
        self._algebra = algebra
        self._items = training
        self._has_classes = algebra.task == "classification"
        if self._has_classes:
            # A class without items would be pushed away for ever: its intercept has no minimum. It is never predicted.
            self.learned = algebra.counts > 0
            self.certain = torch.where(self.learned, 0.0, -torch.inf).double()
        else:
            total = torch.zeros_like(algebra.target_means)
            for rows in algebra.slices(len(training), algebra.num_classes):
                total += algebra.targets_of(training[rows]).sum(0)
            self.learned = (total > 0) & (total < len(training))
            self.certain = torch.where(total == 0, -torch.inf, torch.where(self.learned, 0.0, torch.inf)).double()
        self.num_learned = int(self.learned.sum())

    def regression(self, inputs: torch.Tensor, second_moments: torch.Tensor) -> Regression:
        """To learn it from these."""
        if self._has_classes:
            places = (self.learned.cumsum(0) - 1)[self._algebra.labels[self._items]]
            return prepare(inputs, second_moments, num_outputs=self.num_learned, places=places)
        return prepare(inputs, second_moments, num_outputs=self.num_learned, labels_of=self._labels_of)

    def _labels_of(self, rows: slice) -> torch.Tensor:
        return self._algebra.targets_of(self._items[rows])[:, self.learned].T
