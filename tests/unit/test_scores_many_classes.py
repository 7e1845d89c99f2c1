"""Thousands of classes must not need memory for a number per item and class."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modelhound import scores
from modelhound.scores import FeatureSet, knn, score
from modelhound.settings import SCORERS

NUM_CLASSES = 1500


class LargestTensor(TorchDispatchMode):
    """Remembers the most bytes that any one result of any operation had."""

    num_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor):
                self.num_bytes = max(self.num_bytes, each.untyped_storage().nbytes())
        return result


def _two_of_each() -> FeatureSet:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2 * NUM_CLASSES) % NUM_CLASSES
    centres = torch.randn(NUM_CLASSES, 16, generator=generator)
    features = centres[labels] + 0.2 * torch.randn(2 * NUM_CLASSES, 16, generator=generator)
    source = (features @ torch.randn(16, 20, generator=generator)).softmax(1)
    return FeatureSet(features=features, targets=labels, num_classes=NUM_CLASSES, source_probabilities=source)


# gbc looks at all pairs of classes and nleep at up to 500 components for each item: bounded, but not by this
@pytest.mark.parametrize("scorer", [name for name in SCORERS if name not in ("gbc", "nleep")])
def test_no_scorer_holds_a_number_for_each_item_and_class(monkeypatch: pytest.MonkeyPatch, scorer: str) -> None:
    monkeypatch.setattr(scores.algebra, "BLOCK_BYTES", 2**20)
    monkeypatch.setattr(scores.products, "_ROWS_TO_SORT", 256)
    monkeypatch.setattr(knn, "BLOCK_ROWS", 256)
    given = _two_of_each()
    with LargestTensor() as largest:
        value = score(given, [scorer], seed=0).values[scorer].value
    assert value > -10.0
    assert 0 < largest.num_bytes < 4 * len(given.targets) * NUM_CLASSES / 4  # a quarter of what even float32 would take


@pytest.mark.parametrize("scorer", ["knn", "centroid"])  # sixteen directions are too few for linear models
def test_classes_of_two_can_be_told_apart_by_the_thousand(scorer: str) -> None:
    assert score(_two_of_each(), [scorer], seed=0).values[scorer].value > 0.5
