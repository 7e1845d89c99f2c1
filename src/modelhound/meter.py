"""The only clock, and the only eye on the machine.

In:  a piece of work to time, or the question what machine this is
Out: raw samples in seconds per phase; a Machine record; memory peaks
Nothing here knows what the work is for. A phase on a CUDA device begins and ends with a synchronisation, so that its
seconds are the device's too and not only those of handing work over.
"""

import contextlib
import datetime
import importlib.metadata
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import psutil

from modelhound.errors import RequestError
from modelhound.records import Machine, PhaseSamples

__all__ = ["Meter", "count_cores", "describe_machine", "resolve_device", "seconds_now", "utc_now"]

Item = TypeVar("Item")

_END = object()
_VERSIONED = ("modelhound", "torch", "torchvision", "timm", "transformers", "safetensors", "numpy", "pillow")


class Meter:
    """Times the phases of one job: enter `phase` around each piece, then ask for the `samples`."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.current_phase = ""
        self._samples: dict[str, list[float]] = {}
        self._started = seconds_now()
        if self._on_cuda:
            import torch

            # Before the first use of CUDA there are no peaks to reset, and torch says so by an error.
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats(device)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the enclosed work to phase `name`; a piece that fails adds none but stays the current phase."""
        self.current_phase = name
        self._synchronise()
        start = seconds_now()
        yield
        self._synchronise()
        self._samples.setdefault(name, []).append(seconds_now() - start)

    def waiting(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Hand the items on, and add the seconds spent waiting for each of them to phase `name`."""
        iterator = iter(items)
        while True:
            self.current_phase = name
            start = seconds_now()
            item = next(iterator, _END)
            if item is _END:
                return  # nothing came, so nothing was waited for
            self._samples.setdefault(name, []).append(seconds_now() - start)
            yield cast(Item, item)

    @property
    def samples(self) -> tuple[PhaseSamples, ...]:
        """Every phase entered so far, in order of first entry."""
        return tuple(PhaseSamples(phase=name, seconds=tuple(times)) for name, times in self._samples.items())

    @property
    def wall_seconds(self) -> float:
        """Seconds since this meter was made."""
        return seconds_now() - self._started

    @property
    def peak_memory_bytes(self) -> int:
        """Most memory held: of the CUDA device since this meter was made, else of the process since it began."""
        if self._on_cuda:
            import torch

            return int(torch.cuda.max_memory_allocated(self.device))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB, macOS in bytes

    @property
    def _on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    def _synchronise(self) -> None:
        if self._on_cuda:
            import torch

            torch.cuda.current_stream(self.device).synchronize()


def seconds_now() -> float:
    """A monotonic clock, for differences."""
    return time.perf_counter()


def utc_now() -> str:
    """The date and time, for people."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def count_cores() -> int:
    """Cores this process may use, which on a shared machine can be fewer than it has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve_device(wanted: str) -> str:
    """The device that `wanted` (auto, cpu, cuda, cuda:N) means on this machine."""
    import torch

    num_gpus = torch.cuda.device_count()
    if wanted == "auto":
        return "cuda:0" if num_gpus else "cpu"
    if wanted == "cpu":
        return "cpu"
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or not (index.isdecimal() or wanted == "cuda"):
        raise RequestError(f"cannot use --device {wanted!r}: expected auto, cpu, cuda or cuda:N")
    if int(index or 0) >= num_gpus:
        raise RequestError(
            f"cannot use --device {wanted!r}: this machine has {num_gpus} CUDA devices that torch can use, "
            "take --device cpu or see `hound doctor`"
        )
    return f"cuda:{int(index or 0)}"


def describe_machine() -> Machine:
    """What a reader must know to judge a time measured here; needs no torch."""
    gpus, driver = _describe_gpus()
    return Machine(
        hostname=socket.gethostname(),
        system=platform.platform(),
        cpu=_cpu_name(),
        num_cores=count_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus,
        driver=driver,
        python=platform.python_version(),
        versions=_installed_versions(),
        commit=_source_commit(),
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _describe_gpus() -> tuple[tuple[str, ...], str | None]:
    """GPU names and driver version as the driver tells them; nothing where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles), str(
            pynvml.nvmlSystemGetDriverVersion()
        )
    finally:
        pynvml.nvmlShutdown()


def _installed_versions() -> dict[str, str]:
    versions = {}
    for name in _VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _source_commit() -> str | None:
    """The git commit this code runs from, with "+" when it was changed since; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
