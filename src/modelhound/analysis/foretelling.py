"""What full fine-tuning will reach, foretold from a short one and from features, with an interval.

In:  the scores of tested items after some stage of short training, and the score of the features alone
Out: the score after full fine-tuning on all items, and an interval
Nothing here trains. What is left to learn (1 - score) is foretold on a logarithmic scale, as a line through what is left after
the short training, what is left when only the features are judged, and how fast the former fell in the last stage. What is
left to learn falls about as fast per doubling of the training as it did before, and data sets differ in that far more than
networks do: so the fall counts mostly as the mean over all finalists, which also is less subject to luck. The lines, and how
far networks stray from them, come from networks that were trained to the end (`fit_laws`, used by benchmarks/quality.py, which
also says what the intervals cover on data sets that the lines were not fitted on).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from modelhound.analysis.ranking import resample_means

__all__ = [
    "CONFIDENCE",
    "LAWS",
    "Foretold",
    "Law",
    "Lesson",
    "common_fall",
    "expected_left",
    "fit_laws",
    "foretell",
    "log_fall",
]

CONFIDENCE = 0.9
_STRENGTH = 10.0  # of the pull towards the slopes below, in networks' worth: few data sets say little of them
_USUAL_SLOPES = ((0.5, 0.5, 0.0), (0.6, 0.4, 1.46), (0.7, 0.3, 0.9))
"""Of short training, features and fall, after each stage.

