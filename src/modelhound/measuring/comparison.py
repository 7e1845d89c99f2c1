"""All that `hound breakeven` compares: every model on every number of items, and searches over more and more of a pool.

In:  BreakevenSettings, a data set, a device, what earlier starts have timed
Out: a record of every job, told as soon as it is there and kept beside those that were known; a Failure for a model that fails
Nothing here times a job (see `comparing`) or knows run folders, or what follows from the seconds.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from modelhound.analysis.wording import plural
from modelhound.data import Dataset
from modelhound.errors import ModelError, RequestError, StoreError, explain_error
from modelhound.measuring.comparing import Contest
from modelhound.models import ModelRef, source_of, stamp_own
from modelhound.records import Failure, FeaturesTimed, Progress, SearchTimed, TrainingTimed, Watch
from modelhound.settings import BreakevenSettings

__all__ = ["Comparison"]

_EXTRACT = "extract"  # beside the modes of training and the ways of searching
_PASSES_OF_TRAINING = 3  # over the items, that an epoch of it takes about as long as

_Timed = TrainingTimed | FeaturesTimed | SearchTimed
_Job = tuple[str, tuple[str, ...], int]


class Comparison:
    """What is timed so far, and timing the rest."""

    def __init__(
        self,
        settings: BreakevenSettings,
        dataset: Dataset,
        *,
        device: str,
        known: Iterable[_Timed],
        tell: Callable[[_Timed | Failure], None],
        watch: Watch,
    ) -> None:
        self._settings, self._tell, self._watch = settings, tell, watch
        self._contest = Contest(settings, dataset, device=device, watch=watch)
        self._known = {(_job_of(record), record.stamp): record for record in known}
        self._done, self._total = 0.0, 1.0
        self.trainings: list[TrainingTimed] = []
        self.features: list[FeaturesTimed] = []
        self.searches: list[SearchTimed] = []
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.num_resumed = 0

    def measure(self, models: Sequence[ModelRef], sizes: Sequence[int], pool: Sequence[ModelRef]) -> None:
        """Every model on every number of items, then searches over more and more of the pool."""
        settings, epochs = self._settings, self._settings.epochs_run()
        each = {"full": _PASSES_OF_TRAINING * epochs, "head": epochs, "cached": 1, _EXTRACT: settings.repeats}
        counts = sorted({min(count, len(pool)) for count in settings.num_models()}) if pool else []
        short = [count for count in settings.num_models() if count > len(pool) > 0]
        if short:
            self.notes.append(f"models in the pool: {len(pool)}, taken in place of {', '.join(map(str, short))}")
        searched = sizes[len(sizes) // 2]
        passes = sum(each[mode] for mode in settings.modes) + each[_EXTRACT]
        self._total = len(models) * sum(sizes) * passes + 2 * sum(counts) * searched
        for model in models:
            for size in sizes:
                items = self._contest.select(size)
                self._time_features(model, items)
                self._advance(size * each[_EXTRACT])
                for mode in settings.modes:
                    self._time_training(model, items, mode)
                    self._advance(size * each[mode])
        for count in counts:
            for way in ("plain", "engine"):
                self._time_search(way, pool[:count], self._contest.select(searched))
                self._advance(count * searched)
        self._watch(Progress(task="comparing, %", done=100, total=100))

    def _advance(self, cost: float) -> None:
        self._done += cost
        self._say("")

    def _say(self, detail: str) -> None:
        done = min(100, int(100 * self._done / self._total))
        self._watch(Progress(task="comparing, %", done=done, total=100, detail=detail))

    def _time_training(self, model: ModelRef, items: Dataset, mode: str) -> None:
        self._say(f"{model}: {mode} on {len(items)} items")

        def measure(stamp: str) -> TrainingTimed:
            return self._contest.time_training(model, items, mode, stamp=stamp)

        self._take(model, f"{mode} training", (mode, (str(model),), len(items)), self.trainings, measure)

    def _time_features(self, model: ModelRef, items: Dataset) -> None:
        self._say(f"{model}: features of {len(items)} items")

        def measure(stamp: str) -> FeaturesTimed:
            return self._contest.time_features(model, items, stamp=stamp)

        self._take(model, "features", (_EXTRACT, (str(model),), len(items)), self.features, measure)

    def _take(self, model: ModelRef, phase: str, job: _Job, into: list[Any], measure: Callable[[str], _Timed]) -> None:
        """What was known already, or what is measured now; a model that fails is told and the others go on."""
        try:
            stamp = source_of(model).stamp(model.name, self._settings)
            known = self._known.get((job, stamp))
            record = known or measure(stamp)
        except (RequestError, StoreError):
            raise
        except Exception as error:  # whatever a stranger's model raises, the others go on
            failure = Failure(model=str(model), phase=phase, error=explain_error(error))
            self._tell(failure)
            self.failures.append(failure)
            return
        self._put(record, into, is_known=known is not None)

    def _time_search(self, way: str, models: Sequence[ModelRef], items: Dataset) -> None:
        self._say(f"searching over {plural(len(models), 'model')}, {way}")
        stamp = self._stamp_all(models)
        known = self._known.get(((way, tuple(map(str, models)), len(items)), stamp))
        try:
            record = known or msgspec.structs.replace(self._contest.time_search(way, models, items), stamp=stamp)
        except ModelError as error:
            self.notes.append(f"a search over {plural(len(models), 'model')} was not timed: {error}")
            return
        self._put(record, self.searches, is_known=known is not None)

    def _stamp_all(self, models: Sequence[ModelRef]) -> str:
        """Empty where none of them is in somebody's own files."""
        stamps = [stamp_own(model, self._settings) for model in models]
        return hashlib.sha256("\0".join(stamps).encode()).hexdigest()[:16] if any(stamps) else ""

    def _put(self, record: _Timed, into: list[Any], *, is_known: bool) -> None:
        if is_known:
            self.num_resumed += 1
        else:
            self._tell(record)
        into.append(record)


def _job_of(record: _Timed) -> _Job:
    """What a record is of: what was done, with which models, on how many items."""
    if isinstance(record, SearchTimed):
        return record.way, record.models, record.num_items
    return record.mode if isinstance(record, TrainingTimed) else _EXTRACT, (record.model,), record.num_items
