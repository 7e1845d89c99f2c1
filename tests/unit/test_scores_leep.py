"""LEEP by the network's own classifier, with answers worked out by hand; and what happens where there is no classifier."""

import math

import pytest
import torch

from modelhound.errors import RequestError
from modelhound.scores import FeatureSet, score

SOURCE = torch.tensor(
    [
        [0.5, 0.5, 0.0],
        [0.5, 0.5, 0.0],
        [0.5, 0.0, 0.5],
        [0.0, 0.0, 1.0],
    ]
)
LABELS = torch.tensor([0, 0, 0, 1])


def _given(source: torch.Tensor | None, labels: torch.Tensor = LABELS) -> FeatureSet:
    features = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(0))
    return FeatureSet(features=features, targets=labels, num_classes=int(labels.max()) + 1, source_probabilities=source)


def test_leep_is_what_the_formula_gives_by_hand() -> None:
    # Column sums of SOURCE are 1.5, 1.0 and 1.5. Of these class 0 holds 1.5, 1.0 and 0.5, so P(0|z) = 1, 1, 1/3, and P(1|z)
    # = 0, 0, 2/3. The items expect their own class with 1, 1, 0.5 + 0.5 / 3 = 2/3, and 2/3.
    got = score(_given(SOURCE), ["leep"], seed=0)
    assert got.values["leep"].value == pytest.approx(math.log(2 / 3) / 2)
    assert got.values["leep"].item_scores is None
    assert got.missing == {}


def test_leep_does_not_count_source_classes_given_labels() -> None:
    # P(z|y), the swapped table, would give items 0 to 2 sum over z of P(z|0) t(z) = 5/12, 5/12, 1/3, and item 3 just 1.
    swapped = (2 * math.log(5 / 12) + math.log(1 / 3)) / 4
    assert score(_given(SOURCE), ["leep"], seed=0).values["leep"].value != pytest.approx(swapped, abs=0.1)


def test_a_classifier_that_says_the_same_of_all_items_gives_minus_the_entropy_of_the_labels() -> None:
    same = torch.tensor([[0.2, 0.3, 0.5]]).expand(4, 3)
    expected = 0.75 * math.log(0.75) + 0.25 * math.log(0.25)
    assert score(_given(same), ["leep"], seed=0).values["leep"].value == pytest.approx(expected)


def test_a_network_without_a_classifier_is_judged_by_the_other_scorers() -> None:
    got = score(_given(None), ["ridge", "leep", "knn"], seed=0)
    assert list(got.values) == ["ridge", "knn"]
    assert got.missing == {"leep": "the network has no classifier of its own"}


def test_a_classifier_that_gives_nan_does_not_fail_the_model() -> None:
    broken = SOURCE.clone()
    broken[1] = torch.nan
    got = score(_given(broken), ["leep", "ridge"], seed=0)
    assert list(got.values) == ["ridge"]
    assert got.missing == {"leep": "the network's own classifier gives NaN or infinite values"}


@pytest.mark.parametrize(
    "source",
    [
        torch.ones(4),
        torch.ones(3, 1),
        torch.ones(4, 1, dtype=torch.int64),
        torch.empty(4, 0),
        torch.ones(4, 2),
        torch.tensor([[1.5, -0.5]] * 4),
    ],
    ids=["one dimension", "too few rows", "whole numbers", "no classes", "rows that add up to 2", "negative"],
)
def test_source_probabilities_that_are_none_are_refused(source: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="cannot use source probabilities"):
        _given(source)


def test_leep_needs_classes() -> None:
    given = FeatureSet(
        features=torch.randn(4, 2), targets=torch.rand(4), num_classes=1, task="regression", source_probabilities=SOURCE
    )
    with pytest.raises(RequestError, match="cannot score by 'leep': expected a scorer for regression targets"):
        score(given, ["leep"], seed=0)
