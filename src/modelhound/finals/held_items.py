"""The items of a data set as networks want them, decoded once and kept for every epoch, rate, fold and network that follows.

In:  a data set, a device, what a network wants its input to look like
Out: batches of any items in any order, on the device; None where they would take too much memory
Nothing here knows what is learned. Images are kept on the device where there is room, texts as tokens.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from modelhound.data import Dataset, InputForm, Tokenising, load_batches
from modelhound.meter import available_memory
from modelhound.training.feed import Moved
from modelhound.training.layout import image_layout

__all__ = ["HeldItems"]

_MOST_SHARE = 0.2  # of the memory that is free
_BYTES_PER_PIXEL = 12  # three colours in fp32
_DECODED_AT_ONCE = 256


class HeldItems:
    """Holds the items in the forms asked for last, as many as there is room for."""

    def __init__(
        self,
        dataset: Dataset,
        device: str,
        *,
        most_bytes: int | None = None,
        workers: int | None = None,
        num_holders: int = 1,
    ) -> None:
        """`workers` processes decode; None chooses. `num_holders` processes share the memory, each with items of its own."""
        self._dataset, self._device, self._workers = dataset, device, workers
        self._most_bytes = _free_bytes(device) // num_holders if most_bytes is None else most_bytes
        self._held: dict[InputForm, Any] = {}

    def can_hold(self, form: InputForm) -> bool:
        """Whether all items fit in this form."""
        return self._bytes_of(form) <= self._most_bytes

    def take(self, form: InputForm, positions: NDArray[np.int64], targets: torch.Tensor) -> Moved:
        """These items; `targets` are theirs, in the same order."""
        held = self._hold(form)
        if isinstance(held, dict):
            places = torch.from_numpy(positions)
            chosen = {name: each[places] for name, each in held.items()}
            longest = int(chosen["attention_mask"].sum(1).max()) if "attention_mask" in chosen else None
            inputs: Any = {name: each[:, :longest].to(self._device) for name, each in chosen.items()}
        else:
            inputs = held[torch.from_numpy(positions).to(held.device)].to(self._device)
            inputs = inputs.contiguous(memory_format=image_layout(self._device))
        return Moved(inputs, targets.to(self._device))

    def clear(self) -> None:
        """Let go of all: others need the memory now."""
        self._held.clear()
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()

    def _hold(self, form: InputForm) -> Any:
        if form not in self._held:
            while self._held and self._bytes_of(form) + self._held_bytes() > self._most_bytes:
                self._held.pop(next(iter(self._held)))
            self._held[form] = self._decode(form)
        return self._held[form]

    def _decode(self, form: InputForm) -> Any:
        if isinstance(form, Tokenising):
            # one batch, so that all texts are filled up to the same length
            return next(load_batches(self._dataset, form, batch=len(self._dataset), workers=0)).inputs
        batches = load_batches(self._dataset, form, batch=_DECODED_AT_ONCE, workers=self._workers)
        return torch.cat([torch.as_tensor(each.inputs_on(self._device)) for each in batches])

    def _bytes_of(self, form: InputForm) -> int:
        if isinstance(form, Tokenising):
            return len(self._dataset) * form.max_tokens * 8 * 3
        height, width = form.input_size
        return len(self._dataset) * _BYTES_PER_PIXEL * height * width

    def _held_bytes(self) -> int:
        tensors = [
            tensor for each in self._held.values() for tensor in (each.values() if isinstance(each, dict) else (each,))
        ]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _free_bytes(device: str) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else available_memory()
    return int(_MOST_SHARE * free)
