"""Judge how well features suit labels, by several scorers in one pass.

In:  a FeatureSet                      (made by `features`)
Out: one Score for each scorer asked   (ranked by `analysis`)
Nothing here knows models, files or clocks; `timed` lets a caller who owns a clock time each scorer.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from modelhound.errors import DataError, ModelError, RequestError
from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import FeatureSet, Score
from modelhound.scores.registry import REGISTRY

__all__ = ["FeatureSet", "Score", "score"]


def untimed(scorer: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return nullcontext()


def score(
    feature_set: FeatureSet,
    scorers: Sequence[str],
    *,
    seed: int,
    timed: Callable[[str], AbstractContextManager[None]] = untimed,
) -> dict[str, Score]:
    """Judge the features by every scorer named, in the order named.

    What scorers share is computed once, by the first of them that needs it, and so counts into that one's time.
    """
    _check_scorers(scorers)
    _check_labels(feature_set)
    _check_finite(feature_set)
    algebra = Algebra(feature_set)
    scores = {}
    with torch.no_grad():
        for name in scorers:
            with timed(name):
                scores[name] = REGISTRY[name](algebra, seed=seed)
                _check_score(name, scores[name])
    return scores


def _check_scorers(scorers: Sequence[str]) -> None:
    for name in scorers:
        if name not in REGISTRY:
            raise RequestError(f"cannot score by {name!r}: expected one of {', '.join(REGISTRY)}")


def _check_labels(feature_set: FeatureSet) -> None:
    counts = torch.bincount(feature_set.labels, minlength=feature_set.num_classes)
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
    num_values = finite.numel()
    num_bad = num_values - int(finite.sum())
    raise ModelError(
        f"cannot score features: {num_bad} of {num_values} values are NaN or infinite, expected finite numbers; "
        "the model's weights or its half-precision arithmetic may be broken"
    )
