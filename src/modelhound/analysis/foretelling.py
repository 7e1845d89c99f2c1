"""What full fine-tuning will reach, foretold from a short one and from features, with an interval.

In:  the scores of tested items after some stage of short training, the features' score, and where all finalists stand
Out: the score after full fine-tuning on all items, and an interval
Nothing here trains. What is left to learn (1 - score) is foretold on a logarithmic scale. Two things are asked, and have lines
of their own. How hard the data set is, the mean of all finalists tells: what is left to them after the short training, their
features, and how fast the former fell in the last stage. How a network stands among them, short training and features tell far
less than their differences seem to: most of a lead after a few epochs is gone in the end. The lines, and how far networks stray
from them, come from networks that were trained to the end (`fit_laws`, used by benchmarks/quality.py, which also says what the
intervals cover on data sets that the lines were not fitted on).
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
    "Level",
    "expected_left",
    "find_level",
    "fit_laws",
    "foretell",
]

CONFIDENCE = 0.9
_USUAL_SLOPES = ((0.5, 0.5, 0.0), (0.6, 0.4, 0.8), (0.7, 0.3, 0.5))
"""Of the means of short training, features and fall, after each stage.

By a power law what is left would fall 1.46 and 0.9 times as far again, from 6 and from 14 epochs on two thirds of the items to
20 on all of them. Networks that are close to what a data set allows do not go on so: about half of that comes true.
"""

_USUAL_OWN = (0.3, 0.2)  # of a network's own short training and features, beside those of all
_STRENGTH, _OWN_STRENGTH = 3.0, 10.0  # of the pull towards these, in data sets' and in networks' worth
_MOST_WIDER = 1.5  # for having few data sets: of two, Student's distribution would allow nearly anything
_LEAST_OWN = 0.25  # of the variance around a line: not all of it is luck
_LEAST_SPREAD = 0.01  # of networks that all end alike, in logarithms of what is left

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Lines between logarithms of what is left to learn, for one stage of short training."""

    intercept: float
    short: float
    """How much the short training of all finalists says of how hard the data set is."""
    features: float
    """How much their features say of it."""
    fall: float = 0.0
    """How much further it goes in the direction of the last stage."""
    own_short: float
    """How much a network's lead in short training says of its lead in the end."""
    own_features: float
    """How much that in features says of it."""
    within: float
    """How far networks stray from the line on one data set, the luck of the tested items aside: a standard deviation."""
    overall: float
    """How far the root of what is left strays with data sets that have lines of their own: a standard deviation.

    Of the root, because on easy data sets what is left is missed by more of itself, on hard ones by more points.
    """


LAWS = (
    Law(
        intercept=-0.205,
        short=0.267,
        features=1.07,
        fall=0,
        own_short=0.285,
        own_features=0.211,
        within=0.228,
        overall=0.108,
    ),
    Law(
        intercept=-0.265,
        short=0.575,
        features=0.306,
        fall=0.727,
        own_short=0.331,
        own_features=0.176,
        within=0.176,
        overall=0.0827,
    ),
    Law(
        intercept=-0.259,
        short=0.671,
        features=0.249,
        fall=0.481,
        own_short=0.33,
        own_features=0.123,
        within=0.147,
        overall=0.0607,
    ),
)
"""One for each stage of `analysis.trials`, as benchmarks/quality.py judge prints them (benchmarks/results/quality_*.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Where all finalists stand after a stage: means of logarithms of what is left to learn."""

    short: float
    features: float
    fall: float = 0.0
    """Since the stage before; below zero where they learned something."""
    shift: float = 0.0
    """What longer training of some of them says of how hard the data set is, beyond that."""


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


def find_level(short: Floats, features: Floats, before: Floats | None, *, num_items: int) -> Level:
    """From the scores of all finalists that came to a stage, and their scores after the stage before where there is one."""
    now = _log_left(short, num_items)
    fall = 0.0 if before is None else float((now - _log_left(before, num_items)).mean())
    return Level(short=float(now.mean()), features=float(_log_left(features, num_items).mean()), fall=fall)


def expected_left(
    short: Floats, features: Floats, level: Level, *, stage: int, num_items: int, laws: Sequence[Law] = LAWS
) -> Floats:
    """The logarithm of what will be left to learn, for scores of any shape."""
    law = laws[stage]
    of_all = law.intercept + law.short * level.short + law.features * level.features + law.fall * level.fall
    lead = law.own_short * (_log_left(short, num_items) - level.short)
    return np.asarray(
        of_all + level.shift + lead + law.own_features * (_log_left(features, num_items) - level.features)
    )


def foretell(
    item_scores: Floats, features: float, level: Level, *, stage: int, seed: int = 0, laws: Sequence[Law] = LAWS
) -> Foretold:
    """From the scores of the items tested after `stage`, the score of the features, and where all finalists stand."""
    num_items, feature_scores = len(item_scores), np.array(features)

    def expect(scores: Floats) -> Floats:
        return expected_left(scores, feature_scores, level, stage=stage, num_items=num_items, laws=laws)

    left = expect(resample_means(item_scores[None, :], seed=seed)[0])
    strayed = laws[stage].overall * np.random.default_rng([seed, stage]).standard_normal(len(left))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(1 - np.maximum(0, np.exp(left / 2) + strayed) ** 2, (tail, 1 - tail))
    middle = float(expect(item_scores.mean()))
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
    lines = _draw_lines(lessons)
    strayed = _logs(lessons, "full") - _foretold_logs(lines, lessons)
    by_target = _by_target(lessons)
    centred = np.concatenate([strayed[own] - strayed[own].mean() for own in by_target])
    variance = float((centred**2).sum() / max(1, len(lessons) - len(by_target)))
    luck = lines.own[0] ** 2 * float(np.mean([_luck(each) for each in lessons]))
    intercept, short, features, fall = lines.of_all.tolist()
    return Law(
        intercept=intercept,
        short=short,
        features=features,
        fall=fall,
        own_short=float(lines.own[0]),
        own_features=float(lines.own[1]),
        within=max(variance - luck, _LEAST_OWN * variance) ** 0.5,
        overall=_overall(lessons, by_target, lines),
    )


