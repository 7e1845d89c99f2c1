"""Run a plan: features of many networks, with everything shared that can be.

In:  a Plan, the Specimens it speaks of, a supply of inputs and a shelf of weights
Out: for each model its feature rows, handed over as soon as its last part has run
Nothing here decides anything: what is run, kept or run again stands in the plan. On a CPU in fp32 the rows equal those of the
plain path to the last bit, as long as batches are cut in the same places.
"""

import contextlib
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from modelhound.data import InputForm
from modelhound.errors import ModelError, RequestError, is_out_of_memory
from modelhound.features.plain import suitable_batch
from modelhound.features.shelf import Shelf, copied_bytes, install, remove
from modelhound.features.spilling import InMemory, Kept, OnDisk
from modelhound.features.supply import Feed, Supply, input_bytes, input_key
from modelhound.features.workshop import Specimen
from modelhound.meter import Lanes, Meter
from modelhound.models.parts import Inputs, RunPart, running
from modelhound.plan import Chain, Plan, Segment, Step, peak_bytes
from modelhound.records import Progress, Watch, silent

__all__ = ["Request", "Rows", "chain_of", "forms_of", "run_plan"]

_WITH_GAPS = 4  # times its activations a step may take: workspaces, and gaps in a heap of pieces of other sizes
_PEAK_OUTPUTS = 3  # inside a part, about so many tensors of the size of its input or output live at once


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


def chain_of(
    specimen: Specimen,
    *,
    num_bytes_per_value: int,
    seconds: Mapping[str, float] | None = None,
    stretch: float = 1.0,
    longest: float = 1.0,
    lean: bool = False,
) -> Chain:
    """What a planner must know of a model; `seconds` per item of its parts where they were measured.

    `stretch` is how much longer than the probe items are, and `longest` the longest of them: texts may be, images never. A
    `lean` chain counts no weights that can be used where they lie.
    """
    segments = []
    before = input_bytes(specimen.form)
    blueprint = specimen.blueprint
    sizes = blueprint.part_bytes
    if lean:
        sizes = tuple(copied_bytes(specimen, part.tensors) for part in blueprint.anatomy.parts)
    parts = zip(blueprint.anatomy.parts, specimen.fingerprints, sizes, strict=True)
    for part, fingerprint, weight_bytes in parts:
        longer = stretch if part is not blueprint.anatomy.parts[-1] else 1.0  # features are pooled
        output_bytes = int(longer * part.output_bytes_per_item) * num_bytes_per_value // 4
        largest_bytes = int(max(stretch, longest) * part.largest_bytes_per_item) * num_bytes_per_value // 4
        segments.append(
            Segment(
                fingerprint=fingerprint,
                flops_per_item=stretch * part.flops_per_item,
                output_bytes_per_item=output_bytes,
                weight_bytes=weight_bytes,
                peak_bytes_per_item=_PEAK_OUTPUTS * max(before, output_bytes, largest_bytes),
                seconds_per_item=(seconds or {}).get(fingerprint),
            )
        )
        before = output_bytes
    return Chain(
        model=str(specimen.model),
        input=input_key(specimen.form),
        input_bytes_per_item=input_bytes(specimen.form),
        segments=tuple(segments),
    )


