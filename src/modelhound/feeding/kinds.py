"""Every kind of items that was asked for, studied one after the other.

In:  a Case: what was asked, on which device, of which data; networks; records of earlier starts
Out: a Found: an answer for each kind, and what it rests on
Nothing here opens data or keeps files. Computing alone is the same for all kinds, so it is measured with the first.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from modelhound.analysis.pairs import Pair
from modelhound.data import Dataset, Preprocessing
from modelhound.data.recommended import data_kind, machine_kind
from modelhound.feeding.afar import Keeper
from modelhound.feeding.concluding import choose_pairs, conclude
from modelhound.feeding.ledger import Study
from modelhound.feeding.runs import Feed
from modelhound.feeding.studying import study
from modelhound.feeding.supplying import supply_items
from modelhound.meter import choose_precision, count_cores
from modelhound.models import Network
from modelhound.records import (
    FeedMeasured,
    ItemsPrepared,
    KindAnswer,
    PairFailed,
    Record,
    StepMeasured,
    TuneMeasured,
    Watch,
)
from modelhound.settings import LoaderSearchSettings

__all__ = ["Case", "Found", "study_kinds"]

_MOST_MEASURED_ITEMS = 2000  # of a run, unless its length is asked for: beyond, a run goes on as it went before
_OF_A_MODEL = StepMeasured | FeedMeasured | TuneMeasured


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What was asked, on this machine."""

    settings: LoaderSearchSettings
    device: str
    dataset: Dataset
    kinds: tuple[str, ...]
    stamps: Mapping[str, str]
    """Of models in somebody's own files, as these are now."""

    @property
    def run_items(self) -> int:
        """Length of the run to choose for."""
        return self.settings.length or len(self.dataset)

    @property
    def measured_items(self) -> int:
        return self.settings.length or min(len(self.dataset), _MOST_MEASURED_ITEMS)

    @property
    def pins(self) -> bool:
        return self.settings.pin == "yes" or (self.settings.pin == "auto" and self.device != "cpu")

    @property
    def precision(self) -> str:
        return choose_precision(self.settings.precision, self.device)

    def identity(self) -> dict[str, Any]:
        """Whatever decides the numbers; models and pairs may grow from one start to the next."""
        settings = self.settings
        return {
            "data_fingerprint": self.dataset.fingerprint,
            "limit": settings.limit,
            "items": self.measured_items,
            "weights": settings.weights,
            "arch": settings.arch,
            "tokens": settings.tokens,
            "layers": settings.layers,
            "precision": self.precision,
            "prefetch": settings.prefetch,
            "pin": self.pins,
            "persistent": settings.persistent,
            "device": self.device.partition(":")[0],
            "machine_kind": machine_kind(self.device),
        }

    def still_holds(self, record: Record) -> bool:
        """Whether the network is still the one that was measured; a record without one holds."""
        return not isinstance(record, _OF_A_MODEL) or record.stamp == self.stamps.get(record.model, "")


@dataclasses.dataclass(slots=True)
class Found:
    """What has come out so far."""

    kinds: list[KindAnswer] = dataclasses.field(default_factory=list)
    prepared: ItemsPrepared | None = None
    steps: list[StepMeasured] = dataclasses.field(default_factory=list)
    """Computing alone, which is the same for all kinds of items."""
    runs: list[FeedMeasured] = dataclasses.field(default_factory=list)
    failures: list[PairFailed] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def study_kinds(
    case: Case, networks: Mapping[str, Network], run: Keeper, known: Sequence[Record], *, watch: Watch
) -> Found:
    """Measure what is not `known` and still holds; every record is kept in `run` as soon as it is there."""
    found = Found()
    holding = tuple(record for record in known if case.still_holds(record))
    for kind in case.kinds:
        _study_kind(kind, networks, case, run, holding, watch, found)
    return found


def _study_kind(
    kind: str,
    networks: Mapping[str, Network],
    case: Case,
    run: Keeper,
    known: Sequence[Record],
    watch: Watch,
    found: Found,
) -> None:
    settings = case.settings
    fitting = {
        model: network
        for model, network in networks.items()
        if kind == "raw" or isinstance(network.preprocessing, Preprocessing)
    }
    left_out = [model for model in networks if model not in fitting]
    if left_out:
        found.notes.append(f"{', '.join(left_out)}: left out of preprocessed items, with a transform of their own.")
    if not fitting:
        return
    pairs, notes = choose_pairs(
        settings,
        device=case.device,
        num_cores=count_cores(),
        num_items=min(case.measured_items, len(case.dataset)),
    )
    found.notes += notes
    with supply_items(case.dataset, kind, fitting, case.measured_items, watch=watch) as (dataset, cost):
        if cost is not None:
            earlier = [record for record in known if isinstance(record, ItemsPrepared)]
            found.prepared = earlier[0] if earlier else cost
            if not earlier:
                run.append(cost)

        def tell(record: Record) -> None:
            if isinstance(record, _OF_A_MODEL):
                record = msgspec.structs.replace(record, stamp=case.stamps.get(record.model, ""))
            run.append(record)
            if isinstance(record, StepMeasured):
                found.steps.append(record)

        asked = _ask(kind, dataset, fitting, pairs, case, (*known, *found.steps), tell, watch)
        studied = study(asked)
        answer, notes = conclude(asked, studied, num_items=case.run_items, options=settings.tune)
        found.notes += notes
        if answer.recommended is not None:
            where = {"data": settings.data, "data_kind": data_kind(dataset), "machine_kind": machine_kind(case.device)}
            answer = msgspec.structs.replace(answer, recommended=msgspec.structs.replace(answer.recommended, **where))
    found.kinds.append(answer)
    found.runs += studied.runs
    found.failures += studied.failures


def _ask(
    kind: str,
    dataset: Dataset,
    networks: Mapping[str, Network],
    pairs: tuple[Pair, ...],
    case: Case,
    known: Sequence[Record],
    tell: Callable[[Record], None],
    watch: Watch,
) -> Study:
    settings = case.settings
    return Study(
        item_kind=kind,
        dataset=dataset,
        networks=networks,
        pairs=pairs,
        num_items=case.measured_items,
        feed=Feed(
            device=case.device,
            prefetch=settings.prefetch,
            pin=case.pins,
            persistent=settings.persistent,
            precision=case.precision,
        ),
        num_cores=count_cores(),
        grid=settings.grid,
        repeats=settings.repeats,
        budget=settings.budget,
        seed=settings.seed,
        known=known,
        tell=tell,
        watch=watch,
    )
