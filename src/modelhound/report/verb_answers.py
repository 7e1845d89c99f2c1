"""What stands on top of the page of a verb: its answer in one sentence, and the four figures that back it.

In:  a finished run
Out: a Told: which, how sure, how fast, why
To give a new verb such a beginning, add a function to `_ANSWERS`; without one, its page begins with the headline of the run.
Only what this needs of an answer is read here, so that nothing of the verb itself, and no torch, is loaded.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.analysis.newest import newest, newest_of_runs
from modelhound.analysis.wording import (
    duration_text,
    list_text,
    metric_interval_text,
    metric_text,
    number_text,
    plural,
    seconds_text,
    short_name,
)
from modelhound.report.commands import command_on_same_data
from modelhound.report.parts import Figure, Sentence, Strong
from modelhound.store import Run

if TYPE_CHECKING:
    from modelhound.analysis.latency import PointSummary
    from modelhound.records import BreakEvenCount, ModelTrained

__all__ = ["Told", "tell_answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The first screen of a page."""

    answer: Sentence
    sentences: tuple[str, ...] = ()
    """Below the answer; where there are none, those that the run's answer holds."""
    figures: tuple[Figure, ...] = ()
    next_step: tuple[str, str] | None = None
    numbers: dict[str, Any] | None = None
    """What to show in tables, where that is not the answer as it is."""


def tell_answer(run: Run) -> Told | None:
    """None where the verb has no such sentence, is not finished, found nothing, or is of another version."""
    tell = _ANSWERS.get(run.verb)
    if tell is None or run.answer is None:
        return None
    try:
        return tell(run, run.answer)
    except msgspec.MsgspecError:
        return None


