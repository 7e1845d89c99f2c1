"""What stands on top of the pages of `hound latency` and `hound loader`: the answer, and the four figures that back it.

In:  a finished run
Out: a Told; None where nothing was found
Only what this needs of an answer is read here, so that nothing of the verb itself, and no torch, is loaded.
"""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from modelhound.analysis.newest import newest
from modelhound.analysis.wording import all_models_text, list_text, number_text, plural, seconds_text, short_name
from modelhound.report.next_steps import after_latency, after_loader
from modelhound.report.parts import Figure, Sentence, Strong
from modelhound.report.told import Told
from modelhound.report.verb_numbers import latency_numbers, loader_numbers
from modelhound.store import Run

if TYPE_CHECKING:
    from modelhound.analysis.latency import PointSummary, SweepLaw
    from modelhound.records import KindAnswer
    from modelhound.settings import LoaderSettings

__all__ = ["tell_latency", "tell_loader"]

_SWEEP = "A sweep is one model timed at several sizes."
_MIXED = "depends on precision and size"
_PREFIX = re.compile("^.*[:/]")  # of a model's name: where it comes from


def tell_latency(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.analysis.latency import SweepLaw, summarise_points
    from modelhound.analysis.roofline import BOUND_WORDS, middle_share_text
    from modelhound.records import CeilingsMeasured, LatencyMeasured

    class Answer(msgspec.Struct):
        laws: tuple[SweepLaw, ...]

    records = newest(run.of(LatencyMeasured), lambda each: each.point)
    if not records:
        return None
    points = summarise_points(records, run.of(CeilingsMeasured))

    def where(each: "PointSummary") -> str:
        return f"{short_name(each.point.model)}, {each.point.shape_text}, {each.point.precision} on {each.point.device}"

    quickest = min(points, key=lambda each: each.median_seconds)
    busiest = max(points, key=lambda each: each.items_per_second)
    found = msgspec.json.decode(answer, type=Answer)
    sentence: Sentence = (Strong(seconds_text(quickest.median_seconds)), f" is the shortest call: {where(quickest)}.")
    bounds = Counter(each.regime.bound for each in points)
    bound, count = bounds.most_common(1)[0]
    share = middle_share_text([each.regime for each in points if each.regime.bound == bound])
    less = ", ".join(f"{number} {BOUND_WORDS[name]}" for name, number in bounds.most_common()[1:])
    return Told(
        answer=_laws_sentence(found.laws) or sentence,
        sentences=(*_claim_sentences(found.laws), *((_SWEEP,) if found.laws else ())),
        remarks=_law_sentences(found.laws),
        figures=(
            Figure(question="Shortest call", value=seconds_text(quickest.median_seconds), note=where(quickest)),
            Figure(
                question="Most items", value=f"{number_text(busiest.items_per_second)} items/s", note=where(busiest)
            ),
            _sureness_of_times(points),
            Figure(
                question="Why",
                value=BOUND_WORDS[bound],
                note="; ".join(filter(None, (f"{count} of {plural(len(points), 'point')}", share, less))),
            ),
        ),
        next_steps=after_latency(
            run, bound=bound, num_untold=sum(law.answer.verdict == "cannot be told" for law in found.laws)
        ),
        numbers=latency_numbers(points, found.laws),
    )


def _laws_sentence(laws: "Sequence[SweepLaw]") -> Sentence:
    """Which claims hold in how many of the sweeps that can tell, and how many cannot. Empty without any sweep."""
    claims: dict[str, Counter[str]] = {}
    for law in laws:
        claims.setdefault(law.answer.hypothesis.relation, Counter())[law.answer.verdict] += 1
    if not claims:
        return ()
    if all(set(verdicts) == {"cannot be told"} for verdicts in claims.values()):
        return (Strong("Cannot be told yet"), f": whether the time of a call is {list_text(list(claims))}.")
    told: list[str] = []
    for claim, verdicts in claims.items():
        num_judged = verdicts.total() - verdicts["cannot be told"]
        if num_judged:
            count = f"{verdicts['holds'] or 'none'} of {num_judged if told else plural(num_judged, 'sweep')}"
            told.append(f"{claim} in {count}")
    num_left = sum(verdicts["cannot be told"] for verdicts in claims.values())
    others = "".join(f", {each.removeprefix('proportional ')}" for each in told[1:])
    left = (
        f" {plural(num_left, 'more sweep was', 'more sweeps were')} too short or too noisy to tell." if num_left else ""
    )
    return ("The time of a call is ", Strong(told[0]), f"{others}.{left}")


def _claim_sentences(laws: "Sequence[SweepLaw]") -> tuple[str, ...]:
    """For which models each claim holds, over all precisions, devices and sizes."""
    claims: dict[str, dict[str, set[str]]] = {}
    for law in laws:
        claim = f"{law.answer.hypothesis.name}, {law.answer.hypothesis.relation}"
        claims.setdefault(claim, {}).setdefault(law.model, set()).add(law.answer.verdict)
    sentences = []
    for claim, models in claims.items():
        groups: dict[str, list[str]] = {}
        for model, verdicts in models.items():
            verdict = verdicts.pop() if len(verdicts) == 1 else _MIXED
            groups.setdefault(verdict, []).append(_PREFIX.sub("", model))
        sentences.append(f"{claim}: {'; '.join(f'{said} for {list_text(names)}' for said, names in groups.items())}.")
    return tuple(sentences)


def _law_sentences(laws: "Sequence[SweepLaw]") -> tuple[str, ...]:
    """What each sweep says, with what tells it from the others of its model."""
    precisions, devices = {law.precision for law in laws}, {law.device for law in laws}
    told = []
    for law in laws:
        where = [
            law.held,
            *([law.precision] if len(precisions) > 1 else ()),
            *([law.device] if len(devices) > 1 else ()),
        ]
        told.append(f"With {', '.join(where)}: {law.answer.sentence}")
    return tuple(told)


def _sureness_of_times(points: "Sequence[PointSummary]") -> Figure:
    known = [(each.interval[1] - each.interval[0]) / (2 * each.median_seconds) for each in points if each.interval]
    samples = f"{median(each.num_samples for each in points):.0f} samples of a point in the middle"
    if not known:
        return Figure(question="How sure", value="unknown", note=f"too few samples for intervals: {samples}")
    return Figure(question="How sure", value=f"± {median(known):.1%}", note=f"of a median (95%), from {samples}")


def tell_loader(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.records import LoaderAnswer

    kinds = [each for each in msgspec.json.decode(answer, type=LoaderAnswer).kinds if each.recommended and each.models]
    if not kinds:
        return None
    kind, found = kinds[0], kinds[0].recommended
    assert found is not None
    pairs = [(each.kind, each.recommended.batch, each.recommended.workers) for each in kinds if each.recommended]
    told = [
        f"batches of {batch} with {_workers_text(workers)}" + (f" for {name} items" if len(pairs) > 1 else "")
        for name, batch, workers in pairs
    ]
    remarks = tuple(f"{advice.text} {advice.evidence}".rstrip() for each in kinds for advice in each.advice)
    return Told(
        answer=(
            Strong(told[0].capitalize()),
            *(f", {each}" for each in told[1:]),
            f" suit {all_models_text(len(kind.models))}.",
        ),
        sentences=remarks[:1],
        remarks=(*remarks, *(each.verdict for each in kinds)),
        figures=_loader_figures(kind, found),
        next_steps=after_loader(run),
        numbers=loader_numbers(kinds),
    )


def _loader_figures(kind: "KindAnswer", found: "LoaderSettings") -> tuple[Figure, ...]:
    """Which pair, how sure, how fast, why."""
    from modelhound.analysis.loader_advice import bound_text

    regret, slower = kind.regret[0].mean, ""
    if regret is not None and kind.interval is not None:
        low, high = kind.interval
        slower = f"; {regret:.1%} slower than each model's own best pair ({low:.1%} – {high:.1%})"
    bounds, count = Counter(each.bounds for each in kind.models).most_common(1)[0]
    speed = kind.num_items / median(each.recommended_seconds for each in kind.models)
    gain = median(each.speedup_if_free for each in kind.models)
    which = "" if len(kind.models) == 1 else "with the model in the middle, "
    return (
        Figure(
            question="Which pair",
            value=f"{found.batch} × {found.workers}",
            note=f"items in a batch × loader processes, {kind.kind} items",
        ),
        Figure(
            question="How sure",
            value=f"{kind.chance_within:.0%} chance",
            note=f"to be within 2% of the best pair{slower}",
        ),
        Figure(
            question="How fast",
            value=f"{number_text(speed)} items/s",
            note=f"{which}in runs of {plural(kind.num_items, 'item')}",
        ),
        Figure(
            question="Why",
            value=bound_text(bounds),
            note=f"{count} of {plural(len(kind.models), 'model')}; with loading for free {gain:.1f}x faster",
        ),
    )


def _workers_text(workers: int) -> str:
    return "no loader processes" if workers == 0 else plural(workers, "loader process", "loader processes")
