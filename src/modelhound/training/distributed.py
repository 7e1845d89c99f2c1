"""This rank among the others: who it is, what all agree on, and how gradients travel.

In:  whatever `launch` set up: a process group, or none for a rank that is alone
Out: a Link: sums and agreements over all ranks, the network wrapped so that gradients are averaged, and batch normalisation
     over the items of all ranks
Nothing here knows what is trained. Gradients travel while the backward pass still runs; the hook notes when the last of them
set out, so that what remains can be told from computing.
"""

import os
from typing import Any

import torch
from torch import distributed, nn

from modelhound.compat import import_timm
from modelhound.meter import seconds_now
from modelhound.training.delaying import delay

__all__ = ["Link", "Traffic", "synchronise_batchnorm"]


class Traffic:
    """How gradients travel: watched, delayed on purpose, or left at home to see what that would save."""

    def __init__(self, device: str) -> None:
        self.enabled = True
        self.delay_seconds = 0.0
        self.last_sent_at = 0.0
        self.last_sent_event: torch.cuda.Event | None = None
        self._on_cuda = device.startswith("cuda")
        self._is_first = True

    def begin(self) -> None:
        """Before each backward pass that ends with an exchange."""
        self.last_sent_at, self.last_sent_event, self._is_first = 0.0, None, True

    def send(self, group: Any, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
        """What DistributedDataParallel calls as soon as a bucket of gradients is complete."""
        self.last_sent_at = seconds_now()
        if self._on_cuda:
            self.last_sent_event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self.last_sent_event.record()
        gradients = bucket.buffer()
        if not self.enabled:
            done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            done.set_result(gradients)
            return done
        sent = distributed.all_reduce(gradients.div_(distributed.get_world_size()), async_op=True)
        late_by, self._is_first = (self.delay_seconds if self._is_first else 0.0), False
        return sent.get_future().then(lambda arrived: _held_back(arrived.value()[0], late_by, self._on_cuda))  # type: ignore[no-any-return]


def _held_back(gradients: torch.Tensor, seconds: float, on_cuda: bool) -> torch.Tensor:
    """The same, some time later, as over a slower network."""
    if seconds > 0:
        delay(seconds, on_cuda=on_cuda)
    return gradients


class Link:
    """This rank and the others."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_joined = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if self.is_joined else 0
        self.num_ranks = distributed.get_world_size() if self.is_joined else 1
        # on this machine, which they share; torchrun tells
        self.num_local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", self.num_ranks)) if self.is_joined else 1
        self.traffic = Traffic(device)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over all ranks; itself where there is only one."""
        if self.num_ranks == 1:
            return module
        devices = [torch.device(self.device)] if self.device.startswith("cuda") else None
        wrapped = nn.parallel.DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
        # without types: torch would compare them with its own, which mypy cannot name
        wrapped.register_comm_hook(None, lambda group, bucket: self.traffic.send(group, bucket))
        return wrapped

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, on all ranks."""
        if self.num_ranks > 1:
            values = values.to(self.device)
            distributed.all_reduce(values)
        return values

    def largest(self, value: float) -> float:
        """The largest of all ranks' values, on all ranks."""
        if self.num_ranks == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64, device=self.device)
        distributed.all_reduce(values, op=distributed.ReduceOp.MAX)
        return float(values[0])

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows that are dealt out by turns, rank 0 first, put back in order; every rank may have one fewer than the first."""
        if self.num_ranks == 1:
            return rows
        longest = int(self.largest(len(rows)))
        total = int(self.total(torch.tensor([len(rows)], device=self.device))[0])
        padded = rows.new_zeros((longest, *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.num_ranks)]
        distributed.all_gather(parts, padded)
        return torch.stack(parts, dim=1).flatten(0, 1)[:total]

    def barrier(self) -> None:
        if self.num_ranks > 1:
            distributed.barrier()


def synchronise_batchnorm(module: nn.Module, device: str) -> nn.Module:
    """The module with batch normalisation over the items of all ranks.

    torch's own does this on GPUs only; on CPUs (gloo) a plain one of ours takes its place. Names of tensors stay.
    """
    if device.startswith("cuda"):
        # timm's own knows its layers that have an activation built in
        converted: nn.Module = import_timm().layers.convert_sync_batchnorm(module)
        return converted
    for name, child in list(module.named_children()):
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(module, name, _SynchronisedBatchNorm(child))
        else:
            synchronise_batchnorm(child, device)
    return module


class _SynchronisedBatchNorm(nn.Module):
    """Batch normalisation with the mean and variance over the items of all ranks."""

    def __init__(self, like: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias = like.weight, like.bias
        self.register_buffer("running_mean", like.running_mean)
        self.register_buffer("running_var", like.running_var)
        self.register_buffer("num_batches_tracked", like.num_batches_tracked)
        self.eps, self.momentum = like.eps, 0.1 if like.momentum is None else like.momentum
        # timm's layers go on with these; others do not have them
        self.drop: nn.Module = getattr(like, "drop", None) or nn.Identity()
        self.act: nn.Module = getattr(like, "act", None) or nn.Identity()
        self.training = like.training

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        shape = (1, -1, *(1,) * (values.ndim - 2))
        mean, variance = self.get_buffer("running_mean"), self.get_buffer("running_var")
        if self.training:
            over = [axis for axis in range(values.ndim) if axis != 1]
            count = values.numel() // values.shape[1] * distributed.get_world_size()
            own_mean = _total(values.sum(over)) / count
            own_variance = _total((values - own_mean.view(shape)).square().sum(over)) / count
            with torch.no_grad():
                mean.lerp_(own_mean.detach(), self.momentum)
                variance.lerp_(own_variance.detach() * count / max(1, count - 1), self.momentum)
                self.get_buffer("num_batches_tracked").add_(1)
            mean, variance = own_mean, own_variance
        normal = (values - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        result: torch.Tensor = self.act(self.drop(normal))
        return result


def _total(values: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks, through which gradients flow back."""
    summed: torch.Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return summed


class _Sum(torch.autograd.Function):
    """Every rank's result depends on every rank's values, so gradients are summed over ranks too."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        summed = values.clone()
        distributed.all_reduce(summed)
        return summed

    @staticmethod
    def backward(context: Any, gradients: torch.Tensor) -> torch.Tensor:
        summed = gradients.contiguous().clone()
        distributed.all_reduce(summed)
        return summed
