"""Run a plan: features of many networks, with everything shared that can be.

In:  a Plan, the Specimens it speaks of, a data set and the order in which its items are taken
Out: for each model its feature rows, handed over as soon as its last part has run
Nothing here decides anything: what is run, kept or run again stands in the plan. On a CPU in fp32 the rows equal those of the
plain path to the last bit, as long as batches are cut in the same places.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from modelhound.data import Dataset, InputForm, Tokenising
from modelhound.data.decode.decoded import DecodedChunk, decode
from modelhound.data.decode.decoders import Choice
from modelhound.data.tokens import TokenisedTexts, tokenise_once
from modelhound.errors import RequestError
from modelhound.features.plain import check_finite, suitable_batch
from modelhound.features.workshop import Specimen, install
from modelhound.meter import Meter
from modelhound.models.parts import Inputs, running
from modelhound.plan import Chain, Plan, Segment, Step
from modelhound.records import Progress, Watch, silent

__all__ = ["Request", "Rows", "chain_of", "run_plan"]

_PEAK_OUTPUTS = 3  # inside a part, about so many tensors of the size of its input or output live at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What one model made of the items."""

    features: Tensor
    """[items, features] or [items, layers, features], float32, in the order asked for."""
    num_truncated: int
    seconds: dict[str, float]
    """By phase; what several models share is divided among them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """What to run a plan on."""

    specimens: Mapping[str, Specimen]
    dataset: Dataset
    order: Sequence[int]
    """The data set's position for each of the plan's item numbers."""
    device: str
    dtype: torch.dtype
    batch: int | None = None
    threads: int | None = None
    """To decode with; None for as many as there are cores."""
    found_out: dict[str, Choice] = field(default_factory=dict)
    """Which decoder is the fastest on this data, for the next plan."""
    watch: Watch = silent


def chain_of(specimen: Specimen, *, num_bytes_per_value: int) -> Chain:
    """What a planner must know of a model."""
    segments = []
    before = _input_bytes(specimen.form)
    for part, fingerprint in zip(specimen.blueprint.anatomy.parts, specimen.fingerprints, strict=True):
        output_bytes = part.output_bytes_per_item * num_bytes_per_value // 4
        segments.append(
            Segment(
                fingerprint=fingerprint,
                flops_per_item=part.flops_per_item,
                output_bytes_per_item=output_bytes,
                weight_bytes=sum(specimen.tensors[name].nbytes for name in part.tensors),
                peak_bytes_per_item=_PEAK_OUTPUTS * max(before, output_bytes),
            )
        )
        before = output_bytes
    return Chain(
        model=str(specimen.model),
        input=_input_key(specimen.form),
        input_bytes_per_item=_input_bytes(specimen.form),
        segments=tuple(segments),
    )


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
    job = _Job(plan, request)
    num_rounds = plan.num_chunks * len(plan.steps)
    for number, chunk in enumerate(plan.chunks):
        feeds = job.open_feeds(chunk)
        outputs: dict[int, list[Tensor]] = {}
        for index, step in enumerate(plan.steps):
            request.watch(Progress(task="parts of models", done=number * len(plan.steps) + index, total=num_rounds))
            if job.is_lost(index):
                continue
            made = job.run_step(
                index, feeds[step.input], outputs.get(step.source, []) if step.source is not None else None
            )
            if isinstance(made, _Lost):
                for model in made.models:
                    failed(model, made.phase, made.error)
                continue
            if step.keep != "nothing":
                outputs[index] = made
            for model in step.finishes:
                job.collect(model, feeds[step.input], made)
                if number == plan.num_chunks - 1:
                    done(model, job.hand_over(model))
            if step.frees_source and step.source is not None:
                del outputs[step.source]
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
        self._owners: dict[str, tuple[Specimen, int]] = {}
        self._forms: dict[str, InputForm] = {}
        for chain in plan.chains:
            specimen = request.specimens[chain.model]
            self._forms.setdefault(chain.input, specimen.form)
            for number, fingerprint in enumerate(specimen.fingerprints):
                self._owners.setdefault(fingerprint, (specimen, number))
        self._below = _models_below(plan.steps)
        self._lost: set[str] = set()
        self._rows: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._truncated: dict[str, int] = {}
        self._seconds: dict[str, dict[str, float]] = {}

    def is_lost(self, index: int) -> bool:
        return self._lost.issuperset(self._below[index])

    def open_feeds(self, chunk: range) -> "dict[str, _Feed]":
        """Inputs of one chunk of items, for every form that is asked for."""
        request = self._request
        positions = [request.order[item] for item in chunk]
        meter = Meter(request.device)
        feeds: dict[str, _Feed] = {}
        with meter.phase("wait for data"):
            images = {key: form for key, form in self._forms.items() if not isinstance(form, Tokenising)}
            if images:
                forms = list(images.values())
                known = request.found_out.get("decoder")
                decoded = decode(
                    request.dataset,
                    positions,
                    forms,
                    device=request.device,
                    threads=request.threads,
                    choice=known,
                    watch=request.watch,
                )
                if decoded.choice is not None:
                    request.found_out["decoder"] = decoded.choice
                for key, form in images.items():
                    feeds[key] = _ImageFeed(decoded, form, chunk.start, self._batch(form), request.dtype)
            texts = {key: form for key, form in self._forms.items() if isinstance(form, Tokenising)}
            if texts:
                chosen = request.dataset.select(positions)
                tokenised = tokenise_once(chosen, list(texts.values()), watch=request.watch)
                for key, tokenising in texts.items():
                    batch = self._batch(tokenising)
                    feeds[key] = _TextFeed(tokenised[tokenising], chunk.start, batch, request.device)
        self._charge([chain.model for chain in self._plan.chains], meter)
        return feeds

    def run_step(self, index: int, feed: "_Feed", source: Sequence[Tensor] | None) -> list[Tensor] | _Lost:
        """The output of the step for each batch."""
        step, below = self._plan.steps[index], self._below[index]
        specimen, first = self._owners[step.segments[0].fingerprint]
        blueprint = specimen.blueprint
        meter = Meter(self._request.device)
        made = []
        try:
            with meter.phase("weights to device"):
                for segment in step.segments:
                    owner, number = self._owners[segment.fingerprint]
                    install(owner, blueprint.anatomy.parts[number].tensors)
            with (
                torch.inference_mode(),
                torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
                running(blueprint.network, blueprint.anatomy, first, first + len(step.segments)) as run,
            ):
                for number in range(feed.num_batches):
                    with meter.phase("data to device"):
                        inputs = feed.inputs(number) if first == 0 else feed.stand_in(number)
                    with meter.phase("forward"):
                        made.append(run(inputs, None if source is None else source[number]))
            if step.finishes:
                check_finite(torch.cat(made))
        except RequestError:
            raise  # the data's fault, not the model's
        except Exception as error:  # whatever a stranger's network raises, the others go on
            models = tuple(model for model in below if model not in self._lost)
            self._lost.update(models)
            return _Lost(models, meter.current_phase, error)
        self._charge(below, meter)
        return made

    def collect(self, model: str, feed: "_Feed", made: Sequence[Tensor]) -> None:
        rows = self._rows.setdefault(model, [])
        rows += zip(feed.items(), (part.float() for part in made), strict=True)
        self._truncated[model] = self._truncated.get(model, 0) + feed.num_truncated

    def hand_over(self, model: str) -> Rows:
        """Everything a model made, in the order of the items."""
        parts = self._rows.pop(model)
        places = torch.cat([items for items, _ in parts]) - self._plan.first_item
        features = torch.cat([part for _, part in parts])
        if not torch.equal(places, torch.arange(len(places))):
            in_order = torch.empty_like(features)
            in_order[places.to(features.device)] = features
            features = in_order
        return Rows(features=features, num_truncated=self._truncated[model], seconds=self._seconds[model])

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


class _Feed(Protocol):
    """One chunk of items in one form, cut into batches."""

    num_batches: int
    num_truncated: int

    def items(self) -> Iterator[Tensor]:
        """The item numbers of each batch."""

    def inputs(self, number: int) -> Inputs:
        """One batch, on the device."""

    def stand_in(self, number: int) -> Inputs:
        """Something of its shape, for parts that do not look at it."""


class _ImageFeed:
    num_truncated = 0

    def __init__(self, decoded: DecodedChunk, form: InputForm, first: int, batch: int, dtype: torch.dtype) -> None:
        self._decoded, self._form, self._first, self._batch, self._dtype = decoded, form, first, batch, dtype
        self.num_batches = -(-len(decoded) // batch)

    def items(self) -> Iterator[Tensor]:
        for number in range(self.num_batches):
            start, stop = self._ends(number)
            yield torch.arange(self._first + start, self._first + stop)

    def inputs(self, number: int) -> Tensor:
        start, stop = self._ends(number)
        return self._decoded.inputs(self._form, start, stop, dtype=self._dtype, channels_last=True)

    def stand_in(self, number: int) -> Tensor:
        start, stop = self._ends(number)
        height, width = self._form.input_size  # type: ignore[union-attr]
        return torch.zeros(1, device=self._decoded.device, dtype=self._dtype).expand(stop - start, 3, height, width)

    def _ends(self, number: int) -> tuple[int, int]:
        return number * self._batch, min((number + 1) * self._batch, len(self._decoded))


class _TextFeed:
    def __init__(self, texts: TokenisedTexts, first: int, batch: int, device: str) -> None:
        self._first, self._device = first, device
        self._batches = list(texts.batches(batch))
        self.num_batches, self.num_truncated = len(self._batches), texts.num_truncated

    def items(self) -> Iterator[Tensor]:
        for batch in self._batches:
            yield batch.positions + self._first

    def inputs(self, number: int) -> dict[str, Tensor]:
        return {name: tensor.to(self._device) for name, tensor in self._batches[number].inputs.items()}

    def stand_in(self, number: int) -> dict[str, Tensor]:
        return self.inputs(number)  # tokens are small, and masks are made from them


def _input_key(form: InputForm) -> str:
    return f"{form.fingerprint} {form.max_tokens}" if isinstance(form, Tokenising) else repr(form)


def _input_bytes(form: InputForm) -> int:
    if isinstance(form, Tokenising):
        return 16 * form.max_tokens
    height, width = form.input_size
    return 3 * height * width
