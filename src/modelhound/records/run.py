"""What every run has: its machine, its starts, its failures, and how far it has come."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

__all__ = [
    "Failure",
    "ItemSkipped",
    "Machine",
    "PhaseSamples",
    "PhasesTimed",
    "Progress",
    "Record",
    "RunStarted",
    "Watch",
    "silent",
]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """One line of a run's record file."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where something was measured."""

    hostname: str
    system: str
    cpu: str
    num_cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    driver: str | None
    python: str
    versions: dict[str, str]
    commit: str | None


class PhaseSamples(msgspec.Struct, frozen=True, kw_only=True):
    """All times of one phase, one sample per occurrence: a batch, a file, a scorer. Where several models were run together, one
    sample: this model's share of all of them."""

    phase: str
    seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.seconds)


class PhasesTimed(Record, frozen=True, kw_only=True):
    """A record of something that was timed phase by phase, and as a whole on the same clock."""

    if TYPE_CHECKING:  # each record says where among its fields they stand: here they would come before all others
        phases: tuple[PhaseSamples, ...]
        wall_seconds: float

    def seconds_of(self, *phases: str) -> float:
        """Of these phases together."""
        return sum(each.total for each in self.phases if each.phase in phases)

    def samples_of(self, phase: str) -> tuple[float, ...]:
        """One per occurrence; none where the phase was never entered."""
        return next((each.seconds for each in self.phases if each.phase == phase), ())

    def totals(self) -> dict[str, float]:
        """Seconds of each phase, and under "other" what they leave over of the whole."""
        found = {each.phase: each.total for each in self.phases}
        return {**found, "other": found.get("other", 0.0) + self.wall_seconds - sum(found.values())}


class RunStarted(Record, frozen=True, kw_only=True, tag="started"):
    """A command began to fill this run folder; a resumed run has one per start."""

    at: str
    device: str
    machine: Machine
    task: str = ""
    """What is to be told of items, where the command found that out; empty in runs of older versions."""
    precision: str = ""
    """Of a search: what networks computed in, fp32 or bf16, or auto where each machine of a cluster decides; else empty."""


class ItemSkipped(Record, frozen=True, kw_only=True, tag="skipped"):
    """An item of the data set that cannot be read and takes no part."""

    item: str
    reason: str


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """One model that could not be measured, and in which phase it gave up."""

    model: str
    phase: str
    error: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far something has come: `done` of `total` steps of `task`, now busy with `detail`."""

    task: str
    done: int
    total: int
    detail: str = ""


Watch = Callable[[Progress], None]
"""Called as work proceeds; the command draws bars from it, a library user may pass their own."""


def silent(progress: Progress) -> None:
    """Watch nothing."""
