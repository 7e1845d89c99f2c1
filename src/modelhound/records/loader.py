"""What `hound loader` measures, and its answer."""

import msgspec

from modelhound.records.run import PhaseSamples, PhasesTimed, Record
from modelhound.settings import LoaderSettings

__all__ = [
    "Advice",
    "BestPair",
    "FeedMeasured",
    "ItemsPrepared",
    "KindAnswer",
    "LengthPoint",
    "LoadMeasured",
    "LoaderAnswer",
    "LoaderUsed",
    "PairFailed",
    "PairRegret",
    "PairSeconds",
    "StepMeasured",
    "TopCount",
    "TuneMeasured",
]


class StepMeasured(Record, frozen=True, kw_only=True, tag="loader_step"):
    """compute(b): one model on batches that lie ready in memory, without any loading."""

    model: str
    batch: int
    copy_seconds: tuple[float, ...]
    """To the device, one sample per batch."""
    forward_seconds: tuple[float, ...]
    num_busy_cores: float
    """How many cores of the CPU it kept busy meanwhile."""
    stamp: str = ""
    """Of a model in somebody's own files: changes with them, and then this does not count any more."""


class LoadMeasured(Record, frozen=True, kw_only=True, tag="loader_load"):
    """load(b, w): batches made ready as one form of input, without any model."""

    item_kind: str
    form: str
    batch: int
    workers: int
    num_items: int
    arrivals: tuple[float, ...]
    """Seconds from the start until each batch was there."""
    stop_seconds: float
    """To end the workers."""
    page_cache: str
    """warm: nothing came from the disk; cold: something did; unknown where the system does not tell."""
    disk_bytes: int | None


class FeedMeasured(PhasesTimed, frozen=True, kw_only=True, tag="loader_run"):
    """One run for real: a model fed by a DataLoader, from the start of the workers to their end."""

    item_kind: str
    model: str
    batch: int
    workers: int
    num_items: int
    first_batch_seconds: float
    phases: tuple[PhaseSamples, ...]
    """Waiting for data (the first batch is its first sample), data to device, forward: one sample per batch."""
    wall_seconds: float
    page_cache: str
    disk_bytes: int | None
    at_seconds: float = 0.0
    """When it began, by a clock of which only differences mean something: what disturbs one run may disturb the next."""
    stamp: str = ""
    """Of a model in somebody's own files: changes with them, and then this does not count any more."""

    @property
    def other_seconds(self) -> float:
        """What the phases leave over: starting, stopping, Python."""
        return self.totals()["other"]


class TuneMeasured(Record, frozen=True, kw_only=True, tag="loader_tune"):
    """The recommended pair once more, with one other option changed."""

    item_kind: str
    model: str
    option: str
    """As it would be written: prefetch 4; empty for none changed."""
    wall_seconds: float
    batch: int = 0
    workers: int = 0
    """The pair; both 0 in runs of older versions, which did not say."""
    stamp: str = ""
    """Of a model in somebody's own files: changes with them, and then this does not count any more."""


class ItemsPrepared(Record, frozen=True, kw_only=True, tag="loader_prepared"):
    """What it took to prepare the items."""

    num_items: int
    seconds: float
    prepared_bytes: int
    raw_bytes: int | None
    """Of the files they come from, where there are any."""


class PairFailed(Record, frozen=True, kw_only=True, tag="loader_failure"):
    """A pair that could not be measured; no model where loading alone failed."""

    item_kind: str
    for_model: str | None
    """Not `model`: of whatever model a record has, something was measured (see `store.list_runs`)."""
    batch: int
    workers: int
    phase: str
    error: str
    trace: str = ""
    """The worker's own traceback, where one raised."""