def forms_of(specimens: Sequence[Specimen]) -> dict[str, InputForm]:
    """The distinct forms that these models want."""
    return {input_key(specimen.form): specimen.form for specimen in reversed(specimens)}


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
        # by input too: what is installed for a step must go into the one module that it runs
        self._owners: dict[tuple[str, str], tuple[Specimen, int]] = {}
        self._specimens = {chain.model: request.specimens[chain.model] for chain in plan.chains}
        specimens = list(self._specimens.values())
        self._forms = forms_of(specimens)
        for specimen in specimens:
            for number, fingerprint in enumerate(specimen.fingerprints):
                self._owners.setdefault((input_key(specimen.form), fingerprint), (specimen, number))
        self._below = _models_below(plan.steps)
        self._lost: set[str] = set()
        self._items: dict[str, list[Tensor]] = {}
        self._rows: dict[str, Kept] = {}
        self._truncated: dict[str, int] = {}
        self._seconds: dict[str, dict[str, float]] = {}
        self._begun: deque[tuple[Sequence[str], Meter]] = deque()  # steps that the device may still be at, and for whom
        self._alone = threading.Lock()
        self._pieces: dict[int, int] = {}  # into which batches of a step are cut, because they did not fit into memory
        self._fetching = ThreadPoolExecutor(1, thread_name_prefix="weights ahead")
        self._fetched: dict[int, Future[list[tuple[Specimen, dict[str, Tensor]]]]] = {}
        shelf_bytes, self._most_begun = _divide_weight_bytes(plan, device=request.device, lean=request.lean)
        request.shelf.limit(shelf_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._fetching.shutdown(wait=True, cancel_futures=True)

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
        with self._alone:
            self._charge([chain.model for chain in plan.chains], meter)
        return feeds

    def run_step(self, index: int, feed: Feed, source: Kept | None) -> Kept | _Lost:
        """The output of the step for each batch."""
        step, below = self._plan.steps[index], self._below[index]
        specimen, first = self._owners[step.input, step.segments[0].fingerprint]
        blueprint = specimen.blueprint
        meter = Meter(self._request.device, keep_peak=True)
        made: Kept = OnDisk(self._request.device) if step.keep == "disk" else InMemory()
        weights: list[tuple[Specimen, dict[str, Tensor]]] = []
        self._request.tidy(self._running_bytes(step))
        # the device has something to do while the host prepares this step, but nobody runs far ahead
        self._catch_up(self._most_begun)
        try:
            with meter.phase("weights to device", on_host=True):
                weights = self._weights(index)
                for owner, tensors in weights:
                    install(owner, tensors)
            if self._plan.prefetch and index + 1 < len(self._plan.steps):
                self._fetch(index + 1)
            with (
                self._request.lanes.device_span(self._request.device, "device", "forward", self._name(index)),
                torch.inference_mode(),
                torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
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
            self._fetched = {number: each for number, each in self._fetched.items() if not self.is_lost(number)}
            return _Lost(models, meter.current_phase, error)
        finally:
            for owner, tensors in weights:
                remove(owner, tensors)
            weights.clear()
        with self._alone:
            self._begun.append((below, meter))
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
            return _Lost((model,), "forward", error)

    def _add(self, model: str, feed: Feed, made: Kept) -> None:
        if model not in self._rows:
            waits_on_disk = self._plan.num_chunks > 1 and self._plan.costs.spill_bytes_per_second > 0
            self._rows[model] = OnDisk(self._request.device) if waits_on_disk else InMemory()
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
            seconds=functools.partial(self._seconds_of, model),
            notes=notes,
        )

    def _catch_up(self, num_left: int) -> None:
        """Wait until the device is through with all steps but so many, and divide their seconds."""
        with self._alone:
            over = list(self._begun)[: max(0, len(self._begun) - num_left)]
        # A device that broke down over such a step says so to everybody from now on: each model that still needs it fails by
        # its own next step, those of this step included.
        for _, meter in over:
            with contextlib.suppress(RuntimeError):
                meter.wait()  # before others are held up, who ask for the seconds of steps that are over
        with self._alone:
            while len(self._begun) > num_left:
                with contextlib.suppress(RuntimeError):
                    self._charge(*self._begun.popleft())

    def _seconds_of(self, model: str) -> Mapping[str, float]:
        """What was charged to a model that is done; may be asked by other threads."""
        with self._alone:
            waiting = [meter for models, meter in self._begun if model in models]
        for meter in waiting:
            meter.wait()  # here, so that the next step need not
        with self._alone:
            while any(model in models for models, _ in self._begun):
                self._charge(*self._begun.popleft())
            return self._seconds[model]

    def _weights(self, index: int) -> list[tuple[Specimen, dict[str, Tensor]]]:
        """Of one step, fetched ahead or now; where there is no room for them, once more without those of other steps."""
        self._fetch(index)
        try:
            return self._fetched.pop(index).result()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._request.shelf.let_go()
        if self._request.device != "cpu":
            torch.cuda.empty_cache()
        self._fetch(index)
        return self._fetched.pop(index).result()

    def _fetch(self, index: int) -> None:
        if index not in self._fetched and not self.is_lost(index):
            self._fetched[index] = self._fetching.submit(self._fetch_now, index)

    def _fetch_now(self, index: int) -> list[tuple[Specimen, dict[str, Tensor]]]:
        fetched = []
        with self._request.lanes.span("weights", "weights to device", self._name(index)):
            step = self._plan.steps[index]
            for segment in step.segments:
                owner, number = self._owners[step.input, segment.fingerprint]
                names = owner.blueprint.anatomy.parts[number].tensors
                fetched.append(self._fetch_of_any(itertools.chain([owner], self._equals(owner, number)), names))
            # Of a model that runs this step, and not of whoever else has an equal part somewhere: they belong to the first
            # part, which all models below this step have in common.
            anybody = (self._specimens[model] for model in self._below[index])
            everywhere = owner.blueprint.anatomy.everywhere
            fetched.append(self._fetch_of_any(anybody, everywhere))
        return fetched

    def _fetch_of_any(self, owners: Iterable[Specimen], names: Sequence[str]) -> tuple[Specimen, dict[str, Tensor]]:
        """Tensors that are the same in all of these, of the first whose file has not been cut short in the meantime."""
        trouble: ModelError | None = None
        for owner in owners:
            try:
                return owner, self._request.shelf.fetch(owner, names)
            except ModelError as error:
                trouble = trouble or error
        assert trouble is not None
        raise trouble

    def _equals(self, owner: Specimen, number: int) -> Iterator[Specimen]:
        """Other models that have the same part; in the same place, of which its fingerprint knows."""
        for other in self._specimens.values():
            is_alike = other is not owner and other.blueprint is owner.blueprint
            if is_alike and other.fingerprints[number] == owner.fingerprints[number]:
                yield other

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
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or pieces >= num_items:
                    raise
            self._pieces[index] = 2 * pieces
            if self._request.device != "cpu":
                torch.cuda.empty_cache()

    def _running_bytes(self, step: Step) -> int:
        """What a step may take while it runs, beside what waits for it and for others."""
        activations = self._plan.batch_items * max(segment.peak_bytes_per_item for segment in step.segments)
        return _WITH_GAPS * activations + sum(segment.weight_bytes for segment in step.segments)

    def _name(self, index: int) -> str:
        models = self._below[index]
        return models[0] if len(models) == 1 else f"{len(models)} models"

    def _batch(self, form: InputForm) -> int:
        asked = self._request.batch or suitable_batch(form, self._request.device)
        return min(asked, self._plan.batch_items)  # a plan takes less where memory is short

    def _charge(self, models: Sequence[str], meter: Meter) -> None:
        """Divide what was measured among the models it was for."""
        for samples in meter.samples:
            for model in models:
                own = self._seconds.setdefault(model, {})
                own[samples.phase] = own.get(samples.phase, 0.0) + samples.total / len(models)


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
