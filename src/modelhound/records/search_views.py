"""What a search leaves for people to look at: its plan, what ran when, and the items as the best model sees them."""

import msgspec

from modelhound.records.run import Failure, Record

__all__ = ["HardItem", "ItemMap", "PlanMade", "PlanNode", "SearchForeseen", "Span", "Timeline"]


class PlanNode(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a plan, or one input, and everything that is run on its output. Seconds are predicted."""

    label: str
    finishes: tuple[str, ...] = ()
    """Models that end here; those of `children` come on top."""
    num_models: int
    """Models here and below: how many share this work."""
    keep: str = "nothing"
    """Where the output waits for `children`: memory, disk or nothing."""
    flops: float = 0.0
    """Of this step alone, for all items."""
    weight_bytes: int = 0
    output_bytes: int = 0
    seconds: float = 0.0
    """Of this step alone; of an input, making it of decoded items, and of the first one decoding them for all."""
    children: "tuple[PlanNode, ...]" = ()


class PlanMade(Record, frozen=True, kw_only=True, tag="plan"):
    """How models were run together; a race has one per rung."""

    num_items: int
    """Items this plan was for."""
    num_models: int
    seconds: float
    """Predicted for the plan."""
    seconds_alone: float
    """Predicted for the same models one by one, with nothing shared."""
    trees: tuple[PlanNode, ...]
    """One for each input."""


class SearchForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """What a search would do and take. Phases overlap, so the seconds in all are not their sum."""

    num_models: int
    """To be run; `num_remembered` more would only be scored."""
    num_remembered: int
    num_items: int
    rungs: tuple[int, ...]
    """After so many items models may be dropped; the last is all of them."""
    phases: dict[str, float]
    """Predicted busy seconds; reading and building were measured."""
    seconds: float
    """If no model is dropped."""
    least_seconds: float
    """If nearly all are dropped at the first rung."""
    peak_memory_bytes: int
    flops: float
    """If every model ran by itself; `_run`: as planned."""
    flops_run: float
    weight_bytes: int
    weight_bytes_read: int
    plan: PlanMade
    failures: tuple[Failure, ...]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Something that went on from one moment to another, in seconds since the timeline began."""

    lane: str
    """Who was busy, such as reading weights, decoding, device, scoring: lanes run at the same time."""
    phase: str
    start_seconds: float
    end_seconds: float
    detail: str = ""
    """Of what: a model, a step, a batch."""


class Timeline(Record, frozen=True, kw_only=True, tag="timeline"):
    """What ran when, and what ran beside it; one per start that measured something."""

    wall_seconds: float
    spans: tuple[Span, ...]


class HardItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that the best model finds hard, to look at."""

    item: str
    position: int
    """Of its point on the map."""
    target: str
    """What it is, as a person would say it."""
    hardness: float
    right_share: float | None = None
    """Share of all models that get it right; None where right and wrong are not the question."""
    text: str = ""
    """Of a text: its beginning."""
    picture: bytes = b""
    """Of an image: a small picture, as a file."""
    picture_type: str = "image/png"


class ItemMap(Record, frozen=True, kw_only=True, tag="item_map"):
    """Items as one model sees them, for a map in two dimensions; those that look alike to it lie together."""

    model: str
    method: str
    """How many dimensions become two, in a few words."""
    features: bytes
    """`num_features` numbers per item of the map, one item after the other (see `pack_items`): the directions in which they
    vary most. The two dimensions are found when the page is made."""
    num_features: int
    targets: bytes
    """Per item: a place in `class_names`, or the number to be told where there are no classes."""
    class_names: tuple[str, ...]
    hardness: bytes
    """Per item, larger is harder."""
    items: tuple[str, ...] = ()
    """Names of the items, in the same order; empty where they have none."""
    hardest: tuple[HardItem, ...]
    """Hardest first."""
