"""The jobs that `hound breakeven` compares, each timed as a user would meet it.

In:  BreakevenSettings, a data set, a device
Out: TrainingTimed, FeaturesTimed and SearchTimed records, one job at a time
Nothing here knows run folders, or what the seconds mean. A training is that of `hound train`, a search that of `hound search`.
"""

import contextlib
from collections.abc import Sequence

from modelhound.data import Dataset
from modelhound.data.choosing import choose_balanced, strata
from modelhound.errors import ModelError
from modelhound.measuring.costs import search_once, time_features, time_search
from modelhound.measuring.trainings import time_training
from modelhound.models import ModelRef
from modelhound.records import FeaturesTimed, SearchTimed, TrainingTimed, Watch
from modelhound.settings import BreakevenSettings, RecipeSettings, SearchSettings

__all__ = ["Contest"]


class Contest:
    """Times one job after the other on the same items; what a process pays once is paid before the first of a kind."""

    def __init__(self, settings: BreakevenSettings, dataset: Dataset, *, device: str, watch: Watch) -> None:
        self._settings, self._dataset, self._device, self._watch = settings, dataset, device, watch
        self._warm: set[str] = set()

    def select(self, size: int) -> Dataset:
        """So many items, of every class the same share; all of them where there are not that many."""
        if size >= len(self._dataset):
            return self._dataset
        groups = strata(self._dataset.targets, self._dataset.task)
        return self._dataset.select(choose_balanced(groups, limit=size, seed=self._settings.seed).tolist())

    def time_training(self, model: ModelRef, items: Dataset, mode: str, *, stamp: str) -> TrainingTimed:
        settings = self._settings
        recipe = RecipeSettings(
            mode=mode,  # type: ignore[arg-type]  # one of the three, as the settings have checked
            epochs=settings.epochs_run(),
            batch=settings.batch,
            augment="none",
            precision=settings.precision,
            workers=settings.workers,
            seed=settings.seed,
        )
        return time_training(model, items, settings, recipe, stamp=stamp, device=self._device, watch=self._watch)

    def time_features(self, model: ModelRef, items: Dataset, *, stamp: str) -> FeaturesTimed:
        plain = self._search_settings(plain=True)
        if str(model) not in self._warm:
            self._warm.add(str(model))
            search_once([model], self._fewest(), plain, device=self._device)  # libraries, kernels
        return time_features(
            model,
            items,
            plain,
            stamp=stamp,
            device=self._device,
            repeats=self._settings.repeats,
            watch=self._watch,
        )

    def time_search(self, way: str, models: Sequence[ModelRef], items: Dataset) -> SearchTimed:
        """plain: one model after the other; engine: all together. A model that fails is a ModelError."""
        if way not in self._warm:
            self._warm.add(way)
            with contextlib.suppress(ModelError):  # it will be told when it is timed
                search_once(
                    models[:1], self._fewest(), self._search_settings(plain=way == "plain"), device=self._device
                )
        return time_search(
            models, items, self._search_settings(plain=way == "plain"), device=self._device, watch=self._watch
        )

    def _fewest(self) -> Dataset:
        return self.select(self._settings.num_items()[0])

    def _search_settings(self, *, plain: bool) -> SearchSettings:
        settings = self._settings
        return SearchSettings(
            settings.data,
            seed=settings.seed,
            models=settings.models,
            weights=settings.weights,
            arch=settings.arch,
            pooling=settings.pooling,
            layers=settings.layers,
            tokens=settings.tokens,
            allow_code=settings.allow_code,
            scorers=("ridge",),
            exhaustive=not plain,
            fresh=not plain,  # or the second start would time how fast features are remembered
            plain=plain,
            precision="fp32" if plain else settings.precision,
            batch=settings.batch,
            workers=settings.workers,
            device=self._device,
        )
