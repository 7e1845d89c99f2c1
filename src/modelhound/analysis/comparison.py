"""Is one run slower than another, point by point, and by how much?

In:  two or more runs (devices, versions, precisions), each with its points by name: raw samples, or why there are none
Out: the ratio of every point to the first run's with an interval, a verdict for each, and one for the whole
Nothing here knows what a point is; points are the same where their names are.

A point is slower where its whole interval lies above the limit, so noise alone does not fail a build, and a point
that is too noisy to judge is called that. The intervals of a run hold all at once: each is widened for the number of points
(Bonferroni), or among a hundred points five would look slower by chance. The same code timed in two processes differs by about
`RUN_SCATTER` however many samples each has, which every interval includes.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
from scipy import stats

from modelhound.analysis.samples import check_seconds, log_median_error, median_of
from modelhound.analysis.wording import interval_text, list_text, plural, share_text
from modelhound.errors import RequestError

__all__ = ["ComparedPoint", "ComparedRun", "Comparison", "Run", "RunPoint", "compare_runs"]

RUN_SCATTER = 0.01

Change = Literal["slower", "faster", "same", "cannot be told", "fails now", "works now", "fails in both", "only here"]


class RunPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a run: its samples, or one number with its 95 % interval, or why it failed."""

    name: str
    seconds: tuple[float, ...] = ()
    interval: tuple[float, float] | None = None
    failure: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run to compare."""

    name: str
    points: tuple[RunPoint, ...]


class ComparedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point against the first run. A ratio above 1 is slower."""

    name: str
    change: Change
    baseline_seconds: float | None
    seconds: float | None
    ratio: float | None
    interval: tuple[float, float] | None


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run against the first, all points together: `ratio` is the geometric mean over points timed in both."""

    name: str
    points: tuple[ComparedPoint, ...]
    not_here: tuple[str, ...]
    """Points of the first run that this one has not."""
    ratio: float | None
    interval: tuple[float, float] | None
    slower: bool
    """Whether a point or the whole is slower by more than the limit, or a point fails that worked."""
    sentence: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All runs against the first."""

    baseline: str
    limit: float
    confidence: float
    runs: tuple[ComparedRun, ...]
    notes: tuple[str, ...] = ()
    """What else differs between the runs and may be behind it, in sentences."""

    @property
    def slower(self) -> bool:
        """Whether any run is slower by more than the limit: what a build fails on."""
        return any(run.slower for run in self.runs)


def compare_runs(
    baseline: Run, *others: Run, limit: float = 0.05, confidence: float = 0.95, run_scatter: float = RUN_SCATTER
) -> Comparison:
    """Compare every other run with the first; slower by less than `limit` (0.05 is 5 %) counts as the same."""
    if not others:
        raise RequestError(
            f"cannot compare {baseline.name!r} with nothing: expected two or more runs, name another one"
        )
    if not (math.isfinite(limit) and limit >= 0):
        raise RequestError(f"cannot compare with limit {limit!r}: expected a share from 0, 0.05 is 5%")
    if not 0 < confidence < 1:
        raise RequestError(
            f"cannot compare with confidence {confidence!r}: expected a number between 0 and 1, take 0.95"
        )
    for run in (baseline, *others):
        _check(run)
    return Comparison(
        baseline=baseline.name,
        limit=limit,
        confidence=confidence,
        runs=tuple(_compare(baseline, other, limit, confidence, run_scatter) for other in others),
    )


def _check(run: Run) -> None:
    names = [point.name for point in run.points]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise RequestError(
            f"cannot compare run {run.name!r}: expected each point once, {list_text(twice)} stands in it twice"
        )
    for point in run.points:
        if point.failure is None:
            check_seconds(f"{point.name} of run {run.name}", point.seconds, point.interval)


def _compare(baseline: Run, other: Run, limit: float, confidence: float, run_scatter: float) -> ComparedRun:
    before = {point.name: point for point in baseline.points}
    now = {point.name: point for point in other.points}
    both = [name for name in now if name in before and not now[name].failure and not before[name].failure]
    tail = (1 - confidence) / 2
    points = tuple(
        _compare_point(before.get(name), point, limit, tail / max(1, len(both)), run_scatter)
        for name, point in now.items()
    )
    ratio, interval = _overall([(before[name], now[name]) for name in both], tail, run_scatter)
    run = ComparedRun(
        name=other.name,
        points=points,
        not_here=tuple(name for name in before if name not in now),
        ratio=ratio,
        interval=interval,
        slower=any(point.change in ("slower", "fails now") for point in points)
        or (interval is not None and interval[0] > 1 + limit),
        sentence="",
    )
    return msgspec.structs.replace(run, sentence=_sentence(baseline.name, run, len(both), limit))


