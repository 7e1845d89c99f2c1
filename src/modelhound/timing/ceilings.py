"""The most a device can do, measured: how many FLOPs and how many bytes in a second.

In:  a device and a precision
Out: the best rates of large products of matrices, attention and convolutions of three kinds, and of a long copy; the memory
     there is
Nothing here knows a network. Vendors' figures are not used: clocks, drivers and other users of the device are part of what is
measured.
"""

import functools
import gc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from modelhound.analysis.samples import median_of
from modelhound.compat import import_timm, import_torchvision, import_transformers
from modelhound.meter import SamplingPlan, take_samples
from modelhound.timing.kernels import look_at_kernels
from modelhound.timing.measuring import describe_tf32, dtype_of, set_precision
from modelhound.timing.memory import usable_memory_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceFound", "Rates", "begin", "measure_rates"]

_PLAN = SamplingPlan(warm_up_seconds=0.05, budget_seconds=0.15, least_samples=3, most_samples=50)
_GPU_RESERVE = 0.02  # of its memory, which libraries take for themselves


class DeviceFound(msgspec.Struct, frozen=True, kw_only=True):
    """One device, as a worker's process sees it."""

    name: str
    memory_bytes: int
    """Free for one process."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The most that was seen."""

    flops_per_second: float
    kind_flops_per_second: dict[str, float]
    bytes_per_second: float
    tf32: str | None


def begin(device: str, memory_bytes: int | None, sources: Sequence[str]) -> Any:
    """What a worker does first: load libraries, wake the device up, and limit its memory. JSON in, JSON out."""
    import torch

    # Those that these sources need, so that no point pays for them.
    if not {"timm", "zoo", "file"}.isdisjoint(sources):
        import_timm()
    if not {"hf", "file"}.isdisjoint(sources):
        import_transformers()
    if "tv" in sources:
        import_torchvision()
    gc.collect()
    gc.freeze()  # libraries are here to stay: what points leave behind is then collected in a moment
    if not device.startswith("cuda"):
        from modelhound.meter import describe_machine

        found = DeviceFound(name=describe_machine().cpu, memory_bytes=usable_memory_bytes())
        return msgspec.to_builtins(found)
    free, total = torch.cuda.mem_get_info(device)
    if memory_bytes is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory_bytes / total), device)
    tensor = torch.ones(64, 64, device=device)
    look_at_kernels(lambda: tensor @ tensor, device=device)  # the profiler needs seconds the first time
    found = DeviceFound(name=torch.cuda.get_device_name(device), memory_bytes=int(free * (1 - _GPU_RESERVE)))
    return msgspec.to_builtins(found)


def measure_rates(device: str, precision: str) -> Any:
    """The entry for a worker: JSON in, JSON out."""
    import torch

    set_precision(precision)
    on_gpu = device.startswith("cuda")
    dtype = dtype_of(precision)
    with torch.inference_mode():
        kinds = {
            "product": _rate_products(device, dtype),
            "attention": _rate_attention(device, dtype),
            **_rate_convolutions(device, dtype),
        }
        source = torch.randn((1 << 28) if on_gpu else (1 << 24), device=device)
        target = torch.empty_like(source)
        copied = 2 * source.numel() * source.element_size() / _seconds(functools.partial(target.copy_, source), device)
    del source, target
    if on_gpu:
        torch.cuda.empty_cache()
    rates = Rates(
        flops_per_second=max(kinds.values()),
        kind_flops_per_second=kinds,
        bytes_per_second=copied,
        tf32=describe_tf32(precision) if on_gpu else None,
    )
    return msgspec.to_builtins(rates)


def _rate_products(device: str, dtype: "torch.dtype") -> float:
    import torch

    side = 8192 if device.startswith("cuda") else 1024
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / _seconds(functools.partial(torch.mm, left, right), device)


def _rate_attention(device: str, dtype: "torch.dtype") -> float:
    import torch

    batch, heads, length, width = (32, 12, 512, 64) if device.startswith("cuda") else (1, 12, 256, 64)
    query, key, value = (torch.randn(batch, heads, length, width, device=device, dtype=dtype) for _ in range(3))
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, query, key, value)
    return 4 * batch * heads * length**2 * width / _seconds(attend, device)


def _rate_convolutions(device: str, dtype: "torch.dtype") -> dict[str, float]:
    """Over all channels, over groups of a few (as ResNeXt has them), and over each channel by itself."""
    import torch

    batch, channels, width = (64, 256, 56) if device.startswith("cuda") else (4, 64, 56)
    images = torch.randn(batch, channels, width, width, device=device, dtype=dtype)
    rates = {}
    for kind, seen in (("convolution", channels), ("grouped", 8), ("depthwise", 1)):
        kernel = torch.randn(channels, seen, 3, 3, device=device, dtype=dtype)
        convolve = functools.partial(torch.nn.functional.conv2d, images, kernel, padding=1, groups=channels // seen)
        rates[kind] = 2 * batch * width**2 * channels * seen * 9 / _seconds(convolve, device)
    return rates


def _seconds(call: Callable[[], Any], device: str) -> float:
    return median_of(take_samples(call, _PLAN, device=device).seconds)
