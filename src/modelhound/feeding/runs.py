"""One measurement each: a model fed for real, loading without a model, computing without loading.

In:  a network and a data set, a batch size and a number of workers, how to load
Out: one record with raw samples, or an error that `describe_failure` makes a record of
Nothing here decides what to measure. A run begins before the first worker is started and ends when the last has ended. Batches
are loaded, copied and computed as in the plain path of a search, one after the other; what overlaps is the workers' loading.
"""

import contextlib
import traceback
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from modelhound.compat import give_back_freed_memory
from modelhound.data import Batch, Dataset, InputForm, Tokenising, load_batches
from modelhound.data.loading import free_shared_memory
from modelhound.data.sources.prepared import PreparedReader
from modelhound.errors import HoundError, explain_error, is_out_of_memory
from modelhound.meter import Meter, available_memory, cpu_seconds_now, disk_bytes_read, seconds_now
from modelhound.models import Network, suitable_layout
from modelhound.models.computing import computing_features
from modelhound.records import FeedMeasured, LoadMeasured, PairFailed, StepMeasured

__all__ = [
    "Feed",
    "describe_failure",
    "make_batch",
    "measure_load",
    "measure_run",
    "measure_steps",
    "shorten",
    "warm_up",
    "why_not",
]

_COLD_BYTES_PER_ITEM = 1000  # anything smaller is a library that was read, not the data
_NUM_EXAMPLES = 8
_LEAST_STEPS, _MOST_STEPS, _STEP_SECONDS = 1, 4, 0.06
_MEMORY_SHARE = 0.8

