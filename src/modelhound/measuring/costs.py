"""How long a search takes, over one model or over many.

In:  models, items, the settings of a search
Out: FeaturesTimed of one model, SearchTimed of several
Nothing here knows run folders or what the seconds are compared with. What is timed is what `hound search` does, plainly or with
everything shared; features of earlier searches are not used.
"""

from collections.abc import Sequence
from typing import Any

from modelhound.data import Dataset
from modelhound.errors import ModelError
from modelhound.measuring.plainly import measure_plainly
from modelhound.measuring.scoring import Job
from modelhound.measuring.together import measure_together
from modelhound.meter import Meter
from modelhound.models import ModelRef
from modelhound.records import Failure, FeaturesTimed, ModelMeasured, SearchTimed, Watch, silent
from modelhound.settings import SearchSettings

__all__ = ["search_once", "time_features", "time_search"]


def time_features(
    model: ModelRef,
    items: Dataset,
    settings: SearchSettings,
    *,
    stamp: str,
    device: str,
    repeats: int,
    watch: Watch = silent,
) -> FeaturesTimed:
    """One model, read, run over all items and scored, several times over; `settings` ask for the plain way."""
    measured = [search_once([model], items, settings, device=device, watch=watch)[0] for _ in range(repeats)]
    return FeaturesTimed(
        model=str(model),
        stamp=stamp,
        num_items=len(items),
        extract_seconds=_seconds(measured, "wait for data", "data to device", "forward"),
        score_seconds=_seconds(measured, "score"),
        weight_seconds=_seconds(measured, "read weights", "build model", "weights to device"),
        wall_seconds=tuple(record.wall_seconds for record in measured),
    )


def time_search(
    models: Sequence[ModelRef], items: Dataset, settings: SearchSettings, *, device: str, watch: Watch = silent
) -> SearchTimed:
    """A search over all of these models, in the way that `settings` ask for."""
    meter = Meter(device)
    search_once(models, items, settings, device=device, watch=watch)
    return SearchTimed(
        way="plain" if settings.plain else "engine",
        num_models=len(models),
        models=tuple(str(model) for model in models),
        num_items=len(items),
        seconds=meter.wall_seconds,
    )


def search_once(
    models: Sequence[ModelRef], items: Dataset, settings: SearchSettings, *, device: str, watch: Watch = silent
) -> list[ModelMeasured]:
    """The records of all models; one that fails is a ModelError, since a search without it would be another search."""
    records: list[ModelMeasured] = []
    failures: list[Failure] = []

    def tell(record: Any) -> None:
        (failures if isinstance(record, Failure) else records).append(record)

    (measure_plainly if settings.plain else measure_together)(
        Job(
            models=dict.fromkeys(models, ""),
            dataset=items,
            settings=settings,
            scorers=settings.scorers,
            device=device,
            tell=tell,
            watch=watch,
        )
    )
    if failures:
        raise ModelError(f"{failures[0].model}: {failures[0].error}")
    return records


def _seconds(measured: Sequence[ModelMeasured], *phases: str) -> tuple[float, ...]:
    """Of these phases together, one sample per search."""
    return tuple(record.seconds_of(*phases) for record in measured)
