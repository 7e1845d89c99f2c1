"""What a study needs before it can begin: networks on the device, and items of the kind asked for.

In:  model references and settings; a data set and raw or preprocessed
Out: the networks that can be used and why others cannot; the items, prepared for the time being where they are not yet
Nothing here times a run.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from modelhound.data import Dataset, Modality, Preprocessing, open_dataset
from modelhound.data.preparing import prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.data.recommended import item_kind
from modelhound.errors import ModelError, RequestError
from modelhound.features.plain import arrange, build_network
from modelhound.feeding.pages import count_bytes, files_of
from modelhound.feeding.runs import shorten
from modelhound.meter import seconds_now
from modelhound.models import ModelRef, Network, source_of, suitable_layout
from modelhound.records import Failure, ItemsPrepared, Progress, Watch
from modelhound.settings import LoaderSearchSettings

__all__ = ["build_networks", "supply_items"]


def build_networks(
    models: Sequence[ModelRef], settings: LoaderSearchSettings, modality: Modality, device: str, *, watch: Watch
) -> tuple[dict[str, Network], list[Failure]]:
    """Every model that can be used, on the device, and why others cannot."""
    built: dict[str, Network] = {}
    failed = []
    for done, model in enumerate(models):
        watch(Progress(task="building models", done=done, total=len(models), detail=str(model)))
        phase = "read weights"
        try:
            if modality not in source_of(model).modalities:
                raise ModelError(f"cannot feed it {modality}s: expected a model made for them, choose another")
            weights = source_of(model).read_weights(model.name) if settings.weights == "pretrained" else None
            phase = "build model"
            network = build_network(model, weights, settings, seed=settings.seed)
            phase = "weights to device"
            arrange(network, device)
            layout = suitable_layout(device, is_depthwise=network.is_depthwise)
            network.module.to(memory_format=layout)  # type: ignore[call-overload]
            built[str(model)] = network
        except RequestError:
            raise
        except Exception as error:
            message = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
            failed.append(Failure(model=str(model), phase=phase, error=message))
    watch(Progress(task="building models", done=len(models), total=len(models)))
    return built, failed


@contextlib.contextmanager
def supply_items(
    dataset: Dataset, kind: str, networks: Mapping[str, Network], num_items: int, *, watch: Watch
) -> Iterator[tuple[Dataset, ItemsPrepared | None]]:
    """The items as this kind has them, and what it took to prepare them where that had to be done; they are gone afterwards."""
    if kind == item_kind(dataset):
        yield dataset, None
        return
    data = shorten(dataset, num_items)
    forms = [network.preprocessing for network in networks.values()]
    variants = tuple(dict.fromkeys(Variant.of(form) for form in forms if isinstance(form, Preprocessing)))
    with tempfile.TemporaryDirectory(prefix="hound-loader-") as folder:
        start = seconds_now()
        manifest = prepare_items(data, Path(folder), variants, glance="", watch=watch)
        cost = ItemsPrepared(
            num_items=len(data),
            seconds=seconds_now() - start,
            prepared_bytes=sum(len(data) * stored.variant.item_bytes for stored in manifest.variants),
            raw_bytes=count_bytes(files_of(data)) or None,
        )
        yield open_dataset(folder, watch=watch), cost
