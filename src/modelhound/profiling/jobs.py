"""One job from the files of weights to the score, timed phase by phase.

In:  a Stage: a model on its bench, a device, items or stored outputs, scorers
Out: a ConfigurationProfiled for each Configuration asked for
Nothing here knows run folders. Every configuration is the same job: read the tensors it needs, build what holds them, bring
them to the device, then batch after batch wait, copy and run, and at last score. Full models, last layers and joint models
only differ in which layers of which file they take.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from modelhound.data import Dataset
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.meter import Meter
from modelhound.models import Network
from modelhound.models.computing import computing_features
from modelhound.models.parts import RunPart, running
from modelhound.profiling.assembling import assemble, build_usually, move
from modelhound.profiling.benches import Bench, Workload
from modelhound.profiling.configurations import Configuration
from modelhound.profiling.feeding import Meal, Stored, decoded_meals, stored_meals
from modelhound.profiling.weight_files import forget, read_all, read_some
from modelhound.records import ConfigurationProfiled, Progress, ScoringTimed, Watch, silent
from modelhound.scores import FeatureSet, score
from modelhound.settings import ProfileSettings

__all__ = ["Stage", "profile_configuration", "time_loading", "warm_up_scoring"]

_SCORED_SHARES = (0.25, 0.5, 1.0)
_FEWEST_SCORED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything a job stands on."""

    bench: Bench
    stamp: str
    dataset: Dataset
    """Just the items of the workload."""
    workload: Workload
    settings: ProfileSettings
    device: str
    dtype: torch.dtype
    stored: Mapping[int, Stored] = field(default_factory=dict)
    """Outputs before a part, by the part's number."""
    prefetch: int = BATCHES_AHEAD
    pin: bool | None = None
    """None follows the device."""
    load_seconds: tuple[float, ...] = ()
    """What `time_loading` found."""
    watch: Watch = silent


@dataclass(frozen=True, slots=True)
class _Share:
    """Some parts of a model, and the file their tensors come from."""

    file: Path
    first: int
    stop: int
    names: tuple[str, ...]


def profile_configuration(
    configuration: Configuration, stage: Stage, *, scorings: tuple[ScoringTimed, ...] = ()
) -> ConfigurationProfiled:
    """Time one job, then what else belongs to it: reading again, cold and warm, and scoring by the other scorers.

    All configurations of a stage end in features of the same size, so `scorings` of one serve the others.
    """
    bench, workload = stage.bench, stage.workload
    shares = _shares_of(configuration, bench)
    files = tuple(dict.fromkeys(share.file for share in shares))
    gc.collect()  # or the rubbish of earlier jobs would be cleared in this one's time
    cold = forget(files)
    if configuration.is_fed_with_outputs:
        forget(stage.stored[configuration.first].files)  # another configuration may have read them
    ran = _run(configuration, shares, stage)
    peak_memory_bytes = ran.meter.peak_memory_bytes  # now: whatever is timed below begins to count anew
    cold_reads, warm_reads = _read_again(shares, files, stage, first=ran.read_seconds if cold else None)
    return ConfigurationProfiled(
        model=bench.model,
        stamp=stage.stamp,
        data=stage.dataset.name,
        device=stage.device,
        precision="bf16" if stage.dtype == torch.bfloat16 else "fp32",
        configuration=configuration.name,
        form=configuration.form,
        layers=configuration.layers,
        num_layers=len(bench.layers),
        num_layers_run=configuration.num_layers_run,
        num_heads=len(configuration.heads),
        batch=workload.batch,
        num_batches=workload.num_batches,
        num_batches_asked=workload.num_batches_asked,
        num_warmup=workload.num_warmup,
        num_items=workload.num_items,
        weight_bytes=ran.weight_bytes,
        input_bytes_per_item=_input_bytes(configuration, stage),
        flops_per_item=sum(bench.layers.flops_per_item(share.first, share.stop) for share in shares),
        phases=ran.meter.samples,
        wall_seconds=ran.wall_seconds,
        cold=cold,
        cold_read_seconds=cold_reads,
        warm_read_seconds=warm_reads,
        usual_build_seconds=_build_again(stage) if configuration.form == "full" else (),
        scorings=scorings or _score_again(ran.features[0], stage),
        peak_memory_bytes=peak_memory_bytes,
        notes=(*bench.notes, *workload.notes),
        load_seconds=() if configuration.is_fed_with_outputs else stage.load_seconds,
    )


