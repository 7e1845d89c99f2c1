"""Run a network over a data set: the plain path, which every faster one must equal.

In:  a network, a data set, a device
Out: one feature vector per item, in the data set's order
Nothing here knows what the features are for. One model at a time, in fp32, every item read and decoded again for every
model: slow and obviously right.
"""

import torch

from modelhound.data import Dataset, load_batches
from modelhound.errors import ModelError
from modelhound.meter import Meter
from modelhound.models import Network
from modelhound.records import Progress, Watch, silent
from modelhound.scores import FeatureSet

__all__ = ["extract_features", "suitable_batch"]

_CPU_BATCH_PIXELS = 1 << 20  # as fast as larger batches in half the memory: benchmarks/results/allocator_*
_CUDA_BATCH = 128
_MAX_CPU_BATCH = 128


def suitable_batch(network: Network, device: str) -> int:
    """A batch size that keeps the device busy without wasting memory; the features do not depend on it."""
    if device != "cpu":
        return _CUDA_BATCH
    height, width = network.preprocessing.input_size
    return max(1, min(_MAX_CPU_BATCH, _CPU_BATCH_PIXELS // (height * width)))


def extract_features(
    network: Network,
    dataset: Dataset,
    *,
    device: str,
    batch: int,
    workers: int | None,
    meter: Meter,
    watch: Watch = silent,
) -> FeatureSet:
    """Features of every item, on `device`; the network must be there already."""
    rows: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    done = 0
    batches = load_batches(dataset, network.preprocessing, batch=batch, workers=workers, device=device)
    # cuDNN would round the inputs of convolutions to ten bits (TF32) unless told not to
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for images, targets in meter.waiting("wait for data", batches):
            with meter.phase("data to device"):
                images = images.to(device, non_blocking=True)
            with meter.phase("forward"):
                features = network.extract(images).float()
                _check_finite(features)
            rows.append(features)
            labels.append(targets)
            done += len(targets)
            watch(Progress(task="extracting features", done=done, total=len(dataset)))
    features = torch.cat(rows)
    return FeatureSet(
        features=features, labels=torch.cat(labels).to(features.device), num_classes=len(dataset.class_names)
    )


def _check_finite(features: torch.Tensor) -> None:
    bad_items = int((~torch.isfinite(features).all(dim=1)).sum())
    if bad_items:
        raise ModelError(
            f"cannot use its features: {bad_items} of the {len(features)} items of a batch give NaN or infinite values; "
            "the weights are damaged or the model needs other preprocessing"
        )
