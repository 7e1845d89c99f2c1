"""What one call computes and moves, operator by operator, without a clock.

In:  a call on tensors of any device; on the meta device nothing is computed and it takes milliseconds
Out: a Count: FLOPs, bytes, kernels, and the most that is held at once
Nothing here knows a network. FLOPs are torch's own (`torch.utils.flop_counter`): a multiplication and an addition are two, and
only matrix products, convolutions and attention count. Bytes are those of the tensors that operators read and write; views
are free. Attention is one operator here, as the fused kernels have it.
"""

import collections
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from modelhound.records import OperatorKind

__all__ = ["Count", "count_call"]

_VALUES = (torch.ops.aten.item, torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero)
_ATTENTION = torch.ops.aten.scaled_dot_product_attention
# Operators that only ask for memory or rename it: nothing is computed, and no kernel starts.
_FREE = {"empty", "empty_like", "new_empty", "_unsafe_view", "detach", "lift_fresh", "empty_strided", "is_same_size"}


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """What one call costs, before anything is timed."""

    flops: float
    activation_bytes: float
    """Written by all operators: every intermediate result once."""
    moved_bytes: float
    """Read and written by all operators, weights included: what a device without caches would move."""
    live_bytes: float
    """The most that intermediate results hold at once, weights and inputs not counted."""
    num_kernels: int
    """Operators that do something: about as many kernels start on a GPU."""
    operators: tuple[tuple[OperatorKind, float, float, float, int], ...]
    """What kind, FLOPs, bytes moved without weights, bytes of weights read, and how many operators have just these."""


def count_call(call: Callable[[], Any], weights: Iterable[torch.Tensor] = ()) -> Count:
    """Run the call once and count; `weights` are what does not grow with the batch."""
    counter = _Counter({_key(tensor) for tensor in weights})
    with torch.inference_mode(), counter:
        result = call()
    del result
    return Count(
        flops=float(counter.flops),
        activation_bytes=float(counter.written),
        moved_bytes=float(counter.moved),
        live_bytes=float(counter.most_live),
        num_kernels=counter.num_kernels,
        operators=tuple((*costs, number) for costs, number in counter.operators.items()),
    )


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator on its way to a device."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: collections.Counter[tuple[OperatorKind, float, float, float]] = collections.Counter()
        self._weights = weights
        self.flops = self.written = self.moved = self.live = self.most_live = self.num_kernels = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet in _VALUES and _tensors(args) and _tensors(args)[0].is_meta:
            return 0  # nobody knows, and shapes rarely hang on it: no token is masked, none is special
        if packet is not _ATTENTION and packet not in flop_registry and func is not torch.ops.prim.device.default:
            with self:  # `linear`, `matmul` and the like are made of others, which are what is counted
                made_of = func.decompose(*args, **kwargs)
            if made_of is not NotImplemented:
                return made_of
        result = func(*args, **kwargs)
        flops = 0
        if packet is _ATTENTION:
            flops = _attention_flops(*args[:3])
        elif packet in flop_registry:
            flops = int(flop_registry[packet](*args, **kwargs, out_val=result))
        if not func.is_view and func._opname not in _FREE:
            given = _tensors((args, kwargs))
            # Of a table only the rows that are looked up are read.
            read = given[1:] if packet is torch.ops.aten.embedding else given
            self._add(_kind(func._opname, given, flops), flops, read, _tensors(result))
        return result

    def _add(self, kind: OperatorKind, flops: int, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if not made:
            return
        written = sum(_size(tensor) for tensor in made)
        weights = sum(_size(tensor) for tensor in given if _key(tensor) in self._weights)
        moved = written + sum(_size(tensor) for tensor in given)
        self.num_kernels += 1
        self.flops += flops
        self.written += written
        self.moved += moved
        self.operators[kind, float(flops), float(moved - weights), float(weights)] += 1
        known = {_key(tensor) for tensor in given}
        for tensor in made:
            if _key(tensor) not in known:
                self._hold(tensor)

    def _hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._storages and self._storages[key]() is not None:
            return
        self.live += num_bytes
        self.most_live = max(self.most_live, self.live)

        def let_go(gone: Any) -> None:
            self.live -= num_bytes

        self._storages[key] = weakref.ref(storage, let_go)


def _kind(name: str, given: list[torch.Tensor], flops: int) -> OperatorKind:
    if not flops:
        return "other"
    if "attention" in name:
        return "attention"
    if "conv" not in name:
        return "product"
    images, kernels = given[:2]
    channels, seen = images.shape[1], kernels.shape[1]  # each kernel sees so many of the channels
    return "depthwise" if seen == 1 < channels else "grouped" if seen < channels else "convolution"


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> int:
    """Two products of matrices for every head: queries with keys, weights with values."""
    *heads, num_queries, width = query.shape
    pairs = torch.Size(heads).numel() * num_queries * key.shape[-2]
    return int(2 * pairs * (width + value.shape[-1]))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