def time_loading(stage: Stage) -> tuple[float, ...]:
    """Waiting for each batch of decoded items, and for the end of loading, where nothing computes meanwhile.

    In a job, loader processes work while the network does: what it waits for tells what loading adds, not what it takes.
    """
    meter = Meter(keep_peak=True)
    for _ in _timed(_decoded(stage), meter):
        pass
    return meter.samples[0].seconds


def _shares_of(configuration: Configuration, bench: Bench) -> list[_Share]:
    """A trunk if there is one, then the heads."""
    layers, stop = bench.layers, bench.num_parts
    shares = []
    if configuration.trunk_stop:
        names = layers.tensors(0, configuration.trunk_stop)
        shares.append(_Share(bench.files[0], 0, configuration.trunk_stop, names))
    names = layers.tensors(configuration.first, stop)
    shares += [_Share(bench.files[head], configuration.first, stop, names) for head in configuration.heads]
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    meter: Meter
    wall_seconds: float
    read_seconds: float
    weight_bytes: int
    features: list[Tensor]
    """Of each head."""


def _run(configuration: Configuration, shares: list[_Share], stage: Stage) -> _Ran:
    """The job itself. Nothing but phases between its first and its last line, so that they add up."""
    bench, settings, layout = stage.bench, stage.settings, stage.bench.layout(stage.device)
    meter = Meter(stage.device)
    with meter.phase("read weights"):
        tensors = [read_some(share.file, share.names) for share in shares]
    with meter.phase("build model"):
        networks = [assemble(bench.source, each, bench.settings, seed=bench.seed) for each in tensors]
    with meter.phase("weights to device"):
        for network, share in zip(networks, shares, strict=True):
            move(network, share.names, device=stage.device, dtype=stage.dtype, layout=layout)
    features = _run_batches(configuration, shares, networks, stage, meter)
    with meter.phase("score"):
        for each in features:
            _score(each, settings.scorers[0], settings.class_counts()[0], seed=settings.seed)
    wall_seconds = meter.wall_seconds
    num_bytes = sum(tensor.nbytes for each in tensors for tensor in {id(one): one for one in each.values()}.values())
    return _Ran(
        meter=meter,
        wall_seconds=wall_seconds,
        read_seconds=meter.samples[0].total,
        weight_bytes=num_bytes,
        features=features,
    )


