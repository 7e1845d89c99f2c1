"""ModelRef -> a network that turns items into features. One adapter file per source, all behind `ModelSource`."""

from modelhound.models.catalogue import (
    SOURCES,
    check_any_fits,
    check_arch,
    describe_models,
    find_cards,
    find_models,
    source_of,
    stamp_own,
)
from modelhound.models.source import ModelCard, ModelRef, Network, Weights, suitable_layout

__all__ = [
    "SOURCES",
    "ModelCard",
    "ModelRef",
    "Network",
    "Weights",
    "check_any_fits",
    "check_arch",
    "describe_models",
    "find_cards",
    "find_models",
    "source_of",
    "stamp_own",
    "suitable_layout",
]
