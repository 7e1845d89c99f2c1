"""From networks that were taken apart to plans: what their parts cost, what feeding them takes, how much memory there is.

In:  Specimens, as they are found; a data set, a device
Out: Chains, Costs and Plans; a RequestError that says what is in the way where memory does not suffice
Nothing here runs a plan. Rates are rough until `calibrate` has measured them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch

from modelhound.data import Dataset, InputForm
from modelhound.errors import RequestError
from modelhound.features.allowance import beside_bytes, building_bytes, plan_bytes, too_little_memory
from modelhound.features.calibrating import time_parts
from modelhound.features.chains import chain_of, forms_of, stretch_of
from modelhound.features.costing import rough_costs
from modelhound.features.feed_times import FeedTimes, estimate_feed, time_feed, usual_size
from modelhound.features.shelf import Shelf, filled
from modelhound.features.supply import Supply, input_key
from modelhound.features.workshop import Specimen
from modelhound.plan import Chain, Costs, Plan, least_bytes, make_plan
from modelhound.records import Progress, Watch

__all__ = ["Planner"]


class Planner:
    """Plans for models over one data set."""

    def __init__(
        self,
        specimens: Mapping[str, Specimen],
        dataset: Dataset,
        *,
        device: str,
        dtype: torch.dtype,
        batch: int | None,
        memory_bytes: int,
        lean: bool,
    ) -> None:
        """`specimens` may grow. A `lean` planner counts all that a search takes, and not only what its plan does."""
        self._specimens, self._dataset, self._device, self._dtype = specimens, dataset, device, dtype
        self._batch, self._memory_bytes, self._lean = batch, memory_bytes, lean
        self._stretches: dict[str, tuple[float, float]] = {}
        self.part_seconds: dict[str, float] = {}
        """Per item, by the fingerprint of the part, where it was measured."""
        self._feed: FeedTimes | None = None
        self._size: float | None = None

    def calibrate(
        self,
        supply: Supply,
        shelf: Shelf,
        *,
        failed: Callable[[str, str, Exception], None],
        threads: int | None,
        watch: Watch,
    ) -> None:
        """Measure how fast the parts of all models run and how fast items are fed; plans made later rest on it.

        `failed` is told of models that cannot be run (model, phase, error), and takes them out of the specimens.
        """
        num_kinds = len({id(each.blueprint) for each in self._specimens.values()})
        measured: dict[int, tuple[float, ...]] = {}
        shelf.limit(0)  # until a plan says how much it may hold
        for model, specimen in tuple(self._specimens.items()):
            if id(specimen.blueprint) in measured:
                continue
            watch(Progress(task="measuring speed", done=len(measured), total=num_kinds + 1))
            try:
                with filled(specimen, shelf):
                    measured[id(specimen.blueprint)] = time_parts(
                        specimen.blueprint,
                        self._dataset,
                        supply=supply,
                        device=self._device,
                        dtype=self._dtype,
                        batch=self._batch,
                    )
            except RequestError:
                raise  # the data's fault, not the model's
            except Exception as error:  # whatever a stranger's network raises, the others go on
                failed(model, "forward", error)
        self.part_seconds = {
            fingerprint: seconds
            for specimen in self._specimens.values()
            for fingerprint, seconds in zip(specimen.fingerprints, measured[id(specimen.blueprint)], strict=True)
        }
        forms = list(forms_of(list(self._specimens.values())).values())
        if forms:
            self._feed = time_feed(self._dataset, forms, device=self._device, threads=threads)
        watch(Progress(task="measuring speed", done=num_kinds + 1, total=num_kinds + 1))

    def set_aside(self, num_bytes: int) -> None:
        """So much memory is no plan's any more."""
        self._memory_bytes -= num_bytes

    def chain(self, model: str) -> Chain:
        """A model as plans see it, here and on a cluster."""
        specimen = self._specimens[model]
        key = input_key(specimen.form)
        if key not in self._stretches:
            self._stretches[key] = stretch_of(specimen.form, self._dataset, lean=self._lean)
        stretch, longest = self._stretches[key]
        return chain_of(
            specimen,
            num_bytes_per_value=self._dtype.itemsize,
            seconds=self.part_seconds,
            stretch=stretch,
            longest=longest,
            lean=self._lean,
        )

    def costs(self, models: Sequence[str]) -> Costs:
        """What planning for these models rests on."""
        specimens = [self._specimens[model] for model in models]
        forms = forms_of(specimens)
        memory_bytes = self._memory_bytes
        return rough_costs(
            forms,
            device=self._device,
            memory_bytes=plan_bytes(memory_bytes, self.beside_bytes(models)) if self._lean else memory_bytes,
            feed=self._feed or self._estimate_feed(list(forms.values())),
            batch=self._batch,
        )

    def plan(self, models: Sequence[str], items: range, *, score_seconds: float | None = None) -> Plan:
        """How these models would be run over these item numbers."""
        chains = [self.chain(model) for model in models]
        costs = self.costs(models)
        if score_seconds is not None:
            costs = dataclasses.replace(costs, score_seconds=score_seconds)
        if self._lean:
            self._check_memory(models, chains, len(items), costs)
        return make_plan(chains, num_items=len(items), costs=costs, first_item=items.start)

    def beside_bytes(self, models: Sequence[str]) -> int:
        """What a search takes beside what its plan counts: scoring, and what every process takes that works."""
        specimens = [self._specimens[model] for model in models]
        return beside_bytes(specimens, num_items=len(self._dataset), num_classes=len(self._dataset.class_names))

    def _estimate_feed(self, forms: Sequence[InputForm]) -> FeedTimes:
        if self._size is None:
            self._size = usual_size(self._dataset)
        return estimate_feed(self._dataset, forms, size=self._size, device=self._device)

    def _check_memory(self, models: Sequence[str], chains: Sequence[Chain], num_items: int, costs: Costs) -> None:
        """Raise a RequestError that says what is in the way, where memory does not suffice for any plan."""
        specimens = [self._specimens[model] for model in models]
        least = least_bytes(chains, num_items=num_items, costs=costs)
        if max(least, building_bytes(specimens)) > costs.memory_bytes:
            raise too_little_memory(
                specimens, memory_bytes=self._memory_bytes, least=least, beside=self.beside_bytes(models)
            )
