"""What machine this is.

In:  nothing, or the device that was asked for
Out: a Machine record; the number of cores; the device that is meant
Nothing here knows what the machine is used for, and nothing is timed.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

import modelhound
from modelhound.errors import RequestError
from modelhound.records import Machine

__all__ = [
    "available_memory",
    "choose_precision",
    "count_cores",
    "describe_machine",
    "digest_of_code",
    "installed_version",
    "resolve_device",
]

_NOT_THERE = "none"
_GROUPS, _GROUP_FILES = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_NEWER_NAMES = ("memory.max", "memory.current", "active_file", "inactive_file")
_OLDER_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file")
_VERSIONED = ("modelhound", "torch", "torchvision", "timm", "transformers", "safetensors", "numpy", "pillow")


def count_cores() -> int:
    """Cores this process may use, which on a shared machine can be fewer than it has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes of the host's memory that could be used now: of a container or a job with a limit, no more than it has left."""
    free = int(psutil.virtual_memory().available)
    return max(0, min((free, *_left_to_groups(_GROUPS, _GROUP_FILES))))


def _left_to_groups(listed: Path, mounted: Path) -> Iterator[int]:
    """What each control group around this process may still take; `mounted` shows a container its own group at the top."""
    try:
        lines = [line.split(":", 2) for line in listed.read_text().splitlines() if line.count(":") >= 2]
    except OSError:  # not Linux
        return
    for _, kinds, path in lines:
        if kinds and "memory" not in kinds.split(","):
            continue
        top = mounted / "memory" if kinds else mounted  # of the older version, or of the newer one
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            left = _left_to_group(folder, *(_OLDER_NAMES if kinds else _NEWER_NAMES))
            if left is not None:
                yield left
            if folder == top:
                break


def _left_to_group(folder: Path, limit: str, held: str, *files: str) -> int | None:
    """None without a limit. Files that were read lie in memory only as long as nobody else needs it."""
    try:
        left = int((folder / limit).read_text()) - int((folder / held).read_text())
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError, ValueError):
        told = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        left += sum(int(told.get(name, 0)) for name in files)
    return left


@functools.cache  # to look it up takes milliseconds
def installed_version(package: str) -> str:
    """Of an installed package; "none" where it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _NOT_THERE


@functools.cache
def digest_of_code(*rooms: str) -> str:
    """Of the files of these rooms of modelhound: another release, or somebody at work on it, may compute otherwise."""
    home = Path(modelhound.__file__).parent
    digest = hashlib.sha256(modelhound.__version__.encode())
    for room in rooms:
        for path in sorted((home / room).rglob("*.py")):
            digest.update(f"\0{path.relative_to(home)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


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


def choose_precision(wanted: str, device: str) -> str:
    """fp32 or bf16, where networks are run; auto means bf16 on a GPU that has it, else fp32."""
    import torch

    if not device.startswith("cuda"):
        return "fp32" if wanted == "auto" else wanted
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)  # which older ones do, slower than fp32
    if wanted == "bf16" and not has_bf16:
        raise RequestError(f"cannot use --precision bf16 on {device}: expected a GPU that has it, use fp32")
    return ("bf16" if has_bf16 else "fp32") if wanted == "auto" else wanted


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
    except pynvml.NVMLError:  # a device that has fallen off the bus
        return (), None
    finally:
        pynvml.nvmlShutdown()


def _installed_versions() -> dict[str, str]:
    versions = {name: installed_version(name) for name in _VERSIONED}
    return {name: version for name, version in versions.items() if version != _NOT_THERE}


@functools.cache  # two more processes; and what runs is what was there when it was loaded
def _source_commit() -> str | None:
    """The git commit this code runs from, with "+" when it was changed since; None outside a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    """What git answers. It locks nothing: killed beside us, it would leave a lock that stops the next commit."""
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
