"""`search`: which of these pretrained networks suits this data set?

In:  SearchSettings
Out: a SearchResult, and a run folder that holds every measurement behind it
How models are measured is the business of `measuring`; one that fails is recorded and the others go on. Whatever is
finished is in the run folder at once, so that the same request takes up where it was stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.analysis.finals_wording import no_winner_text
from modelhound.analysis.phases import total_phases
from modelhound.analysis.ranking import rank_models
from modelhound.compat import free_at_once, keep_freed_memory, load_libraries, wait_asleep
from modelhound.data import Dataset, check_there, open_asked
from modelhound.data.beginning_anew import keep_skipped, without_broken_items
from modelhound.launch.arithmetic import Bf16Trial
from modelhound.meter import Meter, available_memory, choose_precision, describe_machine, resolve_device, utc_now
from modelhound.models import ModelRef, check_any_fits, check_arch, find_models
from modelhound.records import (
    Failure,
    ItemSkipped,
    LoaderUsed,
    ModelDropped,
    ModelMeasured,
    Ranking,
    RunStarted,
    SearchForeseen,
    Watch,
    silent,
    to_document,
    to_plain,
)
from modelhound.settings import (
    DEFAULT_MODELS,
    DEFAULT_TOP,
    METRICS,
    MOST_FINALISTS,
    SearchSettings,
    Task,
    decisive_scorer,
    scorers_for,
)
from modelhound.settings.checks import make_settings, name_all
from modelhound.store import RunFolder, default_run_path, open_run

if TYPE_CHECKING:
    from modelhound.measuring import Measured

__all__ = ["SearchResult", "explain_search", "run_search", "search"]

_SHARE_FOR_FILES = 0.05  # of the memory that is free, for files between looking at them and decoding them


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one search and where to find what it rests on."""

    run: Path
    data: str
    task: Task
    num_items: int
    num_classes: int
    device: str
    precision: str
    """fp32 or bf16; auto where each machine of a cluster decides."""
    weights: str
    ranking: Ranking
    top: int | None
    """How many of the ranking to show; the ranking itself is whole."""
    dropped: tuple[ModelDropped, ...]
    """Models that left the race early, best first."""
    failures: tuple[Failure, ...]
    skipped: tuple[ItemSkipped, ...]
    notes: tuple[tuple[str, str], ...]
    """Model and what to know of its result."""
    phases: dict[str, float]
    num_resumed: int
    warnings: tuple[str, ...] = ()
    """What to know of the whole search."""
    loader: LoaderUsed | None = None
    """What was taken over from `hound loader`."""

    def to_json(self) -> dict[str, Any]:
        """The document that `hound search --json` prints."""
        rows = [
            {**to_plain(row), "notes": [note for model, note in self.notes if model == row.model]}
            for row in self.ranking.models[: self.top]
        ]
        return {
            "run": str(self.run),
            "data": self.data,
            "task": self.task,
            "num_items": self.num_items,
            "num_classes": self.num_classes,
            "device": self.device,
            "precision": self.precision,
            "weights": self.weights,
            "rests_on": list(self.ranking.rests_on),
            "metric": self.ranking.metric,
            "confidence": self.ranking.confidence,
            "ranking": rows,
            "guess": self.ranking.guess,
            "is_guess_beaten": self.ranking.is_guess_beaten,
            "finals": to_plain(self.ranking.finals),
            "control": {"by_size": list(self.ranking.by_size), "kendall_tau": self.ranking.size_agreement},
            "dropped": to_document(self.dropped),
            "failures": to_document(self.failures),
            "skipped": to_document(self.skipped),
            "notes": list(self.warnings),
            "phases": self.phases,
            "loader": to_document(self.loader),
        }


def search(
    data: str, models: str | Sequence[str] = ("auto",), *, watch: Watch = silent, **options: Any
) -> SearchResult:
    """Rank `models` for `data`; `options` are those of `hound search`, the fields of SearchSettings."""
    settings = make_settings(SearchSettings, "search", str(data), models=name_all(models), **options)
    return run_search(settings, watch=watch)


