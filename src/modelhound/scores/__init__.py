"""Judge how well features suit what is to be told of items, by several scorers in one pass.

In:  a FeatureSet                      (made by `features`)
Out: one Score for each scorer asked   (ranked by `analysis`), or why there is none
Nothing here knows models, files or clocks; `timed` lets a caller who owns a clock time each scorer.

What has to be learned can be learned for several models at once, which on a GPU takes hardly longer than for one: `begin` does
all the rest, and `finish` ends what was begun of any number of models. `score` does both for one.

On a CPU small features are scored by one thread whoever asks, so that the last bits of a score depend on nothing but the
features: several models may be scored at once then, a core each, which takes less time than to divide each one's products.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from modelhound.compat import one_thread
from modelhound.errors import DataError, ModelError, RequestError
from modelhound.scores.algebra import BLOCK_BYTES, Algebra
from modelhound.scores.feature_set import FeatureSet, Missing, Score
from modelhound.scores.groundwork import Groundwork
from modelhound.scores.knn import BLOCK_ROWS
from modelhound.scores.learning import Learning
from modelhound.scores.logistic import MOST_TOGETHER, regress
from modelhound.scores.registry import REGISTRY
from modelhound.settings import SCORERS_BEYOND_CLASSES, Task

__all__ = [
    "MOST_TOGETHER",
    "Begun",
    "FeatureSet",
    "Groundwork",
    "Score",
    "Scores",
    "begin",
    "finish",
    "score",
    "scoring_bytes",
    "suits_one_thread",
]

_FEW_PRODUCTS = 2.5e9  # of items x features x the smaller of both: half a second of one core for all usual scorers


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the scorers found; each one asked for is in one of the two."""

    values: dict[str, Score]
    missing: dict[str, str]  # why a scorer cannot judge this model
    groundwork: Groundwork = field(default_factory=Groundwork, repr=False)
    """What was found on the way and would serve for other targets of the same items too."""


