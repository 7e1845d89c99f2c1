"""Many trainings of networks that are alike, as one: each step of all of them is one step of a pile.

In:  TrialRequests of networks that have the same shapes; they may differ in weights, rate, fold and seed
Out: for each, a TrialResult after every stage
Nothing here knows what the trials are for. A network of 32 pixels keeps a large GPU busy for a hundredth of the time that it
takes to ask for its kernels, and processes that share a GPU wait for each other; a pile asks once for all. The recipe, the
new heads, the order of items and what is done to images are those of `finals.trials`, whose numbers these are but for rounding
(fp32 here on every device); where folds differ by an item, all take as many steps of as many items as the smallest.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from modelhound.finals.trials import Classroom, TrialRequest, TrialResult, _set_up
from modelhound.meter import seconds_now
from modelhound.records import pack_items
from modelhound.training import Bench
from modelhound.training.augmenting import _resample
from modelhound.training.loop import prepare_to_learn
from modelhound.training.recipe import Schedule

__all__ = ["run_stacked", "shape_of"]

_MOMENTA, _LEAST_DEVIATION = (0.9, 0.999), 1e-8  # as torch.optim.AdamW has them
_TESTED_AT_ONCE = 128


def shape_of(request: TrialRequest, room: Classroom) -> str:
    """Networks with the same one can be trained in one pile."""
    bench = _set_up(request, room, stage=0)
    modules = [
        (name, type(each).__name__, each.extra_repr())
        for name, each in bench.trainable.named_modules()
        if all(own.requires_grad for own in each.parameters(recurse=False))  # the old classifier does not count
    ]
    tensors = [(name, tuple(each.shape)) for name, each in bench.trainable.named_parameters() if each.requires_grad]
    return repr((modules, tensors, bench.course.form))


def run_stacked(requests: Sequence[TrialRequest], room: Classroom) -> list[list[TrialResult]]:
    """For each request, the result after each of its stages; all have the same stages."""
    found: list[list[TrialResult]] = [[] for _ in requests]
    pile: _Pile | None = None
    for stage in range(len(requests[0].cycles)):
        benches = [_set_up(request, room, stage=stage) for request in requests]
        pile = pile or _Pile(benches)
        started = seconds_now()
        with sdpa_kernel(SDPBackend.MATH):  # the only attention that can be piled up
            num_steps = _learn(pile, benches, requests, room, stage)
            scores, losses = _test(pile, benches, requests, room)
        seconds = (seconds_now() - started) / len(requests)
        for place, (right, loss) in enumerate(zip(scores, losses, strict=True)):
            found[place].append(
                TrialResult(
                    item_scores=pack_items(right),
                    loss=loss,
                    num_steps=num_steps,
                    seconds=seconds,
                    error="" if np.isfinite(loss) else "the loss is not a number",
                )
            )
    return found


class _Pile:
    """Weights, statistics and the optimiser's memory of all networks; whatever learns is one matrix, a row for each."""

    def __init__(self, benches: Sequence[Bench]) -> None:
        self.base = benches[0].trainable
        _pool_by_means(self.base)
        named = [dict(each.trainable.named_parameters()) for each in benches]
        learning = {name: each for name, each in named[0].items() if each.requires_grad}
        self._shapes = {name: each.shape for name, each in learning.items()}
        self._sizes = [each.numel() for each in learning.values()]
        rows = [torch.cat([each[name].detach().reshape(-1) for name in learning]) for each in named]
        self.weights = torch.stack(rows).requires_grad_()
        buffers = [dict(each.trainable.named_buffers()) for each in benches]
        self._buffers = {name: torch.stack([each[name] for each in buffers]) for name in buffers[0]}
        decay = benches[0].recipe.decay
        self._decay = torch.cat(
            [torch.full_like(each.detach(), decay if each.ndim > 1 else 0.0).reshape(-1) for each in learning.values()]
        )
        self._first, self._second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self._num_steps = 0

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """From [networks, items, ...] to [networks, items, classes]."""
        pieces = self.weights.split(self._sizes, dim=1)
        learning = {
            name: piece.reshape(len(piece), *shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }
        run = torch.vmap(self._run_one, randomness="different")
        outputs: torch.Tensor = run(learning, self._buffers, inputs)
        return outputs

    def _run_one(self, learning: dict[str, Any], buffers: dict[str, Any], inputs: torch.Tensor) -> torch.Tensor:
        """The classifier that a network came with is set aside and stays its own."""
        outputs: torch.Tensor = functional_call(self.base, (learning, buffers), (inputs,))
        return outputs

    @torch.no_grad()
    def move(self, rates: torch.Tensor) -> None:
        """One step of AdamW; a rate for each network."""
        gradient, self.weights.grad = self.weights.grad, None
        assert gradient is not None
        self._num_steps += 1
        low, high = _MOMENTA
        rates = rates[:, None]
        self.weights.mul_(1 - rates * self._decay)
        self._first.lerp_(gradient, 1 - low)
        self._second.mul_(high).addcmul_(gradient, gradient, value=1 - high)
        deviation = (self._second / (1 - high**self._num_steps)).sqrt_().add_(_LEAST_DEVIATION)
        self.weights.sub_(rates / (1 - low**self._num_steps) * self._first / deviation)


class _MeanOverPlaces(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mean((-2, -1), keepdim=True)


def _pool_by_means(module: torch.nn.Module) -> None:
    """The same numbers; torch knows no pooling of piles on a GPU and would pool one network after the other."""
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.AdaptiveAvgPool2d) and child.output_size in (1, (1, 1)):
            setattr(module, name, _MeanOverPlaces())
        else:
            _pool_by_means(child)


def _learn(pile: _Pile, benches: Sequence[Bench], requests: Sequence[TrialRequest], room: Classroom, stage: int) -> int:
    """All epochs of this stage."""
    epochs, device = requests[0].cycles[stage], requests[0].device
    batch = min(bench.course.batch for bench in benches)
    per_epoch = min(bench.course.steps_per_epoch for bench in benches)
    rates = _rates(benches, epochs * per_epoch, device)
    learned = [room.learned_from(request.fold) for request in requests]
    torch.manual_seed(benches[0].recipe.seed)  # dropout
    prepare_to_learn(benches[0])
    pile.base.train()
    for epoch in range(epochs):
        orders = [bench.course.positions(epoch) for bench in benches]
        for number in range(per_epoch):
            chosen = [
                positions[order[number * batch : (number + 1) * batch]]
                for positions, order in zip(learned, orders, strict=True)
            ]
            inputs, targets = _take(room, benches, np.stack(chosen))
            step = epoch * per_epoch + number
            inputs = _augment(benches, inputs, step)
            losses = F.cross_entropy(pile(inputs).flatten(0, 1), targets.flatten(), reduction="none")
            losses.view(len(benches), -1).mean(1).sum().backward()  # type: ignore[no-untyped-call]
            pile.move(rates[step])
    return epochs * per_epoch


def _rates(benches: Sequence[Bench], num_steps: int, device: str) -> torch.Tensor:
    """[steps, networks]"""
    schedules = [Schedule(bench.recipe, float(bench.recipe.rate or 0), num_steps) for bench in benches]
    values = [[schedule.rate_at(step) for schedule in schedules] for step in range(num_steps)]
    return torch.tensor(values, dtype=torch.float32, device=device)


def _take(room: Classroom, benches: Sequence[Bench], positions: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.from_numpy(room.dataset.targets[positions.reshape(-1)])
    moved = room.held.take(benches[0].course.form, positions.reshape(-1), targets)
    inputs = moved.inputs.contiguous()  # convolutions of piles know no other order
    return inputs.view(*positions.shape, *inputs.shape[1:]), moved.targets.view(positions.shape)


def _augment(benches: Sequence[Bench], inputs: torch.Tensor, step: int) -> torch.Tensor:
    """What each of them would do to its own items, at once."""
    changes = [bench.stepper.augmentation for bench in benches]
    if changes[0].kind == "none":
        return inputs
    draws = torch.cat([change._draw(step)[: inputs.shape[1]] for change in changes]).to(inputs.device)
    mirror = changes[0].kind in ("flip", "strong")
    return _resample(inputs.flatten(0, 1), draws, mirror=mirror).contiguous().view(inputs.shape)


@torch.no_grad()
def _test(
    pile: _Pile, benches: Sequence[Bench], requests: Sequence[TrialRequest], room: Classroom
) -> tuple[list[NDArray[np.float32]], list[float]]:
    """For each network, whether each item is told right, and the mean loss."""
    tested = [room.tested_on(request.fold) for request in requests]
    longest = max(map(len, tested))
    positions = np.stack([np.resize(each, longest) for each in tested])  # filled up; cut off again below
    pile.base.eval()
    rights, losses = [], []
    for start in range(0, longest, _TESTED_AT_ONCE):
        inputs, targets = _take(room, benches, positions[:, start : start + _TESTED_AT_ONCE])
        logits = pile(inputs)
        rights.append(logits.argmax(2) == targets)
        losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape))
    right, loss = torch.cat(rights, 1).float().cpu().numpy(), torch.cat(losses, 1).cpu().numpy()
    return (
        [row[: len(each)] for row, each in zip(right, tested, strict=True)],
        [float(row[: len(each)].mean()) for row, each in zip(loss, tested, strict=True)],
    )
