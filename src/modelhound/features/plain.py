"""Run a network over a data set: the plain path, which every faster one must equal.

In:  a network, a data set, a device
Out: one feature vector per item, or one per item and layer, in the data set's order
Nothing here knows what the features are for. One model at a time, in fp32, every item read and decoded again for every
model: slow and obviously right.
"""

from dataclasses import dataclass

import torch

from modelhound.data import Dataset, InputForm, Tokenising, load_batches
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.meter import Meter
from modelhound.models import ModelRef, Network, Weights, source_of
from modelhound.models.computing import computing_features
from modelhound.records import Progress, Watch, silent
from modelhound.scores import FeatureSet
from modelhound.settings import ModelSettings

__all__ = [
    "Extracted",
    "arrange",
    "build_network",
    "extract_features",
    "feature_set_of",
    "load_network",
    "suitable_batch",
]

_CPU_BATCH_PIXELS = 1 << 20  # as fast as larger batches in half the memory: benchmarks/results/allocator_*
_CPU_BATCH_TOKENS = 1 << 13
_CUDA_BATCH = 512
_MAX_CPU_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """What a network sees in a data set."""

    layers: tuple[FeatureSet, ...]
    """One for each layer that was asked for, the last layer last; mostly there is just one."""

    num_truncated: int
    """How many texts were longer than the network takes."""


def build_network(model: ModelRef, weights: Weights | None, settings: ModelSettings, *, seed: int) -> Network:
    """Build with the global random state set aside, so that random weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return source_of(model).build(model.name, weights, settings)


def load_network(model: ModelRef, settings: ModelSettings, *, seed: int, meter: Meter) -> Network:
    """Read the weights, where they are not to be random, and build; timed as two phases."""
    weights = None
    if settings.weights == "pretrained":
        with meter.phase("read weights"):
            weights = source_of(model).read_weights(model.name)
    with meter.phase("build model"):
        return build_network(model, weights, settings, seed=seed)


def arrange(network: Network, device: str) -> None:
    """Put the network onto the device, its convolutions' weights in the order in memory that suits them best."""
    network.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def suitable_batch(form: InputForm, device: str) -> int:
    """A batch size that keeps the device busy without wasting memory; the features do not depend on it."""
    if device != "cpu":
        return _CUDA_BATCH
    if isinstance(form, Tokenising):
        return max(1, min(_MAX_CPU_BATCH, _CPU_BATCH_TOKENS // form.max_tokens))
    height, width = form.input_size
    return max(1, min(_MAX_CPU_BATCH, _CPU_BATCH_PIXELS // (height * width)))


def extract_features(
    network: Network,
    dataset: Dataset,
    *,
    device: str,
    batch: int,
    workers: int | None,
    meter: Meter,
    prefetch: int = BATCHES_AHEAD,
    pin: bool | None = None,
    classify: bool = False,
    watch: Watch = silent,
) -> Extracted:
    """Features of every item, on `device`; the network must be there already.

    With `classify`, also what the network's own classifier makes of them, where it has one.
    """
    rows: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []
    opinions: list[torch.Tensor] = []
    done = num_truncated = 0
    batches = load_batches(
        dataset, network.preprocessing, batch=batch, workers=workers, device=device, prefetch=prefetch, pin=pin
    )
    with computing_features(device, network):
        for some in meter.waiting("wait for data", batches):
            with meter.phase("data to device"):
                inputs = some.inputs_on(device)
                if isinstance(inputs, torch.Tensor):
                    inputs = inputs.to(memory_format=torch.channels_last)
            with meter.phase("forward"):
                features = network.extract(inputs).float()
                if classify and network.classify is not None:
                    opinions.append(network.classify(features).softmax(1))
            rows.append(features)
            targets.append(some.targets)
            done += len(some)
            num_truncated += some.num_truncated
            watch(Progress(task="extracting features", done=done, total=len(dataset)))
    features = torch.cat(rows)
    by_layer = (features,) if features.ndim == 2 else tuple(layer.contiguous() for layer in features.unbind(1))
    known = torch.cat(targets).to(features.device)
    said = torch.cat(opinions) if opinions else None
    return Extracted(
        layers=tuple(feature_set_of(dataset, layer, known, said) for layer in by_layer), num_truncated=num_truncated
    )


def feature_set_of(
    dataset: Dataset, features: torch.Tensor, targets: torch.Tensor, opinions: torch.Tensor | None = None
) -> FeatureSet:
    """Features of items of this data set as scorers want them, with what the network's own classifier makes of them."""
    return FeatureSet(
        features=features,
        targets=targets,
        task=dataset.task,
        num_classes=len(dataset.class_names),
        source_probabilities=opinions,
    )
