"""What fine-tuning finds out: how each run went, where each rank's time went, and what bounds it."""

import msgspec

from modelhound.records.run import PhaseSamples, PhasesTimed, Record

__all__ = [
    "DATA_PHASES",
    "STEP_PHASES",
    "Block",
    "BlocksMeasured",
    "EpochDone",
    "ModelTrained",
    "Operator",
    "OperatorsProfiled",
    "RankTrained",
    "SavedModel",
    "TelemetrySample",
]


DATA_PHASES = ("wait for data", "data to device")
"""Of the phases of a step, those that bring its batch."""

STEP_PHASES = (
    *DATA_PHASES,
    "augment",
    "forward",
    "backward",
    "communication",
    "optimiser",
    "logging",
    "other",
)
"""What a step is made of. Communication is the part that the backward pass does not hide, waiting for slower ranks included."""


class SavedModel(msgspec.Struct, frozen=True, kw_only=True):
    """How to name a checkpoint to other commands."""

    model: str
    """For --model and --models."""
    arch: str | None = None
    """For --arch, where the files do not say which network they are of."""


class EpochDone(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over the training items, and the test after it."""

    epoch: int
    """The first is 1."""
    loss: float
    """Mean over the epoch's steps."""
    score: float
    """On the test items: accuracy, ranking precision or R2."""
    top5: float | None
    """Share of test items whose class is among the five most likely; None below six classes."""
    test_loss: float
    rate: float
    """The learning rate at the end of it."""
    seconds: float


class TelemetrySample(msgspec.Struct, frozen=True, kw_only=True):
    """The machine at one moment of a run; what it cannot tell is None or empty."""

    at_seconds: float
    """Since the run began."""
    cpu_shares: tuple[float, ...]
    """Busy share of each core since the sample before, 0 to 1."""
    process_cpu_share: float
    """Cores' worth of work that this process and its children did."""
    memory_bytes: int
    """Held by this process and its children."""
    machine_memory_bytes: int
    disk_read_bytes: int
    disk_written_bytes: int
    """Bytes since the sample before, of the whole machine, as are the next two."""
    network_sent_bytes: int
    network_received_bytes: int
    gpu_share: float | None = None
    """Share of the time in which some kernel ran."""
    gpu_memory_bytes: int | None = None
    gpu_power_watts: float | None = None
    gpu_temperature_celsius: float | None = None
    gpu_throttled: tuple[str, ...] = ()
    """Why the GPU ran below its clock, such as power or heat."""


class RankTrained(PhasesTimed, frozen=True, kw_only=True, tag="rank"):
    """Where the time of one rank of one training run went."""

    model: str
    num_ranks: int
    rank: int
    device: str
    num_steps: int
    num_items: int
    """Training items this rank went through, repeats included."""
    phases: tuple[PhaseSamples, ...]
    """One sample per step of each phase of a step, which add up to the step; one sample per occurrence of the others."""
    wall_seconds: float
    """Of the whole loop, by a clock of its own: the phases add up to it."""
    peak_memory_bytes: int
    """Of this rank's GPU, else of its whole process."""
    num_workers: int
    telemetry: tuple[TelemetrySample, ...] = ()


class ModelTrained(Record, frozen=True, kw_only=True, tag="trained"):
    """One model, fine-tuned on one number of ranks."""

    model: str
    stamp: str
    num_ranks: int
    mode: str
    num_parameters: int
    num_trained_parameters: int
    num_items: int
    num_test_items: int
    batch: int
    """Items per step and rank."""
    num_parts: int
    """Into how many parts a batch had to be cut to fit into memory."""
    precision: str
    metric: str
    score: float
    top5: float | None
    epochs: tuple[EpochDone, ...]
    losses: tuple[float, ...]
    """Of every step, the mean over all ranks' items."""
    checkpoint: str
    """The folder with the fine-tuned network, below the run's."""
    stopped: str
    """finished, or why it ended before its time."""
    wall_seconds: float
    """From the start until it was trained, of ranks in processes of their own until the last ended; libraries included."""
    notes: tuple[str, ...] = ()


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps in a row under one condition."""

    condition: str
    """live, host batches, device batches, no all-reduce; or a stage and the delay it was given."""
    round: int
    """Blocks of one round stand side by side in time."""
    seconds: tuple[float, ...]
    """Of each step; on a GPU, of all steps together divided by their number."""
    delay_seconds: float = 0.0


class BlocksMeasured(Record, frozen=True, kw_only=True, tag="blocks"):
    """Steps with parts of them made free, in turns with steps as they are: what a verdict rests on."""

    model: str
    num_ranks: int
    num_workers: int
    num_cores: int
    batch: int
    blocks: tuple[Block, ...]
    is_prepared: bool = False
    """Whether items are decoded already and only read."""
    num_local_ranks: int = 0
    """Ranks that share the cores; 0 in runs of older versions, where all do."""
    unused: tuple[str, ...] = ()
    """Options that make steps on this device faster and were not used."""

    @property
    def cores_per_rank(self) -> int:
        return self.num_cores // (self.num_local_ranks or self.num_ranks)


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the profiler's table; times without those of operators called from it."""

    name: str
    calls: int
    cpu_seconds: float
    device_seconds: float


class OperatorsProfiled(Record, frozen=True, kw_only=True, tag="operators"):
    """What torch's profiler saw of a few steps."""

    model: str
    num_ranks: int
    rank: int
    num_steps: int
    trace: str
    """The trace for Perfetto, below the run's folder."""
    operators: tuple[Operator, ...]