_warmed: "weakref.WeakKeyDictionary[torch.nn.Module, set[tuple[int, str, str]]]" = weakref.WeakKeyDictionary()
"""Batch sizes, devices and precisions that a network has seen: kernels are chosen once per process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """How to load and where to compute; the same for all pairs."""

    device: str
    prefetch: int = 2
    pin: bool = False
    persistent: bool = False
    precision: str = "fp32"

    def load(
        self, dataset: Dataset, form: InputForm, batch: int, workers: int, passes: int = 1
    ) -> Generator[Batch, None, None]:
        """The batches, by the path that everything else uses."""
        yield from load_batches(
            dataset,
            form,
            batch=batch,
            workers=workers,
            device=self.device,
            prefetch=self.prefetch,
            pin=self.pin,
            persistent=self.persistent,
            passes=passes,
        )


def measure_run(
    network: Network,
    dataset: Dataset,
    feed: Feed,
    *,
    item_kind: str,
    model: str,
    batch: int,
    workers: int,
    num_items: int,
) -> FeedMeasured:
    """The model over so many items, in several passes where there are fewer."""
    data = shorten(dataset, num_items)
    passes = -(-num_items // len(data))
    give_back_freed_memory()  # or the longer this process lives, the more it costs to fork workers from it
    read_before = disk_bytes_read()
    at_seconds = seconds_now()
    meter = Meter(feed.device)
    layout = suitable_layout(feed.device, is_depthwise=network.is_depthwise)
    num_done = 0
    with (
        _computing(feed, network),
        contextlib.closing(feed.load(data, network.preprocessing, batch, workers, passes)) as loaded,
    ):
        for some in meter.waiting("wait for data", loaded):
            with meter.phase("data to device"):
                inputs = _move(some, feed.device, layout)
            with meter.phase("forward"):
                network.extract(inputs)
            num_done += len(some)
            if num_done >= num_items:
                break
    wall_seconds = meter.wall_seconds
    read = _read_since(read_before)
    return FeedMeasured(
        item_kind=item_kind,
        model=model,
        batch=batch,
        workers=workers,
        num_items=num_done,
        first_batch_seconds=meter.samples[0].seconds[0],
        phases=meter.samples,
        wall_seconds=wall_seconds,
        page_cache=_page_cache(read, num_done),
        disk_bytes=read,
        at_seconds=at_seconds,
    )


def measure_load(
    dataset: Dataset,
    form: InputForm,
    feed: Feed,
    *,
    item_kind: str,
    form_name: str,
    batch: int,
    workers: int,
    num_items: int,
) -> LoadMeasured:
    """Batches of so many items, taken as fast as they come."""
    data = shorten(dataset, num_items)
    give_back_freed_memory()
    read_before = disk_bytes_read()
    arrivals = []
    start = seconds_now()
    with contextlib.closing(feed.load(data, form, batch, workers)) as loaded:
        for _ in loaded:
            arrivals.append(seconds_now() - start)
    stop_seconds = seconds_now() - start - arrivals[-1]
    read = _read_since(read_before)
    return LoadMeasured(
        item_kind=item_kind,
        form=form_name,
        batch=batch,
        workers=workers,
        num_items=len(data),
        arrivals=tuple(arrivals),
        stop_seconds=stop_seconds,
        page_cache=_page_cache(read, len(data)),
        disk_bytes=read,
    )


def measure_steps(network: Network, ready: Batch, feed: Feed, *, model: str) -> StepMeasured:
    """Data to device and forward of a batch that lies ready, once to warm up and then some times."""
    layout = suitable_layout(feed.device, is_depthwise=network.is_depthwise)
    with _computing(feed, network):
        network.extract(_move(ready, feed.device, layout))
        meter = Meter(feed.device)
        start, busy = seconds_now(), cpu_seconds_now()
        for count in range(_MOST_STEPS):
            if count >= _LEAST_STEPS and seconds_now() - start > _STEP_SECONDS:
                break
            with meter.phase("data to device"):
                inputs = _move(ready, feed.device, layout)
            with meter.phase("forward"):
                network.extract(inputs)
        elapsed = seconds_now() - start
        busy = cpu_seconds_now() - busy
    _warmed.setdefault(network.module, set()).add((len(ready), feed.device, feed.precision))
    copies, forwards = meter.samples
    return StepMeasured(
        model=model,
        batch=len(ready),
        copy_seconds=copies.seconds,
        forward_seconds=forwards.seconds,
        num_busy_cores=max(0.1, busy / elapsed),
    )


def warm_up(network: Network, dataset: Dataset, feed: Feed, *, batch: int, num_waiting: int = 1) -> None:
    """What a process pays once for batches of a new size, which is not what a pair costs: the choice of kernels, and pinned
    memory for so many waiting batches, which torch keeps."""
    shape = (batch, feed.device, feed.precision)
    if shape in _warmed.get(network.module, ()):
        return
    few = make_batch(dataset, network.preprocessing, min(batch, _NUM_EXAMPLES))
    layout = suitable_layout(feed.device, is_depthwise=network.is_depthwise)
    with _computing(feed, network):
        inputs = _move(few, feed.device, layout)
        again = torch.arange(batch, device=feed.device) % len(few)
        is_text = isinstance(inputs, dict)
        network.extract(
            {name: each[again] for name, each in inputs.items()}
            if is_text
            else inputs[again].contiguous(memory_format=layout)
        )
    if feed.pin and isinstance(few.inputs, torch.Tensor):
        each = few.inputs
        room = [torch.empty((batch, *each.shape[1:]), dtype=each.dtype, pin_memory=True) for _ in range(num_waiting)]
        del room  # back to torch's pool
    _warmed.setdefault(network.module, set()).add(shape)


def make_batch(dataset: Dataset, form: InputForm, batch: int, *, pin: bool = False) -> Batch:
    """A batch that lies ready: real texts, whose lengths matter; a few real images again and again."""
    wanted = batch if isinstance(form, Tokenising) else min(batch, _NUM_EXAMPLES)
    data = shorten(dataset, wanted)
    (some,) = load_batches(data, form, batch=len(data), workers=0)
    again = torch.arange(batch) % len(some)
    inputs = some.inputs
    made = Batch(
        inputs={name: each[again] for name, each in inputs.items()} if isinstance(inputs, dict) else inputs[again],
        targets=some.targets[again],
    )
    return made.pin_memory() if pin else made


def shorten(dataset: Dataset, num_items: int) -> Dataset:
    """So many of the items, from all over the data set; prepared ones in a row, as they would be read."""
    if num_items >= len(dataset):
        return dataset
    if isinstance(dataset.reader, PreparedReader):
        return dataset.select(range(num_items))
    return dataset.select([place * len(dataset) // num_items for place in range(num_items)])


def why_not(batch: int, workers: int, *, bytes_per_item: float, num_items: int, prefetch: int) -> str | None:
    """Why a pair must not even be tried, before the system kills somebody for it; None if it may."""
    batch = min(batch, num_items)
    num_waiting = min(workers * prefetch + 1, -(-num_items // batch))
    needed = int(bytes_per_item * batch * num_waiting)
    shared, free = free_shared_memory(), int(available_memory() * _MEMORY_SHARE)
    what = f"{num_waiting} batches of {batch} items, {needed / 1e9:.1f} GB"
    if workers > 0 and needed > shared:
        return (
            f"cannot load with {workers} workers: expected room for {what}, in shared memory, but there are "
            f"{shared / 1e9:.1f} GB; use fewer workers, a smaller batch or a larger /dev/shm"
        )
    if needed > free:
        return (
            f"cannot load batches of {batch}: expected room for {what}, in memory, but {free / 1e9:.1f} GB are free; use a "
            "smaller batch"
        )
    return None


def describe_failure(
    error: Exception, *, item_kind: str, model: str | None, batch: int, workers: int, phase: str
) -> PairFailed:
    """What went wrong, in one line; of what nobody foresaw with the traceback of the process in which it happened."""
    notes = getattr(error, "__notes__", ())
    is_foreseen = isinstance(error, HoundError) or is_out_of_memory(error)
    message = explain_error(error) if is_foreseen else f"{type(error).__name__}: {error}"
    trace = "\n".join(notes) or ("" if is_foreseen else "".join(traceback.format_exception(error)))
    return PairFailed(
        item_kind=item_kind,
        for_model=model,
        batch=batch,
        workers=workers,
        phase=phase,
        error=message.partition("\nOriginal Traceback")[0].strip(),
        trace=trace,
    )


@contextlib.contextmanager
def _computing(feed: Feed, network: Network) -> Iterator[None]:
    """As the plain path does; with bf16, in autocast."""
    kind = feed.device.partition(":")[0]
    with (
        computing_features(feed.device, network),
        torch.autocast(kind, dtype=torch.bfloat16, enabled=feed.precision == "bf16"),
    ):
        yield


def _move(some: Batch, device: str, layout: torch.memory_format) -> Any:
    inputs = some.inputs_on(device)
    if isinstance(inputs, torch.Tensor) and inputs.ndim == 4:
        return inputs.to(memory_format=layout)
    return inputs


def _read_since(before: int | None) -> int | None:
    now = disk_bytes_read()
    return None if before is None or now is None else now - before


def _page_cache(read: int | None, num_items: int) -> str:
    if read is None:
        return "unknown"
    return "cold" if read > num_items * _COLD_BYTES_PER_ITEM else "warm"
