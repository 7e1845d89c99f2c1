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

from modelhound.analysis.breakeven_wording import WAYS
from modelhound.analysis.job_lines import GROUPS
from modelhound.analysis.newest import newest, newest_of_runs
from modelhound.analysis.search_tables import time_text
from modelhound.analysis.search_wording import shares_text
from modelhound.analysis.wording import (
    all_models_text,
    among_runs_text,
    guessing_text,
    list_text,
    metric_interval_text,
    metric_text,
    number_text,
    plural,
    short_name,
    span_of_counts_text,
)
from modelhound.report.next_steps import after_breakeven, after_profile, after_train
from modelhound.report.parts import Figure, Strong
from modelhound.report.scaling_charts import name_run
from modelhound.report.told import Told
from modelhound.report.verb_numbers import breakeven_numbers, profile_numbers, train_numbers
from modelhound.store import Run

if TYPE_CHECKING:
    from modelhound.analysis.bounds import Verdict
    from modelhound.analysis.scaling import Scaling
    from modelhound.records import BottleneckFound, BreakEvenCount, ModelTrained, RankTrained

__all__ = ["tell_breakeven", "tell_profile", "tell_train"]

_FEW_JOBS = 2
_WHAT_TAKES = {
    "weights": "Getting models ready",
    "data": "Loading data",
    "forward": "The forward pass",
    "score": "Scoring",
}


