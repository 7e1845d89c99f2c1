"""What a store of models offers, whichever it is.

In:  the name of a model, as the store has it; settings that say what is asked of it
Out: a card, a stamp, tensors, or a Network: a module and how to feed it
Nothing here knows a store. Every source (`zoo`, `timm`, ...) is one adapter file with one class that follows `ModelSource`, and
nothing outside that file knows how the store works. Names are plain text, so that listing models needs no torch.
"""

import fnmatch
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from modelhound.settings import PLAIN, ModelSettings

if TYPE_CHECKING:
    import torch

    from modelhound.data import InputForm, Modality

__all__ = [
    "BUILDING",
    "ModelCard",
    "ModelRef",
    "ModelSource",
    "Network",
    "Weights",
    "is_glob",
    "match_names",
    "suitable_layout",
]

Weights = Mapping[str, "torch.Tensor"]

BUILDING = threading.RLock()
"""Held by whoever builds a network: libraries change torch's own functions meanwhile, and a user's function may set torch's
seed, after which nobody else must draw from it."""

_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True, order=True)
class ModelRef:
    """Points at one model of one source; written source:name."""

    source: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "ModelRef":
        """The reference that was written so."""
        source, _, name = text.partition(":")
        return cls(source, name)

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of a model without running it."""

    model: str
    family: str
    num_parameters: int
    input_size: tuple[int, int] | None = None
    """Height and width in pixels; None for a text encoder."""
    max_tokens: int | None = None
    """Of a text encoder: how much it takes at a time."""
    trained_on: str = "unknown"
    licence: str = "unknown"
    downloads: int | None = None
    """As the hub counts them; None where nobody counts."""

    @property
    def modality(self) -> "Modality":
        return "image" if self.input_size is not None else "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A model ready to run."""

    module: "torch.nn.Module"

    extract: "Callable[[Any], torch.Tensor]"
    """Takes the inputs of a Batch; gives one feature vector per item, [items, features], or one per item and layer,
    [items, layers, features], where --layers best was asked for."""

    preprocessing: "InputForm"

    classify: "Callable[[torch.Tensor], torch.Tensor] | None" = None
    """From feature vectors to the logits of the classes it was trained on, where it has such a classifier."""

    config: str = ""
    """What its forward may read beside what stands in its modules, as text: networks that differ in it are of different
    architectures, though all their modules are alike."""

    without: frozenset[str] = frozenset()
    """Tensors that its weights did not have and that it goes without: with them it would be another network."""

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def is_depthwise(self) -> bool:
        """Whether it has convolutions over each channel by itself: for these, in channels-last order, cuDNN would compile a
        kernel for each batch size, seconds long."""
        from torch import nn

        return any(
            isinstance(each, nn.Conv2d) and each.groups == each.in_channels > 1 for each in self.module.modules()
        )


def suitable_layout(device: str, *, is_depthwise: bool) -> "torch.memory_format":
    """The order of images in memory that suits convolutions best where a network is only run."""
    import torch

    return torch.contiguous_format if is_depthwise and device != "cpu" else torch.channels_last


class ModelSource(Protocol):
    """One store of models. Everything it cannot do raises ModelError with the reason and what to do."""

    @property
    def modalities(self) -> "frozenset[Modality]":
        """What its models look at: images, texts or either."""
        ...

    @property
    def listed(self) -> bool:
        """Whether all that it has can be listed at once."""
        ...

    def find(self, pattern: str) -> Sequence[str]:
        """The names that a name or glob means, each once, in a fixed order; none if there are none."""
        ...

    def suggest(self, name: str) -> Sequence[str]:
        """Names to suggest from to somebody whose `name` was not found."""
        ...

    def describe(self, name: str) -> ModelCard:
        """The card of one model, without building it where that can be avoided."""
        ...

    def glance(self, name: str) -> Mapping[str, Any]:
        """What of the card (its fields by name) can be told of each of thousands at once; nothing where `describe` is as quick
        or all that there is."""
        ...

    def stamp(self, name: str, settings: ModelSettings = PLAIN) -> str:
        """A text that changes when the model's weights do, or the user's own code that they go into by --arch; empty where
        names stand for the same weights for ever."""
        ...

    def mould(self, name: str, settings: ModelSettings = PLAIN) -> str | None:
        """The same for models that are built and fed alike, so that they differ in their tensors only; None where only
        building tells. It takes no weights to know."""
        ...

    def read_weights(self, name: str) -> Weights:
        """The model's trained tensors, from disk or from the store."""
        ...

    def build(self, name: str, weights: Weights | None, settings: ModelSettings = PLAIN) -> Network:
        """The network with these weights, or freshly initialised ones if None, in evaluation mode on the CPU."""
        ...


def is_glob(pattern: str) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(pattern)


def match_names(pattern: str, names: Sequence[str]) -> list[str]:
    """Those of the names that the pattern means: itself, or whatever the glob matches."""
    if not is_glob(pattern):
        return [pattern] if pattern in names else []
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]
