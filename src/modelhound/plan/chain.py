"""What a plan is made from and what it is: plain, frozen data.

In:  what `models` knows about each model (a Chain), what was measured about the machine (Costs)
Out: a Plan, which `features` runs and never changes
Nothing here knows what a tensor is, opens a file or reads a clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Chain", "Costs", "Keep", "Plan", "Segment", "Step", "count_shared"]

Keep = Literal["nothing", "memory", "disk"]
"""Where a step's output waits for the steps that take it; `nothing` where no step does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a model that is always run as a whole."""

    fingerprint: str
    """Equal fingerprints: equal tensors, buffers and code, so equal output for equal input."""
    flops_per_item: float
    output_bytes_per_item: int
    weight_bytes: int
    peak_bytes_per_item: int
    """Activations held at once while it runs, its own input and output included."""
    seconds_per_item: float | None = None
    """Measured or predicted; where it is None, the FLOPs and the machine's rate stand in."""

    def run_seconds(self, flops_per_second: float) -> float:
        """On the device for one item, without the fixed part."""
        return self.flops_per_item / flops_per_second if self.seconds_per_item is None else self.seconds_per_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One model: its segments, first to last, and what it is fed with."""

    model: str
    input: str
    """Key of the preprocessing. Models with different preprocessing share nothing but the decoded item."""
    input_bytes_per_item: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Rates of the machine, and how much memory may be used."""

    flops_per_second: float
    weight_bytes_per_second: float
    spill_bytes_per_second: float
    """Of writing and of reading; 0 where nothing may be spilled to disk."""
    decode_seconds_per_item: float
    """Once, for all inputs."""
    score_seconds: float
    """Once per distinct set of features."""
    launch_seconds: float
    """Fixed, for each batch of a step."""
    batch_items: int
    """Items that run at once; a plan takes fewer where memory is short."""
    memory_bytes: float = math.inf
    one_pool: bool = False
    """The same cores decode, run and score, so that these wait for each other. Reading weights overlaps all the same."""
    form_seconds_per_item: Mapping[str, float] = field(default_factory=dict)
    """To make one input of a decoded item, once per distinct input; 0 where it is not named."""

    def feed_seconds(self, inputs: Iterable[str]) -> float:
        """Of one item, until it is there in the form of all these inputs."""
        return self.decode_seconds_per_item + sum(
            self.form_seconds_per_item.get(each, 0.0) for each in dict.fromkeys(inputs)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Run `segments` on the output of step `source`, or on the data if `source` is None."""

    source: int | None
    input: str
    segments: tuple[Segment, ...]
    finishes: tuple[str, ...]
    """Models whose features are this step's output."""
    keep: Keep
    frees_source: bool
    """No later step takes what this one takes: an output may go once this step is done. Data stay until the chunk is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All steps, in order, are run on one chunk of the items, then on the next."""

    steps: tuple[Step, ...]
    first_item: int
    num_items: int
    chunk_items: int
    """The last chunk may be smaller."""
    batch_items: int
    prefetch: bool
    """While a step runs, the weights of the next are read and the next data are decoded: there is memory for both."""
    resident: frozenset[str]
    """Fingerprints of the segments whose weights stay in memory once read; all others are read for each run of a step."""
    chains: tuple[Chain, ...]
    """What was planned."""
    costs: Costs

    @property
    def chunks(self) -> tuple[range, ...]:
        """The items of each chunk."""
        stop = self.first_item + self.num_items
        starts = range(self.first_item, stop, self.chunk_items)
        return tuple(range(start, min(start + self.chunk_items, stop)) for start in starts)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_items // self.chunk_items)


def count_shared(first: Sequence[str], second: Sequence[str]) -> int:
    """How many fingerprints two chains have in common, from the first on."""
    for count, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return count
    return min(len(first), len(second))