def tell_train(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.analysis.bounds import Verdict
    from modelhound.analysis.certainty import best_run
    from modelhound.analysis.findings import Finding
    from modelhound.analysis.scaling import Scaling
    from modelhound.records import ModelTrained, RankTrained

    class Answer(msgspec.Struct):
        verdicts: tuple[Verdict, ...] = ()
        scalings: tuple[Scaling, ...] = ()
        findings: tuple[Finding, ...] = ()
        guess: float | None = None  # of runs of earlier versions nobody knows it

    trained = newest(run.of(ModelTrained), lambda each: (each.model, each.num_ranks))
    if not trained:
        return None
    found = msgspec.json.decode(answer, type=Answer)
    best = best_run(trained)
    ranks = newest_of_runs(run.of(RankTrained), [best])
    verdict = next(
        (each for each in found.verdicts if (each.model, each.num_ranks) == (best.model, best.num_ranks)), None
    )
    return Told(
        answer=(
            Strong(short_name(best.model)),
            f" reaches {metric_text(best.metric, best.score)} {best.metric} on "
            f"{plural(best.num_test_items, 'test item')} after {plural(len(best.epochs), 'epoch')}"
            + among_runs_text([each.score for each in trained])
            + ".",
        ),
        sentences=(
            *_guessing_sentence(best, found.guess),
            *_tied_sentence(best, [each for each in trained if each is not best]),
            *_time_sentence(ranks),
            f"The fine-tuned network is in {run.path / best.checkpoint}.",
        ),
        remarks=(
            *(
                f"{name_run(each.model, each.num_ranks)}: {each.sentence}. {_begun(each.advice)}."
                for each in found.verdicts
            ),
            *_scaling_remarks(found.scalings),
            *(
                f"{each.claim}: {each.outcome} ({each.evidence})."
                for each in found.findings
                if each.outcome != "cannot be told" or any(len(scaling.points) > 1 for scaling in found.scalings)
            ),
        ),
        figures=(_score_figure(best), _speed_figure(best, ranks), *_bound_figures(verdict, found.scalings)),
        next_steps=after_train(run, model=best.model, bound=verdict.bound if verdict else ""),
        numbers=train_numbers(trained, newest_of_runs(run.of(RankTrained), trained), found.verdicts, found.scalings),
    )


def _guessing_sentence(best: "ModelTrained", guess: float | None) -> tuple[str, ...]:
    """Empty where the score is clearly better."""
    from modelhound.analysis.certainty import test_interval

    told = "" if guess is None else guessing_text(best.metric, best.score, test_interval(best), guess)
    return (told,) if told else ()


def _tied_sentence(best: "ModelTrained", others: "Sequence[ModelTrained]") -> tuple[str, ...]:
    """Runs whose test items cannot tell them from the best; empty where there are none."""
    from modelhound.analysis.certainty import test_interval

    interval = test_interval(best)
    if interval is None:
        return ()
    tied = sorted((each for each in others if each.score >= interval[0]), key=lambda each: -each.score)
    if not tied:
        return ()
    names = [f"{name_run(each.model, each.num_ranks)} ({metric_text(each.metric, each.score)})" for each in tied]
    return (f"{plural(best.num_test_items, 'test item')} can hardly tell it from {list_text(names, most=3)}.",)


def _scaling_remarks(scalings: "Sequence[Scaling]") -> tuple[str, ...]:
    """One for all models that were measured on one number of ranks: how they scale is not known."""
    if scalings and all(len(each.points) < 2 for each in scalings):
        ranks = plural(scalings[0].points[0].num_ranks, "rank") if scalings[0].points else "one number of ranks"
        return (f"Measured on {ranks} only: run --ranks 1,2 or more to see how it scales.",)
    return tuple(f"{each.model}: {each.sentence}." for each in scalings)


def _time_sentence(ranks: "Sequence[RankTrained]") -> tuple[str, ...]:
    """Of the first rank; empty where nothing of it is known."""
    if not ranks or not ranks[0].phases:
        return ()
    phases = {phase: max(0.0, seconds) for phase, seconds in ranks[0].totals().items()}
    where = ranks[0].device if len(ranks) == 1 else f"{ranks[0].device}, the first of {len(ranks)} ranks"
    return (
        f"Where the {time_text(ranks[0].wall_seconds)} of the training loop went ({where}): {shares_text(phases)}.",
    )


def _begun(text: str) -> str:
    return text[:1].upper() + text[1:]


def _score_figure(best: "ModelTrained") -> Figure:
    from modelhound.analysis.certainty import test_interval

    note = "of the fine-tuned network on items it has not seen"
    interval = test_interval(best)
    if interval is not None:
        note = f"({metric_interval_text(best.metric, interval)}, 95% interval) on items it has not seen"
    return Figure(question="How good, how sure", value=metric_text(best.metric, best.score), note=note)


def _speed_figure(best: "ModelTrained", ranks: "Sequence[RankTrained]") -> Figure:
    num_items = sum(each.num_items for each in ranks)
    if not num_items:
        note = f"the start that ended it had no steps left to do; {time_text(best.wall_seconds)} in all"
        return Figure(question="How fast", value="unknown", note=note)
    speed = num_items / max(each.wall_seconds for each in ranks)
    note = f"on {plural(best.num_ranks, 'rank')}, tests included; {time_text(best.wall_seconds)} in all"
    return Figure(question="How fast", value=f"{number_text(speed)} items/s", note=note)


def _bound_figures(verdict: "Verdict | None", scalings: "Sequence[Scaling]") -> list[Figure]:
    """What bounds the best run, and how the first model scales; as far as that was measured."""
    from modelhound.analysis.scaling import speedup_text

    figures = []
    if verdict is not None:
        why = verdict.sentence.partition(": ")[2] or verdict.sentence
        figures.append(Figure(question="Why", value=verdict.bound, note=f"{why}. {_begun(verdict.advice)}."))
    for scaling in [each for each in scalings if len(each.points) > 1][:1]:
        last = scaling.points[-1]
        note = f"efficiency of {plural(last.num_ranks, 'rank')}: {speedup_text(scaling.points)}"
        figures.append(Figure(question="How it scales", value=f"{last.efficiency:.0%}", note=note))
    return figures


def tell_profile(run: Run, answer: msgspec.Raw) -> Told | None:
    from modelhound.records import ProfileFindings

    findings = msgspec.json.decode(answer, type=ProfileFindings)
    full = [each for each in findings.bottlenecks if each.configuration == "full"] or list(findings.bottlenecks)
    if not full:
        return None
    name, count = Counter(each.bottleneck for each in full).most_common(1)[0]
    shares = [each.seconds.get(name, 0.0) / sum(each.seconds.values()) for each in full]
    gains = [each.speedups[name] for each in full if name in each.speedups]
    share = f"{median(shares):.0%} of " + ("its job" if len(full) == 1 else "the job of the model in the middle")
    parts = GROUPS.get(name, ())
    figures = [
        Figure(
            question="What is slow",
            value=name,
            note=f"{share}: {list_text(parts)}" if len(parts) > 1 else share,
        ),
        Figure(
            question="How sure",
            value=f"{1 - findings.unaccounted:.1%}",
            note=f"or more of every job is accounted for by its phases; intervals are {findings.confidence:.0%}",
        ),
    ]
    if gains:
        ends = dict.fromkeys(f"{end:.1f}x" for end in (min(gains), max(gains)))
        which = full[0].model if len(full) == 1 else "the model in the middle"
        note = f"for {short_name(which)}" + (f", from {' to '.join(ends)}" if len(ends) > 1 else "")
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
            Strong(_WHAT_TAKES.get(name, name)),
            f" takes longest for {_of_all(count, full)}.",
        ),
        sentences=(*_busy_sentence(run), *_extremes([each for each in full if each.bottleneck == name], name)),
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


