"""leep: how well do soft clusters of the items predict their labels?

Intuition. Something that knows nothing of our labels sorts every item softly into clusters: the classes of the data set the
network was trained on, or a mixture fitted to its features. Count which label goes with which cluster. If an item's clusters
then tell its label, the network already sees the differences that matter. The value is a mean log probability, at most 0.

Formula. With t_i(z) the share of item i in cluster z,

    P(y, z) = (1/n) sum over items i of class y of  t_i(z),     P(y|z) = P(y, z) / sum over y of P(y, z),
    LEEP = (1/n) sum over items i of  log( sum over z of  P(y_i|z) t_i(z) ).

The scorer of this name takes t from the classifier the network was trained with, its source classes as probabilities; a network
without one has no value. `nleep` puts a mixture in its place. Mind the direction: what is counted are labels given source
classes, P(y|z), averaged by the item's source classes; with the two exchanged the formula runs as well and says something else.

Nguyen et al., "LEEP: A New Measure to Evaluate Transferability of Learned Representations", ICML 2020.
"""

import torch

from modelhound.scores.algebra import Algebra
from modelhound.scores.feature_set import Missing, Score
from modelhound.scores.products import add_by_class

__all__ = ["leep", "score_by_leep"]


def score_by_leep(algebra: Algebra, *, seed: int) -> Score | Missing:
    """LEEP of the labels by the network's own classifier; it judges all items together."""
    probabilities = algebra.source_probabilities
    if probabilities is None:
        return Missing("the network has no classifier of its own")
    if not bool(probabilities.isfinite().all()):
        return Missing("the network's own classifier gives NaN or infinite values")
    return Score(leep(probabilities.to(algebra.features.device), algebra.labels), None)


def leep(soft_assignments: torch.Tensor, labels: torch.Tensor) -> float:
    """The log expected empirical prediction of `labels` [num_items] by `soft_assignments` [num_items, num_clusters]."""
    num_items, num_clusters = soft_assignments.shape
    joint = torch.zeros(int(labels.max()) + 1, num_clusters, dtype=torch.float64, device=labels.device)  # n P(y, z)
    blocks = list(Algebra.slices(num_items, num_clusters))
    for rows in blocks:
        add_by_class(joint, labels[rows], soft_assignments[rows].double())
    # A cluster without items is never asked; tiny keeps 0/0 out.
    conditional = joint / joint.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    total = 0.0
    for rows in blocks:
        expected = (conditional[labels[rows]] * soft_assignments[rows]).sum(1)
        total += float(expected.log().sum())
    return total / num_items
