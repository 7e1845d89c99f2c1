"""Which law does time follow as one size grows, and how sure is that?

In:  one point per size (batch, pixels, tokens) with the raw samples of its time
Out: a Law: all six shapes fitted and weighed, the one chosen, its parameters, exponents and knee with intervals, a sentence
Nothing here knows what was timed or on what.

Fit. Errors of times are relative, so logarithms are fitted. A point counts by the error of its median, known from its
samples, joined with `POINT_SCATTER`: from size to size other kernels are chosen, so points scatter around any smooth law
however often each is repeated.

Choice. Akaike's criterion with the correction for few points (Hurvich and Tsai, "Regression and time series model selection
in small samples", Biometrika 1989), over all shapes (see `law_forms`). The scatter is estimated as if `PRIOR_POINTS` more
points had been seen that lie off as far as their errors say: so no law is preferred because it passes through three points by
luck, and data without any scatter do not make the criterion infinite. Of laws that differ by less than `TIE` the one with
the fewest parameters is taken.

Intervals. The chosen law is fitted again to many times drawn around it, with the scatter itself uncertain (a parametric
bootstrap). They say how sure the numbers are if the law is right; the weights say how sure the law is.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.fitting import T_FREEDOM, Floats, straight_line, t_weights
from modelhound.analysis.law_forms import SHAPES, Form, Shape
from modelhound.analysis.samples import check_seconds, log_median_error, median_of
from modelhound.analysis.wording import Axis, each_text, interval_text, number_text, seconds_text, share_text, size_text
from modelhound.errors import RequestError

__all__ = ["LEAST_SIZES", "Exponent", "Law", "LawFit", "SweepPoint", "fit_law", "seconds_by_law"]

POINT_SCATTER = 0.02
UNKNOWN_ERROR = 0.05  # of a median that came without samples or interval
PRIOR_POINTS = 3
TIE = 2.0
RULED_OUT = 10.0  # a law whose criterion is worse by this has no support left
LEAST_SIZES = 3

_NUM_RESAMPLES = 1000
_NUM_REWEIGHTINGS = 15

Interval = tuple[float, float]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The time at one size: raw samples, or one number with its 95 % interval."""

    size: float
    seconds: tuple[float, ...]
    interval: Interval | None = None
    host_seconds: float | None = None
    """Until the host has handed over all work, without waiting for the device."""
    device_seconds: float | None = None
    """In which the device was busy: the sum of its kernels, not the time between the first and the last."""
    weight_seconds: float | None = None
    """To read all weights once at the bandwidth of the machine: what a call takes however little it is given."""
    num_kernels: int | None = None
    """Operators that are started one after the other."""
    flops: float | None = None
    """What is computed."""


class LawFit(msgspec.Struct, frozen=True, kw_only=True):
    """One shape, fitted. Intervals only where the law was chosen."""

    form: Form
    parameters: dict[str, float]
    intervals: dict[str, Interval]
    relative_scatter: float
    """How far points lie off the law, typically."""
    aicc: float
    weight: float
    """The share of belief in this law among all fitted."""


