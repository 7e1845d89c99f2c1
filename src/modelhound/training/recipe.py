"""From a recipe to an optimiser and a rate for each step.

In:  RecipeSettings, a module, how many steps there will be
Out: a torch optimiser; the learning rate of any step
Nothing here knows the data set or runs anything.
"""

import math

import torch
from torch import nn

from modelhound.settings import RecipeSettings

__all__ = ["Schedule", "choose_rate", "make_optimiser"]

_MOMENTUM = 0.9
_RISING_SHARE = 0.05  # of all steps: large first steps would spoil what the network came with
_RATES = {
    ("full", "adamw", "image"): 3e-4,
    ("full", "adamw", "text"): 5e-5,
    ("full", "sgd", "image"): 1e-2,
    ("full", "sgd", "text"): 1e-3,
}
_HEAD_RATES = {"adamw": 3e-3, "sgd": 1e-1}


def choose_rate(recipe: RecipeSettings, modality: str) -> float:
    """The highest rate: what was asked for, or what usually works."""
    if recipe.rate is not None:
        return recipe.rate
    if recipe.mode != "full":
        return _HEAD_RATES[recipe.optimiser]
    return _RATES[recipe.mode, recipe.optimiser, modality]


def make_optimiser(module: nn.Module, recipe: RecipeSettings, rate: float, device: str) -> torch.optim.Optimizer:
    """Over all parameters that learn; what scales or shifts is not drawn towards zero."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in learning if each.ndim > 1], "weight_decay": recipe.decay},
        {"params": [each for each in learning if each.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    on_cuda = device.startswith("cuda")
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=_MOMENTUM, nesterov=True, fused=on_cuda)
    return torch.optim.AdamW(groups, lr=rate, fused=on_cuda)


class Schedule:
    """The learning rate of every step: a linear rise, then a fall to zero or none."""

    def __init__(self, recipe: RecipeSettings, rate: float, num_steps: int) -> None:
        self._kind, self._rate, self._num_steps = recipe.schedule, rate, num_steps
        self._num_rising = 0 if recipe.schedule == "constant" else math.floor(_RISING_SHARE * num_steps)

    def rate_at(self, step: int) -> float:
        """Of step 0, 1, …"""
        if step < self._num_rising:
            return self._rate * (step + 1) / self._num_rising
        if self._kind == "constant":
            return self._rate
        done = (step - self._num_rising) / max(1, self._num_steps - self._num_rising)
        if self._kind == "linear":
            return self._rate * (1 - done)
        return self._rate * 0.5 * (1 + math.cos(math.pi * done))

    def apply(self, optimiser: torch.optim.Optimizer, step: int) -> None:
        rate = self.rate_at(step)
        for group in optimiser.param_groups:
            group["lr"] = rate
