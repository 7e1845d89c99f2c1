"""All models at once: items decoded once, equal parts run once, and models dropped that have lost.

In:  a Job
Out: a record of every model, told as soon as it is there: measured, dropped or failed
Nothing here knows how sharing works (see `features`) or who has lost (see `race`).

A race goes over rungs of items, the same for all models and of all classes alike. After each rung but the last, the decisive
scorer's leave-one-out scores on all items so far say who can still be among the best. Only those that reach the last rung are
judged by all scorers.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from modelhound.measuring.aside import open_aside
from modelhound.measuring.deciding import choose_dtype, describe_plan, open_session, settle_in_fp32
from modelhound.measuring.race import Race
from modelhound.measuring.scoring import Job
from modelhound.meter import Lanes, Meter

__all__ = ["measure_together"]


def measure_together(job: Job) -> None:
    """Measure every model; those that fail or are dropped are told as such and the others go on."""
    Meter(job.device)  # from here on the most memory that was held is counted anew; models that run at once share it
    _measure(job)


def _measure(job: Job) -> None:
    finals = _run_race(job)
    if job.settings.precision == "auto" and choose_dtype(job) != torch.float32:
        settle_in_fp32(job, finals, _measure)


def _run_race(job: Job) -> dict[str, NDArray[np.float64]]:
    """What the decisive scorer says of each item, of every model that came to the end; nothing else is left of the race."""
    race = Race(job)
    lanes = Lanes()
    with (
        open_session(job, lanes) as session,
        open_aside(job, lanes) as aside,
    ):
        aside.warm_up(race.try_scorers)
        session.survey(
            job.models,
            failed=race.lose,
            forms_known=lambda: race.prepare(session),
            shortcut="leep" not in job.scorers,  # which asks the network's own classifier
        )
        race.start(session)
        for items in race.rungs():
            if not race.running:
                break
            session.run(
                tuple(race.running),
                items,
                race.order,
                done=lambda model, rows, keep: aside.do(race.take, model, rows, keep),
                failed=race.lose,
                planned=lambda plan: job.tell(describe_plan(plan)),
            )
            aside.wait()
            race.settle()
            race.judge(items.stop)
        race.show_best()
        if session.trouble is not None:
            job.warn(session.trouble)
    race.close()
    job.tell(lanes.timeline())
    return race.finals
