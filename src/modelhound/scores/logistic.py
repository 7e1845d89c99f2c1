"""Penalised logistic regressions: the linear layer of least loss, for several sets of features at once where a device does it.

In:  a Regression: standardised features, what is to be told of each item, and the curvature to steer by
Out: weights and intercepts that minimise   mean of the items' losses + |W|^2 / (2 n)
Nothing here knows a scorer, or where features come from.

L-BFGS works on L'W instead of W, where LL' is the curvature of the objective at W = 0 (see `probe`). Intercepts are one more
row of W, with a curvature of their own and without a penalty. The two large products of a step are made in float32, which is
more than is needed to get as near as we go.

On a device a step is thirty small pieces of work, one after the other, for which Python and the device take far longer than
for what they compute: each that is left out counts, whatever it computes. And regressions of one shape are done as one, with a
batch dimension: sixteen hardly take longer than one.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.descent import descend, multiply

__all__ = ["MOST_TOGETHER", "Regression", "prepare", "regress"]

MOST_TOGETHER = 16
"""Regressions that are done as one, where memory suffices."""

_MOST_STEPS = 100
# Stop when no component of the gradient is larger. Held-out accuracy is then within 0.2 points of that at the minimum, which
# takes three to eight times as many steps to reach (seen on features of up to 1280 dimensions, 10 and 100 classes).
_GRADIENT = 1e-4
_PRODUCTS = torch.float32
_CACHED_BYTES, _FEWEST_ROWS = 2 * 2**20, 512
_MOST_HISTORY = 5  # pairs of steps and gradients that L-BFGS remembers: ten save no steps and cost a fifth more,
_HISTORY_BYTES = 128 * 2**20  # and fewer where ten thousand classes make them large
_TOGETHER_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Regression:
    """One problem, made ready by `prepare`."""

    inputs: torch.Tensor  # [num_items, num_columns], float32
    steer: torch.Tensor  # [num_columns + 1, num_columns + 1], float64: the inverse of L; intercepts are last
    places: torch.Tensor | None  # [num_items]: the class of each item; None where an item may have several labels
    labels_of: Callable[[slice], torch.Tensor] | None  # of some items, [num_outputs, some items], where it may
    num_outputs: int
    ready: Any  # an event on the stream that made these tensors, since another may solve it; None on a CPU

    @property
    def num_components(self) -> int:
        return (self.inputs.shape[1] + 1) * self.num_outputs

    @property
    def num_bytes(self) -> int:
        """Of what it holds."""
        return self.inputs.nbytes + self.steer.nbytes


def prepare(
    inputs: torch.Tensor,
    second_moments: torch.Tensor,
    *,
    num_outputs: int,
    places: torch.Tensor | None = None,
    labels_of: Callable[[slice], torch.Tensor] | None = None,
) -> Regression:
    """`second_moments` are X'X/n of the inputs, or near them; either the class of each item or a function for labels."""
    # the variance of a target when all classes are as likely, or a label as likely as not
    spread = (1 - 1 / num_outputs) / num_outputs if places is not None else 0.25
    num_columns = len(second_moments)
    curvature = second_moments.new_zeros(num_columns + 1, num_columns + 1)
    torch.mul(second_moments, spread, out=curvature[:-1, :-1])
    curvature.diagonal()[:-1].add_(1 / len(inputs))
    curvature[-1, -1] = spread
    # The inverse of L, once: to solve with L is a chain of small steps, which on a GPU takes a hundred times as long as to
    # multiply. Rounding in it changes the path and not the minimum, since the same matrix leads there and back.
    steer = torch.linalg.solve_triangular(
        torch.linalg.cholesky(curvature),
        torch.eye(len(curvature), dtype=curvature.dtype, device=curvature.device),
        upper=False,
    )
    inputs = inputs.to(_PRODUCTS)
    ready = torch.cuda.current_stream(inputs.device).record_event() if inputs.is_cuda else None
    return Regression(
        inputs=inputs,
        steer=steer,
        places=places,
        labels_of=labels_of,
        num_outputs=num_outputs,
        ready=ready,
    )


