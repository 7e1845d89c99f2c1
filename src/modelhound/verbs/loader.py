"""`loader`: one batch size and number of workers for all your models.

In:  LoaderSearchSettings
Out: a LoaderResult, a run folder that holds every measurement behind it, and LoaderSettings that other commands take
What is measured is the business of `feeding`, what follows from it that of `analysis`. What is recommended is remembered for
this machine and data that load alike.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.compat import import_timm, keep_freed_memory, wait_asleep
from modelhound.data import Dataset, Preprocessing, open_dataset
from modelhound.data.beginning_anew import without_broken_items
from modelhound.data.recommended import data_kind, item_kind, machine_kind, remember_loader
from modelhound.errors import CrewError, RequestError
from modelhound.meter import count_cores, describe_machine, resolve_device, utc_now
from modelhound.models import Network, find_models
from modelhound.records import (
    Failure,
    FeedMeasured,
    ItemsPrepared,
    KindAnswer,
    LoaderAnswer,
    PairFailed,
    Progress,
    Record,
    RunStarted,
    StepMeasured,
    Watch,
    silent,
    to_plain,
)
from modelhound.settings import DEFAULT_MODELS, LoaderFile, LoaderSearchSettings, LoaderSettings
from modelhound.store import default_run_path, write_file

if TYPE_CHECKING:
    from modelhound.analysis.pairs import Pair
    from modelhound.feeding import Study
    from modelhound.feeding.afar import Keep, Keeper

__all__ = ["LoaderResult", "loader", "run_loader"]

_MOST_MEASURED_ITEMS = 2000  # of a run, unless its length is asked for: beyond, a run goes on as it went before


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
            "machine": self.answer.machine,
            "recommended": to_plain(self.recommended),
            "regret": [{"kind": kind.kind, **to_plain(row)} for kind in kinds for row in kind.regret],
            "top": [{"kind": kind.kind, **to_plain(row)} for kind in kinds for row in kind.top],
            "verdict": " ".join(kind.verdict for kind in kinds),
            "kinds": {kind.kind: to_plain(kind) for kind in kinds},
            "runs": [_describe_run(run) for run in self.runs],
            "failures": [
                {name: value for name, value in to_plain(each).items() if name != "kind"} for each in self.failures
            ]
            + [{"for_model": each.model, "phase": each.phase, "error": each.error} for each in self.failed_models],
            "notes": list(self.answer.notes),
            "out": None if self.out is None else str(self.out),
        }


def loader(
    data: str, models: str | Sequence[str] = ("auto",), *, watch: Watch = silent, **options: Any
) -> LoaderResult:
    """Which batch size and number of workers; `options` are those of `hound loader`, the fields of LoaderSearchSettings."""
    try:
        asked = (models,) if isinstance(models, str) else tuple(models)
        settings = LoaderSearchSettings(str(data), models=asked, **options)
    except TypeError as error:  # an option that does not exist
        raise RequestError(
            f"cannot find loader settings: {str(error).partition(' ')[2]}, see help(modelhound.LoaderSearchSettings)"
        ) from None
    return run_loader(settings, watch=watch)


def run_loader(settings: LoaderSearchSettings, *, watch: Watch = silent) -> LoaderResult:
    """Do what `settings` ask for."""
    from modelhound.feeding.afar import keep_here

    if settings.on != "local":
        return _run_on_hosts(settings, watch)
    return without_broken_items(lambda: _run_here(settings, keep_here, watch), run=settings.run, watch=watch)


def run_for_others(settings: LoaderSearchSettings, known: Sequence[Record], send: Callable[[Any], None]) -> None:
    """On a machine of a cluster: do it here and pass everything on."""
    from modelhound.feeding.afar import relay_to

    send(_run_here(settings, relay_to(send, known), send))


def _run_on_hosts(settings: LoaderSearchSettings, watch: Watch) -> LoaderResult:
    from modelhound.feeding.afar import feed_hosts

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
    watch(Progress(task="loading libraries", done=0, total=1))
    import_timm()
    watch(Progress(task="loading libraries", done=1, total=1))
    device = resolve_device(settings.device)
    if settings.pin == "yes" and device == "cpu":
        raise RequestError("cannot use --pin yes on a CPU: expected a GPU to copy to, leave it out")
    if device == "cpu":
        keep_freed_memory()
    dataset = _open(settings, watch)
    models = models or find_models(DEFAULT_MODELS[dataset.modality], where=settings.where, watch=watch)
    case = _Case(settings=settings, device=device, dataset=dataset, kinds=_find_kinds(settings, dataset))
    identity = case.identity()
    path = settings.run or default_run_path(
        "loader",
        settings.data,
        {
            **identity,
            "models": [str(model) for model in models],
            "pairs": [list(settings.batch), list(settings.workers), list(case.kinds), settings.grid, settings.repeats],
        },
    )
    from modelhound.feeding.concluding import headline, weigh_kinds
    from modelhound.feeding.supplying import build_networks

    with keep(path, settings, identity) as (run, known):
        run.append(RunStarted(at=utc_now(), device=device, machine=describe_machine()))
        networks, failed = build_networks(models, settings, dataset.modality, device, watch=watch)
        for failure in failed:
            run.append(failure)
        found = _Found()
        for kind in case.kinds:
            _study_kind(kind, networks, case, run, known, watch, found)
        answer = LoaderAnswer(
            data=settings.data,
            device=device,
            machine=machine_kind(device),
            kinds=weigh_kinds(found.kinds, found.prepared),
            notes=tuple(dict.fromkeys(found.notes)),
        )
        run.write_answer(answer, headline=headline(answer.kinds))
    _hand_out(settings, answer)
    return LoaderResult(
        run=path,
        answer=answer,
        runs=tuple(found.runs),
        failures=tuple(found.failures),
        failed_models=tuple(failed),
        num_resumed=sum(isinstance(record, FeedMeasured) for record in known),
        out=settings.out,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What was asked, on this machine."""

    settings: LoaderSearchSettings
    device: str
    dataset: Dataset
    kinds: tuple[str, ...]

    @property
    def run_items(self) -> int:
        """Length of the run to choose for."""
        return self.settings.items or len(self.dataset)

    @property
    def measured_items(self) -> int:
        return self.settings.items or min(len(self.dataset), _MOST_MEASURED_ITEMS)

    @property
    def pins(self) -> bool:
        return self.settings.pin == "yes" or (self.settings.pin == "auto" and self.device != "cpu")

    @property
    def precision(self) -> str:
        if self.settings.precision != "auto":
            return self.settings.precision
        return "fp32" if self.device == "cpu" else "bf16"

    def identity(self) -> dict[str, Any]:
        """Whatever decides the numbers; models and pairs may grow from one start to the next."""
        settings = self.settings
        return {
            "data_fingerprint": self.dataset.fingerprint,
            "limit": settings.limit,
            "items": self.measured_items,
            "weights": settings.weights,
            "arch": settings.arch,
            "tokens": settings.tokens,
            "layers": settings.layers,
            "precision": self.precision,
            "prefetch": settings.prefetch,
            "pin": self.pins,
            "persistent": settings.persistent,
            "device": self.device.partition(":")[0],
            "machine": machine_kind(self.device),
        }


