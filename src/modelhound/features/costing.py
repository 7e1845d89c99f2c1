"""What planning rests on: rough rates of the machine, as far as nobody has measured them, and how much memory there is.

In:  the forms in which models want their items and what feeding takes, a device
Out: the Costs of a plan
Nothing here measures. A plan only needs to know whether computing something again is dearer than keeping it.
"""

from collections.abc import Mapping

import torch

from modelhound.data import InputForm
from modelhound.features.feed_times import FeedTimes
from modelhound.features.plain import suitable_batch
from modelhound.meter import available_memory
from modelhound.plan import Costs

__all__ = ["rough_costs", "usable_memory"]

_SHARE_OF_HOST, _SHARE_OF_DEVICE = 0.6, 0.85  # of what is free: others live here too
_FLOPS_PER_SECOND = {"cpu": 4e10, "cuda": 2e14}
_WEIGHT_BYTES_PER_SECOND = 1e9
_SPILL_BYTES_PER_SECOND = 5e8
_SCORE_SECONDS = {"cpu": 0.2, "cuda": 0.1}
_LAUNCH_SECONDS = 1e-3


def rough_costs(
    forms: Mapping[str, InputForm],
    *,
    device: str,
    memory_bytes: float,
    feed: FeedTimes,
    batch: int | None = None,
) -> Costs:
    """Of models that are fed in these forms, by their keys; `batch` where it is known."""
    kind = device.partition(":")[0]
    return Costs(
        flops_per_second=_FLOPS_PER_SECOND[kind],
        weight_bytes_per_second=_WEIGHT_BYTES_PER_SECOND,
        spill_bytes_per_second=_SPILL_BYTES_PER_SECOND,
        decode_seconds_per_item=feed.decode_seconds,
        form_seconds_per_item=feed.of(forms),
        score_seconds=_SCORE_SECONDS[kind],
        launch_seconds=_LAUNCH_SECONDS,
        batch_items=batch or max(suitable_batch(form, device) for form in forms.values()),
        memory_bytes=memory_bytes,
        one_pool=kind == "cpu",
    )


def usable_memory(device: str) -> int:
    """How much memory of the device a session may take unless told."""
    if device == "cpu":
        return int(_SHARE_OF_HOST * available_memory())
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for whoever asks next
    return int(_SHARE_OF_DEVICE * (free + kept))
