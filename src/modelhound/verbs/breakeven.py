"""`breakeven`: when does searching for a model take longer than the training it is for?

In:  BreakevenSettings
Out: a BreakevenResult, and a run folder that holds every sample behind it
Nothing here times anything: `measuring.comparison` does, and does not measure again what the folder holds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.breakeven import make_scenario
from modelhound.analysis.breakeven_findings import Asked, Timed, find_breakeven
from modelhound.analysis.wording import plural
from modelhound.compat import keep_freed_memory, load_libraries, wait_asleep
from modelhound.data import Dataset, check_there, open_asked
from modelhound.data.beginning_anew import keep_skipped, without_broken_items
from modelhound.errors import RequestError
from modelhound.launch.arithmetic import Bf16Trial
from modelhound.meter import choose_precision, describe_machine, resolve_device, utc_now
from modelhound.models import ModelRef, check_any_fits, check_arch, find_models
from modelhound.records import (
    BreakevenFindings,
    Failure,
    FeaturesTimed,
    ItemSkipped,
    Machine,
    RunStarted,
    SearchTimed,
    TrainingTimed,
    Watch,
    silent,
    to_document,
    to_plain,
)
from modelhound.settings import BREAKEVEN_MODELS, DEFAULT_MODELS, BreakevenSettings
from modelhound.settings.checks import make_settings, name_all
from modelhound.store import default_run_path, open_run

__all__ = ["BreakevenResult", "breakeven", "run_breakeven"]

_TIMED = ("trainings", "features", "searches")
_FEWEST_PER_CLASS = 4  # items: a fifth is tested on, and scorers want two to learn from


class BreakevenResult(msgspec.Struct, frozen=True, kw_only=True):
    """What training and searching cost, and where to find every sample of it."""

    run: Path
    data: str
    device: str
    weights: str
    machine: Machine
    epochs: int
    trainings: tuple[TrainingTimed, ...]
    features: tuple[FeaturesTimed, ...]
    searches: tuple[SearchTimed, ...]
    findings: BreakevenFindings
    failures: tuple[Failure, ...]
    skipped: tuple[ItemSkipped, ...]
    notes: tuple[str, ...]
    num_resumed: int

    def to_json(self) -> dict[str, Any]:
        """The document that `hound breakeven --json` prints."""
        return {
            "run": str(self.run),
            "data": self.data,
            "device": self.device,
            "weights": self.weights,
            "num_epochs": self.epochs,
            "findings": to_plain(self.findings),
            **{name: [_without_phases(each) for each in getattr(self, name)] for name in _TIMED},
            "failures": to_document(self.failures),
            "skipped": to_document(self.skipped),
            "notes": list(self.notes),
        }


def _without_phases(record: TrainingTimed | FeaturesTimed | SearchTimed) -> dict[str, Any]:
    return {name: value for name, value in to_document(record).items() if name != "phases"}


def breakeven(
    data: str, models: str | Sequence[str] = ("auto",), *, watch: Watch = silent, **options: Any
) -> BreakevenResult:
    """Compare training and searching on `data`; `options` are those of `hound breakeven`."""
    settings = make_settings(BreakevenSettings, "compare", str(data), models=name_all(models), **options)
    return run_breakeven(settings, watch=watch)


def run_breakeven(settings: BreakevenSettings, *, watch: Watch = silent) -> BreakevenResult:
    """Do what `settings` ask for."""
    return without_broken_items(lambda: _breakeven(settings, watch), run=settings.run, watch=watch)


def _breakeven(settings: BreakevenSettings, watch: Watch) -> BreakevenResult:
    wait_asleep()  # before anything below loads torch
    asked, asked_pool = (_find_named(settings, names, watch) for names in (settings.models, settings.pool))
    check_there(settings.data)
    bf16 = Bf16Trial(settings.precision)
    load_libraries(watch)
    from modelhound.measuring.comparison import Comparison

    device = resolve_device(settings.device)
    if device == "cpu":
        keep_freed_memory()
    dataset = _open(settings, watch)
    models = asked or find_models(BREAKEVEN_MODELS[dataset.modality], where=settings.where, watch=watch)
    check_arch(settings.arch, models)
    check_any_fits(models, dataset.modality, settings.data)
    pool = asked_pool or (_usual_pool(settings, models, dataset, watch) if settings.pool else ())
    if pool:
        check_any_fits(pool, dataset.modality, settings.data)
    bf16.settle(device)
    sizes, short = _choose_sizes(settings, dataset)
    identity = _identity(settings, dataset, device)
    named = {**identity, "models": [str(model) for model in models]}
    path = settings.run or default_run_path("breakeven", settings.data, named)
    with open_run(path, verb="breakeven", at=utc_now(), settings=to_plain(settings), identity=identity) as run:
        started = RunStarted(at=utc_now(), device=device, machine=describe_machine())
        run.append(started)
        keep_skipped(run, dataset.skipped)
        known: list[TrainingTimed | FeaturesTimed | SearchTimed] = []
        for kind in (TrainingTimed, FeaturesTimed, SearchTimed):
            known += run.read(kind)
        compared = Comparison(settings, dataset, device=device, known=known, tell=run.append, watch=watch)
        compared.measure(models, sizes, pool)
        timed = Timed(trainings=compared.trainings, features=compared.features, searches=compared.searches)
        findings = find_breakeven(timed, _asked(settings))
        run.write_answer(findings, headline=_headline(findings))
    return BreakevenResult(
        run=path,
        data=settings.data,
        device=device,
        weights=settings.weights,
        machine=started.machine,
        epochs=settings.epochs,
        trainings=tuple(compared.trainings),
        features=tuple(compared.features),
        searches=tuple(compared.searches),
        findings=findings,
        failures=tuple(compared.failures),
        skipped=dataset.skipped,
        notes=tuple(dict.fromkeys((*short, *_precision_notes(settings, device), *compared.notes))),
        num_resumed=compared.num_resumed,
    )


def _open(settings: BreakevenSettings, watch: Watch) -> Dataset:
    dataset = open_asked(settings, watch=watch)
    settings.check_for_texts(settings.data, (dataset.modality,))
    least = _FEWEST_PER_CLASS * len(dataset.class_names)
    if dataset.task == "classification" and settings.num_items()[0] < least:
        raise RequestError(
            f"cannot use --sizes {settings.num_items()[0]} with {settings.data!r}: expected at least {least}, which is "
            f"{_FEWEST_PER_CLASS} items of each of its {len(dataset.class_names)} classes; leave that size out"
        )
    return dataset


def _find_named(settings: BreakevenSettings, names: Sequence[str], watch: Watch) -> tuple[ModelRef, ...]:
    """Before anything slow is done, so that a typing error shows at once; none where it is left to what the items are."""
    return () if names in ((), ("auto",)) else find_models(names, where=settings.where, watch=watch)


def _usual_pool(
    settings: BreakevenSettings, models: tuple[ModelRef, ...], dataset: Dataset, watch: Watch
) -> tuple[ModelRef, ...]:
    """All of the zoo for images; texts have none, and are searched with the models that are trained."""
    if dataset.modality == "text":
        return models
    return find_models(DEFAULT_MODELS["image"], where=settings.where, watch=watch)


def _choose_sizes(settings: BreakevenSettings, dataset: Dataset) -> tuple[list[int], list[str]]:
    """The sizes asked for, as far as there are items; what is larger means all of them, which is said."""
    asked = settings.num_items()
    sizes = sorted({min(size, len(dataset)) for size in asked})
    short = [size for size in asked if size > len(dataset)]
    return sizes, [
        f"{settings.data} has {len(dataset):,} items, which were taken in place of {size:,}; --assume items={size} extrapolates"
        for size in short
    ]


def _precision_notes(settings: BreakevenSettings, device: str) -> tuple[str, ...]:
    """What to know where not all computed in the same precision."""
    if choose_precision(settings.precision, device) == "fp32":
        return ()
    return (
        "trainings and searches of all models together compute in bf16, one model after the other in fp32; with "
        "--precision fp32 all do",
    )


def _identity(settings: BreakevenSettings, dataset: Dataset, device: str) -> dict[str, Any]:
    """Whatever decides the times; models, sizes and kinds of training may grow from one start to the next."""
    return {
        "data_fingerprint": dataset.fingerprint,
        "weights": settings.weights,
        "measured_epochs": settings.epochs_run(),
        "batch": settings.batch,
        "repeats": settings.repeats,
        "workers": settings.workers,
        "precision": settings.precision,
        "tokens": settings.tokens,
        "pooling": settings.pooling,
        "layers": settings.layers,
        "arch": settings.arch,
        "pool": list(settings.pool),
        "device": device.partition(":")[0],
        "seed": settings.seed,
    }


def _asked(settings: BreakevenSettings) -> Asked:
    return Asked(
        epochs=settings.epochs,
        own=make_scenario(settings.own_scenario()),
        assume=settings.assumptions(),
        price_per_hour=settings.price_per_hour,
        watts=settings.watts,
        seed=settings.seed,
    )


def _headline(findings: BreakevenFindings) -> str:
    plain = [each for each in findings.counts if each.scenario == "S1" and each.way == "plain"]
    if not plain:
        return "nothing could be compared"
    most = max(plain, key=lambda each: each.num_items)
    above = plural(most.num_models, "model")
    return f"S1: above {above} the search takes longer ({most.model}, {plural(most.num_items, 'item')})"
