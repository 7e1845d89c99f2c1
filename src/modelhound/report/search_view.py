"""A search's run, put in order: its ranking, the records behind it, and how sure it is.

In:  a run, finished or not
Out: a SearchView
Nothing here knows pages.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from modelhound.analysis.certainty import Certainty, judge_winner
from modelhound.analysis.ranking import rank_models
from modelhound.records import ModelDropped, ModelMeasured, Ranking, RunStarted
from modelhound.settings import METRICS, decisive_scorer
from modelhound.store import Run

__all__ = ["SearchView", "view_search", "was_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """A search's run, put in order."""

    run: Run
    ranking: Ranking
    measured: tuple[ModelMeasured, ...]
    """Of the ranking, one each, in its order."""
    dropped: tuple[ModelDropped, ...]
    certainty: Certainty | None

    @property
    def data(self) -> str:
        return str(self.run.settings.get("data", ""))

    @property
    def device(self) -> str:
        started = self.run.of(RunStarted)
        return started[-1].device if started else ""

    @property
    def precision(self) -> str:
        started = self.run.of(RunStarted)
        return started[-1].precision if started else ""


def view_search(run: Run) -> SearchView:
    """The ranking as it was written, or of what there is so far while the run is unfinished."""
    latest = {record.model: record for record in run.of(ModelMeasured)}  # weights may have changed between starts
    dropped = {record.model: record for record in run.of(ModelDropped) if record.model not in latest}
    ranking = _read_ranking(run)
    if ranking is None:
        ranking = _rank_so_far(run, list(latest.values()), list(dropped.values()))
    elif ranking.models:  # the folder may also hold models that only an earlier start was asked for
        asked = set(ranking.by_size)
        dropped = {model: each for model, each in dropped.items() if model in asked}
    measured = tuple(latest[row.model] for row in ranking.models if row.model in latest)
    complete = len(measured) == len(ranking.models)
    certainty = judge_winner(ranking, measured, seed=int(run.settings.get("seed") or 0)) if complete else None
    return SearchView(
        run=run,
        ranking=ranking,
        measured=measured,
        dropped=tuple(sorted(dropped.values(), key=lambda each: -each.score)),
        certainty=certainty,
    )


def was_run(record: ModelMeasured) -> bool:
    """Whether the network itself was run: where its features were remembered, its time says nothing of its speed."""
    return bool(record.samples_of("forward"))


def _read_ranking(run: Run) -> Ranking | None:
    if run.answer is None:
        return None
    try:
        return msgspec.json.decode(run.answer, type=Ranking)
    except msgspec.MsgspecError:  # of another version of modelhound: the records still tell
        return None


def _rank_so_far(run: Run, measured: list[ModelMeasured], dropped: list[ModelDropped]) -> Ranking:
    """Only models measured on the same items can be compared."""
    lengths = [len(next(iter(record.item_scores.values()), b"")) and record.num_items for record in measured]
    same = [record for record, num_items in zip(measured, lengths, strict=True) if num_items == max(lengths)]
    scorers = [name for name in (same[0].scores if same else ()) if all(name in each.item_scores for each in same)]
    started = run.of(RunStarted)
    task: Any = (started[-1].task if started else "") or run.settings.get("task")
    return rank_models(
        same if scorers else (),
        rests_on=(decisive_scorer(tuple(scorers)),) if scorers else (),
        metric=METRICS.get(task, "accuracy"),
        seed=int(run.settings.get("seed") or 0),
        dropped=dropped,
    )
