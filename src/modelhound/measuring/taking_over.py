"""Models that earlier starts have measured, and others: the first are taken over, the others measured now.

In:  the models of a search, its settings and data set, records of earlier starts
Out: what is known of every model: measured, dropped or failed; what is new is told as soon as it is there
Nothing here ranks, or knows where records are kept. How models are measured is chosen here: one by one, all together, or spread
over a cluster.
"""

import dataclasses
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from modelhound.data import Dataset
from modelhound.errors import ModelError
from modelhound.measuring.loading import use_recommended
from modelhound.measuring.plainly import measure_plainly
from modelhound.measuring.scoring import Job
from modelhound.measuring.spread import measure_spread
from modelhound.measuring.together import measure_together
from modelhound.models import ModelRef, source_of
from modelhound.records import (
    Failure,
    LoaderUsed,
    ModelDropped,
    ModelMeasured,
    PlanMade,
    Record,
    Timeline,
    Watch,
)
from modelhound.settings import ModelSettings, SearchSettings
from modelhound.training.learned import learned_by, tell_learned

__all__ = ["Measured", "measure_models", "stamp_models"]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What is known of the models asked for."""

    models: dict[str, ModelMeasured]
    dropped: dict[str, ModelDropped]
    failures: list[Failure]
    warnings: list[str]
    seen: dict[str, np.ndarray]
    """The features of the best model, if it was measured by this start."""
    num_resumed: int = 0
    loader: LoaderUsed | None = None

    def look(self, model: str, features: np.ndarray) -> None:
        self.seen.clear()
        self.seen[model] = features

    def add(self, record: ModelMeasured | ModelDropped | Failure) -> None:
        if isinstance(record, ModelMeasured):
            self.models[record.model] = record
        elif isinstance(record, ModelDropped):
            self.dropped[record.model] = record
        else:
            self.failures.append(record)


def stamp_models(models: Sequence[ModelRef], settings: ModelSettings) -> tuple[dict[ModelRef, str], list[Failure]]:
    """What tells the weights of each, and code of one's own, from others; and those that have none to read."""
    stamps: dict[ModelRef, str] = {}
    failures = []
    for model in models:
        try:
            stamps[model] = source_of(model).stamp(model.name, settings)
        except ModelError as error:
            failures.append(Failure(model=str(model), phase="read weights", error=str(error)))
    return stamps, failures


def measure_models(
    models: Sequence[ModelRef],
    settings: SearchSettings,
    *,
    scorers: tuple[str, ...],
    dataset: Dataset,
    device: str,
    known: Sequence[ModelMeasured | ModelDropped],
    keep: Callable[[Record], None],
    num_assured: int | None,
    watch: Watch,
) -> Measured:
    """Take over what is known of these models unless they have changed, measure the others, and `keep` what comes of it.

    Of two records of a model in `known` the later counts. `num_assured` is how many of the best a race must not lose.
    """
    measured = Measured({}, {}, [], [], {})
    # one that was dropped stays dropped: the others it lost against are still there
    finished = {record.model: record for record in known}
    todo: dict[ModelRef, str] = {}

    used: LoaderUsed | None = None
    was_used = False

    def tell(record: ModelMeasured | ModelDropped | Failure | PlanMade | Timeline) -> None:
        nonlocal was_used
        # of remembered features nothing is loaded or computed, and then nothing was taken over either
        if used is not None and not was_used and _tells_of_computing(record):
            keep(used)
            was_used = True
        if isinstance(record, ModelMeasured) and (memory := tell_learned(learned_by(record.model, settings), dataset)):
            record = msgspec.structs.replace(record, notes=(*record.notes, memory))
        keep(record)
        if not isinstance(record, PlanMade | Timeline):
            measured.add(record)

    stamps, failures = stamp_models(models, settings)
    for failure in failures:
        tell(failure)
    for model, stamp in stamps.items():
        if str(model) in finished and finished[str(model)].stamp == stamp:
            measured.add(finished[str(model)])
        else:
            todo[model] = stamp
    num_resumed = len(measured.models)
    if todo:
        job = Job(
            models=todo,
            dataset=dataset,
            settings=dataclasses.replace(settings, top=num_assured),
            scorers=scorers,
            device=device,
            tell=tell,
            warn=measured.warnings.append,
            show=measured.look,
            watch=watch,
        )
        job, used = use_recommended(job)
        measure = measure_plainly if settings.plain else measure_together if settings.on == "local" else measure_spread
        measure(job)
    return dataclasses.replace(measured, num_resumed=num_resumed, loader=used if was_used else None)


def _tells_of_computing(record: Record) -> bool:
    """Plans are made of what has to be run; models that are measured one by one come without."""
    return isinstance(record, PlanMade) or (isinstance(record, ModelMeasured) and record.seconds_of("forward") > 0)
