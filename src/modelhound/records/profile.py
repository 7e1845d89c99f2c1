"""What a profile finds out: one record per model, configuration, data set and device."""

import msgspec

from modelhound.records.run import PhaseSamples, PhasesTimed

__all__ = [
    "BottleneckFound",
    "BottleneckMoves",
    "ConfigurationProfiled",
    "ProfileFindings",
    "SavingMeasured",
    "ScoringTimed",
]


class ScoringTimed(msgspec.Struct, frozen=True, kw_only=True):
    """One scorer on the features of some items, with so many classes."""

    scorer: str
    num_classes: int
    num_items: int
    seconds: tuple[float, ...]


class ConfigurationProfiled(PhasesTimed, frozen=True, kw_only=True, tag="profile"):
    """One job from the file of weights to the score, timed phase by phase."""

    model: str
    stamp: str
    data: str
    device: str
    precision: str
    configuration: str
    """full, last 50%, last 3, joint 50%, joint 3, or apart N: the same model with the N-th head."""
    form: str
    """full, part, joint or apart."""
    layers: str
    """As asked: full, 50%, 3."""
    num_layers: int
    """Layers that the model can be cut into."""
    num_layers_run: int
    """Of a joint model: in each head."""
    num_heads: int
    batch: int
    num_batches: int
    num_batches_asked: int
    num_warmup: int
    num_items: int
    weight_bytes: int
    """Read from files."""
    input_bytes_per_item: int
    """Stored output of the layer before, or 0 where items are decoded."""
    flops_per_item: float
    phases: tuple[PhaseSamples, ...]
    """One sample per batch of the phases that belong to a batch; "wait for data" has one more, for the end of loading."""
    wall_seconds: float
    """From before the first phase to after the last, on the same clock."""
    cold: bool
    """Whether the weights were read from disk, and not from memory, in that time."""
    cold_read_seconds: tuple[float, ...]
    """Of the same tensors, with nothing of the files in the page cache; none where that cannot be had."""
    warm_read_seconds: tuple[float, ...]
    usual_build_seconds: tuple[float, ...]
    """Of the full model: drawing random weights first and loading the others over them, as most programs do."""
    scorings: tuple[ScoringTimed, ...]
    """Of one head; timed once for all configurations of a model on a data set and device, whose features are alike."""
    peak_memory_bytes: int
    """Of the GPU, else of the whole process, while its batches were run."""
    notes: tuple[str, ...] = ()
    load_seconds: tuple[float, ...] = ()
    """Waiting for each batch and for the end of loading, where nothing computes meanwhile. Empty where items are not decoded,
    and in runs of older versions."""

    @property
    def key(self) -> str:
        """Tells it from all others of the same run."""
        return "\0".join((self.model, self.configuration, self.data, self.device))


class BottleneckFound(msgspec.Struct, frozen=True, kw_only=True):
    """What one configuration spends most of its time on, and how fast it would be without."""

    model: str
    configuration: str
    data: str
    device: str
    bottleneck: str
    """weights, data, forward or score."""
    seconds: dict[str, float]
    """Of each of these and of what is left over, "other"."""
    speedups: dict[str, float]
    """How many times faster it would be with each of them for free."""
    interval: tuple[float, float]
    """Of the bottleneck's speed-up."""
    warm_speedup: float | None
    """With the weights in the page cache; None where they were there already."""
    sentence: str


class BottleneckMoves(msgspec.Struct, frozen=True, kw_only=True):
    """From so many items on, something else takes most of the time."""

    model: str
    configuration: str
    data: str
    device: str
    before: str
    after: str
    num_items: float
    interval: tuple[float, float] | None
    """None where some of the samples do not show it at all."""
    is_measured: bool
    """Whether it lies within the items that were run; if not, it is extrapolated."""
    sentence: str


class SavingMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A part against the full model, or a joint model against the same models run apart."""

    model: str
    configuration: str
    data: str
    device: str
    predicted: float
    """How many times fewer multiplications."""
    forward: float
    """How many times less time in the forward pass."""
    forward_interval: tuple[float, float]
    end_to_end: float
    end_to_end_interval: tuple[float, float]
    sentence: str


class ProfileFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: what is slow, where that changes, and what running less saves."""

    bottlenecks: tuple[BottleneckFound, ...]
    moves: tuple[BottleneckMoves, ...]
    savings: tuple[SavingMeasured, ...]
    unaccounted: float
    """The largest share of any job's wall clock that no phase accounts for."""
    confidence: float
