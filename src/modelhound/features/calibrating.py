"""How fast this machine runs the parts of networks, found out in a moment.

In:  a blueprint, a data set
Out: seconds per item of every part
Nothing here knows plans or models beyond that, or what feeding takes (see `feed_times`). Each part is timed on one batch of
images, or on a few batches of the data set's own texts, short and long ones, after one run that is not timed.
"""

from collections.abc import Callable, Sequence

import torch

from modelhound.data import Dataset, Tokenising
from modelhound.features.plain import suitable_batch
from modelhound.features.supply import Supply
from modelhound.features.workshop import Blueprint, make_probe
from modelhound.meter import seconds_now
from modelhound.models.computing import computing_features
from modelhound.models.parts import Inputs, RunPart, running

__all__ = ["shortest_seconds", "time_parts"]

_REPEATS = 2
_SAMPLE_TEXTS = 2000
_TEXT_BATCHES = 4


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
    with computing_features(device, blueprint.network):
        for number in range(len(blueprint.anatomy.parts)):
            with running(blueprint.network, blueprint.anatomy, number, number + 1) as run:
                before, values = values, _run_all(run, batches, values)
                seconds.append(shortest_seconds(lambda run=run, before=before: _run_all(run, batches, before), device))  # type: ignore[misc]
        # To run a part alone takes a little more than its share, and plans mostly run several at a time.
        whole = shortest_seconds(lambda: [blueprint.network.extract(_fresh(each)) for each in batches], device)
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


def shortest_seconds(work: Callable[[], object], device: str) -> float:
    """Of a few runs."""
    found = []
    for _ in range(_REPEATS):
        _wait(device)
        began = seconds_now()
        work()
        _wait(device)
        found.append(seconds_now() - began)
    return min(found)


def _fresh(inputs: Inputs) -> Inputs:
    """A network may change what it is given."""
    return inputs.clone() if isinstance(inputs, torch.Tensor) else dict(inputs)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
