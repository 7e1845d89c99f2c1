"""What came back: frozen, typed, torch-free, and one line of JSON each.

In:  measurements made by the rooms above
Out: records that `store` appends and reads back, that `analysis` computes on and that a report is drawn from
Nothing here knows how a number was measured or where it will be kept. Times are raw samples in seconds.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy

__all__ = [
    "Failure",
    "ItemSkipped",
    "Machine",
    "ModelDropped",
    "ModelMeasured",
    "PhaseSamples",
    "Progress",
    "RankedModel",
    "Ranking",
    "Record",
    "RunStarted",
    "Watch",
    "pack_items",
    "silent",
    "to_plain",
    "unpack_items",
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
    """All times of one phase, one sample per occurrence: a batch, a file, a scorer."""

    phase: str
    seconds: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.seconds)


class RunStarted(Record, frozen=True, kw_only=True, tag="started"):
    """A command began to fill this run folder; a resumed run has one per start."""

    at: str
    device: str
    machine: Machine


class ItemSkipped(Record, frozen=True, kw_only=True, tag="skipped"):
    """An item of the data set that cannot be read and takes no part."""

    item: str
    reason: str


class ModelMeasured(Record, frozen=True, kw_only=True, tag="model"):
    """One model, finished: its size, its scores and where its time went."""

    model: str
    stamp: str = ""
    """Changes when the model's weights do: a result of other weights is not taken over."""
    num_parameters: int
    num_features: int
    num_items: int
    scores: dict[str, float]
    item_scores: dict[str, bytes]
    """Scorer -> one number per item (see `pack_items`), where the scorer has such."""
    phases: tuple[PhaseSamples, ...]
    wall_seconds: float
    peak_memory_bytes: int
    notes: tuple[str, ...] = ()
    """What a person should know of this result, in sentences."""


class ModelDropped(Record, frozen=True, kw_only=True, tag="dropped"):
    """A model that left the race early: what it had reached, and how small its chance was."""

    model: str
    stamp: str
    num_parameters: int
    num_items: int
    """Items it was judged on."""
    score: float
    chance: float
    """Of being among the best `top` in the end."""
    top: int
    seconds: float


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """One model that could not be measured, and in which phase it gave up."""

    model: str
    phase: str
    error: str


class RankedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a ranking. Models that the data cannot tell apart share a rank."""

    rank: int
    model: str
    score: float
    interval: tuple[float, float]
    scores: dict[str, float]
    num_parameters: int
    seconds: float
    tied: bool
    size_rank: int


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: models best first, what the order rests on, and the control."""

    rests_on: tuple[str, ...]
    """The scorers whose mean is the score."""
    metric: str = "accuracy"
    """What the score is: accuracy, ranking precision or R2."""
    confidence: float
    num_items: int
    models: tuple[RankedModel, ...]
    by_size: tuple[str, ...]
    size_agreement: float | None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far something has come: `done` of `total` steps of `task`, now busy with `detail`."""

    task: str
    done: int
    total: int
    detail: str = ""


Watch = Callable[[Progress], None]
"""Called as work proceeds; the command draws bars from it, a library user may pass their own."""


def pack_items(values: "numpy.ndarray") -> bytes:
    """One number per item as bytes: right-or-wrong scores of many items shrink to almost nothing."""
    return zlib.compress(values.astype("<f4").tobytes())


def unpack_items(packed: bytes) -> "numpy.ndarray":
    """The float32 array that `pack_items` was given."""
    import numpy

    return numpy.frombuffer(zlib.decompress(packed), dtype="<f4")


def silent(progress: Progress) -> None:
    """Watch nothing."""


def to_plain(value: object) -> Any:
    """The dicts, lists, strings and numbers that JSON holds, of any record or settings."""
    return msgspec.to_builtins(value, enc_hook=_path_as_text)


def _path_as_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
