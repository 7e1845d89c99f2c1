"""leep: how well do soft clusters of the items predict their labels?

Intuition. Something that knows nothing of our labels sorts every item softly into clusters: the classes of the data set the
network was trained on, or a mixture fitted to its features. Count which label goes with which cluster. If an item's clusters
then tell its label, the network already sees the differences that matter. The value is a mean log probability, at most 0.

Formula. With t_i(z) the share of item i in cluster z,

    P(y, z) = (1/n) sum over items i of class y of  t_i(z),     P(y|z) = P(y, z) / sum over y of P(y, z),
    LEEP = (1/n) sum over items i of  log( sum over z of  P(y_i|z) t_i(z) ).

There is no scorer of this name: it would need the probabilities of the network's own classifier, which a FeatureSet does not
carry. `nleep` puts a mixture in its place.

Nguyen et al., "LEEP: A New Measure to Evaluate Transferability of Learned Representations", ICML 2020.
"""

import torch

__all__ = ["leep"]


def leep(soft_assignments: torch.Tensor, labels: torch.Tensor) -> float:
    """The log expected empirical prediction of `labels` [num_items] by `soft_assignments` [num_items, num_clusters]."""
    shares = soft_assignments.double()
    one_hot = torch.nn.functional.one_hot(labels).double()
    joint = one_hot.T @ shares  # n P(y, z), [num_classes, num_clusters]
    # A cluster without items is never asked; tiny keeps 0/0 out.
    conditional = joint / joint.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    expected = (conditional[labels] * shares).sum(1)
    return float(expected.log().mean())
