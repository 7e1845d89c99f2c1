"""Models of timm (PyTorch Image Models), with weights from the Hugging Face hub or its cache on disk.

In:  a timm name, with or without a tag: resnet18, resnet50.a1_in1k
Out: a card, the trained tensors, or the network with timm's own preprocessing for it
Nothing here knows about searching. Names and parameter counts are remembered between runs (importing timm takes seconds,
building a network to count its parameters a moment each), under a key that changes with timm's version.
"""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound import __version__
from modelhound.compat import import_timm
from modelhound.errors import ModelError, first_line
from modelhound.models.hub_client import HubClient, quiet
from modelhound.models.source import ModelCard, Network, Weights, match_names
from modelhound.settings import PLAIN, ModelSettings
from modelhound.store import Memo

if TYPE_CHECKING:
    import torch

    from modelhound.data import Modality

__all__ = ["TimmSource", "classifier_of", "mould_of", "pooled_features", "wrap_timm_module"]


class TimmSource:
    """The networks timm can build."""

    modalities: "frozenset[Modality]" = frozenset({"image"})
    listed = True

    def __init__(self) -> None:
        # Asked before timm is: it says at once that nobody answers, where timm tries each file for half a minute.
        self._hub = HubClient()
        self._memo: Memo | None = None  # opened when first needed: where it lies is read from the environment

    def find(self, pattern: str) -> Sequence[str]:
        self._hub.forget()  # names are asked for when a search begins, and by then the hub may be back
        # A name with a tag stands for one of several sets of weights: too many to list unless somebody asks for tags.
        tagged = self._remember("tagged", lambda: import_timm().list_models(pretrained=True)) if "." in pattern else ()
        return match_names(pattern, (*self.suggest(pattern), *tagged))

    def suggest(self, name: str) -> Sequence[str]:
        names: list[str] = self._remember("names", lambda: import_timm().list_models())
        return names

    def describe(self, name: str) -> ModelCard:
        return msgspec.convert(self._remember(f"card:{name}", lambda: msgspec.to_builtins(_describe(name))), ModelCard)

    def glance(self, name: str) -> Mapping[str, Any]:
        known: dict[str, dict[str, Any]] = self._remember("facts", _tell_of_all)
        facts = known[name] if name in known else _tell(name)
        return {**facts, "input_size": tuple(facts["input_size"])}

    def stamp(self, name: str, settings: ModelSettings = PLAIN) -> str:
        return importlib.metadata.version("timm")  # which decides what the weights of a name are

    def mould(self, name: str, settings: ModelSettings = PLAIN) -> str | None:
        timm = import_timm()
        trained = timm.models.get_pretrained_cfg(name, allow_unregistered=False)
        return mould_of(name.partition(".")[0], trained.to_dict() if trained else {})

    def read_weights(self, name: str) -> Weights:
        timm = import_timm()
        trained = timm.models.get_pretrained_cfg(name, allow_unregistered=False)
        if trained is None or not trained.hf_hub_id:
            raise ModelError(
                f"cannot read weights of timm:{name}: timm has no trained weights for it on the hub, "
                "choose another model or --weights random"
            )
        location = [trained.hf_hub_id] + ([trained.hf_hub_filename] if trained.hf_hub_filename else [])
        try:
            if not _in_cache(*location):
                self._hub.look_up(trained.hf_hub_id, None)
            with quiet():
                weights: Weights = timm.models.load_state_dict_from_hf(*location)
        except ModelError as error:
            raise ModelError(f"{error}, or use --weights random") from error
        except Exception as error:  # the hub's client raises many kinds: HTTP, cache, gating, offline, damage
            raise ModelError(
                f"cannot read weights of timm:{name} from {trained.hf_hub_id} on the hub: {first_line(error)}; check the "
                "connection or HF_ENDPOINT, download it beforehand into the hub's cache, or use --weights random"
            ) from error
        return weights

    def build(self, name: str, weights: Weights | None, settings: ModelSettings = PLAIN) -> Network:
        timm = import_timm()
        from modelhound.models.adopting import build_around  # needs torch, which listing models does not

        try:
            if weights is None:
                module = timm.create_model(name, pretrained=False)
            else:
                # timm's own loading applies the renaming that older checkpoints need
                overlay = {"state_dict": dict(weights), "source": ""}
                module = build_around(
                    weights, lambda: timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
                )
        except RuntimeError as error:
            raise ModelError(
                f"cannot build timm:{name}: its weights do not fit the network: {first_line(error)}; "
                "delete the file from the hub's cache and start again"
            ) from error
        return wrap_timm_module(module)

    def _remember(self, key: str, find_out: Callable[[], Any]) -> Any:
        if self._memo is None:
            self._memo = Memo(f"timm-{importlib.metadata.version('timm')}-{__version__}")
        return self._memo.recall(key, find_out)