class Exponent(msgspec.Struct, frozen=True, kw_only=True):
    """d log(time) / d log(size): 0 constant, 1 proportional, 2 with the square."""

    overall: float
    """Slope of the straight line through the logarithms of all points."""
    overall_interval: Interval
    at_start: float
    """Of the chosen law, at the smallest size."""
    at_start_interval: Interval
    at_end: float
    """Of the chosen law, at the largest size."""
    at_end_interval: Interval
    past_knee: float | None = None
    """Slope through the points beyond the knee, where there are three."""
    past_knee_interval: Interval | None = None


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep along one axis says. Without `chosen`, it cannot be told, and the sentence says why."""

    axis: Axis
    num_points: int
    smallest: float | None
    largest: float | None
    confidence: float
    chosen: LawFit | None
    candidates: tuple[LawFit, ...]
    """All shapes, best first."""
    exponent: Exponent | None
    knee: float | None
    knee_interval: Interval | None
    sentence: str


class _Sweep(NamedTuple):
    sizes: Floats  # sorted
    log_times: Floats
    errors: Floats  # of the log times

    @property
    def weights(self) -> Floats:
        return 1 / self.errors**2


class _Fitted(NamedTuple):
    shape: Shape
    parameters: Floats
    scatter: float  # in units of the points' own errors
    aicc: float


def fit_law(
    points: Sequence[SweepPoint],
    *,
    axis: Axis = "size",
    confidence: float = 0.95,
    robust: bool = False,
    doubt: str = "",
    seed: int = 0,
    num_resamples: int = _NUM_RESAMPLES,
) -> Law:
    """Fit all shapes and choose; `robust` lets single points lie far off without bending the law.

    With a `doubt` about the points, none is told but that.
    """
    _check(points, confidence)
    points = sorted(points, key=lambda point: point.size)
    sizes = np.array([point.size for point in points], dtype=np.float64)
    if doubt:
        return _untold(axis, sizes, doubt, confidence)
    num_sizes = len(np.unique(sizes))
    if num_sizes < LEAST_SIZES:
        have = "1 size is" if num_sizes == 1 else f"{num_sizes} sizes are"
        return _untold(axis, sizes, f"{have} measured, and a law needs {LEAST_SIZES} or more", confidence)
    log_times = np.log([median_of(point.seconds) for point in points])
    sweep = _Sweep(sizes, log_times, np.array([_point_error(point) for point in points]))
    fits = [_fit(shape, sweep, robust) for shape in SHAPES if num_sizes >= shape.least_sizes]
    chosen = _choose(fits)
    drawn, redone = _redo(chosen, sweep, seed, num_resamples)
    intervals = {name: _interval(redone[:, at], confidence) for at, name in enumerate(chosen.shape.parameters)}
    for rival in (fit for fit in fits if fit is not chosen and fit.aicc <= chosen.aicc + RULED_OUT):
        # Whether a hinge's line comes from the origin is rarely sure and moves the knee: the interval spans both.
        if chosen.shape.form == rival.shape.form == "hinge":
            low, high = _interval(_redo(rival, sweep, seed, num_resamples)[1][:, 1], confidence)
            intervals["knee"] = min(low, intervals["knee"][0]), max(high, intervals["knee"][1])
    rows = _weigh(fits, chosen, intervals, float(np.median(sweep.errors)))
    law = Law(
        axis=axis,
        num_points=len(points),
        smallest=float(sizes[0]),
        largest=float(sizes[-1]),
        confidence=confidence,
        chosen=next(row for row in rows if row.form == chosen.shape.form),
        candidates=rows,
        exponent=_exponents(chosen, redone, drawn, sweep, confidence),
        knee=float(chosen.parameters[1]) if chosen.shape.form == "hinge" else None,
        knee_interval=intervals.get("knee"),
        sentence="",
    )
    return msgspec.structs.replace(law, sentence=_sentence(law))


def seconds_by_law(fit: LawFit, sizes: Sequence[float]) -> tuple[float, ...]:
    """The law's times at any sizes."""
    names = tuple(fit.parameters)
    shape = next(shape for shape in SHAPES if (shape.form, shape.parameters) == (fit.form, names))
    values = shape.value(np.array([fit.parameters[name] for name in names]), np.asarray(sizes, dtype=np.float64))
    return tuple(float(value) for value in values)


def _check(points: Sequence[SweepPoint], confidence: float) -> None:
    if not 0 < confidence < 1:
        raise RequestError(
            f"cannot give intervals of confidence {confidence!r}: expected a number between 0 and 1, take 0.95"
        )
    for point in points:
        if not (math.isfinite(point.size) and point.size > 0):
            raise RequestError(
                f"cannot fit a law at size {point.size!r}: expected a positive number, leave the point out"
            )
        check_seconds(f"size {number_text(point.size)}", point.seconds, point.interval)


