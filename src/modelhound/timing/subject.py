"""One network, ready to be timed: the module, how it is called and what it is fed.

In:  a model reference, where its weights come from, and the side of the images
Out: a Subject, which makes inputs of any batch, image size or sequence length and calls the module with them
Nothing here reads a clock. Inputs are random: how long a network takes does not depend on what it sees. What is timed is the
whole network, classifier included, not only its features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from modelhound.errors import ModelError
from modelhound.models import ModelRef, source_of
from modelhound.models.published import describe_published, draw_published, is_published
from modelhound.models.resizing import build_for_side, takes_stretching
from modelhound.models.source import ModelCard
from modelhound.settings import ModelSettings

if TYPE_CHECKING:
    import torch

__all__ = ["Modality", "Subject", "build_subject", "describe_subject"]

_NUM_CHANNELS = 3
_FEW_TOKENS = 1000  # ids that any vocabulary has

Modality = Literal["image", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network and how it is fed."""

    modality: Modality
    module: "torch.nn.Module"
    for_one_side: bool = False
    """Whether it was built for images of one side only."""
    stays: bool = False
    """Whether only the very module can be called and no copy of it: a user's own network of texts."""
    bind: "Callable[[torch.nn.Module], Callable[[Any], Any]]"
    """From the module to a call that takes what `make_inputs` gives."""

    @property
    def call(self) -> Callable[[Any], Any]:
        return self.bind(self.module)

    def with_module(self, module: "torch.nn.Module") -> "Subject":
        """The same with a copy of the module, on another device or in another precision."""
        return replace(self, module=module)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def weight_bytes(self) -> int:
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def make_inputs(self, batch: int, size: int, *, device: str, dtype: "torch.dtype", masked: bool = True) -> Any:
        """Images of size x size pixels, or texts of so many tokens; without a mask where only shapes matter."""
        import torch

        if self.modality == "image":
            return torch.randn(batch, _NUM_CHANNELS, size, size, device=device, dtype=dtype)
        inputs = {"input_ids": torch.randint(0, _vocabulary(self.module), (batch, size), device=device)}
        if masked:
            inputs["attention_mask"] = torch.ones(batch, size, dtype=torch.long, device=device)
        if _is_longformer(self.module) and masked:  # as its makers use it: the first token sees all others
            inputs["global_attention_mask"] = torch.zeros(batch, size, dtype=torch.long, device=device)
            inputs["global_attention_mask"][:, 0] = 1
        return inputs


def describe_subject(model: ModelRef, *, weights: str) -> ModelCard:
    """The card of a model; one that is known here is not asked for at the hub."""
    if weights == "random" and is_published(model):
        return describe_published(model.name)
    return source_of(model).describe(model.name)


def build_subject(
    model: ModelRef, *, modality: Modality, weights: str = "random", side: int | None = None, settings: ModelSettings
) -> Subject:
    """The network on torch's default device, in evaluation mode."""
    if modality == "image":
        module, for_one_side = _build_image_network(model, weights, side, settings)
        return Subject(modality=modality, module=module, bind=_image_call, for_one_side=for_one_side)
    if weights == "random" and is_published(model):
        module = draw_published(model.name)
    else:
        network = _build(model, weights, settings)
        module = network.module
        if not hasattr(module, "get_input_embeddings"):  # a user's own, called in their own way
            return Subject(modality=modality, module=module, bind=lambda module: network.extract, stays=True)
    return Subject(modality=modality, module=module, bind=_text_call)


def _build_image_network(
    model: ModelRef, weights: str, side: int | None, settings: ModelSettings
) -> "tuple[torch.nn.Module, bool]":
    if model.source in ("timm", "tv"):
        tensors = source_of(model).read_weights(model.name) if weights == "pretrained" else None
        return build_for_side(model, tensors, side, settings)
    module: torch.nn.Module = _build(model, weights, settings).module
    return module, False


def _build(model: ModelRef, weights: str, settings: ModelSettings) -> Any:
    source = source_of(model)
    if weights == "pretrained":
        return source.build(model.name, source.read_weights(model.name), settings)
    try:
        return source.build(model.name, None, settings)
    except ModelError:
        if model.source != "py":
            raise
        return source.build(model.name, source.read_weights(model.name), settings)  # it has but one kind of weights


def _image_call(module: "torch.nn.Module") -> Callable[[Any], Any]:
    if getattr(module, "main_input_name", None) != "pixel_values":
        return module
    options = {"interpolate_pos_encoding": True} if takes_stretching(module) else {}
    return lambda images: module(pixel_values=images, **options)


def _text_call(module: "torch.nn.Module") -> Callable[[Any], Any]:
    return lambda inputs: module(**inputs)


def _vocabulary(module: "torch.nn.Module") -> int:
    import torch

    table = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None  # type: ignore[operator]
    return int(table.num_embeddings) if isinstance(table, torch.nn.Embedding) else _FEW_TOKENS


def _is_longformer(module: "torch.nn.Module") -> bool:
    return getattr(getattr(module, "config", None), "model_type", "") == "longformer"
