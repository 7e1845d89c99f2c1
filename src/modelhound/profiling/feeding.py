"""What a job is fed with, a batch at a time.

In:  a data set, or outputs of earlier layers that were stored
Out: Meals: inputs, and where layers were left out the stored output in their place
Nothing here reads a clock. Outputs are stored on disk, a file per batch and cut, and dropped from the page cache, so that
waiting for them is waiting for the disk.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from modelhound.data import Batch, Dataset, InputForm, Tokenising, load_batches
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.errors import RequestError, StoreError, system_reason
from modelhound.models import Network
from modelhound.models.computing import computing_features
from modelhound.models.parts import Anatomy, Inputs, run_part
from modelhound.profiling.weight_files import forget
from modelhound.records import Progress, Watch, silent
from modelhound.store import told_by_the_system

__all__ = ["Meal", "Stored", "decoded_meals", "store_outputs", "stored_meals"]

_ROOM_TO_SPARE = 1.1
_VALUE, _VALUE_LAST = "value", "value, channels last"
_INPUT = "input "


@dataclass(frozen=True, slots=True, kw_only=True)
class Meal:
    """One batch on the host."""

    inputs: Inputs
    value: Tensor | None = None
    """What the layer before the first one returned; images then only stand for their shape."""
    num_items: int

    def serve(self, device: str, dtype: torch.dtype, layout: torch.memory_format) -> tuple[Inputs, Tensor | None]:
        """The same on the device, as the network wants it."""
        inputs: Inputs
        if isinstance(self.inputs, Tensor) and self.value is not None:
            # nobody looks at the pixels any more: to copy them would be work that the last layers do not have
            inputs = torch.zeros((), device=device, dtype=dtype).expand(self.inputs.shape)
        elif isinstance(self.inputs, Tensor):
            inputs = self.inputs.to(device, dtype, non_blocking=True, memory_format=layout)
        else:
            inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}
        return inputs, None if self.value is None else self.value.to(device, dtype, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Outputs of the layers before a cut, on disk."""

    files: tuple[Path, ...]
    """One per batch."""
    num_items: tuple[int, ...]
    form: InputForm
    num_bytes: int


def decoded_meals(
    dataset: Dataset,
    form: InputForm,
    *,
    batch: int,
    workers: int | None,
    device: str,
    prefetch: int = BATCHES_AHEAD,
    pin: bool | None = None,
) -> Iterator[Meal]:
    """Items, read and decoded as the plain path does."""
    for some in load_batches(dataset, form, batch=batch, workers=workers, device=device, prefetch=prefetch, pin=pin):
        yield Meal(inputs=some.inputs, num_items=len(some))


def stored_meals(stored: Stored) -> Iterator[Meal]:
    """What was stored, read to the last byte; images themselves are not needed any more, tokens are for their masks."""
    for path, num_items in zip(stored.files, stored.num_items, strict=True):
        held = {name: tensor.clone() for name, tensor in load_file(path).items()}
        value = held.pop(_VALUE, None)
        if value is None:
            value = held.pop(_VALUE_LAST).permute(0, 3, 1, 2)
        inputs: Inputs
        if isinstance(stored.form, Tokenising):
            inputs = {name.removeprefix(_INPUT): tensor for name, tensor in held.items()}
        else:
            inputs = torch.zeros(1, 1, 1, 1).expand(num_items, 3, *stored.form.input_size)
        yield Meal(inputs=inputs, value=value, num_items=num_items)


def store_outputs(
    network: Network,
    anatomy: Anatomy,
    starts: Sequence[int],
    batches: Iterator[Batch],
    *,
    num_batches: int,
    folder: Path,
    device: str,
    dtype: torch.dtype,
    layout: torch.memory_format,
    model: str,
    watch: Watch = silent,
) -> dict[int, Stored]:
    """Run the network once over the batches and store what comes before each of the parts `starts`."""
    cuts = sorted({start for start in starts if start > 0})
    files: dict[int, list[Path]] = {cut: [] for cut in cuts}
    sizes: list[int] = []
    with computing_features(device, network):
        for number, some in enumerate(batches):
            watch(Progress(task="storing outputs", done=number, total=num_batches, detail=model))
            inputs, _ = Meal(inputs=some.inputs, num_items=len(some)).serve(device, dtype, layout)
            value: Tensor | None = None
            begin = 0
            for cut in cuts:
                value = run_part(network, anatomy, begin, cut, inputs, value)
                path = folder / f"before-{cut}-{number:05}.safetensors"
                _save(path, value, some.inputs)
                files[cut].append(path)
                begin = cut
            sizes.append(len(some))
            if number == 0:
                _check_room(folder, files, num_batches - 1, model)
    watch(Progress(task="storing outputs", done=num_batches, total=num_batches, detail=model))
    return {
        cut: Stored(
            files=tuple(files[cut]),
            num_items=tuple(sizes),
            form=network.preprocessing,
            num_bytes=sum(path.stat().st_size for path in files[cut]),
        )
        for cut in cuts
    }


def _save(path: Path, value: Tensor, inputs: Inputs) -> None:
    """Convolutions' outputs keep their order in memory: to change it twice would be work that nobody asked for."""
    held: dict[str, Tensor] = {}
    if value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last):
        held[_VALUE_LAST] = value.permute(0, 2, 3, 1).contiguous().cpu()
    else:
        held[_VALUE] = value.contiguous().cpu()
    if isinstance(inputs, Mapping):
        held |= {f"{_INPUT}{name}": tensor.contiguous() for name, tensor in inputs.items()}
    try:
        with told_by_the_system():
            save_file(held, path)
    except OSError as error:
        raise StoreError(
            f"cannot store outputs in {str(path.parent)!r}: {system_reason(error)}; free some space, ask for fewer --batches, "
            "or set MODELHOUND_CACHE to another disk"
        ) from error
    forget([path])


def _check_room(folder: Path, files: Mapping[int, Sequence[Path]], num_more: int, model: str) -> None:
    """The first batch tells how much all will need."""
    each = sum(path.stat().st_size for paths in files.values() for path in paths)
    needed, free = int(each * num_more * _ROOM_TO_SPARE), shutil.disk_usage(folder).free
    if needed > free:
        raise RequestError(
            f"cannot store the intermediate outputs of {model}: expected {needed / 1e9:.1f} GB of free space below "
            f"{str(folder.parent)!r}, there are {free / 1e9:.1f}; free some, ask for fewer --batches or --parts full, "
            "or set MODELHOUND_CACHE to another disk"
        )