def _untold(axis: Axis, sizes: Floats, why: str, confidence: float) -> Law:
    return Law(
        axis=axis,
        num_points=len(sizes),
        smallest=float(sizes[0]) if len(sizes) else None,
        largest=float(sizes[-1]) if len(sizes) else None,
        confidence=confidence,
        chosen=None,
        candidates=(),
        exponent=None,
        knee=None,
        knee_interval=None,
        sentence=f"cannot be told: {why}",
    )


def _point_error(point: SweepPoint) -> float:
    error = log_median_error(point.seconds, point.interval)
    return UNKNOWN_ERROR if error is None else math.hypot(error, POINT_SCATTER)


def _fit(shape: Shape, sweep: _Sweep, robust: bool) -> _Fitted:
    num_all = len(sweep.sizes) + PRIOR_POINTS
    variance = 1.0
    parameters = shape.fit(sweep.sizes, sweep.log_times, sweep.weights, None)
    squares = _squares(shape, parameters, sweep)
    if robust:
        for _ in range(_NUM_REWEIGHTINGS):
            counted = t_weights(squares / variance)
            variance = float((counted * squares).sum() + PRIOR_POINTS) / num_all
            parameters = shape.fit(sweep.sizes, sweep.log_times, sweep.weights * counted, None)
            squares = _squares(shape, parameters, sweep)
        spread = (T_FREEDOM + 1) * np.log1p(squares / (T_FREEDOM * variance)).sum() + PRIOR_POINTS / variance
        misfit = num_all * math.log(variance) + float(spread)
    else:
        variance = float(squares.sum() + PRIOR_POINTS) / num_all
        misfit = num_all * math.log(variance)
    num_unknown = len(shape.parameters) + 1  # the scatter is unknown too
    penalty = 2 * num_unknown + 2 * num_unknown * (num_unknown + 1) / (num_all - num_unknown - 1)
    return _Fitted(shape, parameters, math.sqrt(variance), misfit + penalty)


def _squares(shape: Shape, parameters: Floats, sweep: _Sweep) -> Floats:
    off = sweep.log_times - np.log(shape.value(parameters, sweep.sizes))
    return np.asarray((off / sweep.errors) ** 2)


def _choose(fits: Sequence[_Fitted]) -> _Fitted:
    best = min(fit.aicc for fit in fits)
    close = [fit for fit in fits if fit.aicc <= best + TIE]
    fewest = min(len(fit.shape.parameters) for fit in close)
    return min((fit for fit in close if len(fit.shape.parameters) == fewest), key=lambda fit: fit.aicc)


def _redo(fit: _Fitted, sweep: _Sweep, seed: int, num_resamples: int) -> tuple[Floats, Floats]:
    """Log times as other runs might have measured them if the law is right, [num_resamples, n], and the law fitted to each."""
    generator = np.random.default_rng(seed)
    num_points = len(sweep.sizes)
    freedom = num_points + PRIOR_POINTS - len(fit.shape.parameters)
    scatter = fit.scatter * math.sqrt((num_points + PRIOR_POINTS) / freedom)
    unsure = np.sqrt(freedom / generator.chisquare(freedom, (num_resamples, 1)))
    noise = generator.standard_normal((num_resamples, num_points))
    drawn = np.log(fit.shape.value(fit.parameters, sweep.sizes)) + scatter * sweep.errors * unsure * noise
    return drawn, fit.shape.fit(sweep.sizes, drawn, sweep.weights, fit.parameters)