def _busy_sentence(run: Run) -> tuple[str, ...]:
    """Where the same work, done twice, took unlike times."""
    from modelhound.analysis.bottlenecks import repeat_sentence
    from modelhound.records import ConfigurationProfiled

    sentence, is_busy = repeat_sentence(newest(run.of(ConfigurationProfiled), lambda each: each.key))
    return (sentence,) if is_busy else ()


def _extremes(found: "Sequence[BottleneckFound]", name: str) -> tuple[str, ...]:
    """Of many jobs the one that would gain most and the one that would gain least."""
    if len(found) <= _FEW_JOBS:
        return tuple(each.sentence for each in found)
    ordered = sorted(found, key=lambda each: each.speedups.get(name, 1.0))
    return (f"Most: {ordered[-1].sentence}", f"Least: {ordered[0].sentence}")


def _of_all(count: int, found: "Sequence[BottleneckFound]") -> str:
    """zoo:x; both models; 3 of 4 models; where each was run in several places, of both; where only parts were run, of jobs."""
    if len(found) == 1:
        return short_name(found[0].model)
    jobs = Counter(each.model for each in found)
    if len(jobs) == len(found):
        return all_models_text(count) if count == len(found) else f"{count} of {plural(len(found), 'model')}"
    if all(each.configuration == "full" for each in found) and len(set(jobs.values())) == 1:
        return f"{count} of {len(found)} models and places, {jobs[found[0].model]} places each"
    return f"{count} of {plural(len(found), 'job')}"


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
    figures = [
        Figure(
            question=f"{scenario}, {WAYS.get(way, way)}",
            value=_models_text(counts),
            note=_count_note(counts),
        )
        for (scenario, way), counts in list(groups.items())[:4]
    ]
    plain = [(scenario, counts) for (scenario, way), counts in groups.items() if way == "plain"] or [
        (scenario, counts) for (scenario, _), counts in groups.items()
    ]
    told = [f"{_models_text(counts)} in {scenario}" for scenario, counts in plain]
    differs = any(len({each.num_models for each in counts}) > 1 for _, counts in plain)
    return Told(
        answer=(
            "Above ",
            Strong(list_text(told)),
            f"{', depending on the model trained' if differs else ''}, searching takes longer than the training it is for.",
        ),
        sentences=tuple(line for line in findings.assumptions if line.startswith(tuple(name for name, _ in plain))),
        remarks_title="What this rests on",
        remarks=(*findings.assumptions, *([findings.extrapolated] if findings.extrapolated else [])),
        figures=tuple(figures),
        next_steps=after_breakeven(run),
        numbers=breakeven_numbers(findings),
    )


def _models_text(counts: "Sequence[BreakEvenCount]") -> str:
    """25 models, or 7 to 24 where the models that were trained differ: what lies between them holds for none."""
    return span_of_counts_text((each.num_models for each in counts), "model")


def _count_note(counts: "Sequence[BreakEvenCount]") -> str:
    """Each count with its interval; of many only how far they reach."""
    trained = f"trained on {plural(counts[0].num_items, 'item')}"
    intervals = [f"{each.interval[0]:,} – {each.interval[1]:,}" for each in counts]
    if len(counts) == 1:
        return f"({intervals[0]}) for {_last_name(counts[0].model)} {trained}"
    if len(counts) <= _FEW_JOBS:
        named = [f"{_last_name(each.model)} ({interval})" for each, interval in zip(counts, intervals, strict=True)]
        return f"{list_text(named)}, {trained}"
    low, high = min(each.interval[0] for each in counts), max(each.interval[1] for each in counts)
    return f"({low:,} – {high:,}) over {plural(len(counts), 'model')} {trained}"


def _last_name(model: str) -> str:
    """Without source and folders, which take room and tell little in a note."""
    return short_name(model.rpartition(":")[2].rpartition("/")[2])
