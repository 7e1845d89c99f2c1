"""`search`: which of these pretrained networks suits this data set?

In:  SearchSettings
Out: a SearchResult, and a run folder that holds every measurement behind it
Each model is read, built, run and scored by itself; one that fails is recorded and the others go on. Whatever is finished
is in the run folder at once, so that the same request takes up where it was stopped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.analysis import rank_models
from modelhound.compat import import_timm, keep_freed_memory, wait_asleep
from modelhound.data import Dataset, Preprocessing, open_dataset
from modelhound.data.prepared import PreparedReader
from modelhound.errors import HoundError, RequestError, StoreError
from modelhound.meter import Meter, describe_machine, resolve_device, utc_now
from modelhound.models import ModelRef, Network, Weights, find_models, source_of
from modelhound.records import (
    Failure,
    ItemSkipped,
    ModelMeasured,
    Progress,
    Ranking,
    RunStarted,
    Watch,
    pack_items,
    silent,
    to_plain,
)
from modelhound.settings import ACCURACY_SCORERS, DEFAULT_MODELS, METRICS, PLAIN, SearchSettings, Task, scorers_for
from modelhound.store import RunFolder, default_run_path, open_run

if TYPE_CHECKING:
    from modelhound.features import Extracted
    from modelhound.scores import Scores

__all__ = ["SearchResult", "run_search", "search"]


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one search and where to find what it rests on."""

    run: Path
    data: str
    task: Task
    num_items: int
    num_classes: int
    device: str
    weights: str
    ranking: Ranking
    top: int | None
    """How many of the ranking to show; the ranking itself is whole."""
    failures: tuple[Failure, ...]
    skipped: tuple[ItemSkipped, ...]
    notes: tuple[tuple[str, str], ...]
    """Model and what to know of its result."""
    phases: dict[str, float]
    num_resumed: int

    def to_json(self) -> dict[str, Any]:
        """The document that `hound search --json` prints."""
        rows = [to_plain(model) for model in self.ranking.models[: self.top]]
        return {
            "run": str(self.run),
            "data": self.data,
            "task": self.task,
            "num_items": self.num_items,
            "num_classes": self.num_classes,
            "device": self.device,
            "weights": self.weights,
            "rests_on": list(self.ranking.rests_on),
            "metric": self.ranking.metric,
            "confidence": self.ranking.confidence,
            "ranking": rows,
            "control": {"by_size": list(self.ranking.by_size), "kendall_tau": self.ranking.size_agreement},
            "failures": [{"model": each.model, "phase": each.phase, "error": each.error} for each in self.failures],
            "skipped": [{"item": each.item, "reason": each.reason} for each in self.skipped],
            "notes": [{"model": model, "note": note} for model, note in self.notes],
            "phases": self.phases,
        }


def search(
    data: str, models: str | Sequence[str] = ("auto",), *, watch: Watch = silent, **options: Any
) -> SearchResult:
    """Rank `models` for `data`; `options` are those of `hound search`, the fields of SearchSettings."""
    try:
        settings = SearchSettings(str(data), models=(models,) if isinstance(models, str) else tuple(models), **options)
    except TypeError as error:  # an option that does not exist
        raise RequestError(
            f"cannot search: {str(error).partition(' ')[2]}, see help(modelhound.SearchSettings)"
        ) from None
    return run_search(settings, watch=watch)


