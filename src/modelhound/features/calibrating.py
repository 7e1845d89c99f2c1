"""How fast this machine is at what a plan asks of it, found out in a moment.

In:  blueprints, a data set and the forms its items are wanted in
Out: seconds per item of every part of a network, and of decoding
Nothing here knows plans or models beyond that. Each part is timed on one batch, after one that is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from modelhound.data import Dataset, InputForm, Tokenising
from modelhound.data.decode.decoded import decode
from modelhound.data.tokens import tokenise_once
from modelhound.features.plain import suitable_batch
from modelhound.features.workshop import Blueprint, make_probe
from modelhound.meter import seconds_now
from modelhound.models.parts import Inputs, running

__all__ = ["Rates", "time_decoding", "time_parts"]

_SAMPLE_ITEMS = 128
_REPEATS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured."""

    part_seconds: dict[str, float]
    """Per item, by the fingerprint of the part."""
    decode_seconds: float
    """Per item, for all forms together."""


def time_parts(blueprint: Blueprint, *, device: str, dtype: torch.dtype, batch: int | None) -> tuple[float, ...]:
    """Seconds per item of each part, with whatever weights are in the module."""
    form = blueprint.network.preprocessing
    num_items = batch or suitable_batch(form, device)
    inputs = make_probe(form, num_items, device=device, dtype=dtype, layout=blueprint.layout)
    parts = blueprint.anatomy.parts
    seconds = []
    value: torch.Tensor | None = None
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for number in range(len(parts)):
            with running(blueprint.network, blueprint.anatomy, number, number + 1) as run:
                value_before, value = value, run(_fresh(inputs), value)
                seconds.append(_time(lambda run=run, before=value_before: run(_fresh(inputs), before), device))  # type: ignore[misc]
        # To run a part alone takes a little more than its share, and plans mostly run several at a time.
        whole = _time(lambda: blueprint.network.extract(_fresh(inputs)), device)
    scale = whole / sum(seconds) / num_items
    return tuple(scale * each for each in seconds)


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
