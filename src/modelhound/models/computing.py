"""How networks compute where features are made and where they learn.

In:  the device, and the networks that are to run there
Out: a context for features: no gradients, fp32 that is not rounded on the way; on a CPU, and for those who learn, too, the
     quicker of two libraries for linear layers; the name of that library
Nothing here knows a family of networks. Who times networks as torch runs them by itself (`timing`) does without.

torch gives linear layers in fp32 to MKL. Where a CPU can do more than MKL lets it (`compat.is_mkl_held_back`), and only there,
oneDNN is given them instead: the same fp32 numbers are added up in another order. Which library multiplies depends on the
layer, not on how many rows there are. To look at every call costs some microseconds each, so networks without such layers are
left alone.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from modelhound.compat import is_mkl_held_back, linear_by_one_dnn
from modelhound.models.source import Network

__all__ = ["computing_features", "linear_library", "quick_linear"]

_LEAST_WEIGHTS = 64 * 64  # of a layer: with fewer, to call oneDNN takes longer than the product
_PLAIN = (torch.Tensor, nn.Parameter)  # other kinds, such as quantised ones, know themselves how they multiply


@contextmanager
def computing_features(device: str, *networks: Network) -> Iterator[None]:
    """For the forward passes of these networks in this thread on this device."""
    with (
        torch.inference_mode(),
        # cuDNN would round the inputs of convolutions to ten bits (TF32) unless told not to
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        quick_linear(device, *networks)(),
    ):
        yield


def quick_linear(device: str, *networks: Network) -> Callable[[], AbstractContextManager[Any]]:
    """Makes contexts in which this thread's large linear layers are multiplied by the quicker library, gradients included."""
    is_worth_it = linear_library(device) == "oneDNN" and any(map(_has_large_layers, networks))
    return _LinearByOneDnn if is_worth_it else nullcontext


def linear_library(device: str) -> str:
    """Who multiplies in large linear layers in fp32; features differ by rounding where it is another."""
    return "oneDNN" if device == "cpu" and is_mkl_held_back() else "torch"


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
            if not torch.is_grad_enabled():
                return linear_by_one_dnn(*args)
            rows, weight, *bias = args
            return _Linear.apply(rows, weight, bias[0] if bias else None)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """The product and its slopes, which are products too."""

    @staticmethod
    def forward(context: FunctionCtx, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(rows, weight)
        return linear_by_one_dnn(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = context.saved_tensors
        slope = slope.contiguous()  # of a sum it may be one number spread over all places
        flat = slope.flatten(0, -2)
        of_rows, of_weight, of_bias = context.needs_input_grad
        return (
            linear_by_one_dnn(slope, weight.T) if of_rows else None,
            linear_by_one_dnn(flat.T, rows.flatten(0, -2).T) if of_weight else None,
            flat.sum(0) if of_bias else None,
        )


def _is_for_one_dnn(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
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
        and not torch.is_autocast_enabled("cpu")
    )