class LoaderUsed(Record, frozen=True, kw_only=True, tag="loader_used"):
    """What another verb took over from `hound loader`; None where it was given by hand or makes no difference."""

    batch: int | None
    workers: int | None
    prefetch: int | None
    origin: str
    """The file, or remembered."""
    found_for: str
    """Data and machine on which it was found."""
    is_of_computing: bool = False
    """Whether the batch is not the one of the recommended pair, but the one from which on computing alone gets no faster."""

    def sentence(self) -> str:
        """In a sentence."""
        return f"{'Loaded with' if self._has_processes else 'Computed in'} {self.text()}."

    def text(self) -> str:
        """In words."""
        enough = ", from which on computing alone gets no faster" if self.is_of_computing else ""
        # the engine takes fewer where memory is short or there are no more; loader processes do as they are told
        size = f"{self.batch}" if self._has_processes else f"up to {self.batch}"
        parts = [] if self.batch is None else [f"batches of {size}{enough}"]
        if self.workers is not None:
            some = "1 loader process" if self.workers == 1 else f"{self.workers} loader processes"
            parts.append(some if self.workers else "no loader processes")
        if self.prefetch is not None:
            ahead = "1 batch" if self.prefetch == 1 else f"{self.prefetch} batches"
            parts.append(f"{ahead} ahead" + ("" if self.workers == 1 else " each"))
        where = "as `hound loader` found here" if self.origin == "remembered" else f"from {self.origin}"
        return f"{', '.join(parts)}: {where} for {self.found_for}"

    @property
    def _has_processes(self) -> bool:
        """Otherwise threads of the engine load; where the number was given by hand, only how far ahead they are tells."""
        return self.workers is not None or self.prefetch is not None


class PairRegret(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer all models take with this pair than each with the pair that is best for it."""

    batch: int
    workers: int
    mean: float | None
    """0.02 is 2 %; None where a model cannot be run with it."""
    median: float | None
    worst: float | None
    worst_model: str
    interval: tuple[float, float] | None
    """Of the mean, 95 %."""
    chance_within: float | None
    """That it is within 2 % of the best pair."""
    as_good: bool
    """Whether noise alone could be what tells it from the recommended pair."""
    num_measured: int
    """With how many models it was measured for real; the others are composed from loading and computing."""


class TopCount(msgspec.Struct, frozen=True, kw_only=True):
    """How often a pair was among the best three of a model."""

    batch: int
    workers: int
    count: int


class BestPair(msgspec.Struct, frozen=True, kw_only=True):
    """What would be best for one model alone, and where its time goes with the pair for all."""

    model: str
    batch: int
    workers: int
    seconds: float
    recommended_seconds: float
    regret: float
    bound: str
    """What the run with the recommended pair waits for: decode, disk, copy, compute, start-up."""
    num_cores_needed: float
    """Cores that would keep the device busy all the time."""
    speedup_if_free: float
    """How much faster with loading for free."""

    @property
    def bounds(self) -> tuple[str, ...]:
        """The bound, and loading beside it where that takes nearly as long: whoever waits for both in turn is bound by both."""
        also_loading = self.bound in ("compute", "copy") and self.speedup_if_free >= 1.5
        return (self.bound, "loading") if also_loading else (self.bound,)


class LengthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The best pair for all models in runs of one length."""

    num_items: int
    batch: int
    workers: int
    seconds: float
    """Mean over models."""
    recommended_regret: float
    """Of the recommended pair, in runs of this length."""


class PairSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """One model with one pair."""

    model: str
    batch: int
    workers: int
    seconds: float | None
    """None where it fails."""
    measured: bool
    """Whether it was run for real; otherwise it is composed of loading and computing, corrected by runs nearby."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to know or to do, and what it rests on."""

    text: str
    evidence: str


class KindAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that follows for one kind of items."""

    kind: str
    recommended: LoaderSettings | None
    chance_within: float
    interval: tuple[float, float] | None
    regret: tuple[PairRegret, ...]
    """Best first."""
    top: tuple[TopCount, ...]
    models: tuple[BestPair, ...]
    lengths: tuple[LengthPoint, ...]
    seconds: tuple[PairSeconds, ...]
    """Every model with every pair, in runs of `num_items`."""
    advice: tuple[Advice, ...]
    verdict: str
    noise: float
    """Relative scatter of one run."""
    measuring_seconds: float
    grid_seconds: float
    """What the full grid takes, measured or estimated."""
    num_runs: int
    num_items: int


class LoaderAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, one for each kind of items."""

    data: str
    device: str
    machine_kind: str
    kinds: tuple[KindAnswer, ...]
    notes: tuple[str, ...]
