"""Who won, as records say it.

In:  a race that is over, what it was asked to do and what it took
Out: a FinalsAnswer
Nothing here decides who is ahead (see `analysis.finals`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from modelhound.analysis.finals import Ended, FinalsRace, Standing
from modelhound.analysis.foretelling import CONFIDENCE, foretell
from modelhound.analysis.trials import FULL_EPOCHS, Trial
from modelhound.finals.job import FinalsJob, num_epochs
from modelhound.finals.spending import Spending
from modelhound.records import Finalist, FinalsAnswer
from modelhound.settings import METRICS
from modelhound.training.checkpoints import name_checkpoint

__all__ = ["CERTAINTY", "answer_finals"]

CERTAINTY = 0.95
"""The chance to be the best that makes a winner."""

_TIED = 0.05

Verdict = Literal["won", "tied", "cannot tell", "failed"]


def answer_finals(race: FinalsRace, job: FinalsJob, spending: Spending, *, lost: Sequence[str]) -> FinalsAnswer:
    """`lost` could not begin or go on; some of them may not have come to the race at all."""
    standings = race.standings()
    leader = next((row for row in standings if row.state != "failed" and row.num_folds), None)
    verdict, ended = _verdict(race, leader)
    rows = [_finalist(place, row, verdict, job, spending) for place, row in enumerate(standings, start=1)]
    racing = {row.model for row in standings}
    rows += [_failed(len(rows) + 1, model) for model in lost if model not in racing]
    winner = leader if verdict in ("won", "tied") else None
    checkpoint = None if winner is None else _newest_checkpoint(winner, job)
    return FinalsAnswer(
        verdict=verdict,
        ended=ended,
        winner=None if winner is None else winner.model,
        finalists=tuple(rows),
        metric=METRICS[job.dataset.task],
        confidence=CONFIDENCE,
        full_epochs=FULL_EPOCHS,
        budget_seconds=spending.budget_seconds,
        spent_seconds=spending.spent_seconds,
        full_seconds=spending.full_seconds,
        checkpoint=None if checkpoint is None else str(checkpoint.relative_to(job.folder)),
        read_back=(
            None
            if checkpoint is None or winner is None
            else name_checkpoint(checkpoint, winner.model, job.settings.arch)
        ),
    )


def _verdict(race: FinalsRace, leader: Standing | None) -> tuple[Verdict, Ended]:
    ended = race.ended or "failed"
    if leader is None:
        return "failed", ended
    if ended == "noise" or race.is_noise():
        return "cannot tell", "noise"
    return "won" if ended == "certain" or leader.chance >= CERTAINTY else "tied", ended


def _finalist(place: int, row: Standing, verdict: Verdict, job: FinalsJob, spending: Spending) -> Finalist:
    is_tied = verdict in ("tied", "cannot tell") and row.state == "in" and row.chance >= _TIED
    foretold = None
    if row.level is not None and verdict != "cannot tell" and row.state != "failed":
        features = next(each.scores[job.scorer] for each in job.finalists if each.model == row.model)
        foretold = foretell(row.item_scores, features, row.level, stage=row.stage, seed=job.settings.seed)
    return Finalist(
        place=1 if is_tied else place,
        model=row.model,
        state=row.state,
        score=row.score if row.num_folds else None,
        num_items=len(row.item_scores),
        num_epochs=num_epochs(row.stage) if row.num_folds else 0,
        rate=job.rate(row.notch) if row.num_folds else None,
        chance=row.chance,
        predicted=None if foretold is None else foretold.score,
        interval=None if foretold is None else foretold.interval,
        seconds=spending.of(row.model),
    )


def _failed(place: int, model: str) -> Finalist:
    return Finalist(
        place=place,
        model=model,
        state="failed",
        score=None,
        num_items=0,
        num_epochs=0,
        rate=None,
        chance=0.0,
        predicted=None,
        interval=None,
        seconds=0.0,
    )


def _newest_checkpoint(winner: Standing, job: FinalsJob) -> Path | None:
    """Of the first fold."""
    trial = Trial(model=winner.model, notch=winner.notch, fold=0, stage=winner.stage)
    return max(job.checkpoints(winner.model, trial).glob("epoch-*"), default=None)
