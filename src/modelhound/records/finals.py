"""What finals find out: every short fine-tuning, and who won."""

from typing import Literal

import msgspec

from modelhound.records.run import Record
from modelhound.records.train import SavedModel

__all__ = ["Finalist", "FinalsAnswer", "FinalsCosts", "TrialDone"]


class FinalsCosts(Record, frozen=True, kw_only=True, tag="finals costs"):
    """What an epoch over all items takes, found out by a few steps of each finalist, and time that no trial came of."""

    epoch_seconds: dict[str, float]
    probing_seconds: float = 0.0
    """What finding that out took."""
    given_up_seconds: float = 0.0
    """Of a trial that would not have ended within the budget."""


class TrialDone(Record, frozen=True, kw_only=True, tag="trial"):
    """One short fine-tuning of one finalist, tested on one fold."""

    model: str
    stamp: str
    notch: int
    """Which of the learning rates tried: the usual one is 0."""
    rate: float
    fold: int
    stage: int
    epochs: int
    """Behind it in all, earlier stages included."""
    num_steps: int
    """In this stage."""
    item_scores: bytes = b""
    """One number per item of the fold (see `pack_items`); empty where it failed."""
    loss: float = 0.0
    """Mean over the items of the fold."""
    seconds: float = 0.0
    """Learning and testing, without reading weights and items."""
    waited_seconds: float = 0.0
    """From the end of the trial before it, or the start of the rung, to its own: those of a race add up to what it took."""
    at_once: int = 1
    """How many trials ran beside each other."""
    error: str = ""
    """Why it came to nothing: the loss was no number, memory ran out."""
    try_again: bool = False
    """Whether the next start does, because its end says nothing of the network: memory ran out, or its process was ended."""


class Finalist(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the finals."""

    place: int
    """Those that cannot be told apart share one."""
    model: str
    state: Literal["in", "dropped", "left behind", "failed"]
    score: float | None
    """Of the items tested, after the training so far."""
    num_items: int
    num_epochs: int
    rate: float | None
    chance: float
    """Of being the best finalist."""
    predicted: float | None
    """The score after full fine-tuning."""
    interval: tuple[float, float] | None
    seconds: float


class FinalsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Who won, how sure that is, and how much training it rests on."""

    verdict: Literal["won", "tied", "cannot tell", "failed"]
    ended: Literal["certain", "budget", "finished", "noise", "failed"]
    """Why the race stopped: somebody is certain to win, the budget is spent, all trials are done or nobody
    else is left, nothing can be learned."""
    winner: str | None
    """The first; where several are tied, the one ahead. None where nothing can be told."""
    finalists: tuple[Finalist, ...]
    metric: str
    confidence: float
    full_epochs: int
    budget_seconds: float
    spent_seconds: float
    full_seconds: float
    """What fine-tuning every candidate once would take."""
    checkpoint: str | None = None
    """The winner as trained so far, below the run's folder."""
    read_back: SavedModel | None = None
    """How to name that checkpoint to other commands."""
