"""`search`: which of these pretrained networks suits this data set?

In:  SearchSettings
Out: a SearchResult, and a run folder that holds every measurement behind it
Each model is read, built, run and scored by itself; one that fails is recorded and the others go on. Whatever is finished
is in the run folder at once, so that the same request takes up where it was stopped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from modelhound.analysis import rank_models
from modelhound.compat import import_timm, keep_freed_memory, wait_asleep
from modelhound.data import Dataset, open_dataset
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
from modelhound.settings import ACCURACY_SCORERS, DEFAULT_SCORERS, SearchSettings
from modelhound.store import RunFolder, default_run_path, open_run

__all__ = ["SearchResult", "run_search", "search"]


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one search and where to find what it rests on."""

    run: Path
    data: str
    num_items: int
    num_classes: int
    device: str
    weights: str
    ranking: Ranking
    top: int | None
    """How many of the ranking to show; the ranking itself is whole."""
    failures: tuple[Failure, ...]
    skipped: tuple[ItemSkipped, ...]
    phases: dict[str, float]
    num_resumed: int

    def to_json(self) -> dict[str, Any]:
        """The document that `hound search --json` prints."""
        rows = [to_plain(model) for model in self.ranking.models[: self.top]]
        return {
            "run": str(self.run),
            "data": self.data,
            "num_items": self.num_items,
            "num_classes": self.num_classes,
            "device": self.device,
            "weights": self.weights,
            "rests_on": list(self.ranking.rests_on),
            "confidence": self.ranking.confidence,
            "ranking": rows,
            "control": {"by_size": list(self.ranking.by_size), "kendall_tau": self.ranking.size_agreement},
            "failures": [{"model": each.model, "phase": each.phase, "error": each.error} for each in self.failures],
            "skipped": [{"item": each.item, "reason": each.reason} for each in self.skipped],
            "phases": self.phases,
        }


def search(
    data: str,
    models: str | Sequence[str] = ("zoo:*",),
    *,
    where: str | None = None,
    limit: int | None = None,
    top: int | None = None,
    scorers: str | Sequence[str] = DEFAULT_SCORERS,
    weights: Literal["pretrained", "random"] = "pretrained",
    batch: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    seed: int = 0,
    run: str | Path | None = None,
    watch: Watch = silent,
) -> SearchResult:
    """Rank `models` for `data`; the keywords are the options of `hound search`."""
    settings = SearchSettings(
        str(data),
        models=(models,) if isinstance(models, str) else tuple(models),
        where=where,
        limit=limit,
        top=top,
        scorers=(scorers,) if isinstance(scorers, str) else tuple(scorers),
        weights=weights,
        batch=batch,
        workers=workers,
        device=device,
        seed=seed,
        run=Path(run) if run is not None else None,
    )
    return run_search(settings, watch=watch)


def run_search(settings: SearchSettings, *, watch: Watch = silent) -> SearchResult:
    """Do what `settings` ask for."""
    wait_asleep()  # before anything below loads torch
    rests_on = _decisive(settings.scorers)
    models = find_models(settings.models, where=settings.where, watch=watch)
    watch(Progress(task="loading libraries", done=0, total=1))
    import_timm()  # takes seconds once; not in the phases of whichever model happens to be first
    watch(Progress(task="loading libraries", done=1, total=1))
    device = resolve_device(settings.device)
    if device == "cpu":
        keep_freed_memory()
    dataset = open_dataset(settings.data, limit=settings.limit, seed=settings.seed, watch=watch)
    identity = _identity(settings, dataset, device)
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
        num_resumed = sum(str(model) in finished for model in models)
        failures = _measure_all(models, finished, settings, dataset, device, run, watch)
        watch(Progress(task="models", done=len(models), total=len(models)))
        measured = [finished[str(model)] for model in models if str(model) in finished]
        ranking = rank_models(measured, rests_on=rests_on, seed=settings.seed)
        run.write_ranking(ranking)
    return SearchResult(
        run=path,
        data=settings.data,
        num_items=len(dataset),
        num_classes=len(dataset.class_names),
        device=device,
        weights=settings.weights,
        ranking=ranking,
        top=settings.top,
        failures=tuple(failures),
        skipped=dataset.skipped,
        phases=_total_phases(measured),
        num_resumed=num_resumed,
    )


def _decisive(scorers: Sequence[str]) -> tuple[str, ...]:
    """The scorers a ranking rests on: those that judge every item, so that items can be resampled."""
    for scorer in ACCURACY_SCORERS:
        if scorer in scorers:
            return (scorer,)
    raise RequestError(
        f"cannot rank by {', '.join(scorers)} alone: expected at least one of {', '.join(ACCURACY_SCORERS)}, "
        "which judge item by item and so can say how sure a ranking is; add one to --scorers"
    )


def _identity(settings: SearchSettings, dataset: Dataset, device: str) -> dict[str, Any]:
    """Whatever decides the numbers; the models may grow from one start to the next."""
    return {
        "data_fingerprint": dataset.fingerprint,
        "limit": settings.limit,
        "scorers": list(settings.scorers),
        "weights": settings.weights,
        "device": device.partition(":")[0],
        "seed": settings.seed,
    }


def _measure_all(
    models: Sequence[ModelRef],
    finished: dict[str, ModelMeasured],
    settings: SearchSettings,
    dataset: Dataset,
    device: str,
    run: RunFolder,
    watch: Watch,
) -> list[Failure]:
    """Measure what is not in `finished` yet and add it there; what fails comes back."""
    failures = []
    for done, model in enumerate(models):
        watch(Progress(task="models", done=done, total=len(models), detail=str(model)))
        if str(model) in finished:
            continue
        meter = Meter(device)
        try:
            record = _measure(model, settings, dataset, meter, watch)
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


def _measure(model: ModelRef, settings: SearchSettings, dataset: Dataset, meter: Meter, watch: Watch) -> ModelMeasured:
    """One model from its weight file to its scores."""
    from modelhound.features import extract_features, suitable_batch
    from modelhound.scores import score

    source = source_of(model)
    weights = None
    if settings.weights == "pretrained":
        with meter.phase("read weights"):
            weights = source.read_weights(model.name)
    with meter.phase("build model"):
        network = _build_reproducibly(model, weights, settings.seed)
    with meter.phase("weights to device"):
        network.module.to(meter.device)
    features = extract_features(
        network,
        dataset,
        device=meter.device,
        batch=settings.batch or suitable_batch(network, meter.device),
        workers=settings.workers,
        meter=meter,
        watch=watch,
    )
    scores = score(features, settings.scorers, seed=settings.seed, timed=lambda name: meter.phase("score"))
    return ModelMeasured(
        model=str(model),
        num_parameters=network.num_parameters,
        num_features=features.features.shape[1],
        num_items=len(dataset),
        scores={name: each.value for name, each in scores.items()},
        item_scores={
            name: pack_items(each.item_scores) for name, each in scores.items() if each.item_scores is not None
        },
        phases=meter.samples,
        wall_seconds=meter.wall_seconds,
        peak_memory_bytes=meter.peak_memory_bytes,
    )


def _build_reproducibly(model: ModelRef, weights: Weights | None, seed: int) -> Network:
    """Build with the global random state set aside, so that random weights depend on the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return source_of(model).build(model.name, weights)


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
