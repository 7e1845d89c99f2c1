"""What a comparison of fine-tuning and searching finds out."""

import msgspec

from modelhound.records.run import PhaseSamples, Record

__all__ = [
    "BreakEvenCount",
    "BreakevenFindings",
    "ExtrapolationStep",
    "FeaturesTimed",
    "RatioRow",
    "SearchTimed",
    "TrainingTimed",
    "WayOfSearching",
]


class TrainingTimed(Record, frozen=True, kw_only=True, tag="training time"):
    """One model, trained on some items in one of three ways."""

    model: str
    stamp: str
    mode: str
    """full, head or cached."""
    num_items: int
    """Training and test items together."""
    num_epochs: int
    """That were run."""
    epoch_seconds: tuple[float, ...]
    """Each with its test."""
    once_seconds: float
    """What is no part of an epoch: building, reading weights, and where features are cached, computing them."""
    wall_seconds: float
    score: float
    phases: tuple[PhaseSamples, ...]


class FeaturesTimed(Record, frozen=True, kw_only=True, tag="features time"):
    """One model, searched over once: read, run over all items, scored."""

    model: str
    stamp: str
    num_items: int
    extract_seconds: tuple[float, ...]
    """Waiting for items, copying them, running the network; one sample per repeat."""
    score_seconds: tuple[float, ...]
    weight_seconds: tuple[float, ...]
    """Reading weights, building the network, bringing it to the device."""
    wall_seconds: tuple[float, ...]


class SearchTimed(Record, frozen=True, kw_only=True, tag="search time"):
    """A search over so many models."""

    way: str
    """plain: one after the other; engine: all together."""
    num_models: int
    models: tuple[str, ...]
    num_items: int
    seconds: float
    stamp: str = ""
    """Of all that are in somebody's own files, together: changes with any of these. Empty where none is."""


class RatioRow(msgspec.Struct, frozen=True, kw_only=True):
    """Fine-tuning against feature extraction, one model on one number of items."""

    model: str
    num_items: int
    num_epochs: int
    seconds: dict[str, float]
    """full, head, cached and extract."""
    ratios: dict[str, float]
    """Of each kind of training to extraction."""
    intervals: dict[str, tuple[float, float]]


class WayOfSearching(msgspec.Struct, frozen=True, kw_only=True):
    """How the time of a search grows with the number of models."""

    way: str
    start_seconds: float
    seconds_per_model: float
    interval: tuple[float, float]
    """Of the seconds per model."""
    num_models: tuple[int, ...]
    seconds: tuple[float, ...]


class BreakEvenCount(msgspec.Struct, frozen=True, kw_only=True):
    """Up to so many models, searching takes no longer than the training it is for."""

    model: str
    num_items: int
    scenario: str
    way: str
    training_seconds: float
    search_seconds_per_model: float
    num_models: int
    interval: tuple[int, int]
    over_epochs: tuple[int, int] | None
    """The same at the ends of the scenario's range of epochs."""
    sentence: str


class ExtrapolationStep(msgspec.Struct, frozen=True, kw_only=True):
    """One assumption, and what it makes of the time."""

    name: str
    assumption: str
    low: float
    high: float
    """The factor, or both ends of what it may be."""
    seconds: tuple[float, float]
    """After this step."""


class BreakevenFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: ratios, counts, and what other data, epochs, models and devices would make of them."""

    rows: tuple[RatioRow, ...]
    ways: tuple[WayOfSearching, ...]
    counts: tuple[BreakEvenCount, ...]
    training: tuple[ExtrapolationStep, ...]
    searching: tuple[ExtrapolationStep, ...]
    extrapolated: str = ""
    """What the last two say together, in a sentence; nothing where nothing was assumed."""
    assumptions: tuple[str, ...]
    confidence: float
    price_per_hour: float | None = None
    watts: float | None = None
