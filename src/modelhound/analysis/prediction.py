"""How long will a model take that was never run, after a few others were timed on the same device?

In:  anchors: models with their FLOPs, activation bytes and measured time on one device, in one setting or in several
Out: a Predictor, which gives a time with an interval for any other model; its error on models it has not seen
Nothing here counts a FLOP or knows what a model is.

    sum       seconds = fixed + FLOPs / rate + bytes / bandwidth
    kernels   seconds = kernels x launch + FLOPs / rate + bytes / bandwidth      where the number of kernels is known
    roofline  seconds = kernels x launch + a x compute + b x memory              what operators would take at either ceiling
    overlap   seconds = kernels x launch or a x compute + b x memory             whichever is larger: a GPU works while the
                                                                                 host hands over what comes next
    reordered, reordered overlap    the two before, with what it takes to bring tensors of convolutions into another order
    power     seconds = unit x FLOPs^f x bytes^b                                 f and b are held near a half

None has a negative part, and all are fitted in relative error. The one is taken whose predictions for each anchor from all
others are best. Time per FLOP differs between architectures, so a predictor is never surer than `PRIOR_SCATTER`, as if
`PRIOR_ANCHORS` more models had been seen that lie off by that much.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from scipy import stats

from modelhound.analysis.fitting import Floats, fit_terms, join_terms
from modelhound.errors import RequestError

__all__ = [
    "LEAST_ANCHORS",
    "Anchor",
    "PredictedTime",
    "PredictionError",
    "Predictor",
    "fit_predictor",
    "leave_one_model_out",
    "predict_anchor",
    "predict_seconds",
]

Kind = Literal["sum", "kernels", "roofline", "overlap", "reordered", "reordered overlap", "power"]

LEAST_ANCHORS = 5
PRIOR_SCATTER = 0.2
PRIOR_ANCHORS = 2
EXPONENT_SCATTER = 0.25  # of the exponents of the power form, around a half

Costs = tuple[float, float, int | None, float | None, float | None, float | None]

_REORDERED: tuple[Kind, ...] = ("reordered", "reordered overlap")
_AT_CEILINGS: tuple[Kind, ...] = ("roofline", "overlap", *_REORDERED)
_NO_TIME = 1e-12  # a model without an operator of a kind
# Between the two a call is now held up by the one, now by the other: 2^(1/4) is 1.2.
_SHARPNESS = {"overlap": 4.0, "reordered overlap": 4.0}
_LOOSE = 3.0  # an undetermined coefficient may be wrong by e^3


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """One model that was timed."""

    model: str
    setting: str = ""
    """Its shape of input, where models are timed in several."""
    flops: float
    activation_bytes: float
    seconds: float
    num_kernels: int | None = None
    compute_seconds: float | None = None
    """Of its operators that are bound by computing, at the ceiling."""
    memory_seconds: float | None = None
    """Of those that are bound by memory."""
    reorder_seconds: float | None = None
    """To bring tensors of convolutions into the order that quick kernels want, and back."""

    @property
    def costs(self) -> "Costs":
        return (
            *(self.flops, self.activation_bytes, self.num_kernels),
            *(self.compute_seconds, self.memory_seconds, self.reorder_seconds),
        )


class Predictor(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients for one setting of one device, and how far models lie off."""

    kind: Kind
    log_coefficients: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    """Of the logarithms of the coefficients, in units of the scatter."""
    scatter: float
    """Relative, of one model around the prediction."""
    freedom: float
    num_anchors: int


class PredictedTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one model, not measured."""

    seconds: float
    interval: tuple[float, float]
    confidence: float


class PredictionError(msgspec.Struct, frozen=True, kw_only=True):
    """How far each model's time lies off when predicted from all the others."""

    median_error: float
    """Of |predicted / measured - 1|."""
    errors: dict[str, float]
    """Model -> predicted / measured - 1, the median over its settings."""
    within: float
    """The share of measured times that lie in their intervals."""
    confidence: float
    sentence: str


def fit_predictor(anchors: Sequence[Anchor]) -> Predictor:
    """Learn a device from five or more models."""
    _check(anchors)
    return _fit(anchors)