@dataclasses.dataclass(slots=True)
class _Found:
    """What has come out so far."""

    kinds: list[KindAnswer] = dataclasses.field(default_factory=list)
    prepared: ItemsPrepared | None = None
    steps: list[StepMeasured] = dataclasses.field(default_factory=list)
    """Computing alone, which is the same for all kinds of items."""
    runs: list[FeedMeasured] = dataclasses.field(default_factory=list)
    failures: list[PairFailed] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def _open(settings: LoaderSearchSettings, watch: Watch) -> Dataset:
    return open_dataset(
        settings.data,
        columns=settings.roles(),
        task=settings.asked_task(),
        split=settings.split,
        limit=settings.limit,
        seed=settings.seed,
        follow_links=settings.follow_links,
        watch=watch,
    )


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


def _study_kind(
    kind: str,
    networks: dict[str, Network],
    case: _Case,
    run: "Keeper",
    known: Sequence[Record],
    watch: Watch,
    found: _Found,
) -> None:
    from modelhound.feeding import study
    from modelhound.feeding.concluding import choose_pairs, conclude
    from modelhound.feeding.supplying import supply_items

    settings = case.settings
    fitting = {
        model: network
        for model, network in networks.items()
        if kind == "raw" or isinstance(network.preprocessing, Preprocessing)
    }
    left_out = [model for model in networks if model not in fitting]
    if left_out:
        found.notes.append(f"{', '.join(left_out)}: left out of preprocessed items, with a transform of their own.")
    if not fitting:
        return
    pairs, notes = choose_pairs(
        settings,
        device=case.device,
        num_cores=count_cores(),
        num_items=min(case.measured_items, len(case.dataset)),
    )
    found.notes += notes
    with supply_items(case.dataset, kind, fitting, case.measured_items, watch=watch) as (dataset, cost):
        if cost is not None:
            earlier = [record for record in known if isinstance(record, ItemsPrepared)]
            found.prepared = earlier[0] if earlier else cost
            if not earlier:
                run.append(cost)

        def tell(record: Record) -> None:
            run.append(record)
            if isinstance(record, StepMeasured):
                found.steps.append(record)

        asked = _ask(kind, dataset, fitting, pairs, case, (*known, *found.steps), tell, watch)
        studied = study(asked)
        answer, notes = conclude(asked, studied, num_items=case.run_items, options=settings.tune)
        found.notes += notes
        if answer.recommended is not None:
            where = {"data": settings.data, "data_kind": data_kind(dataset), "machine": machine_kind(case.device)}
            answer = msgspec.structs.replace(answer, recommended=msgspec.structs.replace(answer.recommended, **where))
    found.kinds.append(answer)
    found.runs += studied.runs
    found.failures += studied.failures


