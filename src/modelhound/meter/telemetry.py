"""The machine beside a run: a thread that looks every half second.

In:  a run that goes on in this process, and the GPU it uses if any
Out: TelemetrySamples: cores, memory, disk, network, GPU
Nothing here knows what the run does. Looking costs a millisecond or two; where the system or the driver does not tell
something, the sample says None.
"""

import contextlib
import threading
from collections.abc import Callable
from statistics import fmean
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import psutil

from modelhound.meter.clock import seconds_now
from modelhound.meter.power import PowerMeter
from modelhound.records import TelemetrySample

__all__ = ["Telemetry", "join_samples"]

Number = TypeVar("Number", int, float)

_USUAL_INTERVAL_SECONDS = 0.5
_MOST_SAMPLES = 2400  # then neighbours become one and the interval doubles: a run of days stays readable


class Telemetry:
    """Enter it around a run, then take the `samples`."""

    def __init__(self, device: str = "cpu", *, interval_seconds: float = _USUAL_INTERVAL_SECONDS) -> None:
        self._interval = interval_seconds
        self._samples: list[TelemetrySample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._device = device
        self._gpu = PowerMeter(device) if device.startswith("cuda") else None
        self._process = psutil.Process()
        self._before = _Counters(self._process)
        self._started = self._before.at

    def __enter__(self) -> Self:
        if self._gpu is not None:
            self._gpu.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._gpu is not None:
            self._gpu.__exit__(kind, error, trace)

    @property
    def samples(self) -> tuple[TelemetrySample, ...]:
        return tuple(self._samples)

    def _watch(self) -> None:
        psutil.cpu_percent(percpu=True)  # begins to count, for this thread
        while not self._over.wait(self._interval):
            # a process that ended while it was looked at, a device that does not answer
            with contextlib.suppress(psutil.Error, OSError, RuntimeError):
                self._samples.append(self._look())
            if len(self._samples) == _MOST_SAMPLES:
                self._samples = [
                    join_samples(*pair) for pair in zip(self._samples[::2], self._samples[1::2], strict=True)
                ]
                self._interval *= 2

    def _look(self) -> TelemetrySample:
        before, now = self._before, _Counters(self._process)
        self._before = now
        elapsed = max(1e-6, now.at - before.at)
        return TelemetrySample(
            at_seconds=now.at - self._started,
            cpu_shares=tuple(share / 100 for share in psutil.cpu_percent(percpu=True)),
            process_cpu_share=max(0.0, now.cpu_seconds - before.cpu_seconds) / elapsed,
            memory_bytes=now.memory_bytes,
            machine_memory_bytes=psutil.virtual_memory().used,
            disk_read_bytes=max(0, now.disk_read - before.disk_read),
            disk_written_bytes=max(0, now.disk_written - before.disk_written),
            network_sent_bytes=max(0, now.network_sent - before.network_sent),
            network_received_bytes=max(0, now.network_received - before.network_received),
            **(_look_at_gpu(self._device, self._gpu) if self._gpu is not None else {}),
        )


def join_samples(first: TelemetrySample, second: TelemetrySample) -> TelemetrySample:
    """The second as if nobody had looked in between: bytes add up, shares and power are means, memory and heat the larger of
    both; why the GPU was held back is as it was seen last."""
    shares = zip(first.cpu_shares, second.cpu_shares, strict=False)
    return msgspec.structs.replace(
        second,
        cpu_shares=tuple((before + after) / 2 for before, after in shares),
        process_cpu_share=(first.process_cpu_share + second.process_cpu_share) / 2,
        memory_bytes=max(first.memory_bytes, second.memory_bytes),
        machine_memory_bytes=max(first.machine_memory_bytes, second.machine_memory_bytes),
        disk_read_bytes=first.disk_read_bytes + second.disk_read_bytes,
        disk_written_bytes=first.disk_written_bytes + second.disk_written_bytes,
        network_sent_bytes=first.network_sent_bytes + second.network_sent_bytes,
        network_received_bytes=first.network_received_bytes + second.network_received_bytes,
        gpu_share=_of_both(fmean, first.gpu_share, second.gpu_share),
        gpu_memory_bytes=_of_both(max, first.gpu_memory_bytes, second.gpu_memory_bytes),
        gpu_power_watts=_of_both(fmean, first.gpu_power_watts, second.gpu_power_watts),
        gpu_temperature_celsius=_of_both(max, first.gpu_temperature_celsius, second.gpu_temperature_celsius),
    )


def _of_both(joined: Callable[[list[Number]], Number], *values: Number | None) -> Number | None:
    """Of those that were told."""
    told = [value for value in values if value is not None]
    return joined(told) if told else None


class _Counters:
    """What the system counts since it started."""

    __slots__ = (
        "at",
        "cpu_seconds",
        "disk_read",
        "disk_written",
        "memory_bytes",
        "network_received",
        "network_sent",
    )

    def __init__(self, process: psutil.Process) -> None:
        self.at = seconds_now()
        self.cpu_seconds, self.memory_bytes = 0.0, 0
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error), each.oneshot():  # a loader process may just have ended
                times = each.cpu_times()
                self.cpu_seconds += times.user + times.system
                self.memory_bytes += each.memory_info().rss
        disk, network = _ask(psutil.disk_io_counters), _ask(psutil.net_io_counters)
        self.disk_read = disk.read_bytes if disk else 0
        self.disk_written = disk.write_bytes if disk else 0
        self.network_sent = network.bytes_sent if network else 0
        self.network_received = network.bytes_recv if network else 0


def _ask(question: Callable[[], Any]) -> Any:
    """None where the system keeps no such counters, as in some containers."""
    with contextlib.suppress(OSError, RuntimeError):
        return question()
    return None


def _look_at_gpu(device: str, meter: PowerMeter) -> dict[str, Any]:
    import torch

    reading = meter.read()
    free, total = torch.cuda.mem_get_info(device)
    return {
        "gpu_share": reading.utilisation,
        "gpu_memory_bytes": total - free,
        "gpu_power_watts": reading.power_watts,
        "gpu_temperature_celsius": reading.temperature_celsius,
        "gpu_throttled": reading.throttled,
    }