def predict_seconds(
    predictor: Predictor,
    *,
    flops: float,
    activation_bytes: float,
    num_kernels: int | None = None,
    compute_seconds: float | None = None,
    memory_seconds: float | None = None,
    reorder_seconds: float | None = None,
    confidence: float = 0.9,
) -> PredictedTime:
    """The time of one model, and between what it lies."""
    if predictor.kind in _AT_CEILINGS and (compute_seconds is None or memory_seconds is None):
        raise RequestError(
            "cannot predict without compute_seconds and memory_seconds: expected them, for the anchors had them"
        )
    if predictor.kind in _REORDERED and reorder_seconds is None:
        raise RequestError("cannot predict without reorder_seconds: expected it, for the anchors had it")
    if predictor.kind in ("kernels", *_AT_CEILINGS) and num_kernels is None:
        raise RequestError("cannot predict without num_kernels: expected it, for the anchors had it, count the kernels")
    if not 0 < confidence < 1:
        raise RequestError(
            f"cannot predict with confidence {confidence!r}: expected a number between 0 and 1, take 0.9"
        )
    _check_costs("a model", flops, activation_bytes, num_kernels)
    costs = (flops, activation_bytes, num_kernels, compute_seconds, memory_seconds, reorder_seconds)
    terms = _terms(predictor.kind, [costs])
    log_seconds, row = _evaluate(predictor.kind, terms, np.array(predictor.log_coefficients))
    spread = float(row[0] @ np.array(predictor.covariance) @ row[0])
    reach = float(stats.t.ppf((1 + confidence) / 2, predictor.freedom)) * predictor.scatter * math.sqrt(1 + spread)
    middle = float(log_seconds[0])
    return PredictedTime(
        seconds=math.exp(middle), interval=(math.exp(middle - reach), math.exp(middle + reach)), confidence=confidence
    )


def predict_anchor(predictor: Predictor, anchor: Anchor, *, confidence: float = 0.9) -> PredictedTime:
    """What would have been said of a model that was timed."""
    return predict_seconds(
        predictor,
        flops=anchor.flops,
        activation_bytes=anchor.activation_bytes,
        num_kernels=anchor.num_kernels,
        compute_seconds=anchor.compute_seconds,
        memory_seconds=anchor.memory_seconds,
        reorder_seconds=anchor.reorder_seconds,
        confidence=confidence,
    )


def leave_one_model_out(anchors: Sequence[Anchor], *, confidence: float = 0.9) -> PredictionError:
    """Predict each model, in all its settings, from all the others, choice of the form included."""
    _check(anchors)
    models = list(dict.fromkeys(anchor.model for anchor in anchors))
    logs: dict[str, list[float]] = {model: [] for model in models}
    num_within = 0
    for model in models:
        predictor = _fit([anchor for anchor in anchors if anchor.model != model])
        for anchor in (anchor for anchor in anchors if anchor.model == model):
            guess = predict_anchor(predictor, anchor, confidence=confidence)
            logs[model].append(math.log(guess.seconds / anchor.seconds))
            num_within += guess.interval[0] <= anchor.seconds <= guess.interval[1]
    errors = {model: math.exp(float(np.median(ratios))) - 1 for model, ratios in logs.items()}
    every = [ratio for ratios in logs.values() for ratio in ratios]
    median = float(np.median([abs(math.expm1(ratio)) for ratio in every]))
    worst = max(errors, key=lambda model: abs(math.log1p(errors[model])))
    return PredictionError(
        median_error=median,
        errors=errors,
        within=num_within / len(anchors),
        confidence=confidence,
        sentence=(
            f"predicted from the other {len(models) - 1}, a model's time is off by {median:.0%} in the median; "
            f"farthest off is {worst} by {errors[worst]:+.0%}"
        ),
    )


def _check(anchors: Sequence[Anchor]) -> None:
    if len({(anchor.model, anchor.setting) for anchor in anchors}) < len(anchors):
        raise RequestError("cannot learn from anchors that share a name: expected each model once in each setting")
    num_models = len({anchor.model for anchor in anchors})
    if num_models < LEAST_ANCHORS:
        raise RequestError(
            f"cannot predict from {num_models} anchors: expected {LEAST_ANCHORS} or more models with a time, measure more"
        )
    for anchor in anchors:
        _check_costs(anchor.model, anchor.flops, anchor.activation_bytes, anchor.num_kernels)
        if not (math.isfinite(anchor.seconds) and anchor.seconds > 0):
            raise RequestError(
                f"cannot learn from {anchor.model!r} of {anchor.seconds!r} seconds: expected a positive time, leave it out"
            )


