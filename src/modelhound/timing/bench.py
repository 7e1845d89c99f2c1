"""Where points are measured: one warm process for every device, and a new one after every failure.

In:  points, one at a time, in any order
Out: a record of each: measured, or failed and why
Nothing here decides which points to measure. No failure reaches the next point: whatever a process dies of, it dies alone.
"""

import contextlib
from types import TracebackType
from typing import Any, Self

import msgspec

from modelhound.analysis.roofline import Ceilings, least_seconds, reorder_seconds
from modelhound.errors import ModelError, RequestError
from modelhound.launch import Outcome, Worker
from modelhound.launch.arithmetic import SAFE_INSTRUCTIONS
from modelhound.records import CeilingsMeasured, Cost, LatencyFailed, LatencyMeasured, LatencyPoint, WhyFailed, to_plain
from modelhound.settings import LATENCY_MODELS, LatencySettings
from modelhound.timing.axes import Candidate
from modelhound.timing.ceilings import DeviceFound, Rates
from modelhound.timing.measuring import Measured, PointRequest
from modelhound.timing.sketching import Sketched, SketchRequest

__all__ = ["Bench", "least_seconds_of"]

_BEGIN = "modelhound.timing.ceilings:begin"
_RATES = "modelhound.timing.ceilings:measure_rates"
_SKETCH = "modelhound.timing.sketching:sketch_model"
_MEASURE = "modelhound.timing.measuring:measure_point"

_BEGIN_SECONDS = 300.0
_SKETCH_SECONDS = 300.0
_QUIET = {"KINETO_LOG_LEVEL": "5"}  # torch's profiler writes lines that nobody asked for
_NOISE = "USDT:"  # and these it writes all the same


class Bench:
    """One process per device; enter it, so that they end with the work."""

    def __init__(self, settings: LatencySettings) -> None:
        self._settings = settings
        self._workers: dict[str, Worker] = {}
        self._found: dict[str, DeviceFound] = {}
        self.ceilings: dict[tuple[str, str], CeilingsMeasured] = {}
        """(device, precision) -> the most that was seen, as far as it is known."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def find_device(self, device: str) -> DeviceFound:
        """Its name and what one point may use of its memory. The process is started if there is none."""
        worker = self._worker(device)
        if device not in self._found or not worker.is_running:
            sources = sorted({each.partition(":")[0] for each in _references(self._settings)})
            given = (device, self._settings.memory_bytes(), sources)
            outcome = worker.call(_BEGIN, *given, timeout_seconds=_BEGIN_SECONDS)
            if not outcome.ok:
                raise RequestError(
                    f"cannot use --device {device!r}: expected a process there to start, but it {_explain(outcome)}; "
                    "see `hound doctor`"
                )
            # What was free at first is what counts: later on, networks that wait for their turn are in memory too.
            self._found.setdefault(device, msgspec.convert(outcome.value, DeviceFound))
        found = self._found[device]
        asked = self._settings.memory_bytes()
        return found if asked is None else msgspec.structs.replace(found, memory_bytes=min(asked, found.memory_bytes))

    def measure_ceilings(self, device: str, precision: str) -> CeilingsMeasured | None:
        """The most the device does in this precision; None where it cannot be seen."""
        found = self.find_device(device)
        outcome = self._call(device, _RATES, device, precision, timeout=_BEGIN_SECONDS)
        if not outcome.ok:
            return None
        rates = msgspec.convert(outcome.value, Rates)
        self.ceilings[device, precision] = CeilingsMeasured(
            device=device,
            device_name=found.name,
            precision=precision,
            flops_per_second=rates.flops_per_second,
            kind_flops_per_second=rates.kind_flops_per_second,
            bytes_per_second=rates.bytes_per_second,
            tf32=rates.tf32,
            memory_limit_bytes=found.memory_bytes,
        )
        return self.ceilings[device, precision]

    def sketch(self, device: str, candidate: Candidate, sizes: tuple[int, ...]) -> Sketched:
        """What one item costs at each of these sizes, and which of them the model does not take."""
        request = SketchRequest(
            model=candidate.model,
            modality=candidate.modality,
            sizes=sizes,
            own_size=candidate.own_size,
            weights=self._settings.weights,
            settings=self._settings.model_settings(),
        )
        outcome = self._call(device, _SKETCH, to_plain(request), timeout=_SKETCH_SECONDS)
        if not outcome.ok:
            return Sketched(costs={}, refused={}, broken=_explain(outcome))
        return msgspec.convert(outcome.value, Sketched, strict=False)

    def measure(
        self, point: LatencyPoint, candidate: Candidate, cost: Cost, *, place: int
    ) -> LatencyMeasured | LatencyFailed:
        """One point, whatever comes of it."""
        settings = self._settings
        request = PointRequest(
            point=point,
            modality=candidate.modality,
            weights=settings.weights,
            settings=settings.model_settings(),
            seconds=settings.seconds,
            width=settings.width,
            sampling=settings.sampling,
            compile=settings.compile,
            memory_bytes=self.find_device(point.device).memory_bytes,
            seed=settings.seed,
        )
        outcome = self._call(point.device, _MEASURE, to_plain(request), timeout=settings.timeout)
        if not outcome.ok:
            return _failed(point, cost, outcome, settings.timeout)
        measured = msgspec.convert(outcome.value, Measured)
        if measured.out_of_memory:
            self._worker(point.device).retire()  # a process that ran out of memory is in nobody knows what state
            return _row(point, cost, "out of memory", measured.out_of_memory)
        record = _record(point, measured, cost, settings, place)
        return _with_least_seconds(record, cost, self.ceilings.get((point.device, point.precision)))

    def _call(self, device: str, function: str, *arguments: Any, timeout: float) -> Outcome:
        """Call in the device's process; on a CPU that cannot do what it says it can, once more with care."""
        self.find_device(device)
        worker = self._worker(device)
        outcome = worker.call(function, *arguments, timeout_seconds=timeout)
        if outcome.ending == "SIGILL" and not SAFE_INSTRUCTIONS.items() <= worker.environment.items():
            worker.environment.update(SAFE_INSTRUCTIONS)
            self.find_device(device)
            outcome = worker.call(function, *arguments, timeout_seconds=timeout)
        return outcome

    def _worker(self, device: str) -> Worker:
        if device not in self._workers:
            self._workers[device] = self._stack.enter_context(Worker(environment=_QUIET))
        return self._workers[device]


