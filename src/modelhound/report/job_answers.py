"""What stands on top of the pages of `hound train`, `profile` and `breakeven`: the answer, and the figures that back it.

In:  a finished run
Out: a Told; None where nothing was found
Only what this needs of an answer is read here, so that nothing of the verb itself, and no torch, is loaded.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from modelhound.analysis.newest import newest, newest_of_runs
from modelhound.analysis.search_tables import time_text
from modelhound.analysis.search_wording import shares_text
from modelhound.analysis.wording import (
    list_text,
    metric_interval_text,
    metric_text,
    number_text,
    plural,
    short_name,
)
from modelhound.report.next_steps import after_breakeven, after_profile, after_train
from modelhound.report.parts import Figure, Strong
from modelhound.report.told import Told
from modelhound.report.verb_numbers import breakeven_numbers, profile_numbers, train_numbers
from modelhound.store import Run

if TYPE_CHECKING:
    from modelhound.records import BreakEvenCount, ModelTrained, RankTrained

__all__ = ["tell_breakeven", "tell_profile", "tell_train"]


def tell_train(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.analysis.bounds import Verdict
    from modelhound.analysis.findings import Finding
    from modelhound.analysis.scaling import Scaling
    from modelhound.records import ModelTrained, RankTrained
    from modelhound.report.scaling_charts import name_run

    class Answer(msgspec.Struct):
        verdicts: tuple[Verdict, ...] = ()
        scalings: tuple[Scaling, ...] = ()
        findings: tuple[Finding, ...] = ()

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
            note=f"on {plural(best.num_ranks, 'rank')}, tests included; {time_text(best.wall_seconds)} in all",
        )
    )
    verdict = next(
        (each for each in found.verdicts if (each.model, each.num_ranks) == (best.model, best.num_ranks)), None
    )
    if verdict is not None:
        why = verdict.sentence.partition(": ")[2] or verdict.sentence
        figures.append(Figure(question="Why", value=verdict.bound, note=f"{why}. {_begun(verdict.advice)}."))
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
        sentences=(f"The fine-tuned network is in {run.path / best.checkpoint}.", *_time_sentence(ranks)),
        remarks=(
            *(
                f"{name_run(each.model, each.num_ranks)}: {each.sentence}. {_begun(each.advice)}."
                for each in found.verdicts
            ),
            *(f"{each.model}: {each.sentence}." for each in found.scalings),
            *(f"{each.claim}: {each.outcome} ({each.evidence})." for each in found.findings),
        ),
        figures=tuple(figures),
        next_steps=after_train(run, model=best.model, bound=verdict.bound if verdict else ""),
        numbers=train_numbers(trained, newest_of_runs(run.of(RankTrained), trained), found.verdicts, found.scalings),
    )


def _time_sentence(ranks: "Sequence[RankTrained]") -> tuple[str, ...]:
    """Of the first rank; empty where nothing of it is known."""
    if not ranks or not ranks[0].phases:
        return ()
    phases = {each.phase: each.total for each in ranks[0].phases}
    left = max(0.0, ranks[0].wall_seconds - sum(phases.values()))
    phases["other"] = phases.get("other", 0.0) + left
    where = ranks[0].device if len(ranks) == 1 else f"{ranks[0].device}, the first of {len(ranks)} ranks"
    return (f"Where the {time_text(ranks[0].wall_seconds)} of training went ({where}): {shares_text(phases)}.",)


def _begun(text: str) -> str:
    return text[:1].upper() + text[1:]


def _score_figure(best: "ModelTrained") -> Figure:
    from modelhound.analysis.certainty import test_interval

    note = "of the fine-tuned network on items it has not seen"
    interval = test_interval(best)
    if interval is not None:
        note = f"({metric_interval_text(best.metric, interval)}, 95% interval) on items it has not seen"
    return Figure(question="How good, how sure", value=metric_text(best.metric, best.score), note=note)


def tell_profile(run: Run, answer: msgspec.Raw) -> Told | None:
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
            f" takes most of the time {_of_all(count, len(full), len({(each.data, each.device) for each in full}))}.",
        ),
        sentences=tuple(each.sentence for each in full),
        remarks=(
            *(each.sentence for each in full),
            *(each.sentence for each in findings.moves if each.configuration == "full"),
            *(each.sentence for each in findings.savings),
        ),
        figures=tuple(figures),
        next_steps=after_profile(
            run, bottleneck=name, models=tuple(dict.fromkeys(each.model for each in full if each.bottleneck == name))
        ),
        numbers=profile_numbers(findings),
    )


def _of_all(count: int, num_jobs: int, num_places: int) -> str:
    """For both models; for 3 of 4 models; where each was run in several places, of jobs."""
    if num_places > 1:
        return f"for {count} of {num_jobs} models and places, {num_places} places each"
    if count < num_jobs:
        return f"for {count} of {plural(num_jobs, 'model')}"
    return f"for {'the model' if count == 1 else 'both models' if count == 2 else f'all {count} models'}"


def tell_breakeven(run: Run, answer: msgspec.Raw) -> Told | None:
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
        remarks_title="What this rests on",
        remarks=(*findings.assumptions, *([findings.extrapolated] if findings.extrapolated else [])),
        figures=tuple(figures),
        next_steps=after_breakeven(run),
        numbers=breakeven_numbers(findings),
    )
