"""`profile`: where does the time of a model search go?

In:  ProfileSettings
Out: a ProfileResult, and a run folder that holds every sample behind it
How a configuration is timed is the business of `profiling`, what follows from it that of `analysis.bottlenecks`. One that fails
is recorded and the others go on; what is finished is in the run folder at once and not measured again.
"""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.analysis.bottlenecks import find_bottlenecks
from modelhound.compat import keep_freed_memory, load_libraries, wait_asleep
from modelhound.data import Dataset, modality_of, open_dataset
from modelhound.data.beginning_anew import without_broken_items
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.data.recommended import loader_for
from modelhound.errors import RequestError, StoreError, explain_error
from modelhound.meter import describe_machine, resolve_device, utc_now
from modelhound.models import ModelRef, check_arch, find_models, source_of, stamp_own
from modelhound.records import (
    ConfigurationProfiled,
    Failure,
    Machine,
    ProfileFindings,
    Progress,
    RunStarted,
    ScoringTimed,
    Watch,
    silent,
    to_document,
    to_plain,
)
from modelhound.settings import PROFILE_MODELS, LoaderSettings, ProfileSettings
from modelhound.settings.checks import make_settings, name_all
from modelhound.store import RunFolder, default_run_path, open_run

if TYPE_CHECKING:
    from modelhound.profiling import Bench, Configuration
    from modelhound.profiling.rounds import Round

__all__ = ["ProfileResult", "profile", "run_profile"]

_LEAST_OPENED = 2048  # items: a data set wants two of every class, and nobody knows yet how many classes it has


class ProfileResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where time went, and where to find every sample of it."""

    run: Path
    data: tuple[str, ...]
    devices: tuple[str, ...]
    weights: str
    machine: Machine
    profiles: tuple[ConfigurationProfiled, ...]
    findings: ProfileFindings
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    num_resumed: int

    def to_json(self) -> dict[str, Any]:
        """The document that `hound profile --json` prints."""
        return {
            "run": str(self.run),
            "data": list(self.data),
            "devices": list(self.devices),
            "weights": self.weights,
            "profiles": [_profile_row(each) for each in self.profiles],
            "findings": to_plain(self.findings),
            "failures": to_document(self.failures),
            "notes": list(self.notes),
        }


def _profile_row(record: ConfigurationProfiled) -> dict[str, Any]:
    phases = {each.phase: each.total for each in record.phases}
    return {
        **to_document(record),
        "phases": {**phases, "other": record.wall_seconds - sum(phases.values())},
        "samples": {each.phase: list(each.seconds) for each in record.phases},
    }


def profile(
    data: str, models: str | Sequence[str] = ("auto",), *, watch: Watch = silent, **options: Any
) -> ProfileResult:
    """Profile `models` on `data`; `options` are those of `hound profile`, the fields of ProfileSettings."""
    settings = make_settings(ProfileSettings, "profile", str(data), models=name_all(models), **options)
    return run_profile(settings, watch=watch)


def run_profile(settings: ProfileSettings, *, watch: Watch = silent) -> ProfileResult:
    """Do what `settings` ask for."""
    return without_broken_items(lambda: _profile(settings, watch), run=settings.run, watch=watch)


def _profile(settings: ProfileSettings, watch: Watch) -> ProfileResult:
    wait_asleep()  # before anything below loads torch
    asked = find_models(settings.models, where=settings.where, watch=watch) if settings.models != ("auto",) else None
    head_models = find_models(settings.head_models())
    load_libraries(watch)
    from modelhound.profiling.rounds import work_folder

    devices = tuple(dict.fromkeys(resolve_device(device) for device in settings.device))
    if "cpu" in devices:
        keep_freed_memory()
    settings, loader, loader_notes = _with_loader_file(settings)
    datasets = [_open(settings, data, watch) for data in (settings.data, *settings.also)]
    settings.check_for_texts(settings.data, [dataset.modality for dataset in datasets])
    models = asked if asked is not None else _usual_models(settings, datasets, watch)
    check_arch(settings.arch, (*models, *head_models))
    identity = _identity(settings, datasets, devices)
    if loader is not None and loader.prefetch != BATCHES_AHEAD:
        identity["prefetch"] = loader.prefetch
    named = {**identity, "models": [str(model) for model in models]}
    path = settings.run or default_run_path("profile", settings.data, named)
    with (
        open_run(path, verb="profile", at=utc_now(), settings=to_plain(settings), identity=identity) as run,
        work_folder() as folder,
    ):
        started = RunStarted(at=utc_now(), device=", ".join(devices), machine=describe_machine())
        run.append(started)
        job = _Job(
            settings=settings, loader=loader, datasets=datasets, devices=devices, folder=folder, run=run, watch=watch
        )
        job.prepare(models, head_models)
        job.measure()
        findings = find_bottlenecks(job.records, seed=settings.seed)
        run.write_answer(findings, headline=_headline(findings))
    return ProfileResult(
        run=path,
        data=(settings.data, *settings.also),
        devices=devices,
        weights=settings.weights,
        machine=started.machine,
        profiles=tuple(job.records),
        findings=findings,
        failures=tuple(job.failures),
        notes=(*loader_notes, *dict.fromkeys(note for record in job.records for note in record.notes)),
        num_resumed=job.num_resumed,
    )


def _with_loader_file(settings: ProfileSettings) -> tuple[ProfileSettings, LoaderSettings | None, tuple[str, ...]]:
    """Batch and workers of the file, where there is one and the request leaves them open; the file; a note that says so."""
    if settings.loader is None:
        return settings, None, ()
    found = loader_for(settings.loader, settings.data)
    batch = str(found.batch) if settings.batch == "auto" else settings.batch
    workers = found.workers if settings.workers is None else settings.workers
    ahead = f", {found.prefetch} batches ahead each" if workers else ""
    note = f"loaded in batches of {batch} with {workers} loader processes{ahead}, as {settings.loader} says"
    return dataclasses.replace(settings, batch=batch, workers=workers, loader=None), found, (note,)


def _open(settings: ProfileSettings, data: str, watch: Watch) -> Dataset:
    """Enough items for all batches: nobody wants a million decoded to profile two hundred."""
    is_first = data == settings.data
    wanted = settings.num_batches() * (int(settings.batch) if settings.batch.isdigit() else 64)
    return open_dataset(
        data,
        columns=settings.roles() if is_first else None,
        task=settings.asked_task() if is_first else None,
        split=settings.split if is_first else None,
        limit=settings.limit if settings.limit is not None else max(wanted, _LEAST_OPENED),
        seed=settings.seed,
        follow_links=settings.follow_links,
        watch=watch,
    )


def _usual_models(settings: ProfileSettings, datasets: Sequence[Dataset], watch: Watch) -> tuple[ModelRef, ...]:
    modalities = dict.fromkeys(dataset.modality for dataset in datasets)
    patterns = [name for modality in modalities for name in PROFILE_MODELS[modality]]
    return find_models(patterns, where=settings.where, watch=watch)


def _identity(settings: ProfileSettings, datasets: Sequence[Dataset], devices: Sequence[str]) -> dict[str, Any]:
    """Whatever decides the numbers; models, parts and joints may grow from one start to the next."""
    return {
        "data_fingerprint": " ".join(dataset.fingerprint for dataset in datasets),
        "limit": settings.limit,
        "weights": settings.weights,
        "batches": settings.num_batches(),
        "warmup": settings.num_warmup(),
        "batch": settings.batch,
        "heads": list(settings.heads),
        "classes": list(settings.classes),
        "scorers": list(settings.scorers),
        "repeats": settings.num_repeats(),
        "workers": settings.workers,
        "precision": settings.precision,
        "tokens": settings.tokens,
        "pooling": settings.pooling,
        "layers": settings.layers,
        "arch": settings.arch,
        "devices": list(devices),
        "seed": settings.seed,
    }


class _Job:
    """One run: what is known, what is still to be measured."""

    def __init__(
        self,
        *,
        settings: ProfileSettings,
        loader: LoaderSettings | None,
        datasets: Sequence[Dataset],
        devices: Sequence[str],
        folder: Path,
        run: RunFolder,
        watch: Watch,
    ) -> None:
        self._settings, self._loader, self._datasets, self._devices = settings, loader, datasets, devices
        self._folder, self._run, self._watch = folder, run, watch
        self._known = {record.key: record for record in run.read(ConfigurationProfiled)}
        self._rounds: list[Round] = []
        self._done = 0.0
        self.records: list[ConfigurationProfiled] = []
        self.failures: list[Failure] = []
        self.num_resumed = 0

    def prepare(self, models: Sequence[ModelRef], head_models: Sequence[ModelRef]) -> None:
        """Take every model apart and see what there is to do; a part that no model has is refused before anything is run."""
        from modelhound.profiling import configurations_of, prepare_bench

        missing: dict[str, list[Failure]] = {}
        available: set[str] = set()
        for done, model in enumerate(models):
            self._watch(Progress(task="taking models apart", done=done, total=len(models), detail=str(model)))
            try:
                is_trained = self._settings.weights == "pretrained"
                stamp = source_of(model).stamp(model.name) if is_trained else stamp_own(model)
                bench = prepare_bench(
                    model, self._settings, self._folder, head_models=head_models, datasets=self._datasets
                )
                found, lacking = configurations_of(bench, self._settings)
            except (RequestError, StoreError):
                raise
            except Exception as error:  # whatever a stranger's model raises, the others go on
                self._fail(Failure(model=str(model), phase="build model", error=explain_error(error)))
                continue
            available |= {each.name for each in found}
            for name, lack in lacking:
                missing.setdefault(name, []).append(Failure(model=str(model), phase=name, error=str(lack)))
            self._add_rounds(bench, stamp, found)
        self._watch(Progress(task="taking models apart", done=len(models), total=len(models)))
        for name, failures in missing.items():
            if name not in available:
                raise RequestError(failures[0].error)
            for failure in failures:
                self._fail(failure)

    def _add_rounds(self, bench: "Bench", stamp: str, found: "Sequence[Configuration]") -> None:
        from modelhound.profiling.rounds import Round

        suited = [dataset for dataset in self._datasets if dataset.modality == modality_of(bench.form)]
        if not suited:
            raise RequestError(
                f"cannot profile {bench.model} on {self._settings.data!r}: expected {modality_of(bench.form)}s, "
                "add a data set of these with --also, or leave the model out"
            )
        for dataset in suited:
            for device in self._devices:
                todo = []
                for each in found:
                    known = self._known.get("\0".join((bench.model, each.name, dataset.name, device)))
                    if known is not None and known.stamp == stamp:
                        self.records.append(known)
                        self.num_resumed += 1
                    else:
                        todo.append(each)
                if todo:
                    self._rounds.append(Round(bench, stamp, dataset, device, tuple(todo)))

    def measure(self) -> None:
        """Round after round; within a round the configurations in an order drawn by the seed."""
        from modelhound.profiling.rounds import in_order

        total = sum(each.cost for each in self._rounds)
        for each in self._rounds:
            self._tell(total, each.bench.model)
            before = self._done
            self._measure_round(each, total)
            self._done = before + each.cost
        self._watch(Progress(task="profiling, %", done=100, total=100))
        self.records = in_order(self.records, self._settings, self._devices)

    def _measure_round(self, each: "Round", total: float) -> None:
        from modelhound.profiling import profile_configuration
        from modelhound.profiling.staging import open_stage

        configurations = list(each.configurations)
        random.Random(self._settings.seed).shuffle(configurations)
        try:
            opened = open_stage(
                each.bench,
                each.dataset,
                self._settings,
                each.configurations,
                stamp=each.stamp,
                device=each.device,
                folder=self._folder,
                loader=self._loader,
                watch=self._watch,
            )
        except (RequestError, StoreError):
            raise
        except Exception as error:  # a network that does not fit into memory, say
            self._fail(Failure(model=each.bench.model, phase="storing outputs", error=explain_error(error)))
            return
        with opened as stage:
            for configuration in configurations:
                self._tell(total, f"{each.bench.model} {configuration.name}")
                try:
                    record = profile_configuration(configuration, stage, scorings=self._scorings_of(each))
                except (RequestError, StoreError):
                    raise
                except Exception as error:  # the other configurations go on
                    self._fail(Failure(model=each.bench.model, phase=configuration.name, error=explain_error(error)))
                else:
                    self._run.append(record)
                    self.records.append(record)
                self._done += each.cost / len(configurations)

    def _scorings_of(self, each: "Round") -> tuple[ScoringTimed, ...]:
        """What another configuration of the same model has found out already."""
        place = (each.bench.model, each.dataset.name, each.device)
        known = (record.scorings for record in self.records if (record.model, record.data, record.device) == place)
        return next(known, ())

    def _tell(self, total: float, detail: str) -> None:
        self._watch(Progress(task="profiling, %", done=int(100 * self._done / total), total=100, detail=detail))

    def _fail(self, failure: Failure) -> None:
        self._run.append(failure)
        self.failures.append(failure)


def _headline(findings: ProfileFindings) -> str:
    full = [each for each in findings.bottlenecks if each.configuration == "full"] or list(findings.bottlenecks)
    if not full:
        return "nothing could be profiled"
    names = [each.bottleneck for each in full]
    most = max(set(names), key=names.count)
    return f"bound by {most}: {names.count(most)} of {len(names)} models"
