"""`train`: fine-tune networks on 1 to N ranks, and know where every second went.

In:  TrainSettings
Out: a TrainResult: accuracy, phases per rank, what bounds each run, how it scales; and a run folder with checkpoints
How a network is trained is the business of `training`, how ranks are started of `launch`. A run that was stopped goes on from
its last checkpoint; one that is finished is not run again.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.bounds import Verdict, judge_blocks
from modelhound.analysis.certainty import best_run, test_interval
from modelhound.analysis.findings import Finding, check_findings
from modelhound.analysis.newest import newest_of_runs
from modelhound.analysis.scaling import Scaling, measure_scaling
from modelhound.analysis.step_times import StepTimes, measure_steps
from modelhound.analysis.telemetry import summarise_telemetry
from modelhound.analysis.wording import metric_text
from modelhound.compat import load_libraries, wait_asleep
from modelhound.data import Dataset, check_there
from modelhound.data.beginning_anew import keep_skipped, without_broken_items
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.data.recommended import item_kind, take_from_file
from modelhound.errors import RequestError
from modelhound.launch import Cluster, slurm
from modelhound.launch.arithmetic import Bf16Trial
from modelhound.launch.ranks import follow
from modelhound.meter import describe_machine, resolve_device, utc_now
from modelhound.models import check_arch, find_models
from modelhound.records import (
    BlocksMeasured,
    Failure,
    ItemSkipped,
    LoaderUsed,
    ModelTrained,
    OperatorsProfiled,
    RankTrained,
    RunStarted,
    SavedModel,
    Watch,
    silent,
    to_document,
    to_plain,
)
from modelhound.settings import TrainSettings
from modelhound.settings.checks import make_settings, name_all
from modelhound.store import default_run_path, open_run, reserve_run, write_file

__all__ = ["Submitted", "TrainAnswer", "TrainResult", "run_train", "submit_train", "train", "train_on_node"]

_NOT_DECISIVE = ("workers", "compile")
_USUAL_CLUSTER_WORKERS = 7  # of each rank, which has a core too: clusters often have eight per GPU


class TrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the records of a run."""

    verdicts: tuple[Verdict, ...]
    scalings: tuple[Scaling, ...]
    findings: tuple[Finding, ...]
    guess: float
    """The score of one who knows only how often each answer comes among the test items."""


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one training request and where to find what it rests on."""

    run: Path
    data: str
    task: str
    device: str
    weights: str
    num_classes: int
    trained: tuple[ModelTrained, ...]
    ranks: tuple[RankTrained, ...]
    answer: TrainAnswer
    operators: tuple[OperatorsProfiled, ...]
    failures: tuple[Failure, ...]
    skipped: tuple[ItemSkipped, ...]
    saved: tuple[SavedModel, ...]
    """How to name the checkpoint of each of `trained` to other commands."""
    num_resumed: int
    loader: LoaderUsed | None = None
    """What was taken over from `hound loader`."""

    def to_json(self) -> dict[str, Any]:
        """The document that `hound train --json` prints."""
        first = self.trained[0] if self.trained else None
        verdicts = self.answer.verdicts
        key = (first.model, first.num_ranks) if first else None
        verdict = next((each for each in verdicts if (each.model, each.num_ranks) == key), None)
        return {
            "run": str(self.run),
            "data": self.data,
            "task": self.task,
            "device": self.device,
            "weights": self.weights,
            "num_classes": self.num_classes,
            "metric": first.metric if first else None,
            "score": first.score if first else None,
            "interval": test_interval(first) if first else None,
            "guess": self.answer.guess,
            **({"accuracy": first.score} if first and first.metric == "accuracy" else {}),
            "checkpoint": str(self.run / first.checkpoint) if first else None,
            "phases": self._phases(first) if first else [],
            "verdict": to_plain(verdict),
            "efficiency": {scaling.model: _efficiency(scaling) for scaling in self.answer.scalings},
            "runs": [self._run_to_json(*each) for each in zip(self.trained, self.saved, strict=True)],
            "verdicts": to_plain(verdicts),
            "scalings": to_plain(self.answer.scalings),
            "findings": to_plain(self.answer.findings),
            "operators": [{**to_document(each), "trace": str(self.run / each.trace)} for each in self.operators],
            "failures": to_document(self.failures),
            "skipped": to_document(self.skipped),
            "loader": to_document(self.loader),
        }

    @property
    def read_back(self) -> dict[str, SavedModel]:
        """Model -> how to name the checkpoint of the best of its runs to other commands."""
        saved = dict(zip(self.trained, self.saved, strict=True))
        models = dict.fromkeys(run.model for run in self.trained)
        return {model: saved[best_run(run for run in self.trained if run.model == model)] for model in models}

    def ranks_of(self, run: ModelTrained) -> list[RankTrained]:
        """The ranks of one run, the first first."""
        chosen = [each for each in self.ranks if (each.model, each.num_ranks) == (run.model, run.num_ranks)]
        return sorted(chosen, key=lambda each: each.rank)

    def times_of(self, run: ModelTrained) -> StepTimes | None:
        """Data and training per batch and epoch, on the first rank."""
        ranks = self.ranks_of(run)
        return measure_steps(run, ranks[0]) if ranks else None

    def _run_to_json(self, run: ModelTrained, saved: SavedModel) -> dict[str, Any]:
        return {
            **{name: value for name, value in to_document(run).items() if name != "losses"},
            "interval": test_interval(run),
            "checkpoint": str(self.run / run.checkpoint),
            "read_back": to_plain(saved),
            "final_loss": run.losses[-1] if run.losses else None,
            "times": to_plain(self.times_of(run)),
            "phases": self._phases(run),
        }

    def _phases(self, run: ModelTrained) -> list[dict[str, Any]]:
        """Seconds per phase of every rank, which add up to its wall time."""
        return [
            {
                "rank": each.rank,
                "device": each.device,
                "wall_seconds": each.wall_seconds,
                "num_steps": each.num_steps,
                "peak_memory_bytes": each.peak_memory_bytes,
                "telemetry": to_plain(summarise_telemetry(each.telemetry)),
                "seconds": {samples.phase: samples.total for samples in each.phases},
            }
            for each in self.ranks_of(run)
        ]


def train(data: str, model: str | Sequence[str] = (), *, watch: Watch = silent, **options: Any) -> TrainResult:
    """Fine-tune `model` on `data`; `options` are those of `hound train`, the fields of TrainSettings."""
    if model:
        options["model"] = name_all(model)
    settings = make_settings(TrainSettings, "train", str(data), **options)
    return run_train(settings, watch=watch)


def run_train(settings: TrainSettings, *, cluster: Cluster | None = None, watch: Watch = silent) -> TrainResult:
    """Do what `settings` ask for, on this machine or on the nodes of `cluster`."""
    if settings.slurm and cluster is None:
        raise RequestError(
            "cannot run a SLURM job here: expected it to be submitted, use modelhound.verbs.train.submit_train"
        )
    return without_broken_items(lambda: _train(settings, cluster, watch), run=settings.run, watch=watch)


def _train(settings: TrainSettings, cluster: Cluster | None, watch: Watch) -> TrainResult:
    wait_asleep()  # before anything below loads torch
    models = find_models(settings.model, where=settings.where, watch=watch)
    check_arch(settings.arch, models)
    check_there(settings.data)
    bf16 = Bf16Trial(settings.precision)
    load_libraries(watch)
    from modelhound.scores.guessing import guess_scores
    from modelhound.training.checkpoints import name_checkpoint
    from modelhound.training.items import open_items
    from modelhound.training.limits import check_items, check_modality, check_ranks
    from modelhound.training.series import Series

    device = resolve_device(settings.device)
    check_ranks(settings, device, cluster)
    dataset, test = open_items(settings, watch)
    check_items(settings, dataset)
    settings.model_settings().check_for_texts(settings.data, (dataset.modality,))
    asked = to_plain(settings)
    settings, prefetch, used = _with_loader_file(settings, dataset, device)
    check_modality(models, dataset)
    bf16.settle(device)
    identity = _identity(settings, dataset, test, device)
    path = settings.run or default_run_path("train", settings.data, {**identity, "models": list(map(str, models))})
    with open_run(path, verb="train", at=utc_now(), settings=asked, identity=identity) as run:
        run.append(RunStarted(at=utc_now(), device=device, machine=describe_machine()))
        keep_skipped(run, (*dataset.skipped, *test.skipped))
        if used is not None:
            run.append(used)
        work = Series(run, settings, dataset, test, device, cluster or Cluster(), prefetch, watch)
        for model in models:
            for num_ranks in settings.num_ranks():
                work.do(model, num_ranks)
        trained, ranks = work.finished()
        blocks = newest_of_runs(run.read(BlocksMeasured), trained)
        answer = _answer(trained, ranks, blocks, guess=float(guess_scores(test.targets, test.task).mean()))
        run.write_answer(answer, headline=_headline(trained))
    return TrainResult(
        run=path,
        data=settings.data,
        task=dataset.task,
        device=device,
        weights=settings.weights,
        num_classes=len(dataset.class_names),
        trained=tuple(trained),
        ranks=tuple(ranks),
        answer=answer,
        operators=tuple(newest_of_runs(run.read(OperatorsProfiled), trained)),
        failures=tuple(work.failures),
        skipped=tuple(dict.fromkeys((*dataset.skipped, *test.skipped))),
        saved=tuple(name_checkpoint(path / each.checkpoint, each.model, settings.arch) for each in trained),
        num_resumed=work.num_resumed,
        loader=used,
    )


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was handed to a cluster, or would be."""

    script: str
    job: str | None
    """None for a dry run."""
    run: Path

    def to_json(self) -> dict[str, Any]:
        return {"job": self.job, "run": str(self.run), "script": self.script}


