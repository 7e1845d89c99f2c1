"""Models of torchvision, with weights from its own download address or torch's cache on disk.

In:  a torchvision name, with or without a set of weights: resnet18, resnet50@IMAGENET1K_V1
Out: a card, the trained tensors, or the network with torchvision's own preprocessing for it
Nothing here knows about searching. Only classifiers of single images are listed: the others give no one vector per image.
"""

import importlib.metadata
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound import __version__
from modelhound.compat import import_torchvision
from modelhound.errors import ModelError
from modelhound.models.source import ModelCard, Network, Weights, match_names
from modelhound.settings import PLAIN, ModelSettings
from modelhound.store import Memo

if TYPE_CHECKING:
    import torch

    from modelhound.data import Modality, Preprocessing

__all__ = ["TorchvisionSource", "making_options"]


class TorchvisionSource:
    """The classifiers torchvision can build."""

    modalities: "frozenset[Modality]" = frozenset({"image"})
    listed = True

    def __init__(self) -> None:
        self._memo: Memo | None = None  # opened when first needed: where it lies is read from the environment

    def find(self, pattern: str) -> Sequence[str]:
        name, _, tag = pattern.partition("@")
        if tag:
            return [f"{name}@{tag}"] if tag in self._tags(name) else []
        return match_names(pattern, self.suggest(pattern))

    def suggest(self, name: str) -> Sequence[str]:
        names: list[str] = self._remember("names", _list_names)
        return names

    def describe(self, name: str) -> ModelCard:
        fact = self._remember(f"card:{name}", lambda: _describe(name))
        return ModelCard(**{**fact, "input_size": tuple(fact["input_size"])})

    def glance(self, name: str) -> Mapping[str, Any]:
        return {}

    def stamp(self, name: str, settings: ModelSettings = PLAIN) -> str:
        return importlib.metadata.version("torchvision")  # which decides what the weights of a name are

    def mould(self, name: str, settings: ModelSettings = PLAIN) -> str | None:
        return f"{name.partition('@')[0]} {_preprocessing(name)}"

    def read_weights(self, name: str) -> Weights:
        import torch

        chosen = _choose_weights(name)
        # torch's own cache and download; hash checked, and nothing but tensors is unpickled
        cached = Path(torch.hub.get_dir(), "checkpoints", Path(chosen.url).name)
        try:
            if cached.is_file():
                mapped = zipfile.is_zipfile(cached)
                weights: Weights = torch.load(cached, map_location="cpu", weights_only=True, mmap=mapped)
            else:
                weights = torch.hub.load_state_dict_from_url(
                    chosen.url, map_location="cpu", progress=False, check_hash=True, weights_only=True
                )
        except Exception as error:  # HTTP, disk, hash, unpickling
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelError(
                f"cannot read weights of tv:{name} from {chosen.url}: {reason}; check the connection, put the file into "
                f"{str(cached.parent)!r}, or use --weights random"
            ) from error
        return weights

    def build(self, name: str, weights: Weights | None, settings: ModelSettings = PLAIN) -> Network:
        if weights is None:
            module = _create(name)
        else:
            from modelhound.models.adopting import build_around  # needs torch, which listing models does not

            try:
                module = build_around(weights, lambda: _load(_create(name), weights))
            except RuntimeError as error:
                raise ModelError(
                    f"cannot build tv:{name}: its weights do not fit the network: {str(error).splitlines()[-1].strip()}; "
                    "delete the file from torch's cache and start again"
                ) from error
        module.eval()
        extract, classifier = _split(name, module)
        return Network(module=module, extract=extract, preprocessing=_preprocessing(name), classify=classifier)

    def _tags(self, name: str) -> Sequence[str]:
        if name not in self.suggest(name):
            return ()
        tags: list[str] = self._remember(f"tags:{name}", lambda: list(_models().get_model_weights(name).__members__))
        return tags

    def _remember(self, key: str, find_out: Callable[[], Any]) -> Any:
        if self._memo is None:
            self._memo = Memo(f"torchvision-{importlib.metadata.version('torchvision')}-{__version__}")
        return self._memo.recall(key, find_out)


def _models() -> Any:
    import_torchvision()
    import torchvision.models

    return torchvision.models


def _list_names() -> list[str]:
    models = _models()
    names: list[str] = models.list_models(module=models)
    return names


def _choose_weights(name: str) -> Any:
    bare, _, tag = name.partition("@")
    choices = _models().get_model_weights(bare)
    return choices[tag] if tag else choices.DEFAULT


def _create(name: str) -> "torch.nn.Module":
    module: torch.nn.Module = _models().get_model(name.partition("@")[0], weights=None, **making_options(name))
    return module


def making_options(name: str) -> dict[str, Any]:
    """What a network must be told when it is made: two old ones warn unless they are told to draw their weights."""
    return {"init_weights": True} if name.partition("@")[0] in ("googlenet", "inception_v3") else {}


def _load(module: "torch.nn.Module", weights: Weights) -> "torch.nn.Module":
    module.load_state_dict(dict(weights))
    return module


def _split(
    name: str, module: "torch.nn.Module"
) -> "tuple[Callable[[torch.Tensor], torch.Tensor], torch.nn.Linear | None]":
    """What the last linear layer is given, and that layer.

    torchvision's classifiers all end in one linear layer, except SqueezeNet, which ends in a convolution that it averages.
    """
    import torch

    if name.startswith("squeezenet"):
        return (lambda images: module.features(images).mean((2, 3))), None  # type: ignore[operator]
    linears = [child for child in module.modules() if isinstance(child, torch.nn.Linear)]
    if not linears:
        raise ModelError(f"cannot take tv:{name} apart: expected a last linear layer, but it has none; use timm's")
    seen: list[torch.Tensor] = []

    def note(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen[:] = inputs[:1]  # the last ones only: somebody may call the layer by itself

    linears[-1].register_forward_pre_hook(note)

    def extract(images: torch.Tensor) -> torch.Tensor:
        module(images)
        return seen.pop().flatten(1)

    return extract, linears[-1]


def _preprocessing(name: str) -> "Preprocessing":
    from modelhound.data import Preprocessing
    from modelhound.data.preprocessing import fraction_kept

    transform = _choose_weights(name).transforms()
    (crop,), (resize,) = transform.crop_size, transform.resize_size
    return Preprocessing(
        input_size=(crop, crop),
        interpolation=transform.interpolation.value,
        crop_fraction=fraction_kept(crop, resize),
        crop_mode="center",
        mean=tuple(transform.mean),
        std=tuple(transform.std),
    )


def _describe(name: str) -> dict[str, Any]:
    chosen = _choose_weights(name)
    return {
        "model": f"tv:{name}",
        "family": _models().get_model_builder(name.partition("@")[0]).__module__.rpartition(".")[2],
        "num_parameters": chosen.meta["num_params"],
        "input_size": list(_preprocessing(name).input_size),
        "trained_on": str(chosen.name).lower(),
        "licence": "BSD-3-Clause",
    }