def _references(settings: LatencySettings) -> tuple[str, ...]:
    return (*settings.models, *(LATENCY_MODELS if "auto" in settings.models else ()))


def _record(
    point: LatencyPoint, measured: Measured, cost: Cost, settings: LatencySettings, place: int
) -> LatencyMeasured:
    compiled = None
    if settings.compile:
        compiled = max(0.0, measured.first_seconds - sorted(measured.seconds)[len(measured.seconds) // 2])
    return LatencyMeasured(
        point=point,
        seconds=measured.seconds,
        host_seconds=measured.host_seconds,
        wall_seconds=measured.wall_seconds,
        kernel_seconds=measured.kernel_seconds,
        covered_share=measured.covered_share,
        first_call_seconds=measured.first_seconds,
        compile_seconds=compiled,
        num_warmup=measured.num_warmup,
        stopped=measured.stopped,
        convention=settings.sampling,
        tf32=measured.tf32,
        num_parameters=measured.num_parameters,
        flops=point.batch * cost.flops,
        flops_by_kind={kind: point.batch * flops for kind, flops in cost.flops_by_kind.items()},
        activation_bytes=point.batch * cost.activation_bytes * point.width,
        moved_bytes=(point.batch * cost.moved_bytes + cost.weights_read) * point.width,
        weight_bytes=float(measured.weight_bytes),
        num_kernels=cost.num_kernels,
        peak_memory_bytes=measured.peak_memory_bytes,
        process_memory_bytes=measured.process_memory_bytes,
        energy_joules=measured.energy_joules,
        clock_hertz=measured.clock_hertz,
        temperature_celsius=measured.temperature_celsius,
        throttled=measured.throttled,
        notes=measured.notes,
        overhead_seconds=measured.overhead_seconds,
        place=place,
    )


def _with_least_seconds(record: LatencyMeasured, cost: Cost, seen: CeilingsMeasured | None) -> LatencyMeasured:
    if seen is None:
        return record
    compute, memory, reorder = least_seconds_of(record.point, cost, seen)
    return msgspec.structs.replace(record, compute_seconds=compute, memory_seconds=memory, reorder_seconds=reorder)


def least_seconds_of(point: LatencyPoint, cost: Cost, seen: CeilingsMeasured) -> tuple[float, float, float]:
    """What a point takes at the ceilings: operators bound by computing, those bound by memory, reordering in memory."""
    ceilings = Ceilings(
        flops_per_second=seen.flops_per_second,
        bytes_per_second=seen.bytes_per_second,
        kinds=seen.kind_flops_per_second,
    )
    return (
        *least_seconds(cost.operators, ceilings, batch=point.batch, width=point.width),
        reorder_seconds(cost.operators, ceilings, batch=point.batch, width=point.width),
    )


def _failed(point: LatencyPoint, cost: Cost, outcome: Outcome, timeout: float) -> LatencyFailed:
    if outcome.ending == "timed out":
        row = _row(point, cost, "timed out", f"took longer than {timeout:g} s")
        return msgspec.structs.replace(row, timeout_seconds=timeout)
    if outcome.ending.startswith("raised"):
        return _row(point, cost, "error", _explain(outcome))
    return _row(point, cost, "crashed", f"its process {_explain(outcome)}")


def _row(point: LatencyPoint, cost: Cost, why: WhyFailed, message: str) -> LatencyFailed:
    return LatencyFailed(point=point, why=why, tried=True, message=message, num_parameters=cost.num_parameters)


def _explain(outcome: Outcome) -> str:
    """How it ended, in a few words."""
    if outcome.ending.startswith("raised"):
        kind = outcome.ending.removeprefix("raised ")
        text = " ".join(str(outcome.value or "").split())[:300]
        if kind == MemoryError.__name__:
            return f"ran out of memory ({text})" if text else "ran out of memory"
        return text if kind in (ModelError.__name__, RequestError.__name__) else f"{kind}: {text}"
    if outcome.ending == "timed out":
        return "timed out"
    words = [line for line in outcome.last_words.splitlines() if line.strip() and not line.startswith(_NOISE)]
    told = f" ({words[-1][:200]})" if words else ""
    hint = ", perhaps by the system for lack of memory" if outcome.ending == "SIGKILL" else ""
    return f"ended with {outcome.ending}{hint}{told}"
