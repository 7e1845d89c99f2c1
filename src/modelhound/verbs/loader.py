"""`loader`: one batch size and number of workers for all your models.

In:  LoaderSearchSettings
Out: a LoaderResult, a run folder that holds every measurement behind it, and LoaderSettings that other commands take
What is measured is the business of `feeding`, what follows from it that of `analysis`. What is recommended is remembered for
this machine and data that load alike.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.compat import keep_freed_memory, load_libraries, wait_asleep
from modelhound.data import Dataset, check_there, open_asked
from modelhound.data.beginning_anew import without_broken_items
from modelhound.data.recommended import item_kind, machine_kind, remember_loader
from modelhound.errors import CrewError, RequestError
from modelhound.launch.arithmetic import Bf16Trial
from modelhound.meter import describe_machine, resolve_device, utc_now
from modelhound.models import check_any_fits, check_arch, find_models, stamp_own
from modelhound.records import (
    Failure,
    FeedMeasured,
    ItemSkipped,
    LoaderAnswer,
    PairFailed,
    Record,
    RunStarted,
    Watch,
    silent,
    to_document,
    to_plain,
)
from modelhound.settings import DEFAULT_MODELS, LoaderFile, LoaderSearchSettings, LoaderSettings
from modelhound.settings.checks import make_settings, name_all
from modelhound.store import default_run_path, write_file

if TYPE_CHECKING:
    from modelhound.feeding import Case, Keep

__all__ = ["LoaderResult", "loader", "run_loader"]


class LoaderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `hound loader` and where to find what it rests on."""

    run: Path
    answer: LoaderAnswer
    runs: tuple[FeedMeasured, ...]
    """Every run that was made for real."""
    failures: tuple[PairFailed, ...]
    failed_models: tuple[Failure, ...]
    num_resumed: int
    """Runs that an earlier start had made."""
    out: Path | None
    skipped: tuple[ItemSkipped, ...] = ()
    host: str = ""
    """The machine of a cluster that this is of."""
    hosts: tuple["LoaderResult", ...] = ()
    """On a cluster: the result of every machine, in order of their names. This one is then that of the first."""
    lost: dict[str, str] = {}
    """Machines of the cluster without a result, and why."""

    @property
    def recommended(self) -> LoaderSettings | None:
        """For the first kind of items that was asked for; see `answer.kinds` for the others."""
        return self.answer.kinds[0].recommended if self.answer.kinds else None

    def to_json(self) -> dict[str, Any]:
        """The document that `hound loader --json` prints."""
        if self.hosts:
            return {"hosts": {each.host: each.to_json() for each in self.hosts}, "lost": self.lost}
        kinds = self.answer.kinds
        return {
            "run": str(self.run),
            "data": self.answer.data,
            "device": self.answer.device,
            "machine_kind": self.answer.machine_kind,
            "recommended": to_plain(self.recommended),
            "regret": [{"kind": kind.kind, **to_plain(row)} for kind in kinds for row in kind.regret],
            "top": [{"kind": kind.kind, **to_plain(row)} for kind in kinds for row in kind.top],
            "verdict": " ".join(kind.verdict for kind in kinds),
            "kinds": {kind.kind: to_plain(kind) for kind in kinds},
            "runs": [_describe_run(run) for run in self.runs],
            "failures": [*map(_describe_failure, self.failures), *to_document(self.failed_models)],
            "skipped": to_document(self.skipped),
            "notes": list(self.answer.notes),
            "out": None if self.out is None else str(self.out),
        }


def loader(
    data: str, models: str | Sequence[str] = ("auto",), *, watch: Watch = silent, **options: Any
) -> LoaderResult:
    """Which batch size and number of workers; `options` are those of `hound loader`, the fields of LoaderSearchSettings."""
    settings = make_settings(
        LoaderSearchSettings, "find loader settings", str(data), models=name_all(models), **options
    )
    return run_loader(settings, watch=watch)


def run_loader(settings: LoaderSearchSettings, *, watch: Watch = silent) -> LoaderResult:
    """Do what `settings` ask for."""
    from modelhound.feeding import keep_here

    if settings.out is not None and settings.out.is_dir():
        raise RequestError(
            f"cannot write --out {str(settings.out)!r}: expected a file, this is a folder; use --out "
            f"{str(settings.out / 'loader.json')!r}"
        )
    if settings.on != "local":
        return _run_on_hosts(settings, watch)
    return without_broken_items(lambda: _run_here(settings, keep_here, watch), run=settings.run, watch=watch)


def run_for_others(settings: LoaderSearchSettings, known: Sequence[Record], send: Callable[[Any], None]) -> None:
    """On a machine of a cluster: do it here and pass everything on."""
    from modelhound.feeding import relay_to

    send(_run_here(settings, relay_to(send, known), send))


def _run_on_hosts(settings: LoaderSearchSettings, watch: Watch) -> LoaderResult:
    from modelhound.feeding import feed_hosts

    base = settings.run or default_run_path("loader", settings.data, to_plain(settings))
    found, lost = feed_hosts(settings, base, "modelhound.verbs.loader:run_for_others", watch=watch)
    if not found:
        raise CrewError(f"cannot measure on this cluster: {'; '.join(f'{host}: {why}' for host, why in lost.items())}")
    results: list[LoaderResult] = []
    for host, (path, result) in found.items():
        out = None if settings.out is None else settings.out.with_stem(f"{settings.out.stem}-{host}")
        results.append(msgspec.structs.replace(result, run=path, out=out, host=host))
        _write_out(out, result.answer)
    return msgspec.structs.replace(results[0], hosts=tuple(results), lost=lost)


