"""The charts of every verb, from its run folder.

In:  a run
Out: the charts that the verb's own module draws; of a run without an answer those that its records alone allow
To give a new verb charts on its page, add a function to `_CHARTS`. Only what the charts need of an answer is read here, so that
nothing of the verb itself, and no torch, is loaded.
"""

from collections.abc import Callable

import msgspec

from modelhound.analysis.newest import newest, newest_of_runs, newest_points
from modelhound.report.charts import Chart
from modelhound.store import Run

__all__ = ["charts_of"]


def charts_of(run: Run) -> tuple[Chart, ...]:
    """The verb's own charts; none where it has none, or its answer is of another version."""
    draw = _CHARTS.get(run.verb)
    if draw is None:
        return ()
    try:
        return draw(run, run.answer)
    except msgspec.MsgspecError:
        return ()


def _breakeven(run: Run, answer: msgspec.Raw | None) -> tuple[Chart, ...]:
    from modelhound.records import BreakevenFindings
    from modelhound.report.breakeven_charts import breakeven_charts

    if answer is None:
        return ()
    findings = msgspec.json.decode(answer, type=BreakevenFindings)
    return breakeven_charts(findings) if findings.counts else ()


def _latency(run: Run, answer: msgspec.Raw | None) -> tuple[Chart, ...]:
    from modelhound.analysis.latency import SweepLaw
    from modelhound.records import CeilingsMeasured
    from modelhound.report.latency_charts import latency_charts

    class Answer(msgspec.Struct):
        laws: tuple[SweepLaw, ...]

    measured, failed = newest_points(run.records)
    return latency_charts(
        list(measured.values()),
        failed=list(failed.values()),
        laws=() if answer is None else msgspec.json.decode(answer, type=Answer).laws,
        ceilings=newest(run.of(CeilingsMeasured), lambda each: (each.device, each.precision)),
    )


def _loader(run: Run, answer: msgspec.Raw | None) -> tuple[Chart, ...]:
    from modelhound.records import FeedMeasured, LoaderAnswer
    from modelhound.report.loader_charts import loader_charts

    if answer is None:
        return ()
    runs = run.of(FeedMeasured)
    stamps = {
        each.model: each.stamp for each in runs
    }  # the last: runs of a network as it was before it was edited do not count
    current = [each for each in runs if each.stamp == stamps[each.model]]
    return loader_charts(msgspec.json.decode(answer, type=LoaderAnswer), current)


def _profile(run: Run, answer: msgspec.Raw | None) -> tuple[Chart, ...]:
    from modelhound.analysis.bottlenecks import find_bottlenecks
    from modelhound.records import ConfigurationProfiled, ProfileFindings
    from modelhound.report.profile_charts import profile_charts

    counts = tuple(sorted(int(each) for each in run.settings.get("items") or ()))
    records = newest(run.of(ConfigurationProfiled), lambda each: each.key)
    if not records:
        return ()
    findings = find_bottlenecks(records) if answer is None else msgspec.json.decode(answer, type=ProfileFindings)
    return profile_charts(records, findings, item_counts=counts)


def _train(run: Run, answer: msgspec.Raw | None) -> tuple[Chart, ...]:
    from modelhound.analysis.bounds import Verdict
    from modelhound.analysis.scaling import Scaling
    from modelhound.records import ModelTrained, RankTrained
    from modelhound.report.train_charts import train_charts

    class Answer(msgspec.Struct):
        verdicts: tuple[Verdict, ...] = ()
        scalings: tuple[Scaling, ...] = ()

    found = Answer() if answer is None else msgspec.json.decode(answer, type=Answer)
    trained = newest(run.of(ModelTrained), lambda each: (each.model, each.num_ranks))
    ranks = newest_of_runs(run.of(RankTrained), trained)
    return train_charts(trained, ranks, verdicts=found.verdicts, scalings=found.scalings)


_CHARTS: dict[str, Callable[[Run, msgspec.Raw | None], tuple[Chart, ...]]] = {
    "breakeven": _breakeven,
    "latency": _latency,
    "loader": _loader,
    "profile": _profile,
    "train": _train,
}
