"""What a search finds out of each model, and the ranking."""

import msgspec

from modelhound.records.finals import FinalsAnswer
from modelhound.records.run import PhaseSamples, PhasesTimed, Record

__all__ = ["ModelDropped", "ModelMeasured", "RankedModel", "Ranking"]


class ModelMeasured(PhasesTimed, frozen=True, kw_only=True, tag="model"):
    """One model, finished: its size, its scores and where its time went."""

    model: str
    stamp: str = ""
    """Changes when the model's weights do: a result of other weights is not taken over."""
    num_parameters: int
    num_features: int
    num_items: int
    scores: dict[str, float]
    item_scores: dict[str, bytes]
    """Scorer -> one number per item (see `pack_items`), where the scorer has such."""
    phases: tuple[PhaseSamples, ...]
    wall_seconds: float
    """From its file to its scores; where models were run together, its shares of what they took, added up."""
    peak_memory_bytes: int
    """Of the GPU, else of the whole process, until this model was done; models that run at once share it."""
    notes: tuple[str, ...] = ()
    """What a person should know of this result, in sentences."""


class ModelDropped(Record, frozen=True, kw_only=True, tag="dropped"):
    """A model that left the race early: what it had reached, and how small its chance was."""

    model: str
    stamp: str
    num_parameters: int
    num_items: int
    """Items it was judged on."""
    score: float
    chance: float
    """Of being among the best `top` in the end."""
    top: int
    seconds: float


class RankedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a ranking. Models that the data cannot tell apart share a rank."""

    rank: int
    model: str
    score: float
    interval: tuple[float, float]
    scores: dict[str, float]
    num_parameters: int
    seconds: float
    tied: bool
    size_rank: int


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: models best first, what the order rests on, and the control."""

    rests_on: tuple[str, ...]
    """The scorers whose mean is the score."""
    metric: str = "accuracy"
    """What the score is: accuracy, ranking precision or R2."""
    confidence: float
    num_items: int
    models: tuple[RankedModel, ...]
    by_size: tuple[str, ...]
    size_agreement: float | None
    guess: float | None = None
    """What one would score who knows only how often each answer comes; None where that is not known (yet)."""
    is_guess_beaten: bool = True
    """Whether the best model tells more of the items than that, beyond the luck of having tried so many."""
    finals: FinalsAnswer | None = None
    """What a race of the best by short fine-tuning says, where one was held."""
