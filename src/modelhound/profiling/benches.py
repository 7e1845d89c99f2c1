"""A model made ready to be profiled: everything that has to be there before the clock starts.

In:  a model reference, and how many heads it is to have
Out: a Bench: its layers, its files of weights and what it wants to be fed with
     a Workload: how many items, in batches of what size
Nothing here is timed or keeps a network.
"""

import contextlib
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from modelhound.data import Dataset, InputForm, Tokenising
from modelhound.errors import ModelError, RequestError
from modelhound.features.costing import usable_memory
from modelhound.features.workshop import Specimen, Workshop
from modelhound.meter import count_cores
from modelhound.models import ModelRef, Network, source_of, suitable_layout
from modelhound.models.parts import PROBE_TOKENS, all_tensors
from modelhound.profiling.layers import Layers, find_layers
from modelhound.profiling.stand_ins import STAND_IN_NOTE, find_stand_in
from modelhound.profiling.weight_files import perturbed, write_tensors
from modelhound.settings import LastLayers, ModelSettings, ProfileSettings

__all__ = ["Bench", "Workload", "plan_workload", "prepare_bench"]

_FEWEST_ON_CPU, _MOST_ON_CPU, _CUDA_BATCH = 2, 32, 64
_LARGEST = 1024
_PEAK_OUTPUTS = 3  # inside a part, about so many tensors of the size of its input or output live at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One model, taken apart, with its tensors on disk."""

    model: str
    """What the user calls it."""
    source: ModelRef
    """What it is built from: mostly the same."""
    settings: ModelSettings
    seed: int
    layers: Layers
    form: InputForm
    files: tuple[Path, ...]
    """One per head, each with the whole model; below the heads their values are the same."""
    is_depthwise: bool = False
    """Whether some of its convolutions look at one channel each."""
    notes: tuple[str, ...] = ()

    @property
    def num_parts(self) -> int:
        return len(self.layers.anatomy.parts)

    def layout(self, device: str) -> torch.memory_format:
        """The order in memory that suits it."""
        return suitable_layout(device, is_depthwise=self.is_depthwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How much a job does."""

    batch: int
    num_batches: int
    num_batches_asked: int
    num_warmup: int
    notes: tuple[str, ...]

    @property
    def num_items(self) -> int:
        return self.batch * self.num_batches


def prepare_bench(
    model: ModelRef,
    settings: ProfileSettings,
    folder: Path,
    *,
    head_models: Sequence[ModelRef] = (),
    datasets: Sequence[Dataset] = (),
) -> Bench:
    """Take the model apart and write its tensors, once for every head."""
    stand_in = find_stand_in(model, settings, datasets, folder)
    specimen = _take_apart(stand_in or model, settings)
    network = specimen.blueprint.network
    layers = find_layers(str(model), specimen.blueprint.anatomy)
    tensors = dict(all_tensors(network.module))
    kept = "".join(letter if letter.isalnum() else "-" for letter in str(model))[-80:]
    stem = f"{zlib.crc32(str(model).encode()):08x}-{kept}"  # two long names may end alike
    files = [folder / f"{stem}-1.safetensors"]
    num_more = settings.num_heads() - 1 if settings.joint else 0
    _check_room(folder, sum(tensor.nbytes for tensor in tensors.values()) * (1 + num_more), model)
    write_tensors(files[0], tensors)
    for number in range(2, num_more + 2):
        files.append(folder / f"{stem}-{number}.safetensors")
        if head_models:
            other = _take_apart(head_models[number - 2], settings)
            _check_same_trunk(specimen, other, layers, settings.joint_spans())
            write_tensors(files[-1], dict(all_tensors(other.blueprint.network.module)))
        else:
            own = _head_tensors(layers, settings.joint_spans())
            write_tensors(files[-1], perturbed(tensors, own, seed=number))
    return Bench(
        model=str(model),
        source=stand_in or model,
        settings=settings,
        seed=settings.seed,
        layers=layers,
        form=network.preprocessing,
        files=tuple(files),
        is_depthwise=network.is_depthwise,
        notes=(f"{model}: {STAND_IN_NOTE}",) if stand_in else (),
    )


def _check_room(folder: Path, num_bytes: int, model: ModelRef) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise RequestError(
            f"cannot write the weights of {model}: expected {num_bytes / 1e9:.1f} GB of free space below "
            f"{str(folder.parent)!r}, there are {free / 1e9:.1f}; free some, or set MODELHOUND_CACHE to another disk"
        )


def _head_tensors(layers: Layers, spans: Sequence[LastLayers]) -> set[str]:
    """What made-up heads differ in: the tensors of the shortest head, so that the trunk below any of them is the same."""
    parts = layers.anatomy.parts[_end_of_trunk(layers, spans) :]
    return {name for part in parts for name in part.tensors}


def _end_of_trunk(layers: Layers, spans: Sequence[LastLayers]) -> int:
    """The part with which the shortest head begins."""
    starts = []
    for span in spans:
        with contextlib.suppress(ModelError):  # one that the model does not have is told later
            starts.append(layers.start_of(span))
    return max(starts, default=0)


def _take_apart(model: ModelRef, settings: ProfileSettings) -> Specimen:
    """On the CPU in single precision: where a network can be cut does not depend on where it runs."""
    weights = source_of(model).read_weights(model.name) if settings.weights == "pretrained" else None
    return Workshop(settings, seed=settings.seed, device="cpu", dtype=torch.float32).take_apart(
        model, weights, lambda: {}
    )


def _check_same_trunk(first: Specimen, other: Specimen, layers: Layers, spans: Sequence[LastLayers]) -> None:
    """Heads of another model only fit where everything below them is the same."""
    if first.blueprint.anatomy.architecture != other.blueprint.anatomy.architecture or first.form != other.form:
        raise RequestError(
            f"cannot join {other.model} to {first.model}: expected models of one architecture with the same trunk, "
            "these are built or fed differently"
        )
    pairs = zip(first.fingerprints, other.fingerprints, strict=True)
    shared = next((number for number, (one, two) in enumerate(pairs) if one != two), len(first.fingerprints))
    trunk = _end_of_trunk(layers, spans)
    if shared < trunk:
        differing = sum(start <= shared for start in layers.starts)
        needed = sum(start < trunk for start in layers.starts)
        raise RequestError(
            f"cannot join {other.model} to {first.model}: expected the same first {needed} of {len(layers)} layers, "
            f"their weights differ from layer {differing} on; take models with one trunk, or more layers in --joint"
        )


def plan_workload(
    bench: Bench, dataset: Dataset, settings: ProfileSettings, *, device: str, network: Network
) -> Workload:
    """Batches of the size asked for, as many as asked for or as the data set has, which is said."""
    notes = []
    if settings.batch == "largest":
        batch = min(_largest_batch(bench, device, network), len(dataset))
        notes.append(f"batches of {batch} items are the largest that fit")
    elif settings.batch == "auto":
        on_cpu = _FEWEST_ON_CPU if settings.quick else max(_FEWEST_ON_CPU, min(_MOST_ON_CPU, count_cores()))
        batch = on_cpu if device == "cpu" else _CUDA_BATCH
    else:
        batch = int(settings.batch)
    batch = min(batch, len(dataset))
    asked = settings.num_batches()
    num_batches = min(asked, len(dataset) // batch)
    if num_batches < asked:
        notes.append(
            f"{dataset.name} has {len(dataset)} items here, so that {num_batches} batches of {batch} were run instead of "
            f"{asked}; none was repeated"
        )
    return Workload(
        batch=batch,
        num_batches=num_batches,
        num_batches_asked=asked,
        num_warmup=min(settings.num_warmup(), num_batches - 1),
        notes=tuple(notes),
    )


def _largest_batch(bench: Bench, device: str, network: Network) -> int:
    """The largest power of two that fits: estimated on a CPU, which would begin to swap; tried on a GPU."""
    outputs = max(part.output_bytes_per_item for part in bench.layers.anatomy.parts)
    if isinstance(bench.form, Tokenising):
        outputs = outputs * bench.form.max_tokens // PROBE_TOKENS
    batch = 1
    if device == "cpu":
        room = usable_memory(device)
        while batch < _LARGEST and 2 * batch * outputs * _PEAK_OUTPUTS < room:
            batch *= 2
        return batch
    while batch < _LARGEST and _fits(network, bench.form, 2 * batch, device):
        batch *= 2
    return batch


def _fits(network: Network, form: InputForm, batch: int, device: str) -> bool:
    kind = next(parameter.dtype for parameter in network.module.parameters())
    try:
        with torch.inference_mode():
            if isinstance(form, Tokenising):
                tokens = torch.ones(batch, form.max_tokens, dtype=torch.int64, device=device)
                network.extract({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
            else:
                network.extract(torch.zeros(batch, 3, *form.input_size, device=device, dtype=kind))
            torch.cuda.synchronize(device)
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True
