"""Features of many models over one data set: survey them, plan, run.

In:  models and a data set
Out: each model's features, as soon as they are there
Nothing here scores or ranks. A Session belongs to one data set, device and precision; models are surveyed once and may be run
over several ranges of items, which is what a race does.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil
import torch

from modelhound.data import Dataset
from modelhound.data.decode.decoders import Choice
from modelhound.features.engine import Request, Rows, chain_of, run_plan
from modelhound.features.plain import suitable_batch
from modelhound.features.workshop import Specimen, Workshop, hash_tensor
from modelhound.meter import Meter, count_cores
from modelhound.models import ModelRef, Weights, source_of
from modelhound.plan import Costs, Plan, make_plan
from modelhound.records import Progress, Watch, silent
from modelhound.settings import ModelSettings

__all__ = ["Failed", "Session", "usable_memory"]

Failed = Callable[[str, str, Exception], None]
"""Told of a model that cannot be used: the model, the phase it happened in, and why."""

_SHARE_OF_HOST, _SHARE_OF_DEVICE = 0.6, 0.85  # of what is free: others live here too
# Rough rates: a plan only needs to know whether computing something again is dearer than keeping it.
_FLOPS_PER_SECOND = {"cpu": 4e10, "cuda": 2e14}
_WEIGHT_BYTES_PER_SECOND = 1e9
_DECODE_SECONDS = 1e-2
_SCORE_SECONDS = 0.1
_LAUNCH_SECONDS = 1e-3


class Session:
    """Many models, one data set."""

    def __init__(
        self,
        dataset: Dataset,
        settings: ModelSettings,
        *,
        seed: int,
        device: str,
        dtype: torch.dtype = torch.float32,
        batch: int | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
        watch: Watch = silent,
    ) -> None:
        self._dataset, self._settings, self._device, self._dtype = dataset, settings, device, dtype
        self._batch, self._threads, self._watch = batch, threads, watch
        self._memory_bytes = memory_bytes or usable_memory(device)
        self._workshop = Workshop(settings, seed=seed, device=device, dtype=dtype)
        self._found_out: dict[str, Choice] = {}
        self.specimens: dict[str, Specimen] = {}
        self.seconds: dict[str, dict[str, float]] = {}
        """What reading and building each model took, by phase."""

    def survey(self, models: Sequence[ModelRef], *, failed: Failed) -> None:
        """Read the weights of all models and take them apart."""
        readers = ThreadPoolExecutor(count_cores(), thread_name_prefix="read weights")
        try:
            upcoming = [readers.submit(self._read, model) for model in models]
            for done, model in enumerate(models):
                self._watch(Progress(task="reading models", done=done, total=len(models), detail=str(model)))
                meter = Meter(self._device)
                try:
                    with meter.phase("read weights"):
                        weights, hashes = upcoming[done].result()
                    with meter.phase("build model"):
                        self.specimens[str(model)] = self._workshop.take_apart(model, weights, hashes)
                except Exception as error:  # whatever a stranger's model raises, the others go on
                    failed(str(model), meter.current_phase, error)
                self.seconds[str(model)] = {each.phase: each.total for each in meter.samples}
        finally:
            readers.shutdown(wait=True, cancel_futures=True)
        self._watch(Progress(task="reading models", done=len(models), total=len(models)))

    def plan(self, models: Sequence[str], items: range) -> Plan:
        """How these models would be run over these item numbers."""
        chains = [chain_of(self.specimens[model], num_bytes_per_value=self._dtype.itemsize) for model in models]
        return make_plan(chains, num_items=len(items), costs=self._costs(models), first_item=items.start)

    def run(
        self,
        models: Sequence[str],
        items: range,
        order: Sequence[int],
        *,
        done: Callable[[str, Rows], None],
        failed: Failed,
    ) -> None:
        """Features of these models for the items with these numbers; `order` says which position of the data set each has."""
        request = Request(
            specimens=self.specimens,
            dataset=self._dataset,
            order=order,
            device=self._device,
            dtype=self._dtype,
            batch=self._batch,
            threads=self._threads,
            found_out=self._found_out,
            watch=self._watch,
        )
        run_plan(self.plan(models, items), request, done=done, failed=failed)

    def _read(self, model: ModelRef) -> tuple[Weights | None, dict[str, str]]:
        """Tensors and their hashes: reading them for hashing brings them into memory, several models at a time."""
        if self._settings.weights == "random":
            return None, {}
        weights = source_of(model).read_weights(model.name)
        return weights, {name: hash_tensor(tensor) for name, tensor in weights.items()}

    def _costs(self, models: Sequence[str]) -> Costs:
        batches = [suitable_batch(self.specimens[model].form, self._device) for model in models]
        return Costs(
            flops_per_second=_FLOPS_PER_SECOND[self._device.partition(":")[0]],
            weight_bytes_per_second=_WEIGHT_BYTES_PER_SECOND,
            spill_bytes_per_second=0,
            decode_seconds_per_item=_DECODE_SECONDS / count_cores(),
            score_seconds=_SCORE_SECONDS,
            launch_seconds=_LAUNCH_SECONDS,
            batch_items=self._batch or max(batches),
            memory_bytes=self._memory_bytes,
            one_pool=self._device == "cpu",
        )


def usable_memory(device: str) -> int:
    """How much memory of the device a session may take unless told."""
    if device == "cpu":
        return int(_SHARE_OF_HOST * psutil.virtual_memory().available)
    free, _ = torch.cuda.mem_get_info(device)
    return int(_SHARE_OF_DEVICE * free)
