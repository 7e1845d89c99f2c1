"""ModelRef -> a network that turns items into features. One adapter file per source, all behind `ModelSource`.

    catalogue    globs -> references; where: conditions on their cards
    source       what every source offers; zoo, timm, torchvision, hub, local and own are the sources
    hub_client   the hub: look up, list, fetch; layout: a folder as the hub has them; encoders, pooling: models of transformers
    checkpoints  files of weights; tensor_files: one tensor after the other from a mapped file; tensor_hashes: their digests
    adopting     build a network around tensors that are there; code: whose code it runs
    computing    how networks compute where features are made
    parts        cut a network: watching one forward, cuts in its graph, calls from one cut to another
    published    encoders of known shape, without the hub; resizing: networks for images of another size

Nothing here knows items, plans or scores.
"""

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
