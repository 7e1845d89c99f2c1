"""What full fine-tuning will reach, foretold from a short one and from features, with an interval.

In:  the scores of tested items after some stage of short training, and the score of the features alone
Out: the score after full fine-tuning on all items, and an interval
Nothing here trains. What is left to learn (1 - score) is foretold on a logarithmic scale, as a line through what is left after
the short training, what is left when only the features are judged, and how fast the former fell in the last stage: one that
still learns fast will learn more. The longer the training, the more its own word counts. The lines, and how far networks stray
from them, come from networks that were trained to the end (`fit_laws`, used by benchmarks/quality.py, which also says what the
intervals cover on data sets that the lines were not fitted on).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.ranking import resample_means

__all__ = ["CONFIDENCE", "LAWS", "Foretold", "Law", "Lesson", "expected_left", "fit_laws", "foretell"]

CONFIDENCE = 0.9
_STRENGTH = 10.0  # of the pull towards slopes that add up to one, in networks' worth: few data sets say little of them

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A line between logarithms of what is left to learn, for one stage of short training."""

    intercept: float
    short: float
    """How much the short training's word counts."""
    features: float
    """How much that of the features counts."""
    fall: float = 0.0
    """How much further it goes in the direction of the last stage."""
    within: float
    """How far networks stray from the line on one data set: a standard deviation."""
    overall: float
    """How far they stray with data sets that have lines of their own."""


LAWS = (
    Law(intercept=-0.37, short=0.54, features=1.01, fall=0.0, within=0.38, overall=0.9),
    Law(intercept=-0.13, short=0.72, features=0.62, fall=0.24, within=0.29, overall=0.57),
    Law(intercept=0.03, short=0.77, features=0.54, fall=0.09, within=0.18, overall=0.33),
)
"""One for each stage of `analysis.finals`, from ten networks on each of two data sets (benchmarks/results/quality_pilot_*.md).

How far data sets differ cannot be known from two of them: `overall` is half as large again as was found.
"""


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
    before: float | None = None
    """The score after the stage before, where there is one."""


def expected_left(
    short: Floats,
    features: Floats,
    *,
    before: Floats | None = None,
    stage: int,
    num_items: int,
    laws: Sequence[Law] = LAWS,
) -> Floats:
    """The logarithm of what will be left to learn, for scores of any shape; `before` are those of the stage before."""
    law, now = laws[stage], _log_left(short, num_items)
    fall = 0.0 if before is None else law.fall * (now - _log_left(before, num_items))
    return np.asarray(law.intercept + law.short * now + law.features * _log_left(features, num_items) + fall)


def foretell(
    item_scores: Floats,
    features: float,
    *,
    before: Floats | None = None,
    stage: int,
    seed: int = 0,
    laws: Sequence[Law] = LAWS,
) -> Foretold:
    """From the scores of the items tested after `stage` and after the stage before it, and from the score of the features."""
    num_items = len(item_scores)
    known = item_scores[None, :] if before is None else np.stack([item_scores, before])
    feature_scores = np.array(features)

    def expect(scores: Floats) -> Floats:
        earlier = None if before is None else scores[1]
        return expected_left(scores[0], feature_scores, before=earlier, stage=stage, num_items=num_items, laws=laws)

    left = expect(resample_means(known, seed=seed))
    strayed = laws[stage].overall * np.random.default_rng([seed, stage]).standard_normal(len(left))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(1 - np.exp(left + strayed), (tail, 1 - tail))
    middle = expect(known.mean(axis=1))
    least = 0.0 if item_scores.min() >= 0 else -np.inf  # a share of items; an R2 may be anything
    score, low = max(least, float(1 - np.exp(middle))), max(least, float(low))
    return Foretold(score=score, interval=(low, max(low, float(high))))


def fit_laws(lessons: Sequence[Lesson], *, num_stages: int) -> tuple[Law, ...]:
    """Least squares for each stage; slopes are pulled a little towards equal shares, since the two words are much alike."""
    return tuple(_fit([lesson for lesson in lessons if lesson.stage == stage]) for stage in range(num_stages))


def _fit(lessons: Sequence[Lesson]) -> Law:
    if len(lessons) < 4:
        raise ValueError(f"cannot fit a law to {len(lessons)} networks: expected four or more")
    short, features, full, before = (
        np.array([_log_score(each, name) for each in lessons]) for name in ("short", "features", "full", "before")
    )
    inputs = np.stack([short, features, short - before], axis=1)
    centred_inputs = inputs - inputs.mean(axis=0)
    pull = _STRENGTH * float((centred_inputs[:, :2] ** 2).mean()) * np.eye(3)
    wanted = centred_inputs.T @ (full - full.mean()) + pull @ np.array([0.5, 0.5, 0.0])
    slopes = np.linalg.solve(centred_inputs.T @ centred_inputs + pull, wanted)
    intercept = float(full.mean() - inputs.mean(axis=0) @ slopes)
    strayed = full - intercept - inputs @ slopes
    targets = sorted({each.target for each in lessons})
    own = np.array([targets.index(each.target) for each in lessons])
    centred = strayed - np.array([strayed[own == number].mean() for number in range(len(targets))])[own]
    spare = max(1, len(lessons) - len(targets))
    return Law(
        intercept=intercept,
        short=float(slopes[0]),
        features=float(slopes[1]),
        fall=float(slopes[2]),
        within=float(np.sqrt((centred**2).sum() / spare)),
        overall=float(np.sqrt((strayed**2).sum() / max(1, len(lessons) - 4))),
    )


def _log_score(lesson: Lesson, name: str) -> float:
    """Of what was left; where there is no stage before, as if nothing had fallen."""
    score = getattr(lesson, name)
    return float(_log_left(np.array(lesson.short if score is None else score), lesson.num_items))


def _log_left(scores: Floats, num_items: int) -> Floats:
    """Of what is missing from a perfect score; half an item where nothing is, since more items would show something."""
    return np.asarray(np.log(np.maximum(1 - scores, 0.5 / num_items)))