def _run_here(settings: LoaderSearchSettings, keep: "Keep", watch: Watch) -> LoaderResult:
    wait_asleep()  # before anything below loads torch
    models = find_models(settings.models, where=settings.where, watch=watch) if settings.models != ("auto",) else ()
    check_there(settings.data)
    bf16 = Bf16Trial(settings.precision)
    load_libraries(watch)
    device = resolve_device(settings.device)
    if settings.pin == "yes" and device == "cpu":
        raise RequestError("cannot use --pin yes on a CPU: expected a GPU to copy to, leave it out")
    if device == "cpu":
        keep_freed_memory()
    dataset = _open(settings, watch)
    models = models or find_models(DEFAULT_MODELS[dataset.modality], where=settings.where, watch=watch)
    check_arch(settings.arch, models)
    check_any_fits(models, dataset.modality, settings.data)
    bf16.settle(device)
    from modelhound.feeding import Case, build_networks, headline, study_kinds, weigh_kinds

    case = Case(
        settings=settings,
        device=device,
        dataset=dataset,
        kinds=_find_kinds(settings, dataset),
        stamps={str(model): stamp_own(model, settings) for model in models},
    )
    path = settings.run or _usual_path(settings, case)
    with keep(path, settings, case.identity()) as (run, known):
        run.append(RunStarted(at=utc_now(), device=device, machine=describe_machine()))
        for item in dict.fromkeys(each for each in dataset.skipped if each not in known):
            run.append(item)
        networks, failed = build_networks(models, settings, dataset.modality, device, watch=watch)
        for failure in failed:
            run.append(failure)
        found = study_kinds(case, networks, run, known, watch=watch)
        answer = LoaderAnswer(
            data=settings.data,
            device=device,
            machine_kind=machine_kind(device),
            kinds=weigh_kinds(found.kinds, found.prepared),
            notes=tuple(dict.fromkeys(found.notes)),
        )
        run.write_answer(answer, headline=headline(answer.kinds))
    for recommended in _recommended(answer):
        remember_loader(recommended)
    _write_out(settings.out, answer)
    return LoaderResult(
        run=path,
        answer=answer,
        runs=tuple(found.runs),
        failures=tuple(found.failures),
        failed_models=tuple(failed),
        num_resumed=sum(isinstance(record, FeedMeasured) and case.still_holds(record) for record in known),
        out=settings.out,
        skipped=dataset.skipped,
    )


def _usual_path(settings: LoaderSearchSettings, case: "Case") -> Path:
    """The same for the same request."""
    pairs = [list(settings.batch), list(settings.workers), list(case.kinds), settings.grid, settings.repeats]
    return default_run_path("loader", settings.data, {**case.identity(), "models": list(case.stamps), "pairs": pairs})


def _open(settings: LoaderSearchSettings, watch: Watch) -> Dataset:
    dataset = open_asked(settings, watch=watch)
    settings.check_for_texts(settings.data, (dataset.modality,))
    return dataset


def _find_kinds(settings: LoaderSearchSettings, dataset: Dataset) -> tuple[str, ...]:
    own = item_kind(dataset)
    if settings.kind == ("auto",):
        return (own,)
    if own == "preprocessed" and "raw" in settings.kind:
        raise RequestError(
            f"cannot measure raw items of {settings.data!r}: expected original images, but this folder was made by `hound "
            "prepare`; give the original data set, or --kind preprocessed"
        )
    if dataset.modality == "text" and "preprocessed" in settings.kind:
        raise RequestError(
            f"cannot measure preprocessed items of {settings.data!r}: expected images, but these are texts, which need no "
            "preparing; use --kind raw"
        )
    return settings.kind


def _recommended(answer: LoaderAnswer) -> tuple[LoaderSettings, ...]:
    """One for each kind of items that a pair was found for."""
    return tuple(kind.recommended for kind in answer.kinds if kind.recommended is not None)


def _write_out(out: Path | None, answer: LoaderAnswer) -> None:
    """The file that was asked for."""
    recommended = _recommended(answer)
    if out is not None and recommended:
        content = msgspec.json.encode(LoaderFile(settings=recommended))
        write_file(out, msgspec.json.format(content, indent=2) + b"\n")


def _describe_failure(failure: PairFailed) -> dict[str, Any]:
    """One pair that failed, named as everywhere."""
    names = {"item_kind": "kind", "for_model": "model"}
    return {names.get(name, name): value for name, value in to_document(failure).items()}


def _describe_run(run: FeedMeasured) -> dict[str, Any]:
    """One run for --json: sums instead of samples, which are in the run folder."""
    return {
        "kind": run.item_kind,
        "model": run.model,
        "batch": run.batch,
        "workers": run.workers,
        "num_items": run.num_items,
        "wall_seconds": run.wall_seconds,
        "first_batch_seconds": run.first_batch_seconds,
        "phases": run.totals(),
        "page_cache": run.page_cache,
    }
