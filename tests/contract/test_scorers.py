"""What every scorer promises, checked on every shape of features it may meet."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from modelhound.errors import DataError, ModelError, RequestError
from modelhound.scores import FeatureSet, Score, score
from modelhound.settings import ACCURACY_SCORERS, SCORERS, SCORERS_BEYOND_CLASSES

Recipe = Callable[[float], FeatureSet]

SPLITTING_SCORERS = ("probe", "sgd_probe")  # they test a part of the items, and the split goes by position


def _classes(features: torch.Tensor, targets: torch.Tensor, num_classes: int) -> FeatureSet:
    """Features of a network that also has a classifier of its own, for seven classes that nobody asked about."""
    spread = features.double().std(0)
    standardised = (features.double() - features.double().mean(0)) / torch.where(spread > 0, spread, 1.0)
    classifier = torch.randn(features.shape[1], 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    opinions = (standardised @ classifier * (3 / features.shape[1] ** 0.5)).softmax(1)
    return FeatureSet(features=features, targets=targets, num_classes=num_classes, source_probabilities=opinions)


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
    return _classes(features, labels, len(counts))


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
    return score(feature_set, [scorer], seed=seed).values[scorer]


def _one_feature(separation: float) -> FeatureSet:
    labels = torch.arange(80) % 2
    noise = torch.randn(80, 1, generator=torch.Generator().manual_seed(1))
    return _classes(noise + separation * (labels[:, None] - 0.5), labels, 2)


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
    order = torch.randperm(len(given.targets), generator=torch.Generator().manual_seed(7))
    shuffled = _classes(given.features[order], given.targets[order], given.num_classes)
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
    assert result.item_scores.shape == (len(given.targets),)
    tested = result.item_scores[~np.isnan(result.item_scores)]
    assert set(np.unique(tested)) <= {0.0, 1.0}
    assert tested.mean(dtype=np.float64) == pytest.approx(result.value, abs=1e-12)
    assert (
        len(tested) == len(given.targets) if scorer not in SPLITTING_SCORERS else 0 < len(tested) < len(given.targets)
    )


@cache
def _judge_by_all(make: Recipe) -> dict[str, Score]:
    return score(make(1.5), SCORERS, seed=3).values


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
    same = _classes(torch.full(shape, constant), labels, 3)
    useful = _classes(torch.eye(3)[labels], labels, 3)
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
    scaled = _classes(given.features * factor, given.targets, given.num_classes)
    assert _judge(scaled, scorer).value == pytest.approx(_judge(given, scorer).value, rel=1e-4)


@EVERY_SCORER
def test_a_class_without_items_changes_nothing(scorer: str) -> None:
    given = SHAPES["tall"](1.5)
    more = _classes(given.features, given.targets, given.num_classes + 2)
    assert _judge(more, scorer).value == pytest.approx(_judge(given, scorer).value, abs=1e-9)


@EVERY_SCORER
def test_features_made_in_inference_mode_can_be_scored(scorer: str) -> None:
    given = SHAPES["tall"](1.5)
    with torch.inference_mode():
        copied = _classes(given.features.clone(), given.targets.clone(), 3)
        inside = _judge(copied, scorer)
    assert inside.value == _judge(copied, scorer).value == _judge(given, scorer).value


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@EVERY_SCORER
def test_features_that_are_not_finite_are_refused(scorer: str, bad: float) -> None:
    given = SHAPES["tall"](1.5)
    features = given.features.clone()
    features[3, 4] = bad
    features[5, 0] = bad
    with pytest.raises(ModelError, match="cannot score features: 2 of 120 items give NaN or infinite values"):
        _judge(_classes(features, given.targets, 3), scorer)


@EVERY_SCORER
def test_scoring_leaves_the_features_as_they_were(scorer: str) -> None:
    given = SHAPES["wide"](1.5)
    before = given.features.clone()
    _judge(given, scorer)
    assert torch.equal(given.features, before)


# Tasks without one class per item.


def _make_beyond(
    separation: float, *, task: str, num_items: int, num_features: int, rank: int | None, rare: bool
) -> FeatureSet:
    """Numbers, or five labels, that are told by features the more the larger `separation`; 0 is pure noise."""
    generator = torch.Generator().manual_seed(1)
    width = rank or num_features
    hidden = torch.randn(num_items, 5 if task == "multilabel" else 1, generator=generator)
    features = torch.randn(num_items, width, generator=generator)
    features += separation * hidden @ torch.randn(hidden.shape[1], width, generator=generator)
    if rank is not None:
        features = features @ torch.randn(rank, num_features, generator=generator)
    features = 0.5 + features * torch.linspace(0.5, 2.0, num_features)
    if task == "regression":
        return FeatureSet(features=features, targets=1 + 3 * hidden[:, 0], num_classes=1, task="regression")
    labels = hidden > (1.5 if rare else 0.0)
    return FeatureSet(features=features, targets=labels, num_classes=5, task="multilabel")


BEYOND_SHAPES = {
    "tall": {"num_items": 120, "num_features": 12, "rank": None, "rare": False},
    "wide": {"num_items": 60, "num_features": 90, "rank": None, "rare": False},
    "rank-deficient tall": {"num_items": 120, "num_features": 30, "rank": 8, "rare": False},
    "rank-deficient wide": {"num_items": 60, "num_features": 90, "rank": 8, "rare": False},
    "rare labels": {"num_items": 120, "num_features": 12, "rank": None, "rare": True},
}
BEYOND = pytest.mark.parametrize(
    ("task", "scorer", "shape"),
    [
        (task, scorer, shape)
        for task, scorers in SCORERS_BEYOND_CLASSES.items()
        for scorer in scorers
        for shape in BEYOND_SHAPES
        if (task, shape) != ("regression", "rare labels")
    ],
)


def _beyond(separation: float, task: str, shape: str) -> FeatureSet:
    return _make_beyond(separation, task=task, **BEYOND_SHAPES[shape])  # type: ignore[arg-type]


def _with_features(given: FeatureSet, features: torch.Tensor) -> FeatureSet:
    return FeatureSet(features=features, targets=given.targets, num_classes=given.num_classes, task=given.task)


@BEYOND
def test_features_that_tell_labels_or_numbers_score_higher_than_noise(task: str, scorer: str, shape: str) -> None:
    assert _judge(_beyond(3.0, task, shape), scorer).value > _judge(_beyond(0.0, task, shape), scorer).value


@BEYOND
def test_outcomes_of_labels_and_numbers_have_the_value_as_their_mean(task: str, scorer: str, shape: str) -> None:
    given = _beyond(1.0, task, shape)
    result = _judge(given, scorer)
    assert np.isfinite(result.value)
    if scorer not in ACCURACY_SCORERS:
        assert result.item_scores is None
        return
    assert result.item_scores is not None
    assert result.item_scores.shape == (len(given.targets),)
    tested = result.item_scores[~np.isnan(result.item_scores)]
    assert len(tested) == (len(given.targets) // 5 if scorer == "probe" else len(given.targets))
    assert tested.mean(dtype=np.float64) == pytest.approx(result.value, abs=1e-6)
    assert tested.max() <= 1
    if task == "multilabel":
        assert tested.min() > 0


@BEYOND
def test_neither_order_nor_scale_nor_company_matter_to_labels_and_numbers(task: str, scorer: str, shape: str) -> None:
    given = _beyond(1.0, task, shape)
    value = _judge(given, scorer).value
    assert _judge(given, scorer).value == value
    assert score(given, SCORERS_BEYOND_CLASSES[given.task], seed=3).values[scorer].value == value
    for factor in (1e-12, 1e12):
        assert _judge(_with_features(given, given.features * factor), scorer).value == pytest.approx(value, rel=1e-4)
    if scorer in SPLITTING_SCORERS:
        return
    order = torch.randperm(len(given.targets), generator=torch.Generator().manual_seed(7))
    shuffled = FeatureSet(
        features=given.features[order], targets=given.targets[order], num_classes=given.num_classes, task=given.task
    )
    assert _judge(shuffled, scorer).value == pytest.approx(value, abs=1e-9)


@BEYOND
@pytest.mark.parametrize("constant", [0.0, 3.3])
def test_constant_features_tell_nothing_of_labels_and_numbers(
    task: str, scorer: str, shape: str, constant: float
) -> None:
    given = _beyond(3.0, task, shape)
    low = _judge(_with_features(given, torch.full_like(given.features, constant)), scorer).value
    assert np.isfinite(low)
    if scorer == "logme" and constant:
        return  # without an intercept of its own it likes a constant feature, which is one
    assert low < _judge(given, scorer).value
    if task == "regression" and scorer != "logme":
        assert low < 0.0  # a mean that leaves the item out is a little worse than the mean of all


@pytest.mark.parametrize(
    ("task", "scorer"),
    [(task, name) for task, able in SCORERS_BEYOND_CLASSES.items() for name in SCORERS if name not in able],
)
def test_a_scorer_that_needs_classes_says_which_ones_do_not(task: str, scorer: str) -> None:
    able = "ridge, knn, probe, logme" if task == "multilabel" else "ridge, knn, logme"
    with pytest.raises(RequestError, match=f"cannot score by '{scorer}': expected a scorer for {task} .*one of {able}"):
        _judge(_beyond(1.0, task, "tall"), scorer)


@BEYOND
def test_labels_and_numbers_of_features_that_are_not_finite_are_refused(task: str, scorer: str, shape: str) -> None:
    given = _beyond(1.0, task, shape)
    features = given.features.clone()
    features[3, 4] = torch.nan
    with pytest.raises(ModelError, match="cannot score features: 1 of"):
        _judge(_with_features(given, features), scorer)


@pytest.mark.parametrize("scorer", SCORERS_BEYOND_CLASSES["multilabel"])
@pytest.mark.parametrize("everyone", [False, True])
def test_labels_that_tell_no_items_apart_are_refused(scorer: str, everyone: bool) -> None:
    targets = torch.full((20, 3), False)
    targets[:, 1] = everyone
    given = FeatureSet(features=torch.randn(20, 4), targets=targets, num_classes=3, task="multilabel")
    with pytest.raises(DataError, match=r"cannot score features of 3 label\(s\) that all items have or none"):
        _judge(given, scorer)


@pytest.mark.parametrize("scorer", SCORERS_BEYOND_CLASSES["regression"])
def test_numbers_that_are_all_the_same_are_refused(scorer: str) -> None:
    given = FeatureSet(features=torch.randn(20, 4), targets=torch.full((20,), 2.5), num_classes=1, task="regression")
    with pytest.raises(DataError, match="cannot score features of items with one and the same number"):
        _judge(given, scorer)


@pytest.mark.parametrize("scorer", SCORERS_BEYOND_CLASSES["multilabel"])
def test_a_label_that_no_item_has_and_one_that_all_have_do_no_harm(scorer: str) -> None:
    given = _beyond(3.0, "multilabel", "tall")
    more = torch.cat(
        [given.targets, torch.zeros(120, 1, dtype=torch.bool), torch.ones(120, 1, dtype=torch.bool)], dim=1
    )
    value = _judge(FeatureSet(features=given.features, targets=more, num_classes=7, task="multilabel"), scorer).value
    noise = FeatureSet(
        features=torch.randn(120, 12, generator=torch.Generator().manual_seed(9)),
        targets=more,
        num_classes=7,
        task="multilabel",
    )
    assert value > _judge(noise, scorer).value
