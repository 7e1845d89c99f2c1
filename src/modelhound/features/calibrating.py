"""How fast this machine is at what a plan asks of it, found out in a moment.

In:  blueprints, a data set and the forms its items are wanted in
Out: seconds per item of every part of a network, and of decoding
Nothing here knows plans or models beyond that. Each part is timed on one batch of images, or on a few batches of the data set's
own texts, short and long ones, after one run that is not timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from modelhound.data import Dataset, InputForm, Tokenising
from modelhound.data.decode.decoded import decode
from modelhound.data.tokens import tokenise_once
from modelhound.features.plain import suitable_batch
from modelhound.features.supply import Supply
from modelhound.features.workshop import Blueprint, make_probe
from modelhound.meter import seconds_now
from modelhound.models.parts import Inputs, RunPart, running

__all__ = ["Rates", "time_decoding", "time_parts"]

_SAMPLE_ITEMS = 128
_REPEATS = 2
_SAMPLE_TEXTS = 2000
_TEXT_BATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured."""

    part_seconds: dict[str, float]
    """Per item, by the fingerprint of the part."""
    decode_seconds: float
    """Per item, for all forms together."""


def time_parts(
    blueprint: Blueprint, dataset: Dataset, *, supply: Supply, device: str, dtype: torch.dtype, batch: int | None
) -> tuple[float, ...]:
    """Seconds per item of each part, with whatever weights are in the module."""
    form = blueprint.network.preprocessing
    num_items = float(batch or suitable_batch(form, device))
    if isinstance(form, Tokenising):
        batches, num_items = _sample_texts(form, dataset, supply, batch=int(num_items))
    else:
        batches = [make_probe(form, int(num_items), device=device, dtype=dtype, layout=blueprint.layout)]
    seconds = []
    values: list[torch.Tensor | None] = [None] * len(batches)
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for number in range(len(blueprint.anatomy.parts)):
            with running(blueprint.network, blueprint.anatomy, number, number + 1) as run:
                before, values = values, _run_all(run, batches, values)
                seconds.append(_time(lambda run=run, before=before: _run_all(run, batches, before), device))  # type: ignore[misc]
        # To run a part alone takes a little more than its share, and plans mostly run several at a time.
        whole = _time(lambda: [blueprint.network.extract(_fresh(each)) for each in batches], device)
    scale = whole / sum(seconds) / num_items
    return tuple(scale * each for each in seconds)


def _sample_texts(form: Tokenising, dataset: Dataset, supply: Supply, *, batch: int) -> tuple[list[Inputs], float]:
    """Some of the batches that the texts come in, and about how many texts would take as long as these.

    Texts come in order of length, and long ones fewer at a time: a batch from the middle of each stretch stands for it.
    """
    positions = range(0, len(dataset), max(1, len(dataset) // _SAMPLE_TEXTS))
    feed = supply.open(range(len(positions)), positions, {"": form}, {"": batch})[""]
    places = range(_TEXT_BATCHES)
    numbers = sorted({feed.num_batches * (2 * place + 1) // (2 * _TEXT_BATCHES) for place in places})
    inputs = [feed.inputs(number, torch.contiguous_format) for number in numbers]
    return inputs, len(positions) * len(numbers) / feed.num_batches


def _run_all(
    run: RunPart, batches: Sequence[Inputs], values: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    return [run(_fresh(inputs), value) for inputs, value in zip(batches, values, strict=True)]


def _time(work: Callable[[], object], device: str) -> float:
    """The shortest of a few."""
    found = []
    for _ in range(_REPEATS):
        _wait(device)
        began = seconds_now()
        work()
        _wait(device)
        found.append(seconds_now() - began)
    return min(found)


def time_decoding(dataset: Dataset, forms: Sequence[InputForm], *, device: str, threads: int | None) -> float:
    """Seconds per item to read it and bring it into all of these forms."""
    step = max(1, len(dataset) // _SAMPLE_ITEMS)
    positions = list(range(0, len(dataset), step))[:_SAMPLE_ITEMS]
    images = [form for form in forms if not isinstance(form, Tokenising)]
    texts = [form for form in forms if isinstance(form, Tokenising)]
    seconds = 0.0
    if images:
        choice = decode(dataset, positions[:1], images, device=device, threads=threads).choice  # once for all items
        seconds += _time(
            lambda: decode(dataset, positions, images, device=device, threads=threads, choice=choice), device
        )
    if texts:
        chosen = dataset.select(positions)
        seconds += _time(lambda: tokenise_once(chosen, texts), device)
    return seconds / len(positions)


def _fresh(inputs: Inputs) -> Inputs:
    """A network may change what it is given."""
    return inputs.clone() if isinstance(inputs, torch.Tensor) else dict(inputs)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