def regress(problems: Sequence[Regression]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each weights, [num_columns, num_outputs], and intercepts of least penalised loss."""
    kinds: dict[Hashable, list[int]] = {}
    for place, problem in enumerate(problems):
        kinds.setdefault(_kind(problem), []).append(place)
    found: dict[int, torch.Tensor] = {}
    for places in kinds.values():
        most = _most_together(problems[places[0]])
        for start in range(0, len(places), most):
            some = places[start : start + most]
            found |= zip(some, _solve([problems[place] for place in some]), strict=True)
    return [_weigh(found[place], problem) for place, problem in enumerate(problems)]


def _weigh(place: torch.Tensor, problem: Regression) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and intercepts from L'W."""
    found = _unsteer(place[None], problem.steer[None])[0]
    return found[:, :-1].T, found[:, -1]


def _kind(problem: Regression) -> Hashable:
    """What problems have in common that can be solved as one."""
    if problem.places is None:  # labels are made anew for every block of items: that is where their time goes
        return id(problem)
    return problem.inputs.shape, problem.inputs.device, problem.num_outputs


def _most_together(problem: Regression) -> int:
    if not problem.inputs.is_cuda:
        return 1  # where nothing is gained
    num_bytes = problem.num_bytes + 8 * 4 * _MOST_HISTORY * problem.num_components
    return max(1, min(MOST_TOGETHER, _TOGETHER_BYTES // num_bytes))


def _solve(problems: Sequence[Regression]) -> list[torch.Tensor]:
    """The place of the minimum of each; these problems are of one kind."""
    first = problems[0]
    for each in problems:
        if each.ready is not None:
            each.ready.wait()
    inputs = _stack([each.inputs for each in problems])
    steer = _stack([each.steer for each in problems])
    judge = _judge_classes(problems) if first.labels_of is None else _judge_labels(first.labels_of)
    num_items, blocks = len(first.inputs), _cut(first)

    def evaluate(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # an output is a row here: products with few rows are several times as fast on CPUs as those with few columns
        slope = _unsteer(place, steer)
        small = slope.to(_PRODUCTS, copy=True)
        weights, intercepts = small[:, :, :-1], small[:, :, -1:]
        # what the penalty adds to the slope is the weights themselves
        slope_of_weights, slope_of_intercepts = slope[:, :, :-1], slope[:, :, -1:].zero_()
        loss = slope_of_weights.square().sum((1, 2)).div_(2)
        for rows in blocks:
            some = inputs[:, rows]
            likelihood, errors = judge(rows, multiply(weights, some.mT).add_(intercepts))
            loss -= likelihood
            slope_of_weights += multiply(errors, some)
            slope_of_intercepts += errors.sum(2, keepdim=True, dtype=slope.dtype)
        return loss.div_(num_items), multiply(slope, steer.mT).div_(num_items).flatten(1)

    start = first.steer.new_zeros(len(problems), first.num_components)
    history = max(2, min(_MOST_HISTORY, _HISTORY_BYTES // (16 * first.num_components)))
    return list(descend(evaluate, start, most_steps=_MOST_STEPS, history=history, largest_slope=_GRADIENT))


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One after the other in a new dimension; of a single one no copy is made."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors))


def _unsteer(place: torch.Tensor, steer: torch.Tensor) -> torch.Tensor:
    """W' from L'W of each problem, [num_problems, num_outputs, num_columns + 1]."""
    return multiply(place.view(len(place), -1, steer.shape[1]), steer)


def _cut(problem: Regression) -> list[slice]:
    """Items that are looked at together; on a CPU so few that they are still in its cache when the slope wants them again."""
    num_items, row_bytes = len(problem.inputs), problem.inputs.itemsize * problem.inputs.shape[1]
    most = _CACHED_BYTES // row_bytes if problem.inputs.device.type == "cpu" else num_items
    step = max(1, _FEWEST_ROWS, most)
    return [
        slice(start, min(start + step, some.stop))
        for some in Algebra.slices(num_items, problem.num_outputs)
        for start in range(some.start, some.stop, step)
    ]


_Judge = Callable[[slice, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From the logits of some items, a column each: their log likelihood, and minus its gradient in place of the logits."""


def _judge_classes(problems: Sequence[Regression]) -> _Judge:
    places = _stack([each.places for each in problems if each.places is not None])[:, None]
    minus_one = torch.full((1, 1, 1), -1.0, dtype=_PRODUCTS, device=places.device)

    def judge(rows: slice, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        own = places[:, :, rows]
        log_probabilities = logits.log_softmax(1)
        likelihood = log_probabilities.gather(1, own).sum((1, 2), dtype=torch.float64)
        return likelihood, log_probabilities.exp_().scatter_add_(1, own, minus_one.expand_as(own))

    return judge


def _judge_labels(labels_of: Callable[[slice], torch.Tensor]) -> _Judge:
    def judge(rows: slice, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        targets = labels_of(rows).to(logits.dtype)
        likelihood = (logits * targets).sub_(torch.nn.functional.softplus(logits)).double().sum((1, 2))
        return likelihood, logits.sigmoid_().sub_(targets)

    return judge