def _run_batches(
    configuration: Configuration, shares: list[_Share], networks: list[Network], stage: Stage, meter: Meter
) -> list[Tensor]:
    has_trunk = configuration.trunk_stop > 0
    rows: list[list[Tensor]] = [[] for _ in configuration.heads]
    anatomy, total, layout = stage.bench.layers.anatomy, stage.workload.num_batches, stage.bench.layout(stage.device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(computing_features(stage.device, *networks))
        runs: list[RunPart] = [
            stack.enter_context(running(network, anatomy, share.first, share.stop))
            for network, share in zip(networks, shares, strict=True)
        ]
        for meal in _timed(_meals(configuration, stage), meter):
            with meter.phase("data to device"):
                inputs, value = meal.serve(stage.device, stage.dtype, layout)
            del meal  # or its memory, which may be much, would be given back between two phases, in nobody's time
            with meter.phase("forward"):
                if has_trunk:
                    value = runs[0](inputs, None)
                for row, run in zip(rows, runs[has_trunk:], strict=True):
                    row.append(run(inputs, value).float())
            stage.watch(Progress(task="batches", done=len(rows[0]), total=total, detail=configuration.name))
        features = [torch.cat(row) for row in rows]
    return [each if each.ndim == 2 else each[:, -1].contiguous() for each in features]


def _meals(configuration: Configuration, stage: Stage) -> Iterator[Meal]:
    if configuration.is_fed_with_outputs:
        return stored_meals(stage.stored[configuration.first])
    return _decoded(stage)


def _decoded(stage: Stage) -> Iterator[Meal]:
    return decoded_meals(
        stage.dataset,
        stage.bench.form,
        batch=stage.workload.batch,
        workers=stage.settings.workers,
        device=stage.device,
        prefetch=stage.prefetch,
        pin=stage.pin,
    )


def _timed(meals: Iterator[Meal], meter: Meter) -> Iterator[Meal]:
    """Hand the meals on; waiting for each is timed, and so is the end, when loading processes are stopped."""
    while True:
        with meter.phase("wait for data"):
            meal = next(meals, None)
        if meal is None:
            return
        yield meal


def _read_again(
    shares: list[_Share], files: tuple[Path, ...], stage: Stage, *, first: float | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds to read the same tensors from the disk, the job's own among them, and from memory."""
    repeats = stage.settings.num_repeats()
    cold = [first] if first is not None else []
    while len(cold) < repeats and forget(files):
        cold.append(_read_once(shares))
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    return tuple(cold), tuple(_read_once(shares) for _ in range(repeats))


def _read_once(shares: list[_Share]) -> float:
    meter = Meter()
    with meter.phase("read weights"):
        for share in shares:
            read_some(share.file, share.names)
    return meter.samples[0].total


def _build_again(stage: Stage) -> tuple[float, ...]:
    """The usual way, for comparison."""
    bench, meter = stage.bench, Meter()
    tensors = read_all(bench.files[0])
    with meter.phase("build model"):
        build_usually(bench.source, tensors, bench.settings, seed=bench.seed)
    return meter.samples[0].seconds


def _score_again(features: Tensor, stage: Stage) -> tuple[ScoringTimed, ...]:
    """Every scorer with every number of classes, and the first of them on fewer items, which tells how scoring grows."""
    settings, scorings = stage.settings, []
    counts = sorted({max(_FEWEST_SCORED, round(share * len(features))) for share in _SCORED_SHARES})
    for place, scorer in enumerate(settings.scorers):
        for num_classes in settings.class_counts():
            is_first = place == 0 and num_classes == settings.class_counts()[0]
            for num_items in counts if is_first else counts[-1:]:
                meter = Meter(stage.device)
                for _ in range(settings.num_repeats()):
                    with meter.phase("score"):
                        _score(features[:num_items], scorer, num_classes, seed=settings.seed)
                scorings.append(
                    ScoringTimed(
                        scorer=scorer,
                        num_classes=num_classes,
                        num_items=min(num_items, len(features)),
                        seconds=meter.samples[0].seconds,
                    )
                )
    return tuple(scorings)


def warm_up_scoring(settings: ProfileSettings, device: str) -> None:
    """What the first score of a process pays for libraries and handles is no part of any job."""
    features = torch.randn(2 * _FEWEST_SCORED, _FEWEST_SCORED, device=device)
    _score(features, settings.scorers[0], settings.class_counts()[0], seed=settings.seed)


def _score(features: Tensor, scorer: str, num_classes: int, *, seed: int) -> None:
    """With made-up classes, evenly spread: only the time is wanted. Few items cannot have many classes of two each."""
    present = max(2, min(num_classes, len(features) // 2))
    targets = torch.arange(len(features), device=features.device) % present
    score(FeatureSet(features=features, targets=targets, num_classes=num_classes), [scorer], seed=seed)


def _input_bytes(configuration: Configuration, stage: Stage) -> int:
    if not configuration.is_fed_with_outputs:
        return 0
    return stage.stored[configuration.first].num_bytes // stage.workload.num_items