def mould_of(architecture: str, trained: Mapping[str, Any]) -> str:
    """Names an architecture of timm together with what decides how it is fed."""
    fed = import_timm().data.resolve_data_config(pretrained_cfg=dict(trained))
    return f"timm {architecture} {sorted(fed.items())}"


def wrap_timm_module(module: "torch.nn.Module") -> Network:
    """A network whose features are what timm's classifier would see, fed by timm's own preprocessing."""
    from modelhound.data import Preprocessing

    data_config = import_timm().data.resolve_model_data_config(module)
    return Network(
        module=module.eval(),
        extract=pooled_features(module),
        preprocessing=Preprocessing.from_timm(data_config),
        classify=classifier_of(module),
    )


def pooled_features(module: "torch.nn.Module") -> "Callable[[torch.Tensor], torch.Tensor]":
    """The pooled vector before the classifier, for any module with timm's interface."""

    def extract(images: "torch.Tensor") -> "torch.Tensor":
        features: torch.Tensor = module.forward_head(module.forward_features(images), pre_logits=True)  # type: ignore[operator]
        return features.flatten(1)

    return extract


def classifier_of(module: "torch.nn.Module") -> "Callable[[torch.Tensor], torch.Tensor] | None":
    """The layer from pooled features to logits, for any module with timm's interface; None where it is not one linear layer.

    Some networks (distilled ones, those with several heads) answer with more than one layer or with one of another width.
    """
    import torch

    layer = module.get_classifier()  # type: ignore[operator]
    fits = isinstance(layer, torch.nn.Linear) and layer.in_features == getattr(module, "head_hidden_size", None)
    return layer if fits else None


def _describe(name: str) -> ModelCard:
    import torch

    timm = import_timm()
    try:
        with torch.device("meta"):  # shapes without memory
            module = timm.create_model(name)
    except NotImplementedError:  # RegNets compute with values while they are made, which older torch cannot do there
        module = timm.create_model(name)
    facts = _tell(name)
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    return msgspec.convert({"model": f"timm:{name}", "num_parameters": num_parameters, **facts}, ModelCard)


def _tell(name: str) -> dict[str, Any]:
    """All of a card but the number of parameters: timm's own registry has it, without a network."""
    timm = import_timm()
    trained = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    settings = trained.to_dict() if trained else {}
    _, height, width = settings.get("input_size", (3, 224, 224))
    architecture, _, tag = name.partition(".")
    return {
        "family": timm.models.model_entrypoint(architecture).__module__.rpartition(".")[2],
        "input_size": [height, width],
        "trained_on": str(tag or settings.get("tag") or "nothing"),
        "licence": str(settings.get("license") or "unknown"),
    }


def _tell_of_all() -> dict[str, dict[str, Any]]:
    return {name: _tell(name) for name in import_timm().list_models()}


def _in_cache(repository: str, *filename: str) -> bool:
    """Whether the hub's cache holds weights of this repository."""
    from huggingface_hub import try_to_load_from_cache

    names = filename or ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)
