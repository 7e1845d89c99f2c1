"""The items of every step, in the order of the recipe's seed, on the device in time.

In:  a data set, what the network wants its input to look like, a seed, this rank's place among the ranks
Out: batches on the device, epoch after epoch, each step of the same size
Nothing here knows what becomes of a batch. They come through `data.load_batches`, as everywhere in modelhound, in one stream
over all epochs: loader processes are started once, and work on the next epoch while this one ends. On a GPU a batch is copied
beside the work on the one before.

In every step the ranks share one batch between them: rank r of N takes the r-th part of what one rank with an N times larger
batch would take.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from modelhound.data import Batch, Dataset, InputForm, Tokenising, load_batches
from modelhound.data.loading import BATCHES_AHEAD, useful_workers
from modelhound.errors import RequestError
from modelhound.meter.laps import Arrival, Laps
from modelhound.training.layout import image_layout

__all__ = ["Course", "Moved", "choose_workers", "move", "move_batches"]

_MOST_POSITIONS = 1 << 20  # of one stream: a data set repeats its names for every one of them
_STEPS_AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Which items this rank sees in which step."""

    dataset: Dataset = field(repr=False)
    form: InputForm
    batch: int
    seed: int
    rank: int
    num_ranks: int
    workers: int
    prefetch: int = BATCHES_AHEAD
    device: str = "cpu"

    def __post_init__(self) -> None:
        if len(self.dataset) < self.batch * self.num_ranks:
            raise RequestError(
                f"cannot train on {len(self.dataset)} items with {self.num_ranks} ranks: expected at least "
                f"{self.batch * self.num_ranks}, one batch of {self.batch} for each; use fewer --ranks or a smaller --batch"
            )

    @property
    def steps_per_epoch(self) -> int:
        """A rest that does not fill a batch on every rank is left out; the next epoch leaves out others."""
        return len(self.dataset) // (self.batch * self.num_ranks)

    def positions(self, epoch: int) -> npt.NDArray[np.int64]:
        """The items of this rank in one epoch, batch after batch."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.dataset))
        in_steps = order[: self.steps_per_epoch * self.num_ranks * self.batch]
        by_step = in_steps.reshape(self.steps_per_epoch, self.num_ranks, self.batch)
        return by_step[:, self.rank].reshape(-1)

    def batches(self, first_epoch: int, end_epoch: int) -> Iterator[Batch]:
        """On the host, of all epochs from the first up to, not including, the end."""
        at_once = max(1, _MOST_POSITIONS // max(1, self.steps_per_epoch * self.batch))
        for start in range(first_epoch, end_epoch, at_once):
            epochs = range(start, min(end_epoch, start + at_once))
            yield from self.stream(np.concatenate([self.positions(epoch) for epoch in epochs]).tolist())

    def stream(self, positions: Sequence[int]) -> Iterator[Batch]:
        """These items in this order."""
        return load_batches(
            self.dataset.select(positions),
            self.form,
            batch=self.batch,
            workers=self.workers,
            prefetch=self.prefetch,
            device=self.device,
            pixels=self.device.startswith("cuda"),
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """A batch on its device."""

    inputs: Any
    targets: torch.Tensor

    def part(self, start: int, stop: int) -> "Moved":
        """Some of its items."""
        if isinstance(self.inputs, dict):
            return Moved({name: each[start:stop] for name, each in self.inputs.items()}, self.targets[start:stop])
        return Moved(self.inputs[start:stop], self.targets[start:stop])

    def __len__(self) -> int:
        return len(self.targets)


def choose_workers(
    dataset: Dataset,
    form: InputForm,
    *,
    asked: int | None,
    num_local_ranks: int,
    batch: int,
    prefetch: int = BATCHES_AHEAD,
    device: str = "cpu",
) -> int:
    """How many loader processes each rank has: what was asked for, or its share of its machine's cores and shared memory."""
    if asked is not None:
        return asked
    if dataset.reader.in_memory or isinstance(form, Tokenising):
        return 0  # nothing to gain: items are there already, and tokenizers bring their own threads
    on_gpu = device.startswith("cuda")
    return useful_workers(
        form, batch=batch, prefetch=prefetch, on_gpu=on_gpu, pixels=on_gpu, num_sharing=num_local_ranks
    )


def move_batches(batches: Iterator[Batch], device: str, laps: Laps) -> Iterator[Moved]:
    """The batches on their device, with what was waited for told to `laps`."""
    if device.startswith("cuda"):
        return _move_ahead(batches, device, laps)
    return _hand_over(batches, laps)


def move(batch: Batch, device: str) -> Moved:
    """One batch on its device, images in the order in memory that convolutions like best."""
    inputs = batch.inputs_on(device)
    if isinstance(inputs, torch.Tensor) and inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=image_layout(device))
    return Moved(inputs, batch.targets.to(device, non_blocking=True))


def _hand_over(batches: Iterator[Batch], laps: Laps) -> Iterator[Moved]:
    is_first = True
    for batch in batches:
        laps.arrive(None, is_first=is_first)
        is_first = False
        moved = move(batch, "cpu")
        laps.lap("data to device")
        yield moved


def _move_ahead(batches: Iterator[Batch], device: str, laps: Laps) -> Iterator[Moved]:
    """Each batch is asked for once the work on the one before is in the GPU's queue, and copied by a stream of its own."""
    work, copies = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    is_first = True
    ends: deque[torch.cuda.Event] = deque()
    while (found := next(batches, None)) is not None:
        copying, copied = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(copies):
            copying.record(copies)
            moved = move(found, device)
            copied.record(copies)
        work.wait_event(copied)
        for tensor in (*(moved.inputs.values() if isinstance(moved.inputs, dict) else (moved.inputs,)), moved.targets):
            tensor.record_stream(work)  # or its memory could be given away while the work still reads it
        laps.arrive(Arrival(copying, copied), is_first=is_first)
        is_first = False
        yield moved
        # A host that ran ahead further would fill the GPU's memory with batches; two steps keep it busy.
        ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ended.record(work)
        ends.append(ended)
        if len(ends) > _STEPS_AHEAD:
            ends.popleft().synchronize()
