"""From the ranking of a search to its finals.

In:  a ranking, what was measured of its models, the run folder
Out: a FinalsAnswer, or why no finals were held; every trial is kept in the run folder as soon as it is there
Nothing here decides a race (see `analysis.finals`) or trains (see `trials`).
"""

from collections.abc import Callable, Mapping

from modelhound.data import Dataset
from modelhound.errors import BudgetError
from modelhound.finals.holding import hold_finals
from modelhound.finals.job import FinalsJob
from modelhound.records import Failure, FinalsAnswer, FinalsCosts, ModelMeasured, Ranking, TrialDone, Watch, silent
from modelhound.settings import MOST_FINALISTS, SearchSettings
from modelhound.store import RunFolder

__all__ = ["enter_finals"]


def enter_finals(
    ranking: Ranking,
    measured: Mapping[str, ModelMeasured],
    *,
    num_candidates: int,
    dataset: Dataset,
    settings: SearchSettings,
    device: str,
    run: RunFolder,
    failed: Callable[[Failure], None],
    warn: Callable[[str], None],
    watch: Watch = silent,
) -> FinalsAnswer | None:
    """Race the first of the ranking by short fine-tuning; None where there are not two of them, or no budget for a rung."""
    chosen = tuple(measured[row.model] for row in ranking.models[: settings.num_finalists() or MOST_FINALISTS])
    if len(chosen) < 2:
        warn(f"finals need two models, but {len(chosen)} could be measured: none were held")
        return None

    def tell(record: TrialDone | FinalsCosts | Failure) -> None:
        run.append(record)
        if isinstance(record, Failure):
            failed(record)

    job = FinalsJob(
        finalists=chosen,
        scorer=ranking.rests_on[0],
        num_candidates=num_candidates,
        dataset=dataset,
        settings=settings,
        device=device,
        folder=run.path,
        known=(*run.read(FinalsCosts), *run.read(TrialDone)),
        tell=tell,
        watch=watch,
    )
    try:
        return hold_finals(job)
    except BudgetError as error:  # what it takes is known only now, and what was found stays true
        warn(f"no finals were held: {error}")
        return None
