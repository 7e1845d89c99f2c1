"""Where the time of one call goes: how long kernels run, and how much of it is in operators whose FLOPs are counted.

In:  a call and its device
Out: the seconds in which a GPU was busy, and the share of counted operators, as torch's profiler sees them
Nothing here knows what the call does. A profiler slows the host down, so no other time is taken while one looks.
"""

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["Busy", "look_at_kernels"]

_COUNTED = ("conv", "addmm", "::mm", "bmm", "linear", "attention", "matmul")
"""Parts of the names of operators that compute products: those with FLOPs to count."""


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one call; None where the profiler says nothing."""

    kernel_seconds: float | None = None
    covered_share: float | None = None


def look_at_kernels(call: Callable[[], Any], *, device: str) -> Busy:
    """Run the call once under the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.startswith("cuda")
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=kinds) as seen:
        call()
        if on_gpu:
            torch.cuda.synchronize(device)
    rows = seen.key_averages()
    if not on_gpu:
        return Busy(covered_share=_share([(row.key, row.self_cpu_time_total) for row in rows]))
    kernels = [row for row in rows if row.device_type.name == "CUDA"]
    operators = [row for row in rows if row.device_type.name == "CPU"]
    busy = sum(row.self_device_time_total for row in kernels) * 1e-6
    return Busy(
        kernel_seconds=busy or None,
        covered_share=_share([(row.key, row.self_device_time_total) for row in operators]),
    )


def _share(times: list[tuple[str, float]]) -> float | None:
    total = sum(time for _, time in times)
    counted = sum(time for name, time in times if name.startswith("aten::") and any(part in name for part in _COUNTED))
    return counted / total if total else None
