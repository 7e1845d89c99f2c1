"""A network with a new head for this task, ready to learn.

In:  a Network of `models`, and what is to be told of the items
Out: a Trainable: a module from inputs to one number per class, label or target; its loss; its metric
Nothing here knows where items come from or how weights change.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from modelhound.errors import ModelError
from modelhound.models import Network
from modelhound.scores.outcomes import rank_labels
from modelhound.settings import Task
from modelhound.training.layout import image_layout

__all__ = ["Trainable", "count_outputs", "evaluate_batch", "loss_of", "make_trainable"]

_NUM_BEST = 5


class Trainable(nn.Module):
    """A body that sees and a head that tells; either may be frozen."""

    def __init__(
        self, body: nn.Module, extract: Callable[[Any], torch.Tensor], head: nn.Linear, *, frozen: bool
    ) -> None:
        super().__init__()
        self.body, self.head, self.frozen = body, head, frozen
        self._extract = extract

    def forward(self, inputs: Any) -> torch.Tensor:
        if self.frozen:
            with torch.no_grad():
                features = self._extract(inputs)
        else:
            features = self._extract(inputs)
        logits: torch.Tensor = self.head(features.flatten(1))
        return logits

    def extract(self, inputs: Any) -> torch.Tensor:
        """The features alone."""
        return self._extract(inputs).flatten(1)

    def train(self, mode: bool = True) -> "Trainable":
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    @property
    def num_trained(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)


def count_outputs(task: Task, num_classes: int) -> int:
    """How many numbers the head gives."""
    return 1 if task == "regression" else num_classes


def make_trainable(network: Network, sample: Any, num_outputs: int, *, mode: str, device: str, seed: int) -> Trainable:
    """The network on its device with a new head, whose weights the seed alone decides. `sample` holds inputs of a few items.

    Parameters that the features do not depend on (the classifier it came with) are set aside, or ranks would wait for
    gradients that never come.
    """
    frozen = mode != "full"
    body = network.module.to(device).eval()
    body.to(memory_format=image_layout(device))  # type: ignore[call-overload]
    for parameter in body.parameters():
        parameter.requires_grad_(not frozen and parameter.is_floating_point())
    with torch.set_grad_enabled(not frozen):
        features = network.extract(sample)
        if features.ndim != 2:
            raise ModelError(f"cannot train it: expected one vector per item, found {tuple(features.shape)}")
        if not bool(torch.isfinite(features).all()):
            raise ModelError("cannot train it: its features are NaN or infinite; the weights are damaged")
        if not frozen:
            _set_aside_unused(body, features)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(features.shape[1], num_outputs)
    return Trainable(body, network.extract, head.to(device), frozen=frozen)


def _set_aside_unused(body: nn.Module, features: torch.Tensor) -> None:
    learning = [parameter for parameter in body.parameters() if parameter.requires_grad]
    if not learning or not features.requires_grad:
        raise ModelError(
            "cannot train all of it: expected features that depend on its weights, they do not; use --mode head"
        )
    gradients = torch.autograd.grad(features.float().sum(), learning, allow_unused=True)
    for parameter, gradient in zip(learning, gradients, strict=True):
        if gradient is None:
            parameter.requires_grad_(False)


def loss_of(task: Task, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over items."""
    logits = logits.float()
    if task == "classification":
        return F.cross_entropy(logits, targets)
    if task == "multilabel":
        return F.binary_cross_entropy_with_logits(logits, targets.float())
    return F.mse_loss(logits.squeeze(1), targets.float())


def evaluate_batch(task: Task, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sums over items, [4]: their number, the score, whether the class is among the best five, the loss.

    Of a regression the score is 1 - squared error: training targets have variance 1, so its mean is R2 against that variance.
    """
    logits = logits.float()
    loss = loss_of(task, logits, targets) * len(targets)
    if task == "classification":
        best = logits.topk(min(_NUM_BEST, logits.shape[1]), dim=1).indices == targets[:, None]
        right, among = best[:, 0].sum(), best.any(1).sum()
    elif task == "multilabel":
        right = rank_labels(targets.double(), logits.double()).sum()
        among = torch.zeros_like(right)
    else:
        right = (1 - (logits.squeeze(1) - targets.float()).square()).sum()
        among = torch.zeros_like(right)
    return torch.stack([torch.tensor(float(len(targets)), device=logits.device), right, among, loss]).double()
