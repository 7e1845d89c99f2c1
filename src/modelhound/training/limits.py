"""What cannot be trained here, refused before anything is started.

In:  TrainSettings, the device, the data set, the models
Out: nothing, or a RequestError that says what would do
Nothing here knows a recipe.
"""

from collections.abc import Sequence

from modelhound.data import Dataset
from modelhound.errors import RequestError
from modelhound.launch import Cluster
from modelhound.meter import count_cores
from modelhound.models import ModelRef, source_of
from modelhound.settings import TrainSettings

__all__ = ["check_items", "check_modality", "check_ranks"]

_RANKS_PER_CORE = 4


def check_ranks(settings: TrainSettings, device: str, cluster: Cluster | None) -> None:
    """A GPU for each rank; on CPUs no more of them than cores can load torch for."""
    most, num_nodes = max(settings.num_ranks()), cluster.num_nodes if cluster else 1
    if most == 1:
        return
    if not device.startswith("cuda"):
        fitting = _RANKS_PER_CORE * count_cores() * num_nodes
        if most > fitting:
            raise RequestError(
                f"cannot run {most} ranks on {count_cores() * num_nodes} cores: expected {_RANKS_PER_CORE} for each core at "
                f"most, use --ranks {fitting} or fewer"
            )
        return
    import torch

    num_gpus = torch.cuda.device_count() * num_nodes
    if most > num_gpus:
        raise RequestError(
            f"cannot run {most} ranks on {num_gpus} GPUs: expected one GPU for each rank, use --ranks {num_gpus} or fewer, or "
            "--device cpu"
        )


def check_items(settings: TrainSettings, dataset: Dataset) -> None:
    """An item for each rank, at least."""
    most = max(settings.num_ranks())
    if len(dataset) < most:
        raise RequestError(
            f"cannot train on {len(dataset)} items with {most} ranks: expected one item for each at least, use --ranks "
            f"{max(1, len(dataset))} or fewer, or more items"
        )


def check_modality(models: Sequence[ModelRef], dataset: Dataset) -> None:
    """Networks of images for images, of texts for texts."""
    for model in models:
        if dataset.modality not in source_of(model).modalities:
            raise RequestError(
                f"cannot train {model} on {dataset.name!r}: expected a network of {dataset.modality}s, choose another --model"
            )
