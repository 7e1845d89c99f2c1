"""What a device draws, how fast it runs and what holds it back, as its driver tells.

In:  a device, cpu or cuda:N
Out: readings: energy since some fixed moment, power, clocks, temperature, and reasons for running slower than it could
Nothing here knows what the device is doing. Whatever a machine does not tell is None: NVIDIA's driver answers for GPUs, Linux
for CPUs (clocks nearly always, energy only where RAPL may be read).
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

__all__ = ["PowerMeter", "PowerReading", "nvml_handle"]

_RAPL = Path("/sys/class/powercap")
_NOT_SLOWED = ("idle", "clocks set by somebody")

# Bits of NVML's clock event reasons, in words.
_REASONS = (
    (0x1, "idle"),
    (0x2, "clocks set by somebody"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "heat (software)"),
    (0x40, "heat (hardware)"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
)


class PowerReading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a device; None for whatever it does not tell."""

    energy_joules: float | None = None
    """Since the driver was loaded, or the counter last wrapped: for differences only."""
    power_watts: float | None = None
    clock_hertz: float | None = None
    temperature_celsius: float | None = None
    utilisation: float | None = None
    """The share of the last moments in which the device was busy, as the driver counts it."""
    throttled: tuple[str, ...] = ()
    """Why the device runs slower than it could; empty where nothing holds it back."""


class PowerMeter:
    """Looks at one device as often as asked; enter it, so that the driver is let go of in the end."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._handle: Any = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "PowerMeter":
        if self.device.startswith("cuda"):
            self._handle = self._stack.enter_context(nvml_handle(self.device))
        return self

    def __exit__(self, *ended: object) -> None:
        self._stack.close()
        self._handle = None

    def read(self) -> PowerReading:
        """What the device says now."""
        if self.device.startswith("cuda"):
            return PowerReading() if self._handle is None else _read_gpu(self._handle)
        return _read_cpu()


@contextlib.contextmanager
def nvml_handle(device: str) -> "Iterator[Any]":
    """NVML's handle of a CUDA device of this process, whatever CUDA_VISIBLE_DEVICES hides; None where the driver is silent."""
    import pynvml
    import torch

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        index = torch.device(device).index or 0
        handle = None
        with contextlib.suppress(pynvml.NVMLError, AttributeError, RuntimeError, AssertionError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
        yield handle
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read_gpu(handle: Any) -> PowerReading:
    import pynvml

    def ask(question: Callable[..., Any], *more: Any) -> Any:
        try:
            return question(handle, *more)
        except pynvml.NVMLError:  # not every device answers every question
            return None

    # newer bindings renamed "throttle" to "event"
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    reasons = next((getattr(pynvml, name) for name in names if hasattr(pynvml, name)), lambda handle: 0)
    usage = ask(pynvml.nvmlDeviceGetUtilizationRates)
    return PowerReading(
        energy_joules=_scaled(ask(pynvml.nvmlDeviceGetTotalEnergyConsumption), 1e-3),
        power_watts=_scaled(ask(pynvml.nvmlDeviceGetPowerUsage), 1e-3),
        clock_hertz=_scaled(ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM), 1e6),
        temperature_celsius=_scaled(ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU), 1.0),
        utilisation=None if usage is None else usage.gpu / 100,
        throttled=_name_reasons(int(ask(reasons) or 0)),
    )


def _name_reasons(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _REASONS if bits & bit and name not in _NOT_SLOWED)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _read_cpu() -> PowerReading:
    frequency = None
    with contextlib.suppress(OSError, NotImplementedError, RuntimeError):
        frequency = psutil.cpu_freq()
    return PowerReading(
        energy_joules=_read_rapl(_RAPL),
        clock_hertz=frequency.current * 1e6 if frequency and frequency.current else None,
    )


def _read_rapl(folder: Path) -> float | None:
    """Joules of all packages; None where the system keeps them to itself. Many laptops also count the whole machine (psys), and
    the packages would count twice."""
    try:
        zones = [zone for zone in folder.glob("intel-rapl:?") if (zone / "name").read_text().startswith("package")]
        counters = [int((zone / "energy_uj").read_text()) for zone in zones]
    except (OSError, ValueError):
        return None
    return sum(counters) * 1e-6 if counters else None
