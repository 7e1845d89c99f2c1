"""What a rung says of a model, by which it may be dropped.

In:  features of the items so far, and their targets
Out: the Evidence that `analysis.racing` judges by
Nothing here knows other models: that the same items are halved for all of them follows from the seed.
"""

import numpy as np
import torch

from modelhound.analysis.racing import Evidence
from modelhound.data.choosing import choose_balanced, strata
from modelhound.features.plain import feature_set_of
from modelhound.measuring.scoring import Job, tested_only
from modelhound.scores import Score, score
from modelhound.settings import decisive_scorer

__all__ = ["Scales"]


class Scales:
    """Weigh every model of a job in the same way; several threads may."""

    def __init__(self, job: Job) -> None:
        self._dataset, self._seed = job.dataset, job.settings.seed
        self._decisive = decisive_scorer(job.scorers)
        self._halves: dict[int, np.ndarray] = {}
        """By how many items there are: of a job these are always the same."""

    def weigh(self, features: torch.Tensor, targets: torch.Tensor) -> Evidence:
        """What the decisive scorer says of the items so far, by the layer it likes best, and would say of half of them.

        `features` has a row for each item, with several layers each, where there are several.
        """
        half = self._halve(targets)
        there = torch.from_numpy(half).to(features.device)
        targets = targets.to(features.device)
        layers = [features] if features.ndim == 2 else list(features.unbind(1))
        found = [self._ask(layer, targets) for layer in layers]
        best = max(range(len(layers)), key=lambda place: found[place].value)
        item_scores, before = found[best].item_scores, self._ask(layers[best][there], targets[there]).item_scores
        assert item_scores is not None
        assert before is not None
        others = tested_only(np.delete(item_scores, half))
        return Evidence(
            item_scores=tested_only(item_scores),
            item_gains=tested_only(item_scores[half] - before),
            other_score=float(others.mean()) if len(others) else 0.0,
        )

    def _ask(self, features: torch.Tensor, targets: torch.Tensor) -> Score:
        given = feature_set_of(self._dataset, features.contiguous(), targets)
        return score(given, [self._decisive], seed=self._seed).values[self._decisive]

    def _halve(self, targets: torch.Tensor) -> np.ndarray:
        """One half of the items, of all classes alike, by their places."""
        if len(targets) not in self._halves:
            groups = strata(targets.numpy(), self._dataset.task)
            self._halves[len(targets)] = choose_balanced(groups, limit=len(targets) // 2, seed=self._seed)
        return self._halves[len(targets)]
