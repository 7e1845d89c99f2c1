"""Run a plan: features of many networks, with everything shared that can be.

In:  a Plan, the Specimens it speaks of, a supply of inputs and a shelf of weights
Out: for each model its feature rows, handed over as soon as its last part has run
Nothing here decides anything: what is run, kept or run again stands in the plan. `fetching` brings the weights of the next
step, `accounts` knows who took how long. On a CPU in fp32 the rows equal those of the plain path to the last bit, as long as
batches are cut in the same places.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from modelhound.data import InputForm
from modelhound.errors import RequestError, is_out_of_memory
from modelhound.features.accounts import Accounts
from modelhound.features.chains import forms_of
from modelhound.features.fetching import Fetched, Fetching, name_models
from modelhound.features.plain import suitable_batch
from modelhound.features.shelf import Shelf, install, remove
from modelhound.features.spilling import InMemory, Kept, OnDisk, Scratch
from modelhound.features.supply import Feed, Supply
from modelhound.features.workshop import Specimen
from modelhound.meter import Lanes, Meter
from modelhound.models.computing import computing_features
from modelhound.models.parts import Inputs, RunPart, running
from modelhound.plan import Plan, Step, peak_bytes
from modelhound.records import Progress, Watch, silent

__all__ = ["Request", "Rows", "run_plan"]

_WITH_GAPS = 4  # times its activations a step may take: workspaces, and gaps in a heap of pieces of other sizes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What one model made of the items."""

    features: Tensor
    """[items, features] or [items, layers, features], float32, in the order asked for."""
    num_truncated: int | None
    """How many texts were cut; None where not all rows were made now, so that nobody has counted."""
    seconds: Callable[[], Mapping[str, float]]
    """By phase; what several models share is divided among them. To ask is to wait until the device has made these rows."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """What to run a plan on."""

    specimens: Mapping[str, Specimen]
    supply: Supply
    shelf: Shelf
    order: Sequence[int]
    """The data set's position for each of the plan's item numbers."""
    device: str
    batch: int | None = None
    lean: bool = False
    """Hold weights no longer than the plan says, although there may be room for more."""
    tidy: Callable[[int], None] = lambda coming_bytes: None
    """Called between batches and steps with what is about to be taken: freed memory goes back to the system first, where
    memory is scarce."""
    lanes: Lanes = field(default_factory=Lanes)
    watch: Watch = silent


def run_plan(
    plan: Plan,
    request: Request,
    *,
    done: Callable[[str, Rows], None],
    failed: Callable[[str, str, Exception], None],
) -> None:
    """Run every step over every chunk of items; `done` and `failed` (model, phase, error) are told as it happens.

    A step that raises takes only the models below it along.
    """
    num_rounds = plan.num_chunks * len(plan.steps)
    with _Job(plan, request) as job:
        for number, chunk in enumerate(plan.chunks):
            if job.is_all_lost():
                break
            feeds = job.open_feeds(number, chunk)
            outputs: dict[int, Kept] = {}
            for index, step in enumerate(plan.steps):
                request.watch(Progress(task="parts of models", done=number * len(plan.steps) + index, total=num_rounds))
                source = None if step.source is None else outputs.get(step.source)
                if step.frees_source and step.source is not None:
                    outputs.pop(step.source, None)  # whatever becomes of this step, nobody asks for it again
                if job.is_lost(index):
                    continue
                made = job.run_step(index, feeds[step.input], source)
                if isinstance(made, _Lost):
                    for model in made.models:
                        failed(model, made.phase, made.error)
                    continue
                if step.keep != "nothing":
                    outputs[index] = made
                for model in step.finishes:
                    rows = job.collect(model, feeds[step.input], made, is_last=number == plan.num_chunks - 1)
                    if isinstance(rows, _Lost):
                        failed(model, rows.phase, rows.error)
                    elif rows is not None:
                        done(model, rows)
    request.watch(Progress(task="parts of models", done=num_rounds, total=num_rounds))


@dataclass(frozen=True, slots=True)
class _Lost:
    """A step that raised, and the models that needed it."""

    models: tuple[str, ...]
    phase: str
    error: Exception


class _Job:
    """The state of one run of a plan."""

    def __init__(self, plan: Plan, request: Request) -> None:
        self._plan, self._request = plan, request
        specimens = {chain.model: request.specimens[chain.model] for chain in plan.chains}
        self._forms = forms_of(list(specimens.values()))
        self._below = _models_below(plan.steps)
        self._lost: set[str] = set()
        self._items: dict[str, list[Tensor]] = {}
        self._rows: dict[str, Kept] = {}
        self._scratch: Scratch | None = None  # where rows of all models wait for the last chunk
        self._truncated: dict[str, int] = {}
        self._accounts = Accounts()
        self._pieces: dict[int, int] = {}  # into which batches of a step are cut, because they did not fit into memory
        self._fetching = Fetching(
            plan.steps, self._below, specimens, request.shelf, device=request.device, lanes=request.lanes
        )
        shelf_bytes, self._most_begun = _divide_weight_bytes(plan, device=request.device, lean=request.lean)
        request.shelf.limit(shelf_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._fetching.close()

    def is_lost(self, index: int) -> bool:
        return self._lost.issuperset(self._below[index])

    def is_all_lost(self) -> bool:
        return self._lost.issuperset(chain.model for chain in self._plan.chains)

    def open_feeds(self, number: int, chunk: range) -> dict[str, Feed]:
        """Inputs of one chunk of items, for every form that is asked for; the next chunk is decoded meanwhile."""
        request, plan = self._request, self._plan
        meter = Meter(request.device, keep_peak=True)
        batches = {key: self._batch(form) for key, form in self._forms.items()}
        with meter.phase("wait for data", on_host=True):
            feeds = request.supply.open(chunk, request.order, self._forms, batches)
        if plan.prefetch and number + 1 < plan.num_chunks:
            request.supply.expect(plan.chunks[number + 1], request.order, self._forms)
        self._accounts.charge([chain.model for chain in plan.chains], meter)
        return feeds

    def run_step(self, index: int, feed: Feed, source: Kept | None) -> Kept | _Lost:
        """The output of the step for each batch."""
        step, below = self._plan.steps[index], self._below[index]
        specimen, first = self._fetching.owner_of(step, 0)
        blueprint = specimen.blueprint
        meter = Meter(self._request.device, keep_peak=True)
        made: Kept = OnDisk(self._request.device) if step.keep == "disk" else InMemory()
        weights: Fetched = []
        self._request.tidy(self._running_bytes(step))
        # the device has something to do while the host prepares this step, but nobody runs far ahead
        self._accounts.catch_up(self._most_begun)
        try:
            with meter.phase("weights to device", on_host=True):
                weights = self._fetching.take(index)
                for owner, tensors in weights:
                    install(owner, tensors)
            if self._plan.prefetch and index + 1 < len(self._plan.steps) and not self.is_lost(index + 1):
                self._fetching.begin(index + 1)
            with (
                self._request.lanes.device_span(self._request.device, "device", "forward", name_models(below)),
                computing_features(self._request.device, blueprint.network),
                running(blueprint.network, blueprint.anatomy, first, first + len(step.segments)) as run,
                meter.phase("forward", later=True),
            ):
                for number in range(feed.num_batches):
                    with meter.phase("wait for data", on_host=True):
                        feed.wait(number)
                    with meter.phase("data to device", on_host=True):
                        inputs = feed.inputs(number, blueprint.layout) if first == 0 else feed.stand_in(number)
                    value = None if source is None else source.get(number)
                    made.put(self._run_in_pieces(index, run, inputs, value))
                    self._request.tidy(0)  # the next batch takes what this one has freed
        except RequestError:
            raise  # the data's fault, not the model's
        except Exception as error:  # whatever a stranger's network raises, the others go on
            models = tuple(model for model in below if model not in self._lost)
            self._lost.update(models)
            self._fetching.drop(self.is_lost)
            return _Lost(models, meter.current_phase, error)
        finally:
            for owner, tensors in weights:
                remove(owner, tensors)
            weights.clear()
        self._accounts.add(below, meter)
        return made

    def collect(self, model: str, feed: Feed, made: Kept, *, is_last: bool) -> Rows | _Lost | None:
        """Put what a model made of this chunk to what it made of others; with the last, all of it is handed over."""
        if model in self._lost:
            return None  # its step runs for others that end there
        try:
            self._add(model, feed, made)
            return self._hand_over(model) if is_last else None
        except Exception as error:  # memory that does not suffice, a disk that fails
            self._lost.add(model)
            self._rows.pop(model, None)
            self._fetching.drop(self.is_lost)
            return _Lost((model,), "forward", error)

    def _add(self, model: str, feed: Feed, made: Kept) -> None:
        if model not in self._rows:
            waits_on_disk = self._plan.num_chunks > 1 and self._plan.costs.spill_bytes_per_second > 0
            if waits_on_disk and self._scratch is None:
                self._scratch = Scratch()
            self._rows[model] = OnDisk(self._request.device, self._scratch) if waits_on_disk else InMemory()
        for number, items in enumerate(feed.items()):
            self._items.setdefault(model, []).append(items)
            self._rows[model].put(made.get(number)[: len(items)].float())  # a batch may have been filled up
        self._truncated[model] = self._truncated.get(model, 0) + feed.num_truncated

    def _hand_over(self, model: str) -> Rows:
        """Everything a model made, in the order of the items."""
        items = self._items.pop(model)
        places = torch.cat(items) - self._plan.first_item
        features = _all(self._rows.pop(model), len(items))
        if not torch.equal(places, torch.arange(len(places))):
            in_order = torch.empty_like(features)
            in_order[_bring(places, features.device)] = features
            features = in_order
        cut = [pieces for index, pieces in self._pieces.items() if model in self._below[index]]
        notes = (f"batches were cut into {max(cut)} because they did not fit into memory",) if cut else ()
        return Rows(
            features=features,
            num_truncated=self._truncated[model],
            seconds=functools.partial(self._accounts.seconds_of, model),
            notes=notes,
        )

    def _run_in_pieces(self, index: int, run: RunPart, inputs: Inputs, value: Tensor | None) -> Tensor:
        """One batch; where memory does not suffice, in halves, quarters, … as many as it takes, from now on."""
        num_items = len(inputs if isinstance(inputs, Tensor) else next(iter(inputs.values())))
        while True:
            pieces = min(num_items, self._pieces.get(index, 1))
            try:
                if pieces == 1:
                    return run(inputs, value)
                edges = [num_items * piece // pieces for piece in range(pieces + 1)]
                cuts = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
                return torch.cat([run(_cut(inputs, cut), None if value is None else value[cut]) for cut in cuts])
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or pieces >= num_items:
                    raise
            self._pieces[index] = 2 * pieces
            if self._request.device != "cpu":
                torch.cuda.empty_cache()

    def _running_bytes(self, step: Step) -> int:
        """What a step may take while it runs, beside what waits for it and for others."""
        activations = self._plan.batch_items * max(segment.peak_bytes_per_item for segment in step.segments)
        return _WITH_GAPS * activations + sum(segment.weight_bytes for segment in step.segments)

    def _batch(self, form: InputForm) -> int:
        asked = self._request.batch or suitable_batch(form, self._request.device)
        return min(asked, self._plan.batch_items)  # a plan takes less where memory is short


def _models_below(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """For each step the models that need it."""
    below: list[list[str]] = [list(step.finishes) for step in steps]
    for index in range(len(steps) - 1, -1, -1):
        source = steps[index].source
        if source is not None:
            below[source] += below[index]
    return [tuple(models) for models in below]


def _divide_weight_bytes(plan: Plan, *, device: str, lean: bool) -> tuple[float, int]:
    """How many bytes of weights the shelf may hold, and how many steps the device may still be at when the next is begun.

    The shelf gets what the plan has counted for weights, and what it leaves over: the next plan may want the same ones. Of
    that, a step that the device is still at needs its own, since nobody else gets them before it is through.
    """
    weights = {segment.fingerprint: segment.weight_bytes for step in plan.steps for segment in step.segments}
    largest = max((sum(segment.weight_bytes for segment in step.segments) for step in plan.steps), default=0)
    counted = sum(weights[fingerprint] for fingerprint in plan.resident) + (2 if plan.prefetch else 1) * largest
    if lean:
        return counted, 0
    spare = max(0.0, plan.costs.memory_bytes - peak_bytes(plan))
    if device == "cpu":  # where each step is over when the next begins
        return counted + spare, 1
    return (counted + spare - largest, 1) if spare >= largest else (counted + spare, 0)


def _all(made: Kept, num_batches: int) -> Tensor:
    return torch.cat([made.get(number) for number in range(num_batches)])


def _bring(places: Tensor, device: torch.device) -> Tensor:
    """To the device, without waiting for it."""
    return places if device.type == "cpu" else places.pin_memory().to(device, non_blocking=True)


def _cut(inputs: Inputs, cut: slice) -> Inputs:
    return inputs[cut] if isinstance(inputs, Tensor) else {name: tensor[cut] for name, tensor in inputs.items()}
