"""What full fine-tuning will reach, foretold from a short one and from features, with an interval.

In:  the scores of tested items after some stage of short training, and the score of the features alone
Out: the score after full fine-tuning on all items, and an interval
Nothing here trains. What is left to learn (1 - score) is foretold on a logarithmic scale, as a line through what is left after
the short training and what is left when only the features are judged: the longer the training, the more its own word counts.
The lines, and how far networks stray from them, come from networks that were trained to the end (`fit_laws`, used by
benchmarks/quality.py, which also says what the intervals cover on data sets that the lines were not fitted on).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.ranking import resample_means

__all__ = ["CONFIDENCE", "LAWS", "Foretold", "Law", "Lesson", "expected_left", "fit_laws", "foretell"]

CONFIDENCE = 0.9
_STRENGTH = 1.0  # of the pull towards slopes that add up to one, in networks' worth

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A line between logarithms of what is left to learn, for one stage of short training."""

    intercept: float
    short: float
    """How much the short training's word counts."""
    features: float
    """How much that of the features counts."""
    within: float
    """How far networks stray from the line on one data set: a standard deviation."""
    overall: float
    """How far they stray with data sets that have lines of their own."""


LAWS = (
    Law(intercept=-0.5, short=0.35, features=0.45, within=0.4, overall=0.6),
    Law(intercept=-0.3, short=0.6, features=0.25, within=0.3, overall=0.4),
    Law(intercept=-0.15, short=0.8, features=0.1, within=0.2, overall=0.3),
)
"""One for each stage of `analysis.finals`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """A score that nobody has measured yet."""

    score: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One network that was trained to the end: what was known after a stage, and what came of it."""

    target: str
    stage: int
    short: float
    features: float
    full: float
    num_items: int


def expected_left(short: Floats, features: Floats, *, stage: int, num_items: int, laws: Sequence[Law] = LAWS) -> Floats:
    """The logarithm of what will be left to learn, for scores of any shape."""
    law = laws[stage]
    return np.asarray(
        law.intercept + law.short * _log_left(short, num_items) + law.features * _log_left(features, num_items)
    )


def foretell(
    item_scores: Floats, features: float, *, stage: int, seed: int = 0, laws: Sequence[Law] = LAWS
) -> Foretold:
    """From the scores of the items tested after `stage`, and from the score of the features."""
    num_items = len(item_scores)
    resampled = resample_means(item_scores[None, :], seed=seed)[0]
    feature_scores = np.array(features)
    left = expected_left(resampled, feature_scores, stage=stage, num_items=num_items, laws=laws)
    strayed = laws[stage].overall * np.random.default_rng([seed, stage]).standard_normal(len(left))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(1 - np.exp(left + strayed), (tail, 1 - tail))
    middle = expected_left(item_scores.mean(), feature_scores, stage=stage, num_items=num_items, laws=laws)
    return Foretold(score=float(1 - np.exp(middle)), interval=(float(low), float(high)))


def fit_laws(lessons: Sequence[Lesson], *, num_stages: int) -> tuple[Law, ...]:
    """Least squares for each stage; slopes are pulled a little towards equal shares, since the two words are much alike."""
    return tuple(_fit([lesson for lesson in lessons if lesson.stage == stage]) for stage in range(num_stages))


def _fit(lessons: Sequence[Lesson]) -> Law:
    if len(lessons) < 4:
        raise ValueError(f"cannot fit a law to {len(lessons)} networks: expected four or more")
    short, features, full = (
        np.array([float(_log_left(np.array(getattr(each, name)), each.num_items)) for each in lessons])
        for name in ("short", "features", "full")
    )
    inputs = np.stack([short - short.mean(), features - features.mean()], axis=1)
    pull = _STRENGTH * float((inputs**2).mean()) * np.eye(2)
    slopes = np.linalg.solve(inputs.T @ inputs + pull, inputs.T @ (full - full.mean()) + pull @ np.full(2, 0.5))
    intercept = float(full.mean() - slopes[0] * short.mean() - slopes[1] * features.mean())
    strayed = full - intercept - slopes[0] * short - slopes[1] * features
    targets = sorted({each.target for each in lessons})
    own = np.array([targets.index(each.target) for each in lessons])
    centred = strayed - np.array([strayed[own == number].mean() for number in range(len(targets))])[own]
    spare = max(1, len(lessons) - len(targets))
    return Law(
        intercept=intercept,
        short=float(slopes[0]),
        features=float(slopes[1]),
        within=float(np.sqrt((centred**2).sum() / spare)),
        overall=float(np.sqrt((strayed**2).sum() / max(1, len(lessons) - 3))),
    )


def _log_left(scores: Floats, num_items: int) -> Floats:
    """Of what is missing from a perfect score; half an item where nothing is, since more items would show something."""
    return np.asarray(np.log(np.maximum(1 - scores, 0.5 / num_items)))
