"""What a store of models offers, whichever it is.

Every source (`zoo`, `timm`, ...) is one adapter file with one class that follows `ModelSource`; nothing outside that file
knows how the store works. Names are plain text, so that listing models needs no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import torch

    from modelhound.data import Preprocessing

__all__ = ["ModelCard", "ModelRef", "ModelSource", "Network", "Weights"]

Weights = Mapping[str, "torch.Tensor"]


@dataclass(frozen=True, slots=True, order=True)
class ModelRef:
    """Points at one model of one source; written source:name."""

    source: str
    name: str

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of a model without running it."""

    model: str
    family: str
    num_parameters: int
    input_size: tuple[int, int]
    trained_on: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A model ready to run: `extract` takes a batch of preprocessed items and gives one feature vector per item."""

    module: "torch.nn.Module"
    extract: "Callable[[torch.Tensor], torch.Tensor]"
    preprocessing: "Preprocessing"

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())


class ModelSource(Protocol):
    """One store of models. Everything it cannot do raises ModelError with the reason and what to do."""

    def names(self) -> tuple[str, ...]:
        """Every name a glob is matched against."""
        ...

    def tagged_names(self) -> tuple[str, ...]:
        """Further names, of the form name.tag, for one of several sets of weights; matched by globs that have a dot."""
        ...

    def describe(self, name: str) -> ModelCard:
        """The card of one model, without building it where that can be avoided."""
        ...

    def read_weights(self, name: str) -> Weights:
        """The model's trained tensors, from disk or from the store."""
        ...

    def build(self, name: str, weights: Weights | None) -> Network:
        """The network with these weights, or freshly initialised ones if None, in evaluation mode on the CPU."""
        ...