def run_search(settings: SearchSettings, *, watch: Watch = silent) -> SearchResult:
    """Do what `settings` ask for."""
    wait_asleep()  # before anything below loads torch
    models = _find(settings, settings.models, watch) if settings.models != ("auto",) else ()
    watch(Progress(task="loading libraries", done=0, total=1))
    import_timm()  # takes seconds once; not in the phases of whichever model happens to be first
    watch(Progress(task="loading libraries", done=1, total=1))
    device = resolve_device(settings.device)
    if device == "cpu":
        keep_freed_memory()
    dataset = _open(settings, watch)
    models = models or _find(settings, DEFAULT_MODELS[dataset.modality], watch)
    _check_modality(models, dataset)
    scorers = scorers_for(dataset.task, settings.scorers)
    rests_on = _decisive(scorers)
    identity = _identity(settings, dataset, scorers, device)
    path = settings.run or default_run_path(
        "search", settings.data, {**identity, "models": [str(model) for model in models]}
    )
    with open_run(path, verb="search", at=utc_now(), settings=to_plain(settings), identity=identity) as run:
        finished = {record.model: record for record in run.read(ModelMeasured)}
        run.append(RunStarted(at=utc_now(), device=device, machine=describe_machine()))
        known = set(run.read(ItemSkipped))
        for skipped in dataset.skipped:
            if skipped not in known:
                run.append(skipped)
        before = set(finished)
        failures = _measure_all(models, finished, settings, scorers, dataset, device, run, watch)
        watch(Progress(task="models", done=len(models), total=len(models)))
        measured = [finished[str(model)] for model in models if str(model) in finished]
        ranking = rank_models(measured, rests_on=rests_on, metric=METRICS[dataset.task], seed=settings.seed)
        run.write_ranking(ranking)
    return SearchResult(
        run=path,
        data=settings.data,
        task=dataset.task,
        num_items=len(dataset),
        num_classes=len(dataset.class_names),
        device=device,
        weights=settings.weights,
        ranking=ranking,
        top=settings.top,
        failures=tuple(failures),
        skipped=dataset.skipped,
        notes=tuple((record.model, note) for record in measured for note in record.notes),
        phases=_total_phases(measured),
        num_resumed=len(before & {record.model for record in measured}),
    )


def _find(settings: SearchSettings, patterns: Sequence[str], watch: Watch) -> tuple[ModelRef, ...]:
    models = find_models(patterns, where=settings.where, watch=watch)
    if settings.arch is not None and all(model.source != "file" for model in models):
        raise RequestError(
            f"cannot use --arch {settings.arch!r}: expected a model of the form file:PATH among {', '.join(settings.models)}"
        )
    return models


def _check_modality(models: Sequence[ModelRef], dataset: Dataset) -> None:
    """Single models of the wrong kind fail by themselves; a list of nothing else is a mistake."""
    if not any(dataset.modality in source_of(model).modalities for model in models):
        raise RequestError(
            f"cannot use {models[0]} or any other of the models asked for with {dataset.name!r}: expected models of "
            f"{dataset.modality}s, such as {DEFAULT_MODELS[dataset.modality][0]}"
        )


def _open(settings: SearchSettings, watch: Watch) -> Dataset:
    dataset = open_dataset(
        settings.data,
        columns=settings.roles(),
        task=settings.asked_task(),
        split=settings.split,
        limit=settings.limit,
        seed=settings.seed,
        watch=watch,
    )
    for option in ("pooling", "layers", "tokens"):
        if dataset.modality == "image" and getattr(settings, option) != getattr(PLAIN, option):
            raise RequestError(
                f"cannot use --{option} with {settings.data!r}: expected texts, but these are images; leave it out"
            )
    return dataset


def _decisive(scorers: Sequence[str]) -> tuple[str, ...]:
    """The scorers a ranking rests on: those that judge every item, so that items can be resampled."""
    for scorer in ACCURACY_SCORERS:
        if scorer in scorers:
            return (scorer,)
    raise RequestError(
        f"cannot rank by {', '.join(scorers)} alone: expected at least one of {', '.join(ACCURACY_SCORERS)}, "
        "which judge item by item and so can say how sure a ranking is; add one to --scorers"
    )


def _identity(settings: SearchSettings, dataset: Dataset, scorers: Sequence[str], device: str) -> dict[str, Any]:
    """Whatever decides the numbers; the models may grow from one start to the next."""
    return {
        "data_fingerprint": dataset.fingerprint,
        "limit": settings.limit,
        "scorers": list(scorers),
        "weights": settings.weights,
        "arch": settings.arch,
        "pooling": settings.pooling,
        "layers": settings.layers,
        "tokens": settings.tokens,
        "device": device.partition(":")[0],
        "seed": settings.seed,
    }


def _measure_all(
    models: Sequence[ModelRef],
    finished: dict[str, ModelMeasured],
    settings: SearchSettings,
    scorers: Sequence[str],
    dataset: Dataset,
    device: str,
    run: RunFolder,
    watch: Watch,
) -> list[Failure]:
    """Measure what is not in `finished` yet and add it there; what fails comes back."""
    failures = []
    for done, model in enumerate(models):
        watch(Progress(task="models", done=done, total=len(models), detail=str(model)))
        meter = Meter(device)
        try:
            with meter.phase("read weights"):
                stamp = source_of(model).stamp(model.name)
            if str(model) in finished and finished[str(model)].stamp == stamp:
                continue
            finished.pop(str(model), None)  # measured with other weights than there are now
            record = _measure(model, stamp, settings, scorers, dataset, meter, watch)
        except (RequestError, StoreError):
            raise  # not this model's fault: data that changed or cannot be read, a disk that is full
        except Exception as error:  # whatever a stranger's model raises, the others go on
            failure = Failure(model=str(model), phase=meter.current_phase, error=_explain(error))
            failures.append(failure)
            run.append(failure)
        else:
            run.append(record)
            finished[str(model)] = record
    return failures


def _measure(
    model: ModelRef,
    stamp: str,
    settings: SearchSettings,
    scorers: Sequence[str],
    dataset: Dataset,
    meter: Meter,
    watch: Watch,
) -> ModelMeasured:
    """One model from its weight file to its scores."""
    from modelhound.features import arrange, extract_features, suitable_batch

    weights = None
    if settings.weights == "pretrained":
        with meter.phase("read weights"):
            weights = source_of(model).read_weights(model.name)
    with meter.phase("build model"):
        network = _build_reproducibly(model, weights, settings)
    with meter.phase("weights to device"):
        arrange(network, meter.device)
    extracted = extract_features(
        network,
        dataset,
        device=meter.device,
        batch=settings.batch or suitable_batch(network.preprocessing, meter.device),
        workers=settings.workers,
        meter=meter,
        classify="leep" in scorers,
        watch=watch,
    )
    scores, layer = _score_best_layer(extracted, scorers, settings.seed, meter)
    notes = [f"{scorer} is missing: {reason}" for scorer, reason in scores.missing.items()]
    if len(extracted.layers) > 1:
        notes.append(f"layer {layer + 1} of {len(extracted.layers)} scores best")
    form = network.preprocessing
    if (
        isinstance(dataset.reader, PreparedReader)
        and isinstance(form, Preprocessing)
        and not dataset.reader.holds(form)
    ):
        notes.append("its way to resize is not among those prepared, so that images were resized twice")
    if extracted.num_truncated:
        limit = getattr(form, "max_tokens", None)
        notes.append(f"{extracted.num_truncated} of {len(dataset)} texts were cut to {limit} tokens")
    return ModelMeasured(
        model=str(model),
        stamp=stamp,
        num_parameters=network.num_parameters,
        num_features=extracted.layers[layer].features.shape[1],
        num_items=len(dataset),
        scores={name: each.value for name, each in scores.values.items()},
        item_scores={
            name: pack_items(each.item_scores) for name, each in scores.values.items() if each.item_scores is not None
        },
        phases=meter.samples,
        wall_seconds=meter.wall_seconds,
        peak_memory_bytes=meter.peak_memory_bytes,
        notes=tuple(notes),
    )


def _score_best_layer(extracted: "Extracted", scorers: Sequence[str], seed: int, meter: Meter) -> tuple["Scores", int]:
    """The scores of the layer that the decisive scorer likes best, and its place among those extracted."""
    from modelhound.scores import score

    (decisive,) = _decisive(scorers)
    by_layer = [score(layer, scorers, seed=seed, timed=lambda name: meter.phase("score")) for layer in extracted.layers]
    best = max(range(len(by_layer)), key=lambda place: by_layer[place].values[decisive].value)
    return by_layer[best], best


def _build_reproducibly(model: ModelRef, weights: Weights | None, settings: SearchSettings) -> Network:
    """Build with the global random state set aside, so that random weights depend on the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return source_of(model).build(model.name, weights, settings)


def _explain(error: Exception) -> str:
    """An error as one line: our own speak for themselves, others are named."""
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, HoundError) else f"{type(error).__name__}: {text}"


def _total_phases(measured: Sequence[ModelMeasured]) -> dict[str, float]:
    """Seconds per phase over all models, and what the phases leave over as "other"."""
    totals: dict[str, float] = {}
    for record in measured:
        for samples in record.phases:
            totals[samples.phase] = totals.get(samples.phase, 0.0) + samples.total
    totals["other"] = sum(record.wall_seconds for record in measured) - sum(totals.values())
    return totals
