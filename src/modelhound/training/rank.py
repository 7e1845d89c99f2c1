"""One rank of one training run, from its request to its records.

In:  a RankRequest, as plain values: what to train, on what, where to keep checkpoints
Out: what this rank found out, as records
It runs in this process, or in each of the processes that `launch.run_on_ranks` starts. Nothing here knows how many models or
rank counts were asked for.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from modelhound.compat import import_timm
from modelhound.data import Dataset
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.features import build_network
from modelhound.launch.ranks import put_file
from modelhound.meter import Telemetry, seconds_now
from modelhound.models import ModelRef, Network, source_of
from modelhound.records import (
    BlocksMeasured,
    ModelTrained,
    OperatorsProfiled,
    Progress,
    RankTrained,
    Watch,
    silent,
    to_plain,
)
from modelhound.settings import ModelSettings, RecipeSettings
from modelhound.training.bench import Bench, set_up
from modelhound.training.intervening import intervene
from modelhound.training.learned import learned_by
from modelhound.training.loop import Trained, train
from modelhound.training.tracing import trace_steps

__all__ = ["RankRequest", "RankResult", "told_by", "train_here", "train_rank"]

_LEAST_BUDGET_SECONDS, _MOST_BUDGET_SECONDS, _BUDGET_SHARE = 3.0, 60.0, 0.25
_SECONDS_BETWEEN_WORDS = 0.3


class RankRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank of a run is told."""

    model: str
    stamp: str
    recipe: RecipeSettings
    model_settings: ModelSettings
    device: str
    folder: str
    """Where this run keeps its checkpoints and traces."""
    items: str = ""
    """The pickled data sets, for processes of their own."""
    prefetch: int = BATCHES_AHEAD
    verdict: str = "auto"
    trace: int = 0


class RankResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank found out; what all share, the first one tells."""

    rank: RankTrained
    trained: ModelTrained
    blocks: BlocksMeasured | None = None
    operators: OperatorsProfiled | None = None


def train_rank(argument: Any) -> Any:
    """The whole of `train_here` for a process that `launch` started: plain values in, plain values out."""
    request = msgspec.convert(argument["request"], RankRequest)
    progress = Path(argument["progress"])
    with Path(request.items).open("rb") as file:
        dataset, test = pickle.load(file)  # written by our own parent, a moment ago
    import_timm()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local}" if request.device.startswith("cuda") else "cpu"
    watch = _write_progress(progress / f"rank-{rank}.progress") if rank == 0 else silent

    def tell(result: RankResult) -> None:
        put_file(progress / told_by(rank), msgspec.json.encode(result))

    return to_plain(train_here(msgspec.structs.replace(request, device=device), dataset, test, tell=tell, watch=watch))


def told_by(rank: int) -> str:
    """The file in which a rank in a process of its own leaves what it has trained, while it goes on measuring."""
    return f"trained-{rank}.json"


def train_here(
    request: RankRequest,
    dataset: Dataset,
    test: Dataset,
    *,
    tell: Callable[[RankResult], None] = lambda result: None,
    watch: Watch = silent,
) -> RankResult:
    """Train, find out what bounds it, trace it; what came of training is told before the rest can fail or be stopped."""
    network = _load(request)
    bench = set_up(network, dataset, test, request.recipe, device=request.device, prefetch=request.prefetch)
    folder = Path(request.folder)
    with Telemetry(request.device) as telemetry:
        trained = train(
            bench,
            model=request.model,
            stamp=request.stamp,
            learned=learned_by(request.model, request.model_settings),
            checkpoints=folder / "checkpoints",
            watch=watch,
        )
    result = RankResult(
        rank=_rank_record(request, bench, trained, telemetry), trained=_model_record(request, bench, trained)
    )
    tell(result)
    blocks = None
    if request.verdict != "none" and request.recipe.mode != "cached":
        budget = min(_MOST_BUDGET_SECONDS, max(_LEAST_BUDGET_SECONDS, _BUDGET_SHARE * trained.wall_seconds))
        blocks = intervene(
            bench,
            budget_seconds=bench.link.largest(budget),
            live_seconds=trained.step_seconds,
            doses=request.verdict == "dose",
            model=request.model,
            watch=watch,
        )
    operators = None
    if request.trace and request.recipe.mode != "cached":
        path = folder / f"trace-rank-{bench.link.rank}.json"
        operators = trace_steps(bench, request.trace, path, model=request.model)
    return msgspec.structs.replace(result, blocks=blocks, operators=operators)


def _load(request: RankRequest) -> Network:
    model, settings = ModelRef.parse(request.model), request.model_settings
    weights = source_of(model).read_weights(model.name) if settings.weights == "pretrained" else None
    return build_network(model, weights, settings, seed=request.recipe.seed)


def _rank_record(request: RankRequest, bench: Bench, trained: Trained, telemetry: Telemetry) -> RankTrained:
    return RankTrained(
        model=request.model,
        num_ranks=bench.link.num_ranks,
        rank=bench.link.rank,
        device=bench.device,
        num_steps=trained.num_steps,
        num_items=trained.num_items,
        phases=trained.phases,
        wall_seconds=trained.wall_seconds,
        peak_memory_bytes=trained.peak_memory_bytes,
        num_workers=trained.num_workers,
        telemetry=telemetry.samples,
    )


def _model_record(request: RankRequest, bench: Bench, trained: Trained) -> ModelTrained:
    return ModelTrained(
        model=request.model,
        stamp=request.stamp,
        num_ranks=bench.link.num_ranks,
        mode=request.recipe.mode,
        num_parameters=bench.network.num_parameters,
        num_trained_parameters=bench.trainable.num_trained,
        num_items=len(bench.course.dataset),
        num_test_items=len(bench.test),
        batch=trained.batch,
        num_parts=trained.num_parts,
        precision=trained.precision,
        metric=trained.metric,
        score=trained.score,
        top5=trained.top5,
        epochs=trained.epochs,
        losses=trained.losses,
        checkpoint=str(trained.checkpoint),
        stopped=trained.stopped,
        wall_seconds=trained.wall_seconds,
        notes=trained.notes,
    )


def _write_progress(path: Path) -> Watch:
    """Tells the parent how far the first rank has come, a few times a second at most."""
    said = 0.0

    def watch(progress: Progress) -> None:
        nonlocal said
        now = seconds_now()
        if now - said > _SECONDS_BETWEEN_WORDS:
            said = now
            put_file(path, msgspec.json.encode(progress))

    return watch
