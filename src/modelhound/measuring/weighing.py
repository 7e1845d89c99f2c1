"""What a rung says of a model, by which it may be dropped.

In:  features of the items so far, and which items these are
Out: the Evidence that `analysis.racing` judges by
Nothing here knows other models: that the same items are halved for all of them follows from the seed.
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch

from modelhound.analysis.racing import Evidence
from modelhound.data.choosing import choose_balanced, strata
from modelhound.measuring.scoring import Job, tested_only
from modelhound.scores import FeatureSet, Score, score
from modelhound.settings import decisive_scorer

__all__ = ["Scales"]


class Scales:
    """Weigh every model of a job in the same way; several threads may."""

    def __init__(self, job: Job) -> None:
        self._dataset, self._seed = job.dataset, job.settings.seed
        self._decisive = decisive_scorer(job.scorers)
        self._halve = functools.cache(self._choose_half)

    def weigh(self, features: torch.Tensor, order: Sequence[int]) -> Evidence:
        """What the decisive scorer says of the items so far, by the layer it likes best, and would say of half of them.

        `features` has a row for each of the first items of `order`, with several layers each, where there are several.
        """
        places = np.asarray(order[: len(features)])
        targets = torch.from_numpy(self._dataset.targets[places]).to(features.device)
        layers = [features] if features.ndim == 2 else list(features.unbind(1))
        found = [self._ask(layer, targets) for layer in layers]
        best = max(range(len(layers)), key=lambda place: found[place].value)
        half = self._halve(tuple(places.tolist()))
        there = torch.from_numpy(half).to(features.device)
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
        given = FeatureSet(
            features=features.contiguous(),
            targets=targets,
            task=self._dataset.task,
            num_classes=len(self._dataset.class_names),
        )
        return score(given, [self._decisive], seed=self._seed).values[self._decisive]

    def _choose_half(self, places: tuple[int, ...]) -> np.ndarray:
        """One half of these items, of all classes alike, by their places among them."""
        groups = strata(self._dataset.targets[list(places)], self._dataset.task)
        return choose_balanced(groups, limit=len(places) // 2, seed=self._seed)