def untimed(scorer: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Begun:
    """Scores of one model, some of which may wait for what is learned."""

    results: Mapping[str, Score | Missing | Learning]
    groundwork: Groundwork
    """What was found on the way and would serve for other targets of the same items too."""
    features: torch.Tensor

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be learned."""
        return not any(isinstance(each, Learning) for each in self.results.values())

    @property
    def num_bytes(self) -> int:
        """What is held for as long as something waits to be learned, and once more while that is done."""
        waiting = [each.problem.num_bytes for each in self.results.values() if isinstance(each, Learning)]
        return self.features.nbytes + 2 * sum(waiting) if waiting else 0


def score(
    feature_set: FeatureSet,
    scorers: Sequence[str],
    *,
    seed: int,
    timed: Callable[[str], AbstractContextManager[None]] = untimed,
) -> Scores:
    """Judge the features by every scorer named, in the order named.

    What scorers share is computed once, by the first of them that needs it, and so counts into that one's time.
    """
    return finish([begin(feature_set, scorers, seed=seed, timed=timed)], timed=timed)[0]


def begin(
    feature_set: FeatureSet,
    scorers: Sequence[str],
    *,
    seed: int,
    timed: Callable[[str], AbstractContextManager[None]] = untimed,
) -> Begun:
    """The same, but for what has to be learned."""
    _check_scorers(scorers, feature_set.task)
    _check_targets(feature_set)
    _check_finite(feature_set)
    algebra = Algebra(feature_set)
    results: dict[str, Score | Missing | Learning] = {}
    with torch.no_grad(), _as_many_threads_as_suit(feature_set.features):
        for name in scorers:
            with timed(name):
                results[name] = REGISTRY[name](algebra, seed=seed)
    return Begun(results=results, groundwork=algebra.groundwork, features=feature_set.features)


def finish(begun: Sequence[Begun], *, timed: Callable[[str], AbstractContextManager[None]] = untimed) -> list[Scores]:
    """The scores of each, when what is left to be learned was learned for all of them at once."""
    results = [dict(each.results) for each in begun]
    for name in dict.fromkeys(name for each in results for name in each):
        waiting = [(each, left) for each in results if isinstance(left := each.get(name), Learning)]
        if not waiting:
            continue
        with timed(name), torch.no_grad(), _as_many_threads_as_suit(*(each.features for each in begun)):
            solved = regress([left.problem for _, left in waiting])
            for (each, left), solution in zip(waiting, solved, strict=True):
                each[name] = left.judge(solution)
    return [_sum_up(each, one.groundwork) for each, one in zip(results, begun, strict=True)]


def suits_one_thread(num_items: int, num_features: int) -> bool:
    """Whether features of this size are scored by one thread on a CPU."""
    return num_items * num_features * min(num_items, num_features) <= _FEW_PRODUCTS


@contextmanager
def _as_many_threads_as_suit(*features: torch.Tensor) -> Iterator[None]:
    if all(each.device.type == "cpu" and suits_one_thread(*each.shape) for each in features):
        with one_thread():
            yield
    else:
        yield


def _sum_up(results: Mapping[str, Score | Missing | Learning], groundwork: Groundwork) -> Scores:
    values = {name: each for name, each in results.items() if isinstance(each, Score)}
    for name, value in values.items():
        _check_score(name, value)
    missing = {name: each.reason for name, each in results.items() if isinstance(each, Missing)}
    return Scores(values=values, missing=missing, groundwork=groundwork)


def scoring_bytes(num_items: int, num_features: int, num_classes: int) -> int:
    """About how much memory scoring takes at most, the features themselves not counted."""
    rank = min(num_items, num_features)
    copies = 3 * 4 * num_items * num_features  # put in order, and standardised for what learns
    blocks = 2 * min(BLOCK_BYTES, 8 * num_items * max(num_features, num_classes))
    matrices = 5 * 8 * rank * rank  # the scatter, its eigenvectors, and what decomposing takes
    similarities = 3 * 4 * min(num_items, BLOCK_ROWS) ** 2
    return copies + blocks + matrices + similarities


def _check_scorers(scorers: Sequence[str], task: Task) -> None:
    for name in scorers:
        if name not in REGISTRY:
            raise RequestError(f"cannot score by {name!r}: expected one of {', '.join(REGISTRY)}")
        if task != "classification" and name not in SCORERS_BEYOND_CLASSES[task]:
            raise RequestError(
                f"cannot score by {name!r}: expected a scorer for {task} targets, "
                f"one of {', '.join(SCORERS_BEYOND_CLASSES[task])}"
            )


def _check_targets(feature_set: FeatureSet) -> None:
    targets = feature_set.targets
    if feature_set.task == "classification":
        _check_classes(torch.bincount(targets, minlength=feature_set.num_classes))
    elif feature_set.task == "multilabel":
        counts = targets.sum(0)
        if not bool(((counts > 0) & (counts < len(targets))).any()):
            raise DataError(
                f"cannot score features of {feature_set.num_classes} label(s) that all items have or none: "
                "expected a label that tells some items from others"
            )
    elif len(targets) < 2 or bool((targets == targets[0]).all()):
        raise DataError("cannot score features of items with one and the same number: expected numbers that differ")


def _check_classes(counts: torch.Tensor) -> None:
    num_present = int((counts > 0).sum())
    if num_present < 2:
        raise DataError(f"cannot score features of {num_present} class(es): expected items of at least two classes")
    if int(counts.max()) < 2:
        raise DataError(
            "cannot score features with one item per class: expected a class of two items or more, take more items"
        )


def _check_score(name: str, score: Score) -> None:
    if not math.isfinite(score.value):
        raise ModelError(
            f"cannot score features by {name}: expected a finite score, got {score.value}; leave {name} out"
        )


def _check_finite(feature_set: FeatureSet) -> None:
    finite = feature_set.features.isfinite()
    if bool(finite.all()):
        return
    num_bad = int((~finite.all(1)).sum())
    raise ModelError(
        f"cannot score features: {num_bad} of {len(finite)} items give NaN or infinite values, expected finite numbers; "
        "the weights are damaged, or the model needs other preprocessing or --precision fp32"
    )