def _luck(lesson: Lesson) -> float:
    """The variance of the logarithm of what is left that comes of testing these items and no others; resampling counts it."""
    left = max(1 - lesson.short, 0.5 / lesson.num_items)
    return max(0.0, 1 - left) / (left * lesson.num_items)


@dataclass(frozen=True, slots=True)
class _Lines:
    of_all: Floats
    """Intercept and slopes of the means of short training, features and fall."""
    own: Floats
    """Slopes of a network's own short training and features, beside those means."""


def _draw_lines(lessons: Sequence[Lesson]) -> _Lines:
    inputs, full = _inputs(lessons), _logs(lessons, "full")
    by_target = _by_target(lessons)
    means = np.stack([inputs[own].mean(axis=0) for own in by_target])
    ends = np.array([full[own].mean() for own in by_target])
    slopes = _solve(means - means.mean(axis=0), ends - ends.mean(), _USUAL_SLOPES[lessons[0].stage], _STRENGTH)
    # every data set says as much, or the one whose networks differ most would speak for all
    spreads = [max(_LEAST_SPREAD, float(full[own].std())) for own in by_target]
    leads = [inputs[own, :2] - inputs[own, :2].mean(axis=0) for own in by_target]
    wanted = [full[own] - full[own].mean() for own in by_target]
    own = _solve(
        np.concatenate([each / spread for each, spread in zip(leads, spreads, strict=True)]),
        np.concatenate([each / spread for each, spread in zip(wanted, spreads, strict=True)]),
        _USUAL_OWN,
        _OWN_STRENGTH,
    )
    return _Lines(np.array([ends.mean() - means.mean(axis=0) @ slopes, *slopes]), own)


def _solve(inputs: Floats, wanted: Floats, usual: Sequence[float], strength: float) -> Floats:
    """Least squares; so many rows' worth of evidence say the usual."""
    pull = strength * max(1e-6, float((inputs[:, :2] ** 2).mean())) * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(inputs.T @ inputs + pull, inputs.T @ wanted + pull @ np.array(usual)))


def _foretold_logs(lines: _Lines, lessons: Sequence[Lesson]) -> Floats:
    """Where the lines say that each network will end."""
    inputs = _inputs(lessons)
    means = np.empty_like(inputs)
    for own in _by_target(lessons):
        means[own] = inputs[own].mean(axis=0)
    lead = (inputs[:, :2] - means[:, :2]) @ lines.own
    return np.asarray(lines.of_all[0] + means @ lines.of_all[1:] + lead)


def _overall(lessons: Sequence[Lesson], by_target: Sequence[NDArray[np.int64]], lines: _Lines) -> float:
    """How far the root of what is left may stray from the line for a network of another data set.

    Each data set is held against the line of the others, as a new one will be. The fewer they are, the less is known of how far
    data sets differ: as Student's distribution is wider than the normal one that intervals are drawn from.
    """
    if len(by_target) < 2:  # how far others differ cannot be known
        return _MOST_WIDER * float(np.sqrt((_stray_in_roots(lines, lessons) ** 2).sum() / max(1, len(lessons) - 4)))
    missed, scattered = [], 0.0
    for own in by_target:
        others = [lesson for place, lesson in enumerate(lessons) if place not in own]
        strayed = _stray_in_roots(_draw_lines(others), [lessons[place] for place in own])
        missed.append(float(strayed.mean()))
        scattered += float(((strayed - strayed.mean()) ** 2).sum())
    tail = (1 - CONFIDENCE) / 2
    wider = min(_MOST_WIDER, float(stats.t.isf(tail, len(by_target) - 1) / stats.norm.isf(tail)))
    return float(np.sqrt(scattered / max(1, len(lessons) - len(by_target)) + wider**2 * np.mean(np.square(missed))))


def _stray_in_roots(lines: _Lines, lessons: Sequence[Lesson]) -> Floats:
    return np.asarray(np.exp(_logs(lessons, "full") / 2) - np.exp(_foretold_logs(lines, lessons) / 2))


def _by_target(lessons: Sequence[Lesson]) -> list[NDArray[np.int64]]:
    """The places of the lessons of each data set."""
    names = np.array([each.target for each in lessons])
    return [np.flatnonzero(names == name) for name in sorted(set(names.tolist()))]


def _inputs(lessons: Sequence[Lesson]) -> Floats:
    """What the lines go through, [networks, 3]."""
    short = _logs(lessons, "short")
    return np.stack([short, _logs(lessons, "features"), short - _logs(lessons, "before")], axis=1)


def _logs(lessons: Sequence[Lesson], name: str) -> Floats:
    return np.array([_log_score(each, name) for each in lessons])


def _log_score(lesson: Lesson, name: str) -> float:
    """Of what was left; where there is no stage before, as if nothing had fallen."""
    score = getattr(lesson, name)
    return float(_log_left(np.array(lesson.short if score is None else score), lesson.num_items))


def _log_left(scores: Floats, num_items: int) -> Floats:
    """Of what is missing from a perfect score; half an item where nothing is, since more items would show something."""
    return np.asarray(np.log(np.maximum(1 - scores, 0.5 / num_items)))
