"""Which items are learned from and which are held out, with the features made ready for learning.

In:  features, targets and a seed
Out: a Split, the same for every scorer that asks with the same seed
Nothing here knows what is learned.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

__all__ = ["Split", "draw_held_out", "draw_held_out_of_each_class", "standardise"]

_HELD_OUT_SHARE = 0.2
_CONSTANT = 1e-14  # of a squared mean: a smaller variance is float32 rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A fifth of the items to test on; the others, standardised, to learn from."""

    held_out: torch.Tensor  # [num_items], boolean
    inputs: torch.Tensor  # [num_training_items, num_features], float32, only ever read
    mean: torch.Tensor  # [num_features], float64, of the training items
    scale: torch.Tensor  # [num_features], 1 / deviation, 0 for a feature that does not vary


def draw_held_out(num_items: int, *, seed: int) -> torch.Tensor:
    """Which items to test on, [num_items] boolean: a fifth of all, rounded, at least one and never all."""
    num_tested = min(max(1, round(_HELD_OUT_SHARE * num_items)), num_items - 1)
    held_out = torch.zeros(num_items, dtype=torch.bool)
    held_out[torch.randperm(num_items, generator=torch.Generator().manual_seed(seed))[:num_tested]] = True
    return held_out


def draw_held_out_of_each_class(labels: torch.Tensor, counts: torch.Tensor, *, seed: int) -> torch.Tensor:
    """The same with a fifth of each class, rounded, at least one and never all."""
    # drawn on the CPU, so that every device gets the same split
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    place_in_class = torch.arange(len(labels), device=labels.device) - starts[labels[by_class]]
    quota = torch.where(counts >= 2, (_HELD_OUT_SHARE * counts).round().clamp_min(1), 0.0)
    held_out = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    held_out[by_class] = place_in_class < quota[labels[by_class]]
    return held_out


def standardise(features: torch.Tensor, held_out: torch.Tensor, blocks: Iterable[slice]) -> Split:
    """Make the training items' features have mean 0 and variance 1, or be 0 where they do not vary."""
    items = (~held_out).nonzero().squeeze(1)
    inputs = torch.empty(len(items), features.shape[1], dtype=torch.float32, device=features.device)
    parts = [slice(rows.start, min(rows.stop, len(items))) for rows in blocks if rows.start < len(items)]
    whole = features[items].double() if len(parts) == 1 else None  # to pick items takes longer than all else

    def pick(rows: slice) -> torch.Tensor:
        return features[items[rows]].double() if whole is None else whole

    mean = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    for rows in parts:
        mean += pick(rows).sum(0)
    mean /= len(items)
    variance = torch.zeros_like(mean)
    for rows in parts:
        variance += (pick(rows) - mean).square_().sum(0)
    variance /= len(items)
    scale = torch.where(variance > _CONSTANT * mean.square(), variance.rsqrt(), 0.0)
    for rows in parts:
        inputs[rows] = (pick(rows) - mean) * scale
    return Split(held_out=held_out, inputs=inputs, mean=mean, scale=scale)