def _check_costs(model: str, flops: float, activation_bytes: float, num_kernels: int | None) -> None:
    for name, value in (("FLOPs", flops), ("activation bytes", activation_bytes), ("kernels", num_kernels)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise RequestError(
                f"cannot predict {model} with {value!r} {name}: expected a positive number, count them again"
            )


def _fit(anchors: Sequence[Anchor]) -> Predictor:
    costs = [anchor.costs for anchor in anchors]
    kinds: tuple[Kind, ...] = ("sum", "power")
    if all(anchor.num_kernels is not None for anchor in anchors):
        kinds = ("sum", "kernels", "power")
        if all(anchor.compute_seconds is not None and anchor.memory_seconds is not None for anchor in anchors):
            kinds = ("sum", "kernels", "roofline", "overlap", "power")
            if all(anchor.reorder_seconds is not None for anchor in anchors):
                kinds = (*kinds, *_REORDERED)
    log_seconds = np.log([anchor.seconds for anchor in anchors])
    models = list(dict.fromkeys(anchor.model for anchor in anchors))
    others = np.array([[float(anchor.model != model) for anchor in anchors] for model in models])
    kind = min(kinds, key=lambda kind: _left_out_loss(kind, _terms(kind, costs), log_seconds, others))
    terms = _terms(kind, costs)
    coefficients = _solve(kind, terms, log_seconds, np.ones(len(anchors)))
    fitted, rows = _evaluate(kind, terms, coefficients)
    # Settings of one model lie off together: what counts is the number of models.
    freedom = len(models) + PRIOR_ANCHORS - len(coefficients)
    squares = len(models) * float(((log_seconds - fitted) ** 2).mean()) + PRIOR_ANCHORS * PRIOR_SCATTER**2
    scatter = math.sqrt(squares / freedom)
    covariance = np.linalg.inv(rows.T @ rows + np.diag(_prior_weights(kind, len(coefficients))))
    return Predictor(
        kind=kind,
        log_coefficients=tuple(float(value) for value in coefficients),
        covariance=tuple(tuple(float(value) for value in row) for row in covariance),
        scatter=scatter,
        freedom=float(freedom),
        num_anchors=len(models),
    )


def _terms(kind: Kind, costs: "Sequence[Costs]") -> Floats:
    """What is multiplied by the coefficients, [n, 3]; of the power form the logarithms, which are added."""
    flops, moved, kernels = (np.array([cost[at] or 1.0 for cost in costs], dtype=np.float64) for at in range(3))
    if kind in _AT_CEILINGS:
        computing, moving = (np.array([cost[at] or _NO_TIME for cost in costs], dtype=np.float64) for at in (3, 4))
        if kind in _REORDERED:
            moving = moving + np.array([cost[5] or 0.0 for cost in costs], dtype=np.float64)
        return np.stack([kernels, computing, moving], axis=1)
    ones = np.ones(len(costs))
    if kind == "power":
        return np.stack([ones, np.log(flops), np.log(moved)], axis=1)
    return np.stack([kernels if kind == "kernels" else ones, flops, moved], axis=1)


def _left_out_loss(kind: Kind, terms: Floats, log_seconds: Floats, others: Floats) -> float:
    """Mean squared log error over anchors, those of each model predicted from the `others` [models, n], which are 1 and 0."""
    coefficients = _solve(kind, terms, log_seconds, others)
    squares = 0.0
    for at, kept in enumerate(others):
        left_out = kept == 0
        predicted = _evaluate(kind, terms[left_out], coefficients[at])[0]
        squares += float(((log_seconds[left_out] - predicted) ** 2).sum())
    return squares / len(log_seconds)


def _solve(kind: Kind, terms: Floats, log_seconds: Floats, weights: Floats) -> Floats:
    """Coefficients [..., 3] for weights [..., n]; logarithms of them, but for the exponents of the power form."""
    if kind != "power":
        shape = weights.shape
        everywhere = np.broadcast_to(terms, (*shape, terms.shape[-1]))
        values = np.broadcast_to(log_seconds, shape)
        return fit_terms(everywhere, values, weights, sharpness=_SHARPNESS.get(kind, 1.0)).log_coefficients
    prior = _prior_weights(kind, 3)
    centre = np.array([0.0, 0.5, 0.5])
    curvature = np.einsum("...n,ni,nj->...ij", weights, terms, terms) + np.diag(prior)
    pull = np.einsum("...n,ni,n->...i", weights, terms, log_seconds) + prior * centre
    return np.asarray(np.linalg.solve(curvature, pull[..., None])[..., 0])


def _prior_weights(kind: Kind, num_coefficients: int) -> Floats:
    """How firmly each coefficient is held before anything is seen, in units of the scatter of one anchor."""
    if kind == "power":
        return np.array([0.0, 1.0, 1.0]) * (PRIOR_SCATTER / EXPONENT_SCATTER) ** 2
    return np.full(num_coefficients, (PRIOR_SCATTER / _LOOSE) ** 2)


def _evaluate(kind: Kind, terms: Floats, coefficients: Floats) -> tuple[Floats, Floats]:
    """Logarithms of the times [n], and how they move with each coefficient [n, 3]."""
    if kind == "power":
        return terms @ coefficients, terms
    return join_terms(terms * np.exp(coefficients), _SHARPNESS.get(kind, 1.0))
