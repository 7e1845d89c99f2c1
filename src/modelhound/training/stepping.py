"""One step: forward, backward, optimiser; again and again, and through memory that runs short.

In:  a Trainable, a recipe, the link to other ranks
Out: the loss of each step, on its device; every phase told to `laps`
Nothing here knows where batches come from or when to stop.

A batch that does not fit into memory is cut into parts whose gradients add up to the same; how many is found out at the first
step, all ranks agree on it, and it stays so.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import nn

from modelhound.errors import ModelError, is_out_of_memory
from modelhound.meter.laps import Laps
from modelhound.settings import RecipeSettings, Task
from modelhound.training.augmenting import Augmentation
from modelhound.training.delaying import delay
from modelhound.training.distributed import Link
from modelhound.training.feed import Moved
from modelhound.training.recipe import Schedule
from modelhound.training.trainable import Trainable, loss_of

__all__ = ["Linear", "Stepper", "use_precision"]

Linear: TypeAlias = Callable[[], AbstractContextManager[Any]]


class Stepper:
    """Holds whatever changes from step to step: weights, the optimiser's memory, and into how many parts a batch is cut."""

    def __init__(
        self,
        trainable: Trainable,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        augmentation: Augmentation,
        *,
        recipe: RecipeSettings,
        task: Task,
        link: Link,
        device: str,
        precision: str,
        linear: Linear = contextlib.nullcontext,
    ) -> None:
        """`linear` makes contexts in which linear layers are quicker."""
        self.trainable, self.optimiser, self.schedule = trainable, optimiser, schedule
        self.augmentation, self.recipe, self.task, self.link = augmentation, recipe, task, link
        self.device, self.precision = device, precision
        self._linear: Linear = contextlib.nullcontext if recipe.compile else linear  # what is compiled has its own ways
        self.num_parts = 1
        self.num_steps = 0
        """Steps of the optimiser so far."""
        self.model_delay_seconds = 0.0
        self._num_batches = 0
        self._num_in_group = 1
        self._is_group_begun = False
        self._is_rehearsed = False
        # wrapped first: torch cuts what it compiles where gradients set out, or they would all wait for the last one
        wrapped = link.wrap(trainable)
        self.network: nn.Module = torch.compile(wrapped) if recipe.compile else wrapped  # type: ignore[assignment]

    def step(self, batch: Moved, laps: Laps, *, is_last: bool = True, num_in_group: int = 1) -> torch.Tensor:
        """Learn from one batch; the weights move with the last one of a group."""
        moved = Moved(self.augmentation(batch.inputs, self._num_batches), batch.targets)
        if self.augmentation.kind != "none":
            laps.lap("augment")
        if not self._is_rehearsed:
            self._rehearse(moved)
        self._num_in_group = num_in_group
        loss = self._learn(moved, laps, is_last=is_last)
        self._is_group_begun = not is_last
        self._num_batches += 1
        if is_last:
            self._move_weights()
            self.num_steps += 1
            laps.lap("optimiser")
        return loss

    def computing(self) -> AbstractContextManager[None]:
        """The arithmetic of everything that the network does inside."""
        return use_precision(self.precision, self.device, self._linear)

    def resume_at(self, num_batches: int, num_steps: int, num_parts: int) -> None:
        """Go on as if so many batches were behind."""
        self._num_batches, self.num_steps, self.num_parts = num_batches, num_steps, num_parts

    @property
    def num_batches(self) -> int:
        return self._num_batches

    def _learn(self, batch: Moved, laps: Laps, *, is_last: bool) -> torch.Tensor:
        while True:
            try:
                return self._add_gradients(batch, laps, is_last=is_last)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._cut_smaller(batch)  # out here the error no longer holds on to what filled the memory

    def _add_gradients(self, batch: Moved, laps: Laps, *, is_last: bool) -> torch.Tensor:
        """Gradients of the mean loss of the batch, part by part; ranks exchange them with the last part."""
        size = -(-len(batch) // self.num_parts)
        starts = range(0, len(batch), size)
        total = torch.zeros((), device=self.device)
        for start in starts:
            part = batch.part(start, start + size) if self.num_parts > 1 else batch
            exchanges = is_last and start == starts[-1]
            with contextlib.nullcontext() if exchanges else self._without_exchange():
                if exchanges:
                    self.link.traffic.begin()
                with self.computing():
                    logits = self.network(part.inputs)
                if self.model_delay_seconds > 0:
                    delay(self.model_delay_seconds / len(starts), on_cuda=self.device.startswith("cuda"))
                loss = loss_of(self.task, logits, part.targets) * (len(part) / len(batch))
                laps.lap("forward")
                (loss / self._num_in_group).backward()  # type: ignore[no-untyped-call]
                traffic = self.link.traffic
                laps.lap_backward(traffic.last_sent_at, traffic.last_sent_event if exchanges else None)
            total += loss.detach()
        return total

    def _without_exchange(self) -> Any:
        return self.network.no_sync() if self.link.num_ranks > 1 else contextlib.nullcontext()  # type: ignore[operator]

    def _rehearse(self, batch: Moved) -> None:
        """Where ranks or batches must agree on the number of parts, find it out before it matters."""
        self._is_rehearsed = True
        if self.link.num_ranks == 1 and self.recipe.accumulate == 1:
            return
        if not self.device.startswith("cuda"):
            return
        buffers = {name: each.clone() for name, each in self.trainable.named_buffers()}
        with torch.random.fork_rng(devices=[self.device]):  # what it draws, later steps would miss
            self._learn(batch, _NoLaps(), is_last=False)
        self.optimiser.zero_grad(set_to_none=True)
        for name, each in self.trainable.named_buffers():
            each.copy_(buffers[name])
        self.num_parts = int(self.link.largest(self.num_parts))

    def _move_weights(self) -> None:
        self.schedule.apply(self.optimiser, self.num_steps)
        try:
            self.optimiser.step()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(
                f"cannot train on {self.device}: expected room for what {self.recipe.optimiser} remembers of each weight; use "
                "--optimiser sgd, a smaller --batch or --mode head"
            ) from error
        self.optimiser.zero_grad(set_to_none=True)

    def _cut_smaller(self, batch: Moved) -> None:
        can_agree = self.link.num_ranks == 1 and not self._is_group_begun
        is_rehearsal = self._num_batches == 0
        if self.num_parts >= len(batch) or not (can_agree or is_rehearsal):
            raise ModelError(
                f"cannot train with a batch of {len(batch)} on {self.device}: expected it to fit into memory in "
                f"{self.num_parts} parts; use a smaller --batch, --precision bf16 or --mode head"
            )
        self.optimiser.zero_grad(set_to_none=True)
        self.num_parts = min(len(batch), 2 * self.num_parts)
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()


class _NoLaps:
    """Tells nobody."""

    def begin(self) -> None: ...

    def lap(self, phase: str) -> None: ...

    def arrive(self, arrival: Any, *, is_first: bool) -> None: ...

    def lap_backward(self, sent_at: float, sent_event: Any) -> None: ...

    def end_step(self) -> None: ...

    def between(self, phase: str) -> Any:
        return contextlib.nullcontext()


@contextlib.contextmanager
def use_precision(precision: str, device: str, linear: Linear) -> Iterator[None]:
    """The arithmetic of everything inside."""
    with linear(), torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=precision == "bf16"):
        yield
