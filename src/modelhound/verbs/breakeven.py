"""`breakeven`: when does searching for a model take longer than the training it is for?

In:  BreakevenSettings
Out: a BreakevenResult, and a run folder that holds every sample behind it
Trainings go through the room of `hound train`, searches through that of `hound search`: what is timed here is what a user gets
there. One that fails is recorded and the others go on; what is finished is not measured again.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.breakeven import make_scenario
from modelhound.analysis.breakeven_findings import Asked, Timed, find_breakeven
from modelhound.compat import keep_freed_memory, load_libraries, wait_asleep
from modelhound.data import Dataset, check_there, open_asked
from modelhound.data.beginning_anew import keep_skipped, without_broken_items
from modelhound.errors import ModelError, RequestError, StoreError, explain_error
from modelhound.launch.arithmetic import Bf16Trial
from modelhound.meter import describe_machine, resolve_device, utc_now
from modelhound.models import ModelRef, check_any_fits, check_arch, find_models, source_of, stamp_own
from modelhound.records import (
    BreakevenFindings,
    Failure,
    FeaturesTimed,
    ItemSkipped,
    Machine,
    Progress,
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
from modelhound.store import RunFolder, default_run_path, open_run

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
    sizes, notes = _choose_sizes(settings, dataset, device)
    identity = _identity(settings, dataset, device)
    named = {**identity, "models": [str(model) for model in models]}
    path = settings.run or default_run_path("breakeven", settings.data, named)
    with open_run(path, verb="breakeven", at=utc_now(), settings=to_plain(settings), identity=identity) as run:
        started = RunStarted(at=utc_now(), device=device, machine=describe_machine())
        run.append(started)
        keep_skipped(run, dataset.skipped)
        job = _Job(settings=settings, dataset=dataset, device=device, run=run, watch=watch)
        job.measure(models, sizes, pool)
        findings = find_breakeven(
            Timed(trainings=job.trainings, features=job.features, searches=job.searches), _asked(settings)
        )
        run.write_answer(findings, headline=_headline(findings))
    return BreakevenResult(
        run=path,
        data=settings.data,
        device=device,
        weights=settings.weights,
        machine=started.machine,
        epochs=settings.epochs,
        trainings=tuple(job.trainings),
        features=tuple(job.features),
        searches=tuple(job.searches),
        findings=findings,
        failures=tuple(job.failures),
        skipped=dataset.skipped,
        notes=tuple(dict.fromkeys((*notes, *job.notes))),
        num_resumed=job.num_resumed,
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


def _choose_sizes(settings: BreakevenSettings, dataset: Dataset, device: str) -> tuple[list[int], list[str]]:
    """The sizes asked for, as far as there are items; what is larger means all of them, which is said, as are precisions."""
    asked = settings.num_items()
    sizes = sorted({min(size, len(dataset)) for size in asked})
    short = [size for size in asked if size > len(dataset)]
    notes = [
        f"{settings.data} has {len(dataset):,} items, which were taken in place of {size:,}; --assume items={size} extrapolates"
        for size in short
    ]
    if device != "cpu" and settings.precision != "fp32":
        notes.append(
            "trainings and searches of all models together compute in bf16, one model after the other in fp32; with "
            "--precision fp32 all do"
        )
    return sizes, notes


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


class _Job:
    """One run: what is known, and measuring the rest."""

    def __init__(
        self, *, settings: BreakevenSettings, dataset: Dataset, device: str, run: RunFolder, watch: Watch
    ) -> None:
        from modelhound.measuring.comparing import Contest

        self._settings, self._run, self._watch = settings, run, watch
        self._contest = Contest(settings, dataset, device=device, watch=watch)
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
        # in passes over the items, of which training takes about three
        each = {"full": 3 * epochs, "head": epochs, "cached": 1, "extract": settings.repeats}
        counts = sorted({min(count, len(pool)) for count in settings.num_models()}) if pool else []
        short = [count for count in settings.num_models() if count > len(pool) > 0]
        if short:
            self.notes.append(f"models in the pool: {len(pool)}, taken in place of {', '.join(map(str, short))}")
        searched = sizes[len(sizes) // 2]
        passes = sum(each[mode] for mode in settings.modes) + each["extract"]
        self._total = len(models) * sum(sizes) * passes + 2 * sum(counts) * searched
        for model in models:
            for size in sizes:
                items = self._contest.select(size)
                self._time_features(model, items)
                self._advance(size * each["extract"])
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
        self._tell("")

    def _tell(self, detail: str) -> None:
        done = min(100, int(100 * self._done / self._total))
        self._watch(Progress(task="comparing, %", done=done, total=100, detail=detail))

    def _time_training(self, model: ModelRef, items: Dataset, mode: str) -> None:
        self._tell(f"{model}: {mode} on {len(items)} items")

        def matches(known: TrainingTimed) -> bool:
            return (known.mode, known.num_items) == (mode, len(items))

        def measure(stamp: str) -> TrainingTimed:
            return self._contest.time_training(model, items, mode, stamp=stamp)

        self._take(model, f"{mode} training", TrainingTimed, self.trainings, matches, measure)

    def _time_features(self, model: ModelRef, items: Dataset) -> None:
        self._tell(f"{model}: features of {len(items)} items")

        def matches(known: FeaturesTimed) -> bool:
            return known.num_items == len(items)

        def measure(stamp: str) -> FeaturesTimed:
            return self._contest.time_features(model, items, stamp=stamp)

        self._take(model, "features", FeaturesTimed, self.features, matches, measure)

    def _take(
        self,
        model: ModelRef,
        phase: str,
        kind: type[Any],
        into: list[Any],
        matches: Callable[[Any], bool],
        measure: Callable[[str], TrainingTimed | FeaturesTimed],
    ) -> None:
        """What the run folder holds already, or what is measured now; a model that fails is told and the others go on."""
        try:
            stamp = source_of(model).stamp(model.name)
            known = [
                each
                for each in self._run.read(kind)
                if (each.model, each.stamp) == (str(model), stamp) and matches(each)
            ]
            record = known[-1] if known else measure(stamp)
        except (RequestError, StoreError):
            raise
        except Exception as error:  # whatever a stranger's model raises, the others go on
            failure = Failure(model=str(model), phase=phase, error=explain_error(error))
            self._run.append(failure)
            self.failures.append(failure)
            return
        if known:
            self.num_resumed += 1
        else:
            self._run.append(record)
        into.append(record)

    def _time_search(self, way: str, models: Sequence[ModelRef], items: Dataset) -> None:
        self._tell(f"searching over {len(models)} models, {way}")
        names = tuple(str(model) for model in models)
        wanted = (way, names, len(items), _stamp_all(models))
        for known in self._run.read(SearchTimed):
            if (known.way, known.models, known.num_items, known.stamp) == wanted:
                self.searches.append(known)
                self.num_resumed += 1
                return
        try:
            record = self._contest.time_search(way, models, items)
        except ModelError as error:
            self.notes.append(f"a search over {len(models)} models was not timed: {error}")
            return
        record = msgspec.structs.replace(record, stamp=wanted[-1])
        self._run.append(record)
        self.searches.append(record)


def _stamp_all(models: Sequence[ModelRef]) -> str:
    """Empty where none of them is in somebody's own files."""
    stamps = [stamp_own(model) for model in models]
    return hashlib.sha256("\0".join(stamps).encode()).hexdigest()[:16] if any(stamps) else ""


def _headline(findings: BreakevenFindings) -> str:
    plain = [each for each in findings.counts if each.scenario == "S1" and each.way == "plain"]
    if not plain:
        return "nothing could be compared"
    most = max(plain, key=lambda each: each.num_items)
    return f"S1: above {most.num_models} models the search takes longer ({most.model}, {most.num_items} items)"
