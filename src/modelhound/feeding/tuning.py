"""The recommended pair once more, with other options changed one at a time.

In:  a Study, the recommended settings, the names of the options to try
Out: the settings with those options changed that made runs shorter by more than noise
Nothing here changes the pair. Every variant and the settings as they are take turns with the same models.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from modelhound.feeding.ledger import Study
from modelhound.feeding.runs import measure_run
from modelhound.records import Progress, TuneMeasured
from modelhound.settings import LoaderSettings

__all__ = ["Tuned", "tune"]

_PREFETCHES = (1, 2, 4, 8)
_NUM_TURNS = 2
_MOST_MODELS = 3
_WORTH_IT = 0.98  # of the time as it was: less of a gain is noise


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came of it."""

    settings: LoaderSettings
    notes: tuple[str, ...]


def tune(study: Study, settings: LoaderSettings, options: Sequence[str], *, models: Sequence[str]) -> Tuned:
    """Try the options with the fastest, a middle and the slowest of `models`, which are in order of their speed."""
    variants, notes = _variants(study, settings, options)
    if not variants:
        return Tuned(settings=settings, notes=tuple(notes))
    places = sorted({0, len(models) // 2, len(models) - 1})[:_MOST_MODELS]
    turns = list(itertools.product(range(_NUM_TURNS), (models[place] for place in places), ("", *variants)))
    seconds: dict[str, dict[str, list[float]]] = {}
    for record in (each for each in study.known if isinstance(each, TuneMeasured)):
        known = (record.item_kind, record.batch, record.workers)
        if known == (study.item_kind, settings.batch, settings.workers):
            seconds.setdefault(record.option, {}).setdefault(record.model, []).append(record.wall_seconds)
    for done, (turn, model, option) in enumerate(turns):
        study.watch(Progress(task="trying options", done=done, total=len(turns), detail=option or "as it is"))
        if len(seconds.get(option, {}).get(model, ())) > turn:
            continue
        try:
            taken = _run(study, variants.get(option, settings), model)
        except Exception as error:  # memory, workers: the settings as they are worked before
            notes.append(f"{option or 'the settings as they are'} could not be tried: {error}")
            continue
        study.tell(
            TuneMeasured(
                item_kind=study.item_kind,
                model=model,
                option=option,
                wall_seconds=taken,
                batch=settings.batch,
                workers=settings.workers,
            )
        )
        seconds.setdefault(option, {}).setdefault(model, []).append(taken)
    study.watch(Progress(task="trying options", done=len(turns), total=len(turns)))
    for option, changed in variants.items():
        ratio = _ratio(seconds, option)
        if ratio is None:
            continue
        notes.append(f"{option}: {ratio:.2f} of the time without it, at {settings.batch} x {settings.workers}.")
        if ratio < _WORTH_IT and _is_best_of_its_kind(seconds, option, variants):
            name = option.split()[0]
            settings = msgspec.structs.replace(settings, **{name: getattr(changed, name)})
    return Tuned(settings=settings, notes=tuple(notes))


def _variants(
    study: Study, settings: LoaderSettings, options: Sequence[str]
) -> tuple[dict[str, LoaderSettings], list[str]]:
    """Other values, by how they would be written, and why some make no difference here."""
    variants: dict[str, LoaderSettings] = {}
    notes = []
    if settings.workers == 0:
        return {}, [f"{', '.join(options)}: nothing to try without workers."]
    if "prefetch" in options:
        for value in _PREFETCHES:
            if value != settings.prefetch:
                variants[f"prefetch {value}"] = msgspec.structs.replace(settings, prefetch=value)
    if "pin" in options:
        if study.feed.device.startswith("cuda"):
            variants["pin no" if settings.pin else "pin yes"] = msgspec.structs.replace(settings, pin=not settings.pin)
        else:
            notes.append("pin: nothing to try on a CPU, which takes batches from where they are.")
    if "persistent" in options:
        if study.num_items > len(study.dataset):
            changed = msgspec.structs.replace(settings, persistent=not settings.persistent)
            variants["persistent no" if settings.persistent else "persistent yes"] = changed
        else:
            notes.append("persistent: nothing to try in a single pass; use --length for a longer run.")
    return variants, notes


def _run(study: Study, settings: LoaderSettings, model: str) -> float:
    feed = dataclasses.replace(study.feed, prefetch=settings.prefetch, pin=settings.pin, persistent=settings.persistent)
    return measure_run(
        study.networks[model],
        study.dataset,
        feed,
        item_kind=study.item_kind,
        model=model,
        batch=settings.batch,
        workers=settings.workers,
        num_items=study.num_items,
    ).wall_seconds


def _ratio(seconds: dict[str, dict[str, list[float]]], option: str) -> float | None:
    """Of the time with the option to the time without, as the geometric mean over models."""
    shared = [model for model in seconds.get(option, {}) if model in seconds.get("", {})]
    if not shared:
        return None
    logs = [np.log(seconds[option][model]).mean() - np.log(seconds[""][model]).mean() for model in shared]
    return float(np.exp(np.mean(logs)))


def _is_best_of_its_kind(
    seconds: dict[str, dict[str, list[float]]], option: str, variants: dict[str, LoaderSettings]
) -> bool:
    rivals = [each for each in variants if each.split()[0] == option.split()[0]]
    ratios = {each: _ratio(seconds, each) or np.inf for each in rivals}
    return min(ratios, key=lambda each: ratios[each]) == option