def submit_train(settings: TrainSettings) -> Submitted:
    """Hand the request to SLURM, or show what would be handed over."""
    found = find_models(settings.model, where=settings.where)  # a typing error shows here and not tomorrow
    check_arch(settings.arch, found)
    ranks_per_node = -(-max(settings.num_ranks()) // settings.nodes)
    gpus = settings.gpus if settings.gpus is not None else ranks_per_node * (settings.device != "cpu")
    workers = settings.workers if settings.workers is not None else _USUAL_CLUSTER_WORKERS
    job = slurm.Job(
        name="hound-train",
        partition=settings.partition,
        minutes=settings.minutes,
        num_nodes=settings.nodes,
        num_gpus=gpus,
        num_cores=ranks_per_node * (workers + 1),
    )
    asked = to_plain(settings.as_job())
    path = settings.run or default_run_path("train", settings.data, asked)
    asked["run"] = str(path)
    if settings.dry_run:
        return Submitted(script=slurm.make_script(job, path / "slurm"), job=None, run=path)
    reserve_run(path)  # submitit puts its own files there before the job begins
    number = slurm.submit(job, path / "slurm", "modelhound.verbs.train:train_on_node", asked)
    return Submitted(script=slurm.make_script(job, path / "slurm"), job=number, run=path)


def train_on_node(asked: dict[str, Any]) -> None:
    """What a SLURM job runs, once on every node: the first one trains, the others lend it their GPUs."""
    settings = TrainSettings(**asked)
    assert settings.run is not None  # `submit_train` chose it
    cluster = slurm.find_place()
    if settings.device == "cpu":  # no GPUs to count ranks by
        ranks_per_node = -(-max(settings.num_ranks()) // cluster.num_nodes)
        cluster = dataclasses.replace(cluster, ranks_per_node=ranks_per_node)
    if cluster.node > 0:
        follow(settings.run, cluster)
        return
    for earlier in settings.run.glob("over-*"):
        earlier.unlink(missing_ok=True)
    try:
        run_train(settings, cluster=cluster)
    finally:
        write_file(settings.run / cluster.over, b"")


def _with_loader_file(
    settings: TrainSettings, dataset: Dataset, device: str
) -> tuple[TrainSettings, int, LoaderUsed | None]:
    """Batch, workers and prefetch of the file, where there is one and the request leaves them open; what was taken over."""
    if settings.loader is None:
        return settings, BATCHES_AHEAD, None
    found, used = take_from_file(
        settings.loader, item_kind(dataset), device=device, batch=settings.batch, workers=settings.workers
    )
    batch = settings.batch if used.batch is None else used.batch
    workers = settings.workers if used.workers is None else used.workers
    return dataclasses.replace(settings, batch=batch, workers=workers, loader=None), found.prefetch, used


def _identity(settings: TrainSettings, dataset: Dataset, test: Dataset, device: str) -> dict[str, Any]:
    """Whatever decides the numbers; models and numbers of ranks may grow from one start to the next."""
    recipe = {name: value for name, value in to_plain(settings.recipe()).items() if name not in _NOT_DECISIVE}
    return {
        "data_fingerprint": dataset.fingerprint,
        "test_fingerprint": test.fingerprint,
        **recipe,
        "limit": settings.limit,
        "weights": settings.weights,
        "arch": settings.arch,
        "tokens": settings.tokens,
        "device": device.partition(":")[0],
    }


def _answer(
    trained: Sequence[ModelTrained], ranks: Sequence[RankTrained], blocks: Sequence[BlocksMeasured], *, guess: float
) -> TrainAnswer:
    models = list(dict.fromkeys(each.model for each in trained))
    ranks = [each for each in ranks if each.num_items]  # one that was killed after its last step has none to tell of
    scalings = []
    for model in models:
        with contextlib.suppress(RequestError):  # a run whose ranks' records are not all there
            scalings.append(
                measure_scaling(
                    [each for each in trained if each.model == model], [each for each in ranks if each.model == model]
                )
            )
    return TrainAnswer(
        verdicts=tuple(judge_blocks(each) for each in blocks),
        scalings=tuple(scalings),
        findings=check_findings(trained, ranks),
        guess=guess,
    )


def _efficiency(scaling: Scaling) -> dict[str, float]:
    return {str(point.num_ranks): point.efficiency for point in scaling.points}


def _headline(trained: Sequence[ModelTrained]) -> str:
    if not trained:
        return "no model could be trained"
    best = best_run(trained)
    return f"{best.model} {best.metric} {metric_text(best.metric, best.score)}"
