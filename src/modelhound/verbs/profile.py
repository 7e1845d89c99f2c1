"""`profile`: where does the time of a model search go?

In:  ProfileSettings
Out: a ProfileResult, and a run folder that holds every sample behind it
How a configuration is timed is the business of `profiling`, what follows from it that of `analysis.bottlenecks`. One that fails
is recorded and the others go on; what is finished is in the run folder at once and not measured again.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.bottlenecks import find_bottlenecks
from modelhound.analysis.wording import plural
from modelhound.compat import keep_freed_memory, load_libraries, wait_asleep
from modelhound.data import Dataset, check_there, open_dataset
from modelhound.data.beginning_anew import keep_skipped, without_broken_items
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.data.recommended import item_kind, take_from_file
from modelhound.launch.arithmetic import Bf16Trial
from modelhound.meter import describe_machine, resolve_device, utc_now
from modelhound.models import ModelRef, check_arch, find_models
from modelhound.records import (
    ConfigurationProfiled,
    Failure,
    ItemSkipped,
    LoaderUsed,
    Machine,
    ProfileFindings,
    RunStarted,
    Watch,
    silent,
    to_document,
    to_plain,
)
from modelhound.settings import PROFILE_MODELS, LoaderSettings, ProfileSettings
from modelhound.settings.checks import make_settings, name_all
from modelhound.store import default_run_path, open_run

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
    skipped: tuple[ItemSkipped, ...]
    notes: tuple[str, ...]
    num_resumed: int
    loader: LoaderUsed | None = None
    """What was taken over from `hound loader`."""

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
            "skipped": to_document(self.skipped),
            "notes": list(self.notes),
            "loader": to_document(self.loader),
        }


def _profile_row(record: ConfigurationProfiled) -> dict[str, Any]:
    return {
        **to_document(record),
        "phases": record.totals(),
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
    for data in (settings.data, *settings.also):
        check_there(data)
    bf16 = Bf16Trial(settings.precision)
    load_libraries(watch)
    from modelhound.profiling import Series, work_folder

    devices = tuple(dict.fromkeys(resolve_device(device) for device in settings.device))
    if "cpu" in devices:
        keep_freed_memory()
    asked_for = to_plain(settings)
    settings, loader, used = _with_loader_file(settings, devices[0])
    datasets = [_open(settings, data, watch) for data in (settings.data, *settings.also)]
    settings.check_for_texts(settings.data, [dataset.modality for dataset in datasets])
    models = asked if asked is not None else _usual_models(settings, datasets, watch)
    check_arch(settings.arch, (*models, *head_models))
    bf16.settle(*devices)
    identity = _identity(settings, datasets, devices)
    if loader is not None and loader.prefetch != BATCHES_AHEAD:
        identity["prefetch"] = loader.prefetch
    named = {**identity, "models": [str(model) for model in models]}
    path = settings.run or default_run_path("profile", settings.data, named)
    with (
        open_run(path, verb="profile", at=utc_now(), settings=asked_for, identity=identity) as run,
        work_folder() as folder,
    ):
        started = RunStarted(at=utc_now(), device=", ".join(devices), machine=describe_machine())
        run.append(started)
        skipped = tuple(dict.fromkeys(item for dataset in datasets for item in dataset.skipped))
        keep_skipped(run, skipped)
        if used is not None:
            run.append(used)
        series = Series(
            settings=settings, loader=loader, datasets=datasets, devices=devices, folder=folder, run=run, watch=watch
        )
        series.prepare(models, head_models)
        series.measure()
        findings = find_bottlenecks(series.records, seed=settings.seed)
        run.write_answer(findings, headline=_headline(findings))
    return ProfileResult(
        run=path,
        data=(settings.data, *settings.also),
        devices=devices,
        weights=settings.weights,
        machine=started.machine,
        profiles=tuple(series.records),
        findings=findings,
        failures=tuple(series.failures),
        skipped=skipped,
        notes=tuple(dict.fromkeys(note for record in series.records for note in record.notes)),
        num_resumed=series.num_resumed,
        loader=used,
    )


def _with_loader_file(
    settings: ProfileSettings, device: str
) -> tuple[ProfileSettings, LoaderSettings | None, LoaderUsed | None]:
    """Batch and workers of the file, where there is one and the request leaves them open; the file; what was taken over."""
    if settings.loader is None:
        return settings, None, None
    batch = None if settings.batch == "auto" else settings.batch
    found, used = take_from_file(
        settings.loader, item_kind(settings.data), device=device, batch=batch, workers=settings.workers
    )
    taken = dataclasses.replace(
        settings,
        batch=settings.batch if used.batch is None else str(used.batch),
        workers=settings.workers if used.workers is None else used.workers,
        loader=None,
    )
    return taken, found, used


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


def _headline(findings: ProfileFindings) -> str:
    full = [each for each in findings.bottlenecks if each.configuration == "full"] or list(findings.bottlenecks)
    if not full:
        return "nothing could be profiled"
    names = [each.bottleneck for each in full]
    most = max(dict.fromkeys(names), key=names.count)  # of equally many the first, in every process
    noun = "model" if len({each.model for each in full}) == len(full) else "job"  # in several places, or of parts alone
    return f"bound by {most}: {names.count(most)} of {plural(len(names), noun)}"
