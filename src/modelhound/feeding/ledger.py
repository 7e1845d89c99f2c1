"""One study of a kind of items: what it is about, and the book of what was measured for it.

In:  models, a data set, pairs; records of an earlier start
Out: every record once, told to whoever keeps them, and found again by what it is of
Nothing here decides what to measure. What fails is a record too: a study goes on with what is left.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from modelhound.analysis.pairs import Pair, find_unrest
from modelhound.data import Dataset
from modelhound.errors import BrokenItemError
from modelhound.feeding.runs import Feed, describe_failure
from modelhound.meter import seconds_now
from modelhound.models import Network
from modelhound.records import FeedMeasured, LoadMeasured, PairFailed, Record, StepMeasured, Watch

__all__ = ["Ledger", "Study"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All that is asked of one kind of items."""

    item_kind: str
    dataset: Dataset
    networks: Mapping[str, Network]
    """By model, on the device."""
    pairs: tuple[Pair, ...]
    num_items: int
    """Length of a measured run."""
    feed: Feed
    num_cores: int
    grid: bool
    repeats: int
    budget: float
    """Share of the grid's time that may be spent without --grid."""
    seed: int
    known: Sequence[Record]
    """What earlier starts have measured."""
    tell: Callable[[Record], None]
    watch: Watch

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.networks)


@dataclass(slots=True)
class Ledger:
    """Everything measured for a study so far. Made from what is known, grows as more is added."""

    study: Study
    steps: list[StepMeasured] = field(default_factory=list)
    loads: list[LoadMeasured] = field(default_factory=list)
    runs: dict[tuple[int, int], list[FeedMeasured]] = field(default_factory=dict)
    """By the places of the model and the pair."""
    failures: list[PairFailed] = field(default_factory=list)
    spent_seconds: float = 0.0
    """Of measuring what this study asks for, by all starts."""

    def __post_init__(self) -> None:
        for record in self.study.known:
            # what failed is tried again by every start
            if not isinstance(record, PairFailed) and self._keep(record):
                self.spent_seconds += _seconds_of(record)

    def measure(self, take: Callable[[], Record], *, model: str | None, pair: Pair, phase: str) -> bool:
        """Take one measurement and add it, or add why it failed; whether it worked."""
        start = seconds_now()
        try:
            record = take()
        except BrokenItemError:  # no pair is to blame, and the next start leaves the item out
            raise
        except Exception as error:
            record = describe_failure(
                error, item_kind=self.study.item_kind, model=model, batch=pair[0], workers=pair[1], phase=phase
            )
            _free_device(self.study.feed.device)
        self.spent_seconds += seconds_now() - start
        self.add(record)
        return not isinstance(record, PairFailed)

    def add(self, record: Record) -> None:
        """Tell it, then remember it."""
        self.study.tell(record)
        self._keep(record)

    def unrest(self) -> float:
        """How restless the machine is, from loading and computing alone, most of which was measured more than once."""
        repeats: dict[tuple[str, int, int], list[float]] = {}
        for load in self.loads:
            if load.page_cache != "cold":
                repeats.setdefault((load.form, load.batch, load.workers), []).append(load.arrivals[-1])
        for step in self.steps:
            repeats.setdefault((step.model, step.batch, 0), []).append(
                sum(step.forward_seconds) / len(step.forward_seconds)
            )
        return find_unrest(repeats.values())

    def has_failed(self, model: str | None, pair: Pair, phase: str) -> bool:
        """Whether just this failed before; it is not tried again."""
        return any(
            (each.for_model, (each.batch, each.workers), each.phase) == (model, pair, phase) for each in self.failures
        )

    def _keep(self, record: Record) -> bool:
        """Remember it; False where it is not of this study."""
        study = self.study
        if isinstance(record, StepMeasured | FeedMeasured) and record.model not in study.networks:
            return False
        if not isinstance(record, StepMeasured) and getattr(record, "item_kind", None) != study.item_kind:
            return False
        if isinstance(record, StepMeasured):
            self.steps.append(record)
        elif isinstance(record, LoadMeasured):
            self.loads.append(record)
        elif isinstance(record, PairFailed):
            self.failures.append(record)
        elif isinstance(record, FeedMeasured):
            pair = (record.batch, record.workers)
            if pair not in study.pairs:
                return False
            cell = (study.models.index(record.model), study.pairs.index(pair))
            self.runs.setdefault(cell, []).append(record)
        return True


def _seconds_of(record: Record) -> float:
    """What it took to measure, as far as the record tells."""
    if isinstance(record, FeedMeasured):
        return record.wall_seconds
    if isinstance(record, LoadMeasured):
        return record.arrivals[-1] + record.stop_seconds
    if isinstance(record, StepMeasured):
        return sum(record.copy_seconds) + sum(record.forward_seconds)
    return 0.0


def _free_device(device: str) -> None:
    """After a failure, memory of the device may be held by what failed."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