def _ask(
    kind: str,
    dataset: Dataset,
    networks: dict[str, Network],
    pairs: "tuple[Pair, ...]",
    case: _Case,
    known: Sequence[Record],
    tell: Callable[[Record], None],
    watch: Watch,
) -> "Study":
    from modelhound.feeding import Feed, Study

    settings = case.settings
    return Study(
        item_kind=kind,
        dataset=dataset,
        networks=networks,
        pairs=pairs,
        num_items=case.measured_items,
        feed=Feed(
            device=case.device,
            prefetch=settings.prefetch,
            pin=case.pins,
            persistent=settings.persistent,
            precision=case.precision,
        ),
        num_cores=count_cores(),
        grid=settings.grid,
        repeats=settings.repeats,
        budget=settings.budget,
        seed=settings.seed,
        known=known,
        tell=tell,
        watch=watch,
    )


def _hand_out(settings: LoaderSearchSettings, answer: LoaderAnswer) -> None:
    """Remember what is recommended, and write the file that was asked for."""
    recommended = tuple(kind.recommended for kind in answer.kinds if kind.recommended is not None)
    for each in recommended:
        remember_loader(each)
    _write_out(settings.out, answer)


def _write_out(out: Path | None, answer: LoaderAnswer) -> None:
    recommended = tuple(kind.recommended for kind in answer.kinds if kind.recommended is not None)
    if out is not None and recommended:
        content = msgspec.json.encode(LoaderFile(settings=recommended))
        write_file(out, msgspec.json.format(content, indent=2) + b"\n")


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
        "phases": {**{samples.phase: samples.total for samples in run.phases}, "rest": run.rest_seconds},
        "page_cache": run.page_cache,
    }
