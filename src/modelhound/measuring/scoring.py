"""From the features of one model to its record.

In:  features, one set per layer asked for
Out: a ModelMeasured: scores of the layer that is best, raw seconds, and notes a person should read
Nothing here knows how features were made.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modelhound.data import Dataset, InputForm, Preprocessing
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.data.sources.prepared import PreparedReader
from modelhound.models import ModelRef
from modelhound.records import (
    Failure,
    ModelDropped,
    ModelMeasured,
    PhaseSamples,
    PlanMade,
    Timeline,
    Watch,
    pack_items,
    silent,
)
from modelhound.scores import Begun, FeatureSet, Groundwork, Scores, begin, finish
from modelhound.settings import ACCURACY_SCORERS, SearchSettings, decisive_scorer

__all__ = ["Job", "Seen", "begin_layers", "best_layer", "make_record", "score_best_layer", "tested_only"]

_NOTHING = 0.5  # of what guessing among the classes reaches


def _look_away(model: str, features: np.ndarray) -> None:
    """Do nothing with them."""


def _keep_quiet(warning: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to measure, and whom to tell."""

    models: Mapping[ModelRef, str]
    """Each with its stamp."""
    dataset: Dataset
    settings: SearchSettings
    scorers: tuple[str, ...]
    device: str
    tell: Callable[[ModelMeasured | ModelDropped | Failure | PlanMade | Timeline], None]
    """Called with every record as soon as it is there."""
    warn: Callable[[str], None] = _keep_quiet
    """Called with what a person should know of the whole run."""
    show: Callable[[str, np.ndarray], None] = _look_away
    """Called with the features of each model that is the best so far."""
    watch: Watch = silent
    prefetch: int = BATCHES_AHEAD
    """Batches that each loader process is ahead, in the plain path."""
    pin: bool | None = None
    """Whether the plain path loads into pinned memory; None where a GPU is fed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of a model when its features are there."""

    model: ModelRef
    stamp: str
    form: InputForm | None
    """None where its features were remembered."""
    num_parameters: int
    num_features: int
    num_layers: int
    num_truncated: int
    max_tokens: int | None = None
    """To which these were cut, if `form` does not say it."""
    notes: tuple[str, ...] = ()


def score_best_layer(
    layers: Sequence[FeatureSet],
    scorers: Sequence[str],
    *,
    seed: int,
    timed: Callable[[str], AbstractContextManager[None]],
) -> tuple[Scores, int]:
    """The scores of the layer that the decisive scorer likes best, and its place."""
    return best_layer(finish(begin_layers(layers, scorers, seed=seed, timed=timed), timed=timed), scorers)


def begin_layers(
    layers: Sequence[FeatureSet],
    scorers: Sequence[str],
    *,
    seed: int,
    timed: Callable[[str], AbstractContextManager[None]],
    found: Callable[[int, Groundwork], None] = lambda place, groundwork: None,
) -> list[Begun]:
    """What can be said of each layer before anything is learned.

    `found` is told what was found of each that would serve for other targets too.
    """
    by_layer = []
    for place, layer in enumerate(layers):
        begun = begin(layer, scorers, seed=seed, timed=timed)
        found(place, begun.groundwork)
        by_layer.append(dataclasses.replace(begun, groundwork=Groundwork()))  # large, and not needed any more
    return by_layer


def best_layer(by_layer: Sequence[Scores], scorers: Sequence[str]) -> tuple[Scores, int]:
    """The scores of the layer that the decisive scorer likes best, and its place."""
    decisive = decisive_scorer(scorers)
    best = max(range(len(by_layer)), key=lambda place: by_layer[place].values[decisive].value)
    return by_layer[best], best


def tested_only(item_scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Without the items that a scorer learned from: which these are, the seed decides, and not the model."""
    return item_scores[~np.isnan(item_scores)].astype(np.float64)


def make_record(
    seen: Seen,
    dataset: Dataset,
    scores: Scores,
    layer: int,
    *,
    phases: Iterable[PhaseSamples],
    wall_seconds: float,
    peak_memory_bytes: int,
) -> ModelMeasured:
    """The record; a phase that was come to several times, in rungs of a race, has all of its samples."""
    samples: dict[str, list[float]] = {}
    for each in phases:
        samples.setdefault(each.phase, []).extend(each.seconds)
    return ModelMeasured(
        model=str(seen.model),
        stamp=seen.stamp,
        num_parameters=seen.num_parameters,
        num_features=seen.num_features,
        num_items=len(dataset),
        scores={name: each.value for name, each in scores.values.items()},
        item_scores={
            name: pack_items(each.item_scores) for name, each in scores.values.items() if each.item_scores is not None
        },
        phases=tuple(PhaseSamples(phase=phase, seconds=tuple(spent)) for phase, spent in samples.items()),
        wall_seconds=wall_seconds,
        peak_memory_bytes=peak_memory_bytes,
        notes=tuple(_notes(seen, dataset, scores, layer)),
    )


def _notes(seen: Seen, dataset: Dataset, scores: Scores, layer: int) -> list[str]:
    notes = [*seen.notes, *(f"{scorer} is missing: {reason}" for scorer, reason in scores.missing.items())]
    told = next((scores.values[name].value for name in ACCURACY_SCORERS if name in scores.values), None)
    if dataset.task == "classification" and told is not None and told < _NOTHING / len(dataset.class_names):
        notes.append(
            "features tell nothing of the labels: features that are the same for every item score near 0, because each "
            "item is judged by the others"
        )
    if seen.num_layers > 1:
        notes.append(f"layer {layer + 1} of {seen.num_layers} scores best")
    reader, form = dataset.reader, seen.form
    if isinstance(reader, PreparedReader) and isinstance(form, Preprocessing) and not reader.holds(form):
        notes.append("its way to resize is not among those prepared, so that images were resized twice")
    if seen.num_truncated:
        limit = getattr(form, "max_tokens", seen.max_tokens)
        notes.append(f"{seen.num_truncated} of {len(dataset)} texts were cut to {limit} tokens")
    return notes
