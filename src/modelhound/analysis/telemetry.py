"""What the machine did beside a run, in a few numbers.

In:  TelemetrySamples of one rank, taken every half second or so
Out: a TelemetrySummary: means, peaks and sums over the run
Nothing here looks at a machine.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from modelhound.records import TelemetrySample

__all__ = ["TelemetrySummary", "summarise_telemetry"]


class TelemetrySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rank's process and its loaders, of the machine as a whole, and of its GPU; what was not told is None."""

    busy_cores: float
    """Cores' worth of work of this rank and its loaders, on average."""
    machine_busy_cores: float
    num_cores: int
    peak_memory_bytes: int
    """Of this rank and its loaders; memory that they share counts for each."""
    disk_read_bytes: int
    disk_written_bytes: int
    network_sent_bytes: int
    network_received_bytes: int
    """Of the whole machine, as the three before."""
    gpu_share: float | None
    gpu_peak_memory_bytes: int | None
    gpu_power_watts: float | None
    gpu_highest_celsius: float | None
    gpu_throttled: dict[str, float]
    """Why the GPU ran below its clock -> share of the time."""


def summarise_telemetry(samples: Sequence[TelemetrySample]) -> TelemetrySummary | None:
    """None of a run that was over before anybody looked."""
    if not samples:
        return None
    reasons = [reason for sample in samples for reason in sample.gpu_throttled]
    return TelemetrySummary(
        busy_cores=float(np.mean([each.process_cpu_share for each in samples])),
        machine_busy_cores=float(np.mean([sum(each.cpu_shares) for each in samples])),
        num_cores=max(len(each.cpu_shares) for each in samples),
        peak_memory_bytes=max(each.memory_bytes for each in samples),
        disk_read_bytes=sum(each.disk_read_bytes for each in samples),
        disk_written_bytes=sum(each.disk_written_bytes for each in samples),
        network_sent_bytes=sum(each.network_sent_bytes for each in samples),
        network_received_bytes=sum(each.network_received_bytes for each in samples),
        gpu_share=_over(np.mean, [each.gpu_share for each in samples]),
        gpu_peak_memory_bytes=max((each.gpu_memory_bytes or 0 for each in samples), default=0) or None,
        gpu_power_watts=_over(np.mean, [each.gpu_power_watts for each in samples]),
        gpu_highest_celsius=_over(np.max, [each.gpu_temperature_celsius for each in samples]),
        gpu_throttled={reason: reasons.count(reason) / len(samples) for reason in dict.fromkeys(reasons)},
    )


def _over(summary: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    """Of those that were told."""
    told = [value for value in values if value is not None]
    return float(summary(told)) if told else None
