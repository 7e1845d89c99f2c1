"""How networks compute where features are made.

In:  the device, and the networks that are to run there
Out: a context for forward passes: no gradients, fp32 that is not rounded on the way, and on a CPU the quicker of two libraries
     for linear layers; the name of that library
Nothing here knows a family of networks. Who times networks as torch runs them by itself (`timing`, `training`) does without.

torch gives linear layers in fp32 to MKL, which on CPUs that Intel did not make keeps to AVX2 whatever they can do. oneDNN,
which torch carries too and gives its convolutions to, asks the CPU: with AVX-512 it makes the same products about twice as fast
on an AMD EPYC (benchmarks/results/products_*). So there, and only there, it is given those of linear layers as well: both are
sums of the same fp32 numbers, in another order. Which library multiplies depends on the layer, not on how many rows there are.
To look at every call costs some microseconds each, so networks without such layers are left alone.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from modelhound.models.source import Network

__all__ = ["computing_features", "linear_library"]

_LEAST_WEIGHTS = 64 * 64  # of a layer: with fewer, to call oneDNN takes longer than the product
_PLAIN = (torch.Tensor, nn.Parameter)  # other kinds, such as quantised ones, know themselves how they multiply


@contextmanager
def computing_features(device: str, *networks: Network) -> Iterator[None]:
    """For the forward passes of these networks in this thread on this device."""
    by_one_dnn = linear_library(device) == "oneDNN" and any(map(_has_large_layers, networks))
    with (
        torch.inference_mode(),
        # cuDNN would round the inputs of convolutions to ten bits (TF32) unless told not to
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        _LinearByOneDnn() if by_one_dnn else nullcontext(),
    ):
        yield


def linear_library(device: str) -> str:
    """Who multiplies in large linear layers in fp32; features differ by rounding where it is another."""
    return "oneDNN" if device == "cpu" and _has_mkl_held_back() else "torch"


@functools.cache
def _has_mkl_held_back() -> bool:
    """Whether this CPU could do more than MKL lets it, and oneDNN is there."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and _maker_of_cpu() == "AuthenticAMD"


def _maker_of_cpu() -> str:
    """As it calls itself; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _has_large_layers(network: Network) -> bool:
    """Whether features pass through any; its classifier is none of them."""
    return any(
        isinstance(each, nn.Linear)
        and each is not network.classify
        and each.in_features * each.out_features >= _LEAST_WEIGHTS
        for each in network.module.modules()
    )


class _LinearByOneDnn(TorchFunctionMode):
    """Takes the calls of large linear layers in fp32; all others go where they always go.

    So do those that torch's own attention makes for itself (`nn.MultiheadAttention`): no function mode sees inside it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear and not kwargs and _is_for_one_dnn(*args):
            rows, weight, *bias = args
            return torch.ops.mkldnn._linear_pointwise(rows, weight, bias[0] if bias else None, "none", [], "")
        return func(*args, **(kwargs or {}))


def _is_for_one_dnn(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> bool:
    return (
        weight.numel() >= _LEAST_WEIGHTS
        and rows.ndim > 1
        and rows.numel() > 0
        and all(
            type(each) in _PLAIN
            and each.dtype is torch.float32
            and each.device.type == "cpu"
            and each.layout is torch.strided
            for each in (rows, weight, bias)
            if each is not None
        )
        and weight.is_contiguous()
        and (bias is None or bias.is_contiguous())  # of one that is not, oneDNN makes nonsense
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )
