"""One point, measured: what a worker's process is asked to do.

In:  a request as JSON values: a point, how its network is built and how it is sampled
Out: JSON values: raw samples, memory, energy and notes; or that memory ran out
Nothing here knows of other points. Networks stay in the host's memory as long as there is room, so that the next point of the
same network need not build it again; what goes to a device is a copy that is thrown away.
"""

import copy
import functools
import gc
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.analysis.samples import median_interval, median_of
from modelhound.errors import is_out_of_memory
from modelhound.meter import (
    TIMM_PLAN,
    PeakMemory,
    PowerMeter,
    PowerReading,
    Samples,
    SamplingPlan,
    seconds_now,
    take_samples,
)
from modelhound.models import ModelRef
from modelhound.records import LatencyPoint
from modelhound.settings import ModelSettings
from modelhound.timing.kernels import Busy, look_at_kernels
from modelhound.timing.memory import count_swapped_pages, limited_memory
from modelhound.timing.subject import Modality, Subject, build_subject

if TYPE_CHECKING:
    import torch

__all__ = ["Measured", "PointRequest", "describe_tf32", "dtype_of", "measure_point", "set_precision"]

_LOOK_SECONDS = 0.5  # a call longer than this is not run once more for the profiler
_ENERGY_SECONDS = 0.2  # energy counters move ten times a second or so
_FEW_PAGES = 64
_MOST_SAMPLES = 10_000
_KEPT_BYTES = 4 << 30


class PointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how."""

    point: LatencyPoint
    modality: Modality
    weights: str
    settings: ModelSettings
    seconds: float
    width: float
    sampling: str
    compile: bool
    memory_bytes: int | None
    """What the point may use on a CPU; a GPU's limit is set once, when the process begins."""
    seed: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. With `out_of_memory`, nothing else is known."""

    out_of_memory: str = ""
    first_seconds: float = 0.0
    seconds: tuple[float, ...] = ()
    host_seconds: tuple[float, ...] = ()
    wall_seconds: tuple[float, ...] = ()
    num_warmup: int = 0
    stopped: str = ""
    tf32: str | None = None
    kernel_seconds: float | None = None
    covered_share: float | None = None
    num_parameters: int = 0
    weight_bytes: int = 0
    peak_memory_bytes: int = 0
    process_memory_bytes: int = 0
    energy_joules: float | None = None
    clock_hertz: float | None = None
    temperature_celsius: float | None = None
    throttled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    overhead_seconds: float = 0.0


def measure_point(request: dict[str, Any]) -> Any:
    """The entry for a worker: JSON in, JSON out."""
    asked = msgspec.convert(request, PointRequest)
    start = seconds_now()
    try:
        measured = _measure(asked, start)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = " ".join(str(error).split())[:300] or type(error).__name__
        measured = Measured(out_of_memory=message)
    return msgspec.to_builtins(measured)


def _measure(asked: PointRequest, start: float) -> Measured:
    import torch

    torch.manual_seed(asked.seed)
    set_precision(asked.point.precision)
    on_gpu = asked.point.device.startswith("cuda")
    original = _kept.take(asked)
    own_bytes = 0 if on_gpu else original.weight_bytes  # it is in memory already
    limit = None if on_gpu or asked.memory_bytes is None else max(0, asked.memory_bytes - own_bytes)
    with limited_memory(limit):
        peak = PeakMemory()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(asked.point.device)
            before = torch.cuda.memory_allocated(asked.point.device)
        # Not in inference mode, where tensors are of a kind that takes less time to hand over than those people have.
        subject = _copy_to(original, asked.point)
        inputs = subject.make_inputs(
            asked.point.batch, asked.point.size, device=asked.point.device, dtype=dtype_of(asked.point.precision)
        )
        call = functools.partial(torch.compile(subject.call) if asked.compile else subject.call, inputs)
        watched = _Watched(asked.point.device)
        with watched.power, torch.inference_mode():
            samples = take_samples(call, _plan(asked), device=asked.point.device, before_sampling=watched.begin)
            last = watched.power.read()
        if on_gpu:
            device_peak = torch.cuda.max_memory_allocated(asked.point.device) - before
        else:  # of a copy in another precision, the original is no part of what the point holds
            device_peak = peak.bytes_added + (own_bytes if subject.module is original.module else 0)
        with torch.inference_mode():
            busy = _look(call, samples, asked)
    measured = _collect(samples, busy, subject, last, watched, device_peak, peak.bytes_held)
    if on_gpu:
        measured = msgspec.structs.replace(measured, tf32=describe_tf32(asked.point.precision))
    del subject, inputs, call
    _clean_up(asked)
    spent = samples.first_seconds + samples.warm_up_seconds + samples.sampling_seconds
    return msgspec.structs.replace(measured, overhead_seconds=seconds_now() - start - spent)


def dtype_of(precision: str) -> "torch.dtype":
    """tf32 is a way to multiply numbers that are stored as fp32."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def set_precision(precision: str) -> None:
    """fp32 is what torch does unless told: on NVIDIA's GPUs convolutions round to tf32, products of matrices do not."""
    import torch

    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision != "fp32-strict"


def describe_tf32(precision: str) -> str | None:
    """Which numbers of 32 bits the GPU rounds to 19 before it multiplies them, as torch is set now."""
    import torch

    if dtype_of(precision) != torch.float32:
        return None
    if not torch.backends.cudnn.allow_tf32:
        return "none"
    return "convolutions" if torch.get_float32_matmul_precision() == "highest" else "all"