def explain_search(settings: SearchSettings, *, watch: Watch = silent) -> SearchForeseen:
    """What `run_search` would do; nothing is run over the data set and no run folder is made."""
    wait_asleep()  # before anything below loads torch
    opened = _open_all(settings, _find_asked(settings, watch), watch)
    from modelhound.measuring import Job, foresee, stamp_models, use_recommended

    stamps, failures = stamp_models(opened.models, settings)
    job = Job(
        models=stamps,
        dataset=opened.dataset,
        settings=settings,
        scorers=opened.scorers,
        device=opened.device,
        tell=lambda record: None,
        watch=watch,
    )
    foreseen = foresee(use_recommended(job)[0], open_seconds=opened.seconds)
    return msgspec.structs.replace(foreseen, failures=(*failures, *foreseen.failures))


def run_search(
    settings: SearchSettings, *, watch: Watch = silent, begun: Callable[[Path], None] = lambda path: None
) -> SearchResult:
    """Do what `settings` ask for; `begun` is told the run folder as soon as it is known.

    An item that turns out to be broken is left out, and what was made of the others stays.
    """
    return without_broken_items(lambda: _search(settings, watch, begun), run=settings.run, watch=watch)


def _search(settings: SearchSettings, watch: Watch, begun: Callable[[Path], None]) -> SearchResult:
    wait_asleep()  # before anything below loads torch
    opened = _open_all(settings, _find_asked(settings, watch), watch)
    from modelhound.measuring import measure_models
    from modelhound.scores.guessing import guess_scores

    models, dataset, scorers, device = opened.models, opened.dataset, opened.scorers, opened.device
    rests_on = (decisive_scorer(scorers),)
    identity = _identity(settings, dataset, scorers, device)
    path = settings.run or default_run_path(
        "search", settings.data, {**identity, "models": [str(model) for model in models]}
    )
    with open_run(path, verb="search", at=utc_now(), settings=to_plain(settings), identity=identity) as run:
        begun(path)
        precision = _find_precision(settings, device)
        run.append(
            RunStarted(at=utc_now(), device=device, machine=describe_machine(), task=dataset.task, precision=precision)
        )
        keep_skipped(run, dataset.skipped)
        measured = measure_models(
            models,
            settings,
            scorers=scorers,
            dataset=dataset,
            device=device,
            known=(*run.read(ModelDropped), *run.read(ModelMeasured)),
            keep=run.append,
            num_assured=_num_assured(settings),
            watch=watch,
        )
        records = [measured.models[str(model)] for model in models if str(model) in measured.models]
        ranking = rank_models(
            records,
            rests_on=rests_on,
            metric=METRICS[dataset.task],
            seed=settings.seed,
            dropped=tuple(measured.dropped.values()),
            guess=guess_scores(dataset.targets, dataset.task),
        )
        _look(run, measured, ranking, dataset, rests_on[0])
        if settings.finals is not None:
            ranking = _add_finals(ranking, measured, opened, settings, run, watch)
        run.write_answer(ranking, headline=_headline(ranking))
    return SearchResult(
        run=path,
        data=settings.data,
        task=dataset.task,
        num_items=len(dataset),
        num_classes=len(dataset.class_names),
        device=device,
        precision=precision,
        weights=settings.weights,
        ranking=ranking,
        top=settings.top,
        dropped=tuple(sorted(measured.dropped.values(), key=lambda each: -each.score)),
        failures=tuple(measured.failures),
        skipped=dataset.skipped,
        notes=tuple((record.model, note) for record in records for note in record.notes),
        phases=total_phases(records),
        num_resumed=measured.num_resumed,
        warnings=tuple(measured.warnings),
        loader=measured.loader,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What a search is about, with what a person may have got wrong behind it."""

    models: tuple[ModelRef, ...]
    dataset: Dataset
    scorers: tuple[str, ...]
    device: str
    seconds: float
    """That opening the data set took."""


def _find_asked(settings: SearchSettings, watch: Watch) -> tuple[ModelRef, ...]:
    """The models asked for by name; slips in these and in the name of the data are told before torch is loaded."""
    models = _find(settings, settings.models, watch) if settings.models != ("auto",) else ()
    check_there(settings.data)
    return models


def _open_all(settings: SearchSettings, models: tuple[ModelRef, ...], watch: Watch) -> _Opened:
    bf16 = Bf16Trial(settings.precision)
    load_libraries(watch)
    device = resolve_device(settings.device) if settings.on == "local" else _find_cluster_device(settings)
    _prepare_memory_and_device(settings, device)
    meter = Meter()
    dataset = _open(settings, watch)
    seconds = meter.wall_seconds
    models = models or _find(settings, DEFAULT_MODELS[dataset.modality], watch)
    check_any_fits(models, dataset.modality, settings.data)
    scorers = scorers_for(dataset.task, settings.scorers)
    decisive_scorer(scorers)  # one there must be
    if settings.finals is not None:
        from modelhound.finals import check_finals

        check_finals(dataset, settings)
    if settings.on == "local":
        bf16.settle(device)
    return _Opened(models=models, dataset=dataset, scorers=scorers, device=device, seconds=seconds)


def _prepare_memory_and_device(settings: SearchSettings, device: str) -> None:
    """On a CPU say what becomes of freed memory, on a device of this machine load what networks need while items are opened."""
    if device == "cpu" and settings.memory is None:
        keep_freed_memory()
    elif device == "cpu":
        free_at_once()
    elif not settings.plain and settings.on == "local":
        from modelhound.features.warming import warm_up

        warm_up(device)


def _headline(ranking: Ranking) -> str:
    if ranking.finals is not None:
        return ranking.finals.winner or no_winner_text(ranking.finals)
    if not ranking.is_guess_beaten:
        return "no model is clearly better than guessing"
    return ranking.models[0].model if ranking.models else "no model could be measured"


def _add_finals(
    ranking: Ranking, measured: "Measured", opened: _Opened, settings: SearchSettings, run: RunFolder, watch: Watch
) -> Ranking:
    from modelhound.finals import enter_finals

    finals = enter_finals(
        ranking,
        measured.models,
        num_candidates=len(measured.models) + len(measured.dropped),
        dataset=opened.dataset,
        settings=settings,
        device=opened.device,
        run=run,
        failed=measured.failures.append,
        warn=measured.warnings.append,
        watch=watch,
    )
    return msgspec.structs.replace(ranking, finals=finals)


def _num_assured(settings: SearchSettings) -> int | None:
    """How many of the best the race must not lose: those asked for, and all that may come to the finals."""
    if settings.finals is None:
        return settings.top
    return max(settings.top or DEFAULT_TOP, settings.num_finalists() or MOST_FINALISTS)


def _find_cluster_device(settings: SearchSettings) -> str:
    from modelhound.measuring import choose_spread_device

    return choose_spread_device(settings)


def _find_precision(settings: SearchSettings, device: str) -> str:
    """What networks compute in; on a cluster with GPUs each machine decides."""
    if settings.plain:
        return "fp32"
    is_known = settings.on == "local" or device == "cpu"
    return choose_precision(settings.precision, device) if is_known else settings.precision


def _look(run: RunFolder, measured: "Measured", ranking: Ranking, dataset: Dataset, scorer: str) -> None:
    """Leave a view of the items as the best model sees them, if it was measured just now."""
    from modelhound.measuring.looking import look_at_items

    best = ranking.models[0].model if ranking.models else None
    if best in measured.seen and scorer in measured.models[best].item_scores:
        records = [each for each in measured.models.values() if scorer in each.item_scores]
        run.append(look_at_items(measured.seen[best], dataset, measured.models[best], records, scorer=scorer))


def _find(settings: SearchSettings, patterns: Sequence[str], watch: Watch) -> tuple[ModelRef, ...]:
    models = find_models(patterns, where=settings.where, watch=watch)
    check_arch(settings.arch, models)
    return models


def _open(settings: SearchSettings, watch: Watch) -> Dataset:
    dataset = open_asked(
        settings,
        hold_bytes=0 if settings.plain or settings.memory else int(_SHARE_FOR_FILES * available_memory()),
        watch=watch,
    )
    settings.check_for_texts(settings.data, (dataset.modality,))
    return dataset


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
        # which one by one is fp32 wherever it runs; on a CPU so is what is chosen for it
        "precision": "fp32" if settings.plain and device != "cpu" else settings.precision,
        "race": None if settings.exhaustive or settings.plain else [_num_assured(settings), settings.risk],
        "device": device.partition(":")[0],
        "seed": settings.seed,
    }