def _exponents(fit: _Fitted, redone: Floats, drawn: Floats, sweep: _Sweep, confidence: float) -> Exponent:
    sizes, weights = sweep.sizes, sweep.weights
    slope, first, last = fit.shape.slope, float(sizes[0]), float(sizes[-1])
    by_law = np.log(fit.shape.value(fit.parameters, sizes))

    def line_slope(where: NDArray[np.bool_]) -> tuple[float, Interval]:
        measured, lawful, redrawn = (
            straight_line(np.log(sizes[where]), values[..., where], weights[where])[1]
            for values in (sweep.log_times, by_law, drawn)
        )
        return float(measured), _interval(
            measured + redrawn - lawful, confidence
        )  # the spread, around what was measured

    overall, overall_interval = line_slope(np.ones(len(sizes), dtype=bool))
    past_knee, past_knee_interval = None, None
    if fit.shape.form == "hinge":
        past = sizes > fit.parameters[1]
        if len(np.unique(sizes[past])) >= LEAST_SIZES:
            past_knee, past_knee_interval = line_slope(past)
    return Exponent(
        overall=overall,
        overall_interval=overall_interval,
        at_start=float(slope(fit.parameters, first)),
        at_start_interval=_interval(slope(redone, first), confidence),
        at_end=float(slope(fit.parameters, last)),
        at_end_interval=_interval(slope(redone, last), confidence),
        past_knee=past_knee,
        past_knee_interval=past_knee_interval,
    )


def _weigh(
    fits: Sequence[_Fitted], chosen: _Fitted, intervals: dict[str, Interval], typical_error: float
) -> tuple[LawFit, ...]:
    """One row per form, best first; the hinge stands with the variant that was chosen, else with its better one."""
    by_form: dict[str, _Fitted] = {}
    for fit in sorted(fits, key=lambda fit: (fit is not chosen, fit.aicc)):
        by_form.setdefault(fit.shape.form, fit)
    rows = sorted(by_form.values(), key=lambda fit: fit.aicc)
    beliefs = [math.exp((rows[0].aicc - fit.aicc) / 2) for fit in rows]
    return tuple(
        LawFit(
            form=fit.shape.form,
            parameters={name: float(value) for name, value in zip(fit.shape.parameters, fit.parameters, strict=True)},
            intervals=intervals if fit is chosen else {},
            relative_scatter=fit.scatter * typical_error,
            aicc=fit.aicc,
            weight=belief / sum(beliefs),
        )
        for fit, belief in zip(rows, beliefs, strict=True)
    )


def _interval(samples: Floats, confidence: float) -> Interval:
    low, high = np.quantile(samples, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(high)


def _sentence(law: Law) -> str:
    chosen, smallest, largest = law.chosen, law.smallest, law.largest
    if chosen is None or smallest is None or largest is None:
        return law.sentence
    text = f"{_describe(law, chosen, largest)}, from {size_text(law.axis, smallest)} to {size_text(law.axis, largest)}"
    rivals = [row.form for row in law.candidates if row is not chosen and row.aicc <= chosen.aicc + TIE]
    return f"{text}; {' or '.join(rivals)} would fit about as well" if rivals else text


def _describe(law: Law, chosen: LawFit, largest: float) -> str:
    values, each = chosen.parameters, each_text(law.axis)
    if chosen.form == "constant":
        return f"constant at {seconds_text(values['seconds'])}"
    if chosen.form == "proportional":
        return f"proportional, {seconds_text(values['each_seconds'])} per {each}"
    if chosen.form == "power":
        around = interval_text(chosen.intervals["exponent"])
        return f"grows with the power {share_text(values['exponent'])} {around}"
    if chosen.form == "hinge":
        further = values["floor_seconds"] * values.get("bend", 1.0) / values["knee"]
        knee = size_text(law.axis, values["knee"], law.knee_interval)
        return f"flat at {seconds_text(values['floor_seconds'])} up to {knee}, then {seconds_text(further)} per {each}"
    fixed, rate = seconds_text(values["fixed_seconds"]), f"{seconds_text(values['each_seconds'])} per {each}"
    if chosen.form == "affine":
        return f"affine, {fixed} fixed and {rate}"
    share = values["square_seconds"] * largest**2 / seconds_by_law(chosen, [largest])[0]
    return f"quadratic, {fixed} fixed, {rate} and a square that makes {share_text(share)} of the time at the largest"
