"""Delays of a known length, put into a stage on purpose.

In:  a stage of the training loop and seconds
Out: the same loop, slower there
Where a delay lengthens the step by itself, the stage is on the critical path; where it does not, something else hides it.
Nothing here knows what the stage does.
"""

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.data import Dataset, Preprocessing
from modelhound.data.source import Item, Reader
from modelhound.data.sources.prepared import PreparedReader
from modelhound.meter import SamplingPlan, take_samples

__all__ = ["Delays", "delay", "prepare_delays", "slow_down_reading"]

_CYCLES_TO_COUNT = 20_000_000  # some hundredths of a second
_ONCE = SamplingPlan(warm_up_seconds=0.0, least_warm_ups=0, most_warm_ups=0, least_samples=1, most_samples=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Seconds to add to each step, by stage."""

    loading_seconds: float = 0.0
    """For each batch, in whichever process loads it."""
    model_seconds: float = 0.0
    """In the forward pass, on the device."""
    network_seconds: float = 0.0
    """On the way of the gradients."""


def delay(seconds: float, *, on_cuda: bool = False) -> None:
    """Hold up this thread, or the current stream of the GPU."""
    if not on_cuda:
        time.sleep(seconds)
        return
    import torch

    cycles = seconds * _cycles_per_second(torch.cuda.current_device())
    torch.cuda._sleep(int(cycles))  # type: ignore[no-untyped-call]


def prepare_delays(device: str) -> None:
    """Find out how fast the GPU counts before it matters: that waits for the device."""
    if device.startswith("cuda"):
        import torch

        _cycles_per_second(torch.cuda.current_device())


@functools.cache
def _cycles_per_second(device: int) -> float:
    """Of a GPU under load: the first count wakes it up, the second is timed."""
    import torch

    count = functools.partial(torch.cuda._sleep, _CYCLES_TO_COUNT)
    with torch.cuda.device(device):
        (seconds,) = take_samples(count, _ONCE, device=f"cuda:{device}").seconds
    return _CYCLES_TO_COUNT / seconds


def slow_down_reading(dataset: Dataset, seconds_per_item: float) -> Dataset:
    """The same items, each of which takes longer to read."""
    if seconds_per_item <= 0:
        return dataset
    return replace(dataset, reader=_slow_down(dataset.reader, seconds_per_item))


def _slow_down(reader: Reader, seconds: float) -> Reader:
    """In its own way: pixels that are copied must not be made of images instead, which would take longer by itself."""
    if isinstance(reader, _SlowPreparedReader):
        return replace(reader, seconds=reader.seconds + seconds)
    if isinstance(reader, PreparedReader):
        held = {each.name: getattr(reader, each.name) for each in fields(PreparedReader)}
        return _SlowPreparedReader(**held, seconds=seconds)
    return _SlowReader(reader, seconds)


@dataclass(frozen=True, slots=True)
class _SlowReader:
    """A Reader that waits before each item."""

    reader: Reader
    seconds: float

    @property
    def in_memory(self) -> bool:
        return False

    def select(self, positions: Sequence[int]) -> Self:
        return type(self)(self.reader.select(positions), self.seconds)

    def stamp(self, position: int) -> str:
        return self.reader.stamp(position)

    def check(self, position: int) -> str:
        return self.reader.check(position)

    def read(self, position: int) -> Item:
        time.sleep(self.seconds)
        return self.reader.read(position)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _SlowPreparedReader(PreparedReader):
    """The same for items that were prepared."""

    seconds: float

    def select(self, positions: Sequence[int]) -> Self:
        return replace(self, places=self.places[np.asarray(positions, dtype=np.int64)])

    def read(self, position: int) -> Image.Image:
        time.sleep(self.seconds)
        return PreparedReader.read(self, position)

    def read_pixels(self, positions: Sequence[int], preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
        time.sleep(self.seconds * len(positions))
        return PreparedReader.read_pixels(self, positions, preprocessing)