def _latency(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.analysis.latency import SweepLaw, summarise_points
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
    claims: dict[str, list[bool]] = {}
    for law in msgspec.json.decode(answer, type=Answer).laws:
        claims.setdefault(law.answer.hypothesis.relation, []).append(law.answer.verdict == "holds")
    told = [f"{claim} in {sum(held) or 'none'} of {len(held)}" for claim, held in claims.items()]
    sentence: Sentence = (
        Strong(f"{seconds_text(quickest.median_seconds)}"),
        f" is the shortest call: {where(quickest)}.",
    )
    if told:
        others = "".join(f", {each.removeprefix('proportional ')}" for each in told[1:])
        sentence = ("The time of a call is ", Strong(f"{told[0]} sweeps"), f"{others}.")
    bounds = Counter(each.regime.bound for each in points)
    bound, count = bounds.most_common(1)[0]
    less = ", ".join(f"{number} {name}-bound" for name, number in bounds.most_common()[1:] if name != "unknown")
    return Told(
        answer=sentence,
        figures=(
            Figure(question="Shortest call", value=seconds_text(quickest.median_seconds), note=where(quickest)),
            Figure(
                question="Most items", value=f"{number_text(busiest.items_per_second)} items/s", note=where(busiest)
            ),
            _sureness_of_times(points),
            Figure(
                question="Why",
                value="not explained" if bound == "unknown" else f"{bound}-bound",
                note=f"{count} of {plural(len(points), 'point')}" + (f"; {less}" if less else ""),
            ),
        ),
    )


def _sureness_of_times(points: "Sequence[PointSummary]") -> Figure:
    known = [(each.interval[1] - each.interval[0]) / (2 * each.median_seconds) for each in points if each.interval]
    samples = f"{median(each.num_samples for each in points):.0f} samples of a point in the middle"
    if not known:
        return Figure(question="How sure", value="unknown", note=f"too few samples for intervals: {samples}")
    return Figure(question="How sure", value=f"± {median(known):.1%}", note=f"of a median (95%), from {samples}")


def _loader(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.records import LoaderAnswer, to_plain

    kinds = [each for each in msgspec.json.decode(answer, type=LoaderAnswer).kinds if each.recommended and each.models]
    if not kinds:
        return None
    kind, found = kinds[0], kinds[0].recommended
    assert found is not None
    pairs = [(each.kind, each.recommended.batch, each.recommended.workers) for each in kinds if each.recommended]
    told = [f"batches of {batch} with {_workers_text(workers)} for {name} items" for name, batch, workers in pairs]
    regret = kind.regret[0].mean
    slower = (
        ""
        if regret is None or kind.interval is None
        else (
            f"; {regret:.1%} slower than each model's own best pair ({kind.interval[0]:.1%} – {kind.interval[1]:.1%})"
        )
    )
    bound, count = Counter(each.bound for each in kind.models).most_common(1)[0]
    speed = kind.num_items / median(each.recommended_seconds for each in kind.models)
    gain = median(each.speedup_if_free for each in kind.models)
    out = run.settings.get("out")
    return Told(
        answer=(
            Strong(told[0].capitalize()),
            *(f", {each}" for each in told[1:]),
            f" suit {'the model' if len(kind.models) == 1 else f'all {len(kind.models)} models'}.",
        ),
        figures=(
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
                note=f"with the model in the middle, in runs of {plural(kind.num_items, 'item')}",
            ),
            Figure(
                question="Why",
                value=f"{bound}-bound",
                note=f"{count} of {plural(len(kind.models), 'model')}; with loading for free {gain:.1f}x faster",
            ),
        ),
        next_step=("Use it", command_on_same_data("search", run.settings, loader=out)) if out else None,
        numbers={
            "regret of pairs": [{"items": each.kind, **to_plain(row)} for each in kinds for row in each.regret],
            "models": [{"items": each.kind, **to_plain(row)} for each in kinds for row in each.models],
        },
    )


def _workers_text(workers: int) -> str:
    return "no loader processes" if workers == 0 else plural(workers, "loader process", "loader processes")


def _train(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.analysis.bounds import Verdict
    from modelhound.analysis.scaling import Scaling
    from modelhound.records import ModelTrained, RankTrained

    class Answer(msgspec.Struct):
        verdicts: tuple[Verdict, ...] = ()
        scalings: tuple[Scaling, ...] = ()

    trained = newest(run.of(ModelTrained), lambda each: (each.model, each.num_ranks))
    if not trained:
        return None
    found = msgspec.json.decode(answer, type=Answer)
    best = max(trained, key=lambda each: each.score)
    ranks = newest_of_runs(run.of(RankTrained), [best])
    speed = sum(each.num_items for each in ranks) / max((each.wall_seconds for each in ranks), default=1.0)
    figures = [_score_figure(best)]
    figures.append(
        Figure(
            question="How fast",
            value=f"{number_text(speed)} items/s",
            note=f"on {plural(best.num_ranks, 'rank')}, tests included; {duration_text(best.wall_seconds)} in all",
        )
    )
    for verdict in [each for each in found.verdicts if (each.model, each.num_ranks) == (best.model, best.num_ranks)][
        :1
    ]:
        why = verdict.sentence.partition(": ")[2] or verdict.sentence
        advice = verdict.advice[:1].upper() + verdict.advice[1:]
        figures.append(Figure(question="Why", value=verdict.bound, note=f"{why}. {advice}."))
    for scaling in [each for each in found.scalings if len(each.points) > 1][:1]:
        last = scaling.points[-1]
        note = f"efficiency of {plural(last.num_ranks, 'rank')}: {last.speedup:.2f}x as fast as one"
        figures.append(Figure(question="How it scales", value=f"{last.efficiency:.0%}", note=note))
    return Told(
        answer=(
            Strong(short_name(best.model)),
            f" reaches {metric_text(best.metric, best.score)} {best.metric} on "
            f"{plural(best.num_test_items, 'test item')} after {plural(len(best.epochs), 'epoch')}"
            + (f", the best of {len(trained)} runs." if len(trained) > 1 else "."),
        ),
        figures=tuple(figures),
    )


def _score_figure(best: "ModelTrained") -> Figure:
    from modelhound.analysis.certainty import share_interval

    note = "of the fine-tuned network on items it has not seen"
    if best.metric == "accuracy" and best.num_test_items:
        low, high = share_interval(round(best.score * best.num_test_items), best.num_test_items)
        note = f"({metric_interval_text(best.metric, (low, high))}, 95% interval) on items it has not seen"
    return Figure(question="How good, how sure", value=metric_text(best.metric, best.score), note=note)


def _profile(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.records import ProfileFindings

    findings = msgspec.json.decode(answer, type=ProfileFindings)
    full = [each for each in findings.bottlenecks if each.configuration == "full"] or list(findings.bottlenecks)
    if not full:
        return None
    name, count = Counter(each.bottleneck for each in full).most_common(1)[0]
    shares = [each.seconds.get(name, 0.0) / sum(each.seconds.values()) for each in full]
    gains = [each.speedups[name] for each in full if name in each.speedups]
    what = {"weights": "reading weights", "data": "loading data", "forward": "the forward pass", "score": "scoring"}
    figures = [
        Figure(question="What is slow", value=name, note=f"{median(shares):.0%} of the job of the model in the middle"),
        Figure(
            question="How sure",
            value=f"{1 - findings.unaccounted:.1%}",
            note=f"or more of every job is accounted for by its phases; intervals are {findings.confidence:.0%}",
        ),
    ]
    if gains:
        ends = dict.fromkeys(f"{end:.1f}x" for end in (min(gains), max(gains)))
        note = "for the model in the middle" + (f", from {' to '.join(ends)}" if len(ends) > 1 else "")
        figures.append(Figure(question="If that were free", value=f"{median(gains):.1f}x faster", note=note))
    if findings.savings:
        best = max(findings.savings, key=lambda each: each.end_to_end)
        low, high = best.end_to_end_interval
        figures.append(
            Figure(
                question="What running less saves",
                value=f"{best.end_to_end:.1f}x faster",
                note=f"at most: {short_name(best.model)}, {best.configuration} ({low:.1f} – {high:.1f})",
            )
        )
    return Told(
        answer=(
            Strong(what.get(name, name).capitalize()),
            f" takes most of the time for {count} of {plural(len(full), 'model')}"
            + (" on all data and devices." if len({(each.data, each.device) for each in full}) > 1 else "."),
        ),
        sentences=tuple(each.sentence for each in full),
        figures=tuple(figures),
    )


def _breakeven(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.records import BreakevenFindings

    findings = msgspec.json.decode(answer, type=BreakevenFindings)
    if not findings.counts:
        return None
    most = max(each.num_items for each in findings.counts)
    groups: dict[tuple[str, str], list[BreakEvenCount]] = {}
    for each in findings.counts:
        if each.num_items == most:
            groups.setdefault((each.scenario, each.way), []).append(each)
    figures = []
    for (scenario, way), counts in list(groups.items())[:4]:
        low, high = min(each.interval[0] for each in counts), max(each.interval[1] for each in counts)
        figures.append(
            Figure(
                question=f"{scenario}, {'one after the other' if way == 'plain' else 'all together'}",
                value=f"{median(each.num_models for each in counts):,.0f} models",
                note=f"({low:,} – {high:,}) over {plural(len(counts), 'model')} trained on {plural(most, 'item')}",
            )
        )
    plain = [(scenario, counts) for (scenario, way), counts in groups.items() if way == "plain"] or [
        (scenario, counts) for (scenario, _), counts in groups.items()
    ]
    told = [f"{median(each.num_models for each in counts):,.0f} models in {scenario}" for scenario, counts in plain]
    return Told(
        answer=("Searching takes longer than the training it is for above ", Strong(list_text(told)), "."),
        sentences=tuple(line for line in findings.assumptions if line.startswith(tuple(name for name, _ in plain))),
        figures=tuple(figures),
    )


_ANSWERS: dict[str, Callable[[Run, msgspec.Raw], Told | None]] = {
    "breakeven": _breakeven,
    "latency": _latency,
    "loader": _loader,
    "profile": _profile,
    "train": _train,
}
