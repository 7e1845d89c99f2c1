"""What every scorer promises, checked on every shape of features it may meet."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from modelhound.errors import ModelError
from modelhound.scores import FeatureSet, Score, score
from modelhound.settings import ACCURACY_SCORERS, SCORERS

Recipe = Callable[[float], FeatureSet]

SPLITTING_SCORERS = ("probe", "sgd_probe")  # they test a part of the items, and the split goes by position


def _make(
    separation: float, *, counts: tuple[int, ...], num_features: int, rank: int | None = None, seed: int = 0
) -> FeatureSet:
    """Gaussian clouds, one per class, whose centres lie `separation` apart; 0 is pure noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    width = rank or num_features
    centres = torch.randn(len(counts), width, generator=generator)
    centres -= centres.mean(0)
    centres /= centres.norm(dim=1, keepdim=True)
    features = torch.randn(len(labels), width, generator=generator) + separation * centres[labels]
    if rank is not None:
        features = features @ torch.randn(rank, num_features, generator=generator)
    # off the origin and on different scales, as real features are
    features = 2.0 + features * torch.linspace(0.5, 2.0, num_features)
    return FeatureSet(features=features, labels=labels, num_classes=len(counts))


SHAPES: dict[str, Recipe] = {
    "tall": lambda separation: _make(separation, counts=(40, 40, 40), num_features=12),
    "wide": lambda separation: _make(separation, counts=(20, 20, 20), num_features=90),
    "two classes": lambda separation: _make(separation, counts=(50, 50), num_features=8),
    "imbalanced": lambda separation: _make(separation, counts=(90, 10), num_features=8),
    "rank-deficient tall": lambda separation: _make(separation, counts=(40, 40, 40), num_features=30, rank=5),
    "rank-deficient wide": lambda separation: _make(separation, counts=(20, 20, 20), num_features=90, rank=5),
    "as many features as items": lambda separation: _make(separation, counts=(30, 30), num_features=60, rank=9),
    "a class of two": lambda separation: _make(separation, counts=(30, 30, 2), num_features=6),
}

# One feature has its own data below: cosines of single numbers are 1 or -1, so classes must lie either side of 0.
EVERY_SHAPE = pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES.keys())
EVERY_SCORER = pytest.mark.parametrize("scorer", SCORERS)


def _judge(feature_set: FeatureSet, scorer: str, *, seed: int = 3) -> Score:
    return score(feature_set, [scorer], seed=seed)[scorer]


def _one_feature(separation: float) -> FeatureSet:
    labels = torch.arange(80) % 2
    noise = torch.randn(80, 1, generator=torch.Generator().manual_seed(1))
    return FeatureSet(features=noise + separation * (labels[:, None] - 0.5), labels=labels, num_classes=2)


# Promises that the published scores cannot keep; each has one of the next tests to itself.
BLIND = {
    ("hscore", "wide"),
    ("transrate", "wide"),
    ("transrate", "two classes"),
    ("transrate", "as many features as items"),  # two classes of equal size, too
}


@pytest.mark.parametrize(
    ("scorer", "shape"), [(scorer, shape) for scorer in SCORERS for shape in SHAPES if (scorer, shape) not in BLIND]
)
def test_separated_features_score_higher_than_noise(scorer: str, shape: str) -> None:
    make = SHAPES[shape]
    assert _judge(make(9.0), scorer).value > _judge(make(0.0), scorer).value


def test_the_h_score_of_wide_features_of_full_rank_tells_nothing() -> None:
    wide = SHAPES["wide"]
    assert _judge(wide(9.0), "hscore").value == pytest.approx(2.0)
    assert _judge(wide(0.0), "hscore").value == pytest.approx(2.0)


def test_transrate_prefers_noise_where_classes_have_fewer_items_than_features() -> None:
    wide = SHAPES["wide"]
    assert _judge(wide(9.0), "transrate").value < _judge(wide(0.0), "transrate").value


@pytest.mark.parametrize(
    "make",
    [SHAPES["two classes"], SHAPES["as many features as items"], _one_feature],
    ids=["two classes", "as many features as items", "one feature"],
)
def test_transrate_does_not_see_that_two_equal_classes_lie_apart(make: Recipe) -> None:
    assert _judge(make(9.0), "transrate").value < _judge(make(0.0), "transrate").value


def test_transrate_sees_two_classes_of_unequal_size() -> None:
    imbalanced = SHAPES["imbalanced"]
    assert _judge(imbalanced(9.0), "transrate").value > 2 * _judge(imbalanced(0.0), "transrate").value


@pytest.mark.parametrize("scorer", [name for name in SCORERS if name != "transrate"])  # two equal classes: see above
def test_one_separated_feature_scores_higher_than_one_of_noise(scorer: str) -> None:
    assert _judge(_one_feature(6.0), scorer).value > _judge(_one_feature(0.0), scorer).value


