"""Three claims about latency, each answered: holds, does not hold, cannot be told from this data.

    H1   latency is proportional to batch size
    H2   latency is proportional to the number of pixels
    H3   a transformer's latency is proportional to the sequence length; Longformer's is constant

In:  the points of one sweep of one model, with host and device times where they were measured
Out: an Answer per model with its law and a sentence that says why; a Conclusion over many models
Nothing here knows how a point was measured.

Each is an equivalence test (Schuirmann, "A comparison of the two one-sided tests procedure", 1987). Proportional means an
exponent of 1, constant one of 0, and both mean it up to a margin: the claim holds where the whole interval of the exponent
lies inside the margin, does not hold where all of it lies outside, and cannot be told otherwise. An interval of 90 % errs in
each direction in 5 % of cases. A bent curve may have the right exponent on average; so a claim also fails
where the law's exponent at one end is off by more than `END_MARGINS` margins, interval and all.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from modelhound.analysis.laws import Law, LawFit, SweepPoint, fit_law, seconds_by_law
from modelhound.analysis.roofline import Regime, find_regime
from modelhound.analysis.samples import median_of
from modelhound.analysis.wording import Axis, interval_text, list_text, number_text, seconds_text, share_text, size_text
from modelhound.errors import RequestError

__all__ = [
    "HYPOTHESES",
    "Answer",
    "Conclusion",
    "Hypothesis",
    "Verdict",
    "answer_hypothesis",
    "conclude",
    "hypothesis_of",
]

Verdict = Literal["holds", "does not hold", "cannot be told"]

END_MARGINS = 3
_CONFIDENCE = 0.9  # an interval of so much lies within the margins where both one-sided tests at 5 % say so
_SAME_WORK = 1.02


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """A claim on how latency grows along one axis."""

    name: str
    axis: Axis
    exponent: float
    relation: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep of one model says on one hypothesis."""

    hypothesis: Hypothesis
    model: str
    verdict: Verdict
    margin: float
    law: Law
    floor: Regime | None
    """What the flat part is bound by, where there is one and host or device times are known."""
    cause: str = ""
    """Why a part of the time does not grow, where there is such a part."""
    device_law: Law | None = None
    """The law of what the device is busy for, without its waiting; None where that is not known at every point."""
    sentence: str


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What all models together say: a claim holds if it holds for each, and one exception refutes it."""

    name: str
    verdict: Verdict
    holds_for: tuple[str, ...]
    fails_for: tuple[str, ...]
    untold_for: tuple[str, ...]
    sentence: str


HYPOTHESES = (
    Hypothesis(name="H1", axis="batch", exponent=1.0, relation="proportional to batch size"),
    Hypothesis(name="H2", axis="pixels", exponent=1.0, relation="proportional to the number of pixels"),
    Hypothesis(name="H3", axis="tokens", exponent=1.0, relation="proportional to sequence length"),
    Hypothesis(name="H3", axis="tokens", exponent=0.0, relation="constant in sequence length"),
)


def hypothesis_of(axis: Axis, model: str) -> Hypothesis:
    """The claim made for this axis; on sequence length another one is made for Longformer."""
    exponent = 0.0 if axis == "tokens" and "longformer" in model.lower() else 1.0
    for hypothesis in HYPOTHESES:
        if (hypothesis.axis, hypothesis.exponent) == (axis, exponent):
            return hypothesis
    raise RequestError(f"cannot test a hypothesis along {axis!r}: expected batch, pixels or tokens")


def answer_hypothesis(
    hypothesis: Hypothesis,
    points: Sequence[SweepPoint],
    *,
    model: str,
    margin: float = 0.1,
    robust: bool = False,
    doubt: str = "",
    seed: int = 0,
) -> Answer:
    """Test one claim on one sweep; a `doubt` about its points is all that is told of them."""
    if not margin > 0:
        raise RequestError(f"cannot test {hypothesis.name} with margin {margin!r}: expected more than 0, take 0.1")
    law = fit_law(points, axis=hypothesis.axis, confidence=_CONFIDENCE, robust=robust, doubt=doubt, seed=seed)
    floor = _floor_regime(law, points)
    verdict = _judge(law, hypothesis.exponent, margin)
    answer = Answer(
        hypothesis=hypothesis,
        model=model,
        verdict=verdict,
        margin=margin,
        law=law,
        floor=floor,
        cause=_cause(law, floor, points),
        device_law=_device_law(law, points, seed),
        sentence="",
    )
    return msgspec.structs.replace(answer, sentence=_sentence(answer))


def conclude(answers: Sequence[Answer]) -> Conclusion:
    """One answer from those of many models to the same hypothesis."""
    names = sorted({answer.hypothesis.name for answer in answers})
    if len(names) != 1:
        raise RequestError(
            f"cannot conclude from answers to {names!r}: expected answers to one hypothesis, group them by name"
        )
    groups: dict[Verdict, tuple[str, ...]] = {"holds": (), "does not hold": (), "cannot be told": ()}
    for answer in answers:
        groups[answer.verdict] += (answer.model,)
    verdict: Verdict = (
        "does not hold" if groups["does not hold"] else "cannot be told" if groups["cannot be told"] else "holds"
    )
    told = [f"{group} for {list_text(models)}" for group, models in groups.items() if models and group != verdict]
    rest = f"; it {' and '.join(told)}" if told else ""
    return Conclusion(
        name=names[0],
        verdict=verdict,
        holds_for=groups["holds"],
        fails_for=groups["does not hold"],
        untold_for=groups["cannot be told"],
        sentence=f"{names[0]} {verdict} for {list_text(groups[verdict])}{rest}.",
    )


def _judge(law: Law, exponent: float, margin: float) -> Verdict:
    found = law.exponent
    if found is None:
        return "cannot be told"
    low, high = found.overall_interval
    if high < exponent - margin or low > exponent + margin:
        return "does not hold"
    if low < exponent - margin or high > exponent + margin:
        return "cannot be told"
    reach = END_MARGINS * margin
    bent = any(
        high < exponent - reach or low > exponent + reach
        for low, high in (found.at_start_interval, found.at_end_interval)
    )
    return "does not hold" if bent else "holds"


def _floor_regime(law: Law, points: Sequence[SweepPoint]) -> Regime | None:
    """What the points are bound by that the law takes for its flat part; the median one where there are several."""
    if law.chosen is None or law.smallest is None or law.chosen.form in ("proportional", "power"):
        return None
    last = {"hinge": law.knee, "constant": law.largest}.get(law.chosen.form) or law.smallest
    regimes = [
        find_regime(median_of(point.seconds), host_seconds=point.host_seconds, device_seconds=point.device_seconds)
        for point in points
        if point.size <= last and (point.host_seconds is not None or point.device_seconds is not None)
    ]
    if not regimes:
        return None
    with_device = sorted(
        (regime.waiting_share, at) for at, regime in enumerate(regimes) if regime.waiting_share is not None
    )
    return regimes[with_device[len(with_device) // 2][1] if with_device else len(regimes) // 2]


def _device_law(law: Law, points: Sequence[SweepPoint], seed: int) -> Law | None:
    """How the work itself grows, whatever the host does meanwhile."""
    busy = [
        SweepPoint(size=point.size, seconds=(point.device_seconds,))
        for point in points
        if point.device_seconds is not None and point.device_seconds > 0
    ]
    if law.chosen is None or len(busy) < len(points):
        return None
    return fit_law(busy, axis=law.axis, confidence=_CONFIDENCE, seed=seed)


def _sentence(answer: Answer) -> str:
    name, law, expected = answer.hypothesis.name, answer.law, answer.hypothesis.exponent
    if law.exponent is None or law.smallest is None or law.largest is None:
        return f"{name} {answer.verdict} for {answer.model}: {law.sentence.removeprefix('cannot be told: ')}."
    seen = f"exponent {share_text(law.exponent.overall)} {interval_text(law.exponent.overall_interval)}"
    allowed = f"{number_text(expected)} ± {number_text(answer.margin)}"
    where = f"from {size_text(law.axis, law.smallest)} to {size_text(law.axis, law.largest)}"
    relation = answer.hypothesis.relation
    if answer.verdict == "holds":
        return f"{name} holds for {answer.model}: latency is {relation} {where}, {seen}, within {allowed}."
    if answer.verdict == "cannot be told":
        return (
            f"{name} cannot be told for {answer.model} from this data: {seen} {where} lies neither inside nor outside "
            f"{allowed}; more sizes or samples would tell."
        )
    if abs(law.exponent.overall - expected) < answer.margin:
        ends = (
            f"{share_text(law.exponent.at_start)} at the smallest and {share_text(law.exponent.at_end)} at the largest"
        )
        seen = f"{seen} on average but {ends},"
    reason = f"{_reason(answer)}{_device_part(answer)}"
    return f"{name} does not hold for {answer.model}: latency is not {relation} {where}, {seen} against {allowed}. {reason}"


def _device_part(answer: Answer) -> str:
    """Where the device waits: how its own part grows."""
    whole, busy = answer.law.exponent, answer.device_law.exponent if answer.device_law else None
    if whole is None or busy is None or answer.floor is None or answer.floor.bound != "launch":
        return ""
    if busy.overall_interval[0] <= whole.overall_interval[1]:
        return ""
    grown = f"exponent {share_text(busy.overall)} {interval_text(busy.overall_interval)}"
    return f" What the device is busy for grows all the while, with {grown}."


def _reason(answer: Answer) -> str:
    law = answer.law
    chosen, exponent = law.chosen, law.exponent
    if chosen is None or exponent is None or law.smallest is None or law.largest is None:
        return ""
    values = chosen.parameters
    if chosen.form == "hinge" and law.knee is not None:
        past = "then it grows in a straight line"
        if exponent.past_knee is not None and exponent.past_knee_interval is not None:
            past = f"past that the exponent is {share_text(exponent.past_knee)} {interval_text(exponent.past_knee_interval)}"
        return f"Flat up to {size_text(law.axis, law.knee, law.knee_interval)}: {answer.cause}; {past}."
    if chosen.form == "constant":
        return f"Flat all the way at {seconds_text(values['seconds'])}: {answer.cause}."
    if chosen.form == "affine":
        share = values["fixed_seconds"] / seconds_by_law(chosen, [law.smallest])[0]
        fixed = f"{seconds_text(values['fixed_seconds'])} of each call does not grow, {share:.0%} of the smallest"
        return f"{fixed}: {answer.cause}."
    if chosen.form == "quadratic":
        share = values["square_seconds"] * law.largest**2 / seconds_by_law(chosen, [law.largest])[0]
        like = ", as attention over all pairs of tokens does," if law.axis == "tokens" else ""
        return f"A part that grows with the square{like} makes {share_text(share)} of the time at the largest."
    return f"It grows with the power {share_text(exponent.at_end)} {interval_text(exponent.at_end_interval)}."


def _cause(law: Law, floor: Regime | None, points: Sequence[SweepPoint]) -> str:
    """Why a part of the time does not grow, as far as it was seen."""
    if law.chosen is None or law.chosen.form in ("proportional", "power"):
        return ""
    same_work = _same_work(law, points)
    if same_work:
        return same_work
    if floor is None:
        return _host_cause(law.chosen, points)
    if floor.bound == "launch":
        return floor.sentence.replace("launch-bound: ", "launch-bound, ")
    if floor.waiting_share is not None:
        busy = share_text(1 - floor.waiting_share)
        return (
            f"not launch-bound, the device is busy {busy} of the time, so its kernels take as long for few as for more"
        )
    return "not launch-bound, the host has handed all work over early"


def _same_work(law: Law, points: Sequence[SweepPoint]) -> str:
    """Where the flat part computes the same whatever its size, nothing else needs to be explained."""
    last = {"hinge": law.knee, "constant": law.largest}.get(law.chosen.form if law.chosen else "")
    flat = sorted((point for point in points if last and point.size <= last), key=lambda point: point.size)
    if len(flat) < 2 or not flat[0].flops or not flat[-1].flops or flat[-1].flops > _SAME_WORK * flat[0].flops:
        return ""
    return (
        f"the work itself does not grow there, {number_text(flat[0].flops * 1e-9)} GFLOP at "
        f"{size_text(law.axis, flat[0].size)} as at {size_text(law.axis, flat[-1].size)}, because smaller inputs are padded"
    )


def _host_cause(chosen: LawFit, points: Sequence[SweepPoint]) -> str:
    """Where host and device are one: weights that are read for every call, and operators that begin one after the other."""
    values = chosen.parameters
    fixed = next((values[name] for name in ("floor_seconds", "seconds", "fixed_seconds") if name in values), None)
    smallest = min(points, key=lambda point: point.size)
    if fixed is None or smallest.weight_seconds is None or not smallest.num_kernels:
        return "a floor as launches make one, but host and device times that would show it were not measured"
    reading = (
        f"reading the weights once takes {seconds_text(smallest.weight_seconds)} of it at the bandwidth of this machine"
    )
    rest = fixed - smallest.weight_seconds
    if rest <= 0.2 * fixed:
        return reading
    return (
        f"{reading}, the rest is {smallest.num_kernels} operators that begin one after the other, "
        f"{seconds_text(rest / smallest.num_kernels)} each, and products too small to use all of the machine"
    )
