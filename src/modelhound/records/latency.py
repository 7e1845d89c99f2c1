"""What a sweep of latencies finds out: points, ceilings of devices, and points that could not be measured."""

from typing import Literal

import msgspec

from modelhound.records.run import Record

__all__ = ["CeilingsMeasured", "Cost", "LatencyFailed", "LatencyMeasured", "LatencyPoint", "OperatorKind", "WhyFailed"]

WhyFailed = Literal["out of memory", "timed out", "crashed", "error"]
OperatorKind = Literal["product", "attention", "convolution", "grouped", "depthwise", "other"]
"""Products of matrices, attention, and convolutions over all channels, over groups of them, over each by itself."""


class LatencyPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What is timed: one network, one shape of input, one precision, one device."""

    model: str
    batch: int
    image: int | None = None
    """Side of the images in pixels; None for texts."""
    tokens: int | None = None
    """Length of the texts; None for images."""
    precision: str
    device: str

    @property
    def size(self) -> int:
        """Side or length, whichever it has."""
        return self.image or self.tokens or 0

    @property
    def width(self) -> float:
        """Of its numbers in memory, where those of fp32 have width 1: costs are counted in fp32."""
        return 0.5 if self.precision in ("bf16", "fp16") else 1.0

    @property
    def shape_text(self) -> str:
        return f"batch {self.batch}, {self.held_text('batch')}"

    def held_text(self, axis: str) -> str:
        """What stays the same along an axis: the size along the batch, the batch along any other."""
        size = f"image {self.image}" if self.image else f"{self.tokens} tokens"
        return size if axis == "batch" else f"batch {self.batch}"


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one item of one size costs, before anything is timed; times the batch, but for weights and kernels."""

    flops: float
    activation_bytes: float
    moved_bytes: float
    """Read and written per item, weights not counted."""
    live_bytes: float
    """The most that intermediate results hold at once."""
    input_bytes: float
    weight_bytes: float
    num_kernels: int
    num_parameters: int
    operators: tuple[tuple[OperatorKind, float, float, float, int], ...] = ()
    """What kind, FLOPs and bytes of an item, bytes of weights, and how many operators have just these."""

    @property
    def flops_by_kind(self) -> dict[str, float]:
        """Of an item; devices are not equally quick at all of them."""
        found: dict[str, float] = {}
        for kind, flops, _, _, number in self.operators:
            if flops:
                found[kind] = found.get(kind, 0.0) + number * flops
        return found

    @property
    def weights_read(self) -> float:
        """Bytes of weights that one call reads: more than there are where layers share them."""
        return sum(weights * number for _, _, _, weights, number in self.operators) or self.weight_bytes


class CeilingsMeasured(Record, frozen=True, kw_only=True, tag="latency_ceilings"):
    """The most a device was seen to do: a large product of matrices or convolution, and a long copy."""

    device: str
    device_name: str
    precision: str
    flops_per_second: float
    bytes_per_second: float
    memory_limit_bytes: int
    """What a point may use."""
    kind_flops_per_second: dict[str, float] = msgspec.field(default_factory=dict)
    """The most of each kind of operator; `flops_per_second` is the highest of them."""
    tf32: str | None = None
    """On a GPU: which numbers of 32 bits were rounded to 19 before they were multiplied: none, convolutions, or all."""


class LatencyMeasured(Record, frozen=True, kw_only=True, tag="latency_point"):
    """One point, timed. Times are raw samples in seconds, oldest first."""

    point: LatencyPoint
    seconds: tuple[float, ...]
    """Of one call: between two events of the device's own clock on a GPU, by the host's clock on a CPU."""
    host_seconds: tuple[float, ...] = ()
    """On a GPU: until the host had handed over all work."""
    wall_seconds: tuple[float, ...] = ()
    """On a GPU: until the host knew that the device had finished."""
    kernel_seconds: float | None = None
    """On a GPU: the sum of all kernels of one call; the rest of the time the device waits."""
    covered_share: float | None = None
    """Of the time, how much the operators take whose FLOPs are counted."""
    first_call_seconds: float
    compile_seconds: float | None = None
    """Of the first call what a later one does not need, where compiling was asked for."""
    num_warmup: int
    stopped: str
    """settled: the interval is narrow enough; budget or count: it was stopped before."""
    convention: str = "adaptive"
    tf32: str | None = None
    """On a GPU: which numbers of 32 bits were rounded to 19 before they were multiplied: none, convolutions, or all."""

    num_parameters: int
    flops: float
    flops_by_kind: dict[str, float] = msgspec.field(default_factory=dict)
    """Products of matrices, attention, convolutions of three kinds."""
    activation_bytes: float
    moved_bytes: float
    weight_bytes: float
    num_kernels: int
    compute_seconds: float | None = None
    """What the operators that are bound by computing would take if they reached the ceiling."""
    memory_seconds: float | None = None
    """What the others would take if they reached the ceiling of memory."""
    reorder_seconds: float | None = None
    """At that ceiling: to bring tensors of convolutions into the order that quick kernels want, and back."""

    peak_memory_bytes: int
    """On the device: weights, inputs and whatever the call held at once."""
    process_memory_bytes: int
    """The most the process held in the host's memory."""
    energy_joules: float | None = None
    """Of one call, where the device counts it and sampling took long enough."""
    clock_hertz: float | None = None
    temperature_celsius: float | None = None
    throttled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know of this time, in sentences."""
    overhead_seconds: float
    """What the point took beside its first call, warm-up and samples."""
    place: int
    """In the order of measuring, which is random."""
    stamp: str = ""
    """Of a network in somebody's own files: changes with them, and then the point is measured anew."""

    @property
    def model(self) -> str:
        return self.point.model


class LatencyFailed(Record, frozen=True, kw_only=True, tag="latency_failed"):
    """One point without a time, and why."""

    point: LatencyPoint
    why: WhyFailed
    tried: bool
    """False where it was known before that it would fail."""
    message: str
    num_parameters: int | None = None
    """None in runs of older versions."""
    timeout_seconds: float | None = None
    """What it might have taken, where that was too short."""
    stamp: str = ""
    """As that of a point that was timed."""

    @property
    def model(self) -> str:
        return self.point.model
