"""sgd_probe: how many held-out items does one fully connected layer get right after some epochs of plain SGD?

Intuition. What `probe` finds as the minimum of a convex function, most people approach by walking: shuffle, take a small batch,
step downhill, repeat. This is the proxy task that research on model search uses, kept so that its rankings can be compared.
It stops early, so it also tells whether good weights are quickly found and not only whether they exist.

Formula. The layer has num_classes outputs and starts at 0, which needs no luck: the loss is convex. Features are standardised
as for `probe` and then divided by the square root of their number, so that an item has a length of about 1 and one learning
rate suits every model. For every batch

    W -= rate * gradient of the mean over the batch of  -log softmax(W'x + b)[label],     b likewise,

with rate 2 (from 4 on, steps could overshoot), batches of 64 items, 30 epochs, each in a new order, no momentum, no weight
decay, in float32 as people do. A class without items is never predicted, and takes no part in the softmax.

The split is the one of `probe` for the same seed; the seed also draws the order of the items.

Robbins and Monro, "A Stochastic Approximation Method", Annals of Mathematical Statistics 1951; as a proxy for fine-tuning:
Strassenburg et al., "Alsatian: Optimizing Model Search for Deep Transfer Learning", SIGMOD 2025.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Score
from modelhound.scores.probe import Probe, judge_probe
from modelhound.scores.split import Split

__all__ = ["BATCH", "EPOCHS", "RATE", "fit_sgd_probe", "score_by_sgd_probe"]

RATE = 2.0
BATCH = 64
EPOCHS = 30


def score_by_sgd_probe(algebra: Algebra, *, seed: int) -> Score:
    """Accuracy on a held-out fifth of the items of a linear layer trained by stochastic gradient descent."""
    split = algebra.split(seed)
    return judge_probe(fit_sgd_probe(algebra, split, seed=seed), algebra, split)


def fit_sgd_probe(algebra: Algebra, split: Split, *, seed: int) -> Probe:
    """Train on the items that are not held out."""
    inputs, labels = split.inputs, algebra.labels[~split.held_out]
    # Weights are kept divided by the root of the number of features, instead of the features. [num_classes, num_features]:
    # this way round both products are faster.
    weights = inputs.new_zeros(algebra.num_classes, algebra.num_features)
    intercepts = torch.where(algebra.counts > 0, 0.0, -torch.inf).float()
    places = torch.arange(BATCH, device=inputs.device)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        # drawn on the CPU, so that every device gets the same order
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
        for batch in torch.split(order, BATCH):
            some = inputs[batch]
            # the gradient by hand, as in `probe`: it works inside torch.inference_mode
            errors = torch.addmm(intercepts, some, weights.T).softmax(1)
            errors[places[: len(batch)], labels[batch]] -= 1
            weights.addmm_(errors.T, some, alpha=-RATE / (len(batch) * algebra.num_features))
            intercepts.sub_(errors.sum(0), alpha=RATE / len(batch))
    return Probe(mean=split.mean, scale=split.scale, weights=weights.T.double(), intercepts=intercepts.double())