The last is what a power law says: from 2 to 6 to 14 epochs on two thirds of the items, and on to 20 on all of them.
"""

_OWN_SHARE = 0.25  # of a network's own fall; the rest is that of all
_MOST_WIDER = 1.5  # for having few data sets: of two, Student's distribution would allow nearly anything

_LEAST_OWN = 0.25  # of the variance around a line: not all of it is luck

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
    """How far networks stray from the line on one data set, the luck of the tested items aside: a standard deviation."""
    overall: float
    """How far the root of what is left strays with data sets that have lines of their own: a standard deviation.

    Of the root, because on easy data sets what is left is missed by more of itself, on hard ones by more points.
    """


LAWS = (
    Law(intercept=-0.138, short=0.640, features=0.839, fall=0.0, within=0.365, overall=0.0893),
    Law(intercept=-0.195, short=0.406, features=0.206, fall=1.38, within=0.154, overall=0.0744),
    Law(intercept=-0.206, short=0.609, features=0.260, fall=0.773, within=0.0904, overall=0.0744),
)
"""One for each stage of `analysis.finals`, as benchmarks/quality.py judge prints them (benchmarks/results/quality_*.md)."""


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


def log_fall(score: float, before: float, num_items: int) -> float:
    """How far what is left to learn fell from one stage to the next, as a logarithm: below zero where it did."""
    return float(_log_left(np.array(score), num_items) - _log_left(np.array(before), num_items))


def common_fall(lessons: Sequence[Lesson]) -> float | None:
    """The mean fall of networks of one data set after one stage; None after the first stage."""
    falls = [log_fall(each.short, each.before, each.num_items) for each in lessons if each.before is not None]
    return float(np.mean(falls)) if falls else None


def expected_left(
    short: Floats,
    features: Floats,
    *,
    before: Floats | None = None,
    fall: float | None = None,
    stage: int,
    num_items: int,
    laws: Sequence[Law] = LAWS,
) -> Floats:
    """The logarithm of what will be left to learn, for scores of any shape.

    `before` are those of the stage before, `fall` the mean fall of all finalists since then; without it, a network's own counts
    alone.
    """
    law, now = laws[stage], _log_left(short, num_items)
    fell: Floats | float = 0.0
    if before is not None:
        own = now - _log_left(before, num_items)
        fell = own if fall is None else _OWN_SHARE * own + (1 - _OWN_SHARE) * fall
    return np.asarray(law.intercept + law.short * now + law.features * _log_left(features, num_items) + law.fall * fell)


def foretell(
    item_scores: Floats,
    features: float,
    *,
    before: Floats | None = None,
    fall: float | None = None,
    stage: int,
    seed: int = 0,
    laws: Sequence[Law] = LAWS,
) -> Foretold:
    """From the scores of the items tested after `stage` and after the stage before it, and from the score of the features."""
    num_items = len(item_scores)
    known = item_scores[None, :] if before is None else np.stack([item_scores, before])
    feature_scores = np.array(features)

    def expect(scores: Floats) -> Floats:
        return expected_left(
            scores[0],
            feature_scores,
            before=None if before is None else scores[1],
            fall=fall,
            stage=stage,
            num_items=num_items,
            laws=laws,
        )

    left = expect(resample_means(known, seed=seed))
    strayed = laws[stage].overall * np.random.default_rng([seed, stage]).standard_normal(len(left))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(1 - np.maximum(0, np.exp(left / 2) + strayed) ** 2, (tail, 1 - tail))
    middle = expect(known.mean(axis=1))
    least = 0.0 if item_scores.min() >= 0 else -np.inf  # a share of items; an R2 may be anything
    score, low = max(least, float(1 - np.exp(middle))), max(least, float(low))
    return Foretold(score=score, interval=(low, max(low, float(high))))


def fit_laws(lessons: Sequence[Lesson], *, num_stages: int) -> tuple[Law, ...]:
    """Least squares for each stage; slopes are pulled a little towards the usual ones, since few data sets say little."""
    laws = [_fit([lesson for lesson in lessons if lesson.stage == stage]) for stage in range(num_stages)]
    for stage in range(num_stages - 2, -1, -1):  # shorter training is never surer; where it seems so, that is luck
        laws[stage] = replace(laws[stage], overall=max(laws[stage].overall, laws[stage + 1].overall))
    return tuple(laws)


def _fit(lessons: Sequence[Lesson]) -> Law:
    if len(lessons) < 4:
        raise ValueError(f"cannot fit a law to {len(lessons)} networks: expected four or more")
    line = _draw_line(lessons)
    strayed = _stray(line, lessons)
    by_target = _by_target(lessons)
    centred = np.concatenate([strayed[own] - strayed[own].mean() for own in by_target])
    variance = float((centred**2).sum() / max(1, len(lessons) - len(by_target)))
    intercept, short, features, fall = line.tolist()
    luck = (short + _OWN_SHARE * fall) ** 2 * float(np.mean([_luck(each) for each in lessons]))
    within = max(variance - luck, _LEAST_OWN * variance) ** 0.5
    return Law(
        intercept=intercept,
        short=short,
        features=features,
        fall=fall,
        within=within,
        overall=_overall(lessons, by_target, line),
    )


def _luck(lesson: Lesson) -> float:
    """The variance of the logarithm of what is left that comes of testing these items and no others; resampling counts it."""
    left = max(1 - lesson.short, 0.5 / lesson.num_items)
    return max(0.0, 1 - left) / (left * lesson.num_items)


def _draw_line(lessons: Sequence[Lesson]) -> Floats:
    """Intercept and slopes."""
    inputs, full = _inputs(lessons), _logs(lessons, "full")
    centred = inputs - inputs.mean(axis=0)
    pull = _STRENGTH * float((centred[:, :2] ** 2).mean()) * np.eye(3)
    wanted = centred.T @ (full - full.mean()) + pull @ np.array(_USUAL_SLOPES[lessons[0].stage])
    slopes = np.linalg.solve(centred.T @ centred + pull, wanted)
    return np.array([full.mean() - inputs.mean(axis=0) @ slopes, *slopes])


def _stray(line: Floats, lessons: Sequence[Lesson]) -> Floats:
    """How far each network ended from where the line says."""
    return np.asarray(_logs(lessons, "full") - line[0] - _inputs(lessons) @ line[1:])


def _overall(lessons: Sequence[Lesson], by_target: Sequence[NDArray[np.int64]], line: Floats) -> float:
    """How far the root of what is left may stray from the line for a network of another data set.

    Each data set is held against the line of the others, as a new one will be. The fewer they are, the less is known of how far
    data sets differ: as Student's distribution is wider than the normal one that intervals are drawn from.
    """
    if len(by_target) < 2:  # how far others differ cannot be known
        return _MOST_WIDER * float(np.sqrt((_stray_in_roots(line, lessons) ** 2).sum() / max(1, len(lessons) - 4)))
    missed, scattered = [], 0.0
    for own in by_target:
        others = [lesson for place, lesson in enumerate(lessons) if place not in own]
        strayed = _stray_in_roots(_draw_line(others), [lessons[place] for place in own])
        missed.append(float(strayed.mean()))
        scattered += float(((strayed - strayed.mean()) ** 2).sum())
    tail = (1 - CONFIDENCE) / 2
    wider = min(_MOST_WIDER, float(stats.t.isf(tail, len(by_target) - 1) / stats.norm.isf(tail)))
    return float(np.sqrt(scattered / max(1, len(lessons) - len(by_target)) + wider**2 * np.mean(np.square(missed))))


def _stray_in_roots(line: Floats, lessons: Sequence[Lesson]) -> Floats:
    full = _logs(lessons, "full")
    return np.asarray(np.exp(full / 2) - np.exp((full - _stray(line, lessons)) / 2))


def _by_target(lessons: Sequence[Lesson]) -> list[NDArray[np.int64]]:
    """The places of the lessons of each data set."""
    names = np.array([each.target for each in lessons])
    return [np.flatnonzero(names == name) for name in sorted(set(names.tolist()))]


def _inputs(lessons: Sequence[Lesson]) -> Floats:
    """What the line goes through, [networks, 3]."""
    short = _logs(lessons, "short")
    falls = short - _logs(lessons, "before")
    for own in _by_target(lessons):
        falls[own] = _OWN_SHARE * falls[own] + (1 - _OWN_SHARE) * falls[own].mean()
    return np.stack([short, _logs(lessons, "features"), falls], axis=1)


def _logs(lessons: Sequence[Lesson], name: str) -> Floats:
    return np.array([_log_score(each, name) for each in lessons])


def _log_score(lesson: Lesson, name: str) -> float:
    """Of what was left; where there is no stage before, as if nothing had fallen."""
    score = getattr(lesson, name)
    return float(_log_left(np.array(lesson.short if score is None else score), lesson.num_items))


def _log_left(scores: Floats, num_items: int) -> Floats:
    """Of what is missing from a perfect score; half an item where nothing is, since more items would show something."""
    return np.asarray(np.log(np.maximum(1 - scores, 0.5 / num_items)))