def _compare_point(
    before: RunPoint | None, now: RunPoint, limit: float, tail: float, run_scatter: float
) -> ComparedPoint:
    old = median_of(before.seconds) if before and not before.failure else None
    new = median_of(now.seconds) if not now.failure else None
    ratio, interval = None, None
    change: Change
    if before is None:
        change = "only here"
    elif now.failure or before.failure:
        change = "fails in both" if now.failure and before.failure else "fails now" if now.failure else "works now"
    else:
        ratio = median_of(now.seconds) / median_of(before.seconds)
        interval = _ratio_interval(before, now, tail, run_scatter)
        change = _judge(interval, limit)
    return ComparedPoint(
        name=now.name, change=change, baseline_seconds=old, seconds=new, ratio=ratio, interval=interval
    )


def _ratio_interval(before: RunPoint, now: RunPoint, tail: float, run_scatter: float) -> tuple[float, float] | None:
    errors = [log_median_error(point.seconds, point.interval) for point in (before, now)]
    if errors[0] is None or errors[1] is None:
        return None
    # Few samples know their own scatter badly; an interval given with the point has that in it already.
    freedom = min(math.inf if point.interval else len(point.seconds) - 1 for point in (before, now))
    reach = _quantile(tail, freedom) * math.hypot(*(error or 0.0 for error in errors), run_scatter)
    ratio = median_of(now.seconds) / median_of(before.seconds)
    return ratio * math.exp(-reach), ratio * math.exp(reach)


def _overall(
    pairs: Sequence[tuple[RunPoint, RunPoint]], tail: float, run_scatter: float
) -> tuple[float | None, tuple[float, float] | None]:
    """The geometric mean of the ratios; what a run has as a whole does not average out over its points."""
    if not pairs:
        return None, None
    ratio = math.exp(sum(math.log(median_of(now.seconds) / median_of(old.seconds)) for old, now in pairs) / len(pairs))
    errors = [log_median_error(point.seconds, point.interval) for pair in pairs for point in pair]
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return ratio, None
    reach = _quantile(tail, math.inf) * math.hypot(math.hypot(*known) / len(pairs), run_scatter)
    return ratio, (ratio * math.exp(-reach), ratio * math.exp(reach))


def _quantile(tail: float, freedom: float) -> float:
    return float(stats.norm.isf(tail) if math.isinf(freedom) else stats.t.isf(tail, freedom))


def _judge(interval: tuple[float, float] | None, limit: float) -> Change:
    if interval is None:
        return "cannot be told"
    if interval[0] > 1 + limit:
        return "slower"
    if interval[1] < 1 / (1 + limit):
        return "faster"
    return "same" if 1 / (1 + limit) <= interval[0] and interval[1] <= 1 + limit else "cannot be told"


def _sentence(baseline: str, run: ComparedRun, num_both: int, limit: float) -> str:
    if run.ratio is None:
        text = f"{run.name} and {baseline} have no point that was timed in both"
    else:
        around = f" {interval_text(run.interval)}" if run.interval else ""
        over = plural(num_both, "point")
        text = f"{run.name} takes {share_text(run.ratio)}{around} times as long as {baseline} over {over}"
    by_change: dict[str, list[str]] = {}
    for point in run.points:
        by_change.setdefault(point.change, []).append(point.name)
    percent = f"{100 * limit:.3g}%"
    words = {
        "slower": f"slower by more than {percent}",
        "faster": f"faster by more than {percent}",
        "same": f"the same within {percent}",
        "cannot be told": "that cannot be told",
        "fails now": "failing now",
        "works now": "working now",
        "fails in both": "failing in both",
        "only here": f"not in {baseline}",
    }
    parts = [f"{len(by_change[change])} {word}" for change, word in words.items() if change in by_change]
    if run.not_here:  # as where a model can no longer be built
        parts.append(f"{len(run.not_here)} only in {baseline}")
    named = by_change.get("slower", []) + by_change.get("fails now", [])
    tail = f" (see {list_text(named)})" if named else ""
    return f"{text}: {', '.join(parts)}{tail}" if parts else text
