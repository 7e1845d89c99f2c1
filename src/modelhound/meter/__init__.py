"""The only clock, and the only eye on the machine.

    clock      seconds for differences, dates for people
    phases     a Meter: where the time of one job goes
    lanes      what happened at the same time as what
    laps       where every second of a loop of training steps goes
    memory     the most this process held since somebody began to look
    machine    what machine this is, and which device is meant
    disk       bytes that came from a disk and not from memory
    sampling   one call timed again and again, until its time is known well enough
    telemetry  cores, memory, disk, network and GPU, looked at beside a run
    power      energy, clocks and what holds a device back, as its driver tells

Nothing here knows what the work is for.
"""

from modelhound.meter.clock import cpu_seconds_now, seconds_now, utc_now
from modelhound.meter.disk import disk_bytes_read
from modelhound.meter.lanes import Lanes
from modelhound.meter.machine import (
    available_memory,
    choose_precision,
    count_cores,
    describe_machine,
    digest_of_code,
    installed_version,
    resolve_device,
)
from modelhound.meter.memory import PeakMemory, peak_bytes, process_bytes
from modelhound.meter.phases import Meter
from modelhound.meter.power import PowerMeter, PowerReading
from modelhound.meter.sampling import TIMM_PLAN, Samples, SamplingPlan, take_samples
from modelhound.meter.telemetry import Telemetry

__all__ = [
    "TIMM_PLAN",
    "Lanes",
    "Meter",
    "PeakMemory",
    "PowerMeter",
    "PowerReading",
    "Samples",
    "SamplingPlan",
    "Telemetry",
    "available_memory",
    "choose_precision",
    "count_cores",
    "cpu_seconds_now",
    "describe_machine",
    "digest_of_code",
    "disk_bytes_read",
    "installed_version",
    "peak_bytes",
    "process_bytes",
    "resolve_device",
    "seconds_now",
    "take_samples",
    "utc_now",
]
