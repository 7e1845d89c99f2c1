"""Set the stage for the configurations of one model on one data set and device.

In:  a bench, a data set, the configurations that will be run
Out: a Stage, with the outputs stored that some of them are fed with; the files are gone when it is left
Nothing here is timed but loading by itself, which is the same for all configurations.
"""

import contextlib
import gc
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

from modelhound.data import Dataset, load_batches
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.meter import choose_precision
from modelhound.models import Network
from modelhound.profiling.assembling import assemble, move
from modelhound.profiling.benches import Bench, plan_workload
from modelhound.profiling.configurations import Configuration
from modelhound.profiling.feeding import Stored, store_outputs
from modelhound.profiling.jobs import Stage, time_loading, warm_up_scoring
from modelhound.profiling.weight_files import read_some
from modelhound.records import Watch, silent
from modelhound.settings import LoaderSettings, ProfileSettings

__all__ = ["open_stage"]


def open_stage(
    bench: Bench,
    dataset: Dataset,
    settings: ProfileSettings,
    configurations: Sequence[Configuration],
    *,
    stamp: str,
    device: str,
    folder: Path,
    loader: LoaderSettings | None = None,
    watch: Watch = silent,
) -> AbstractContextManager[Stage]:
    """Everything is done before this returns; leaving the context removes the stored outputs. Of `loader`, how far ahead and
    whether pinned is taken over; batch and workers are in the settings."""
    dtype = torch.bfloat16 if choose_precision(settings.precision, device) == "bf16" else torch.float32
    network = _build_whole(bench, device, dtype)
    warm_up_scoring(settings, device)
    workload = plan_workload(bench, dataset, settings, device=device, network=network)
    items = dataset.select(range(workload.num_items))
    starts = [each.first for each in configurations if each.is_fed_with_outputs]
    own = Path(tempfile.mkdtemp(dir=folder))
    stored: dict[int, Stored] = {}
    try:
        if starts:
            stored = store_outputs(
                network,
                bench.layers.anatomy,
                starts,
                load_batches(items, bench.form, batch=workload.batch, workers=settings.workers, device=device),
                num_batches=workload.num_batches,
                folder=own,
                device=device,
                dtype=dtype,
                layout=bench.layout(device),
                model=bench.model,
                watch=watch,
            )
        stage = Stage(
            bench=bench,
            stamp=stamp,
            dataset=items,
            workload=workload,
            settings=settings,
            device=device,
            dtype=dtype,
            stored=stored,
            prefetch=BATCHES_AHEAD if loader is None else loader.prefetch,
            pin=loader.pin if loader is not None and loader.device[:4] == device[:4] == "cuda" else None,
            watch=watch,
        )
        if len(starts) < len(configurations):
            stage = replace(stage, load_seconds=time_loading(stage))
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise
    return _kept(stage, own)


@contextlib.contextmanager
def _kept(stage: Stage, folder: Path) -> Iterator[Stage]:
    # Every job begins with a collection of garbage; it need not look through all libraries each time.
    gc.collect()
    gc.freeze()
    try:
        yield stage
    finally:
        gc.unfreeze()
        shutil.rmtree(folder, ignore_errors=True)


def _build_whole(bench: Bench, device: str, dtype: torch.dtype) -> Network:
    names = bench.layers.tensors(0, bench.num_parts)
    network = assemble(bench.source, read_some(bench.files[0], names), bench.settings, seed=bench.seed)
    move(network, names, device=device, dtype=dtype, layout=bench.layout(device))
    return network