@EVERY_SHAPE
@EVERY_SCORER
def test_one_seed_gives_one_score(scorer: str, make: Recipe) -> None:
    first, second = _judge(make(1.5), scorer), _judge(make(1.5), scorer)
    assert first.value == second.value
    if first.item_scores is not None:
        np.testing.assert_array_equal(first.item_scores, second.item_scores)


@EVERY_SHAPE
@pytest.mark.parametrize("scorer", [name for name in SCORERS if name not in SPLITTING_SCORERS])
def test_the_order_of_items_does_not_matter(scorer: str, make: Recipe) -> None:
    given = make(1.5)
    order = torch.randperm(len(given.labels), generator=torch.Generator().manual_seed(7))
    shuffled = FeatureSet(features=given.features[order], labels=given.labels[order], num_classes=given.num_classes)
    before, after = _judge(given, scorer), _judge(shuffled, scorer)
    assert after.value == pytest.approx(before.value, abs=1e-9)
    if before.item_scores is not None:
        np.testing.assert_array_equal(before.item_scores[order.numpy()], after.item_scores)


@EVERY_SHAPE
@EVERY_SCORER
def test_item_scores_are_hits_and_their_mean_is_the_value(scorer: str, make: Recipe) -> None:
    given = make(1.5)
    result = _judge(given, scorer)
    assert isinstance(result.value, float)
    assert np.isfinite(result.value)
    if scorer not in ACCURACY_SCORERS:
        assert result.item_scores is None
        return
    assert result.item_scores is not None
    assert result.item_scores.dtype == np.float32
    assert result.item_scores.shape == (len(given.labels),)
    tested = result.item_scores[~np.isnan(result.item_scores)]
    assert set(np.unique(tested)) <= {0.0, 1.0}
    assert tested.mean(dtype=np.float64) == pytest.approx(result.value, abs=1e-12)
    assert len(tested) == len(given.labels) if scorer not in SPLITTING_SCORERS else 0 < len(tested) < len(given.labels)


@cache
def _judge_by_all(make: Recipe) -> dict[str, Score]:
    return score(make(1.5), SCORERS, seed=3)


@EVERY_SHAPE
@EVERY_SCORER
def test_scores_do_not_depend_on_the_other_scorers_asked_for(scorer: str, make: Recipe) -> None:
    assert _judge_by_all(make)[scorer].value == _judge(make(1.5), scorer).value


@pytest.mark.parametrize("constant", [0.0, 3.3, 1e-30, -1e30])
@pytest.mark.parametrize("shape", [(60, 7), (60, 90), (60, 1)])
@EVERY_SCORER
def test_constant_features_score_finite_and_below_useful_ones(
    scorer: str, shape: tuple[int, int], constant: float
) -> None:
    labels = torch.arange(60) % 3
    same = FeatureSet(features=torch.full(shape, constant), labels=labels, num_classes=3)
    useful = FeatureSet(features=torch.eye(3)[labels], labels=labels, num_classes=3)
    low, high = _judge(same, scorer), _judge(useful, scorer)
    assert np.isfinite(low.value)
    assert low.value < high.value
    if low.item_scores is not None:
        assert low.value <= 0.5


@pytest.mark.parametrize("factor", [1e-12, 1e12])
@EVERY_SHAPE
@EVERY_SCORER
def test_the_scale_of_features_does_not_matter(scorer: str, make: Recipe, factor: float) -> None:
    given = make(1.5)
    scaled = FeatureSet(features=given.features * factor, labels=given.labels, num_classes=given.num_classes)
    assert _judge(scaled, scorer).value == pytest.approx(_judge(given, scorer).value, rel=1e-4)


@EVERY_SCORER
def test_a_class_without_items_changes_nothing(scorer: str) -> None:
    given = SHAPES["tall"](1.5)
    more = FeatureSet(features=given.features, labels=given.labels, num_classes=given.num_classes + 2)
    assert _judge(more, scorer).value == pytest.approx(_judge(given, scorer).value, abs=1e-9)


@EVERY_SCORER
def test_features_made_in_inference_mode_can_be_scored(scorer: str) -> None:
    given = SHAPES["tall"](1.5)
    with torch.inference_mode():
        copied = FeatureSet(features=given.features.clone(), labels=given.labels.clone(), num_classes=3)
        inside = _judge(copied, scorer)
    assert inside.value == _judge(copied, scorer).value == _judge(given, scorer).value


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@EVERY_SCORER
def test_features_that_are_not_finite_are_refused(scorer: str, bad: float) -> None:
    given = SHAPES["tall"](1.5)
    features = given.features.clone()
    features[3, 4] = bad
    features[5, 0] = bad
    with pytest.raises(ModelError, match="cannot score features: 2 of 1440 values are NaN or infinite"):
        _judge(FeatureSet(features=features, labels=given.labels, num_classes=3), scorer)


@EVERY_SCORER
def test_scoring_leaves_the_features_as_they_were(scorer: str) -> None:
    given = SHAPES["wide"](1.5)
    before = given.features.clone()
    _judge(given, scorer)
    assert torch.equal(given.features, before)