class _Kept:
    """Networks in the host's memory, those used last, as many as fit."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[tuple[Any, ...], Subject] = OrderedDict()

    def take(self, asked: PointRequest) -> Subject:
        key = (asked.point.model, asked.weights, asked.point.image)
        if key not in self._subjects:
            key = (asked.point.model, asked.weights, None)
        if key not in self._subjects:
            subject = build_subject(
                ModelRef.parse(asked.point.model),
                modality=asked.modality,
                weights=asked.weights,
                side=asked.point.image,
                settings=asked.settings,
            )
            for parameter in subject.module.parameters():
                parameter.requires_grad_(False)
            key = (*key[:2], asked.point.image if subject.for_one_side else None)
            self._subjects[key] = subject
        self._subjects.move_to_end(key)
        while len(self._subjects) > 1 and sum(each.weight_bytes for each in self._subjects.values()) > _KEPT_BYTES:
            self._subjects.popitem(last=False)
        return self._subjects[key]

    def forget(self) -> None:
        self._subjects.clear()


_kept = _Kept()


def _copy_to(original: Subject, point: LatencyPoint) -> Subject:
    """The network on the point's device and in its precision; itself where it is there already."""
    import torch

    dtype = dtype_of(point.precision)
    if original.stays:
        return original.with_module(original.module.to(point.device, dtype))
    tensors = {id(tensor): tensor for tensor in (*original.module.parameters(), *original.module.buffers())}
    if point.device == "cpu" and dtype == torch.float32:
        return original
    # Only tensors need to be copied, and straight to where they go: deepcopy takes what it finds in its memo.
    memo: dict[int, Any] = {}
    for key, tensor in tensors.items():
        moved = tensor.detach().to(point.device, dtype if tensor.is_floating_point() else None)
        memo[key] = torch.nn.Parameter(moved, False) if isinstance(tensor, torch.nn.Parameter) else moved
    return original.with_module(copy.deepcopy(original.module, memo))


class _Watched:
    """The device and the host just before sampling, to compare with afterwards."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.power = PowerMeter(device)
        self.first = PowerReading()
        self.pages = count_swapped_pages()
        self.retries = _allocator_retries(device)

    def begin(self) -> None:
        self.pages, self.retries = count_swapped_pages(), _allocator_retries(self.device)
        self.first = self.power.read()

    def notes(self) -> tuple[str, ...]:
        """Swapping and thrashing, named."""
        notes = []
        pages = count_swapped_pages() - self.pages
        if pages > _FEW_PAGES:
            notes.append(
                f"swapped: the process waited for {pages} pages from disk while it was timed, so this is the disk's time"
            )
        retries = _allocator_retries(self.device) - self.retries
        if retries:
            notes.append(
                f"thrashed: the device's memory was full, and the allocator emptied its cache {retries} times while timing"
            )
        return tuple(notes)


def _allocator_retries(device: str) -> int:
    if not device.startswith("cuda"):
        return 0
    import torch

    return int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))


def _plan(asked: PointRequest) -> SamplingPlan:
    if asked.sampling == "timm":
        return TIMM_PLAN
    on_gpu = asked.point.device.startswith("cuda")

    def settled(seconds: Any) -> bool:
        interval = median_interval(seconds)
        return interval is not None and (interval[1] - interval[0]) / 2 <= asked.width * median_of(seconds)

    return SamplingPlan(
        warm_up_seconds=min(0.15, asked.seconds / 4),
        budget_seconds=asked.seconds,
        least_seconds=min(_ENERGY_SECONDS, asked.seconds / 2) if on_gpu else 0.0,
        most_samples=_MOST_SAMPLES,
        settled=settled,
    )


def _look(call: Any, samples: Samples, asked: PointRequest) -> Busy:
    if median_of(samples.seconds) > _LOOK_SECONDS or asked.compile:
        return Busy()
    return look_at_kernels(call, device=asked.point.device)


def _collect(
    samples: Samples,
    busy: Busy,
    subject: Subject,
    last: PowerReading,
    watched: _Watched,
    device_peak: int,
    process_peak: int,
) -> Measured:
    energy = None
    if (
        last.energy_joules is not None
        and watched.first.energy_joules is not None
        and samples.sampling_seconds >= _ENERGY_SECONDS
        and last.energy_joules > watched.first.energy_joules
    ):
        energy = (last.energy_joules - watched.first.energy_joules) / len(samples.seconds)
    on_gpu = watched.device.startswith("cuda")
    return Measured(
        first_seconds=samples.first_seconds,
        seconds=samples.seconds,
        host_seconds=samples.host_seconds,
        wall_seconds=samples.wall_seconds if on_gpu else (),
        num_warmup=samples.num_warmup,
        stopped=samples.stopped,
        kernel_seconds=busy.kernel_seconds,
        covered_share=busy.covered_share,
        num_parameters=subject.num_parameters,
        weight_bytes=subject.weight_bytes,
        peak_memory_bytes=device_peak,
        process_memory_bytes=process_peak,
        energy_joules=energy,
        clock_hertz=last.clock_hertz,
        temperature_celsius=last.temperature_celsius,
        throttled=last.throttled,
        notes=watched.notes(),
    )


def _clean_up(asked: PointRequest) -> None:
    """Leave nothing to the next point but the network: what is freed meanwhile would be missing in its peak."""
    import torch

    if asked.compile:
        torch._dynamo.reset()
        _kept.forget()
    gc.collect()
    if asked.point.device.startswith("cuda"):
        torch.cuda.empty_cache()
