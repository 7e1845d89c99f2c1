"""Scorers give the same numbers as plain, slow or other people's implementations of the same definitions."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from modelhound.scores import FeatureSet, probe, score
from modelhound.scores.algebra import Algebra
from modelhound.scores.knn import choose_num_neighbours
from modelhound.scores.probe import draw_held_out, fit_probe
from modelhound.scores.ridge import RELATIVE_PENALTIES, leave_one_out

Array = NDArray[np.float64]


def _features(
    num_items: int,
    num_features: int,
    num_classes: int,
    *,
    separation: float = 0.7,
    rank: int | None = None,
    seed: int = 0,
) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (num_items,), generator=generator)
    labels[: 2 * num_classes] = torch.arange(2 * num_classes) % num_classes  # two of each at least
    width = rank or num_features
    centres = separation * torch.randn(num_classes, width, generator=generator)
    features = torch.randn(num_items, width, generator=generator) + centres[labels] + 0.5
    if rank is not None:
        features = features @ torch.randn(rank, num_features, generator=generator)
    return FeatureSet(features=features, labels=labels, num_classes=num_classes)


def _plain(feature_set: FeatureSet) -> tuple[Array, NDArray[np.int64]]:
    return feature_set.features.double().numpy(), feature_set.labels.numpy()


RIDGE_SHAPES = {
    "tall": _features(50, 8, 3),
    "wide": _features(30, 70, 3),
    "square": _features(30, 30, 2),
    "rank-deficient": _features(40, 12, 3, rank=4),
    "wide and rank-deficient": _features(30, 70, 3, rank=4),
    "one feature": _features(40, 1, 2),
}


def _refit(features: Array, targets: Array, penalty: float) -> Array:
    predicted = np.empty_like(targets)
    for item in range(len(features)):
        others = np.arange(len(features)) != item
        # svd: the solver that does not mind rank-deficient features and tiny penalties
        model = Ridge(alpha=penalty, solver="svd").fit(features[others], targets[others])
        predicted[item] = model.predict(features[item : item + 1])
    return predicted


@pytest.mark.parametrize("feature_set", RIDGE_SHAPES.values(), ids=RIDGE_SHAPES.keys())
def test_ridge_in_closed_form_equals_refitting_without_each_item(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    targets = np.eye(feature_set.num_classes)[labels]
    algebra = Algebra(feature_set)
    scale = float(algebra.spectrum.values.mean())
    errors, accuracies = [], []
    for relative in RELATIVE_PENALTIES:
        expected = _refit(features, targets, relative * scale)
        got = leave_one_out(algebra, relative * scale).numpy()
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-8)
        errors.append(np.square(expected - targets).sum())
        accuracies.append((expected.argmax(1) == labels).mean())
    assert score(feature_set, ["ridge"], seed=0)["ridge"].value == pytest.approx(accuracies[int(np.argmin(errors))])


@pytest.mark.parametrize(
    "feature_set",
    [_features(150, 10, 3), _features(60, 100, 4), _features(40, 5, 8), _features(2100, 3, 3, separation=1.0)],
    ids=["tall", "wide", "small classes", "more than one block"],
)
def test_knn_equals_scikit_learn_leaving_each_item_out(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    k = choose_num_neighbours(Algebra(feature_set).counts)
    model = KNeighborsClassifier(n_neighbors=k, metric="cosine", algorithm="brute").fit(features, labels)
    distances, neighbours = model.kneighbors()  # without X an item is not its own neighbour
    predicted = np.empty_like(labels)
    for item, (distance, neighbour) in enumerate(zip(distances, labels[neighbours], strict=True)):
        # scikit-learn gives equal votes to the lower class, we to the more similar one
        votes = np.bincount(neighbour, minlength=feature_set.num_classes)
        closeness = np.bincount(neighbour, weights=1 - distance, minlength=feature_set.num_classes)
        predicted[item] = np.lexsort((closeness, votes))[-1]
    got = score(feature_set, ["knn"], seed=0)["knn"].item_scores
    np.testing.assert_array_equal(got, (predicted == labels).astype(np.float32))


def test_knn_with_two_classes_and_no_ties_equals_scikit_learn_s_own_vote() -> None:
    feature_set = _features(120, 6, 2)
    features, labels = _plain(feature_set)
    hits = []
    for item in range(len(labels)):
        others = np.arange(len(labels)) != item
        model = KNeighborsClassifier(n_neighbors=5, metric="cosine", algorithm="brute").fit(
            features[others], labels[others]
        )
        hits.append(model.predict(features[item : item + 1])[0] == labels[item])
    np.testing.assert_array_equal(score(feature_set, ["knn"], seed=0)["knn"].item_scores, np.float32(hits))


@pytest.mark.parametrize(
    "feature_set",
    [
        _features(300, 20, 3, separation=0.3),
        _features(300, 20, 2, separation=0.2),
        _features(60, 150, 3, separation=0.2),
        _features(200, 40, 5, rank=6),
        _features(200, 1, 2),
    ],
    ids=["tall", "two classes", "wide", "rank-deficient", "one feature"],
)
def test_probe_equals_scikit_learn_on_the_same_split(monkeypatch: pytest.MonkeyPatch, feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    algebra = Algebra(feature_set)
    held_out = draw_held_out(algebra.labels, algebra.counts, seed=5)
    train, test = (~held_out).numpy(), held_out.numpy()
    scaler = StandardScaler().fit(features[train])
    # The two columns of our two-class probe share one penalty, so its difference is penalised half as much.
    strength = 2.0 if feature_set.num_classes == 2 else 1.0
    model = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000, solver="newton-cg")
    model.fit(scaler.transform(features[train]), labels[train])
    expected = model.predict_proba(scaler.transform(features[test]))
    accuracy = model.score(scaler.transform(features[test]), labels[test])
    assert score(feature_set, ["probe"], seed=5)["probe"].value == pytest.approx(accuracy)

    def largest_difference() -> float:
        got = fit_probe(algebra, ~held_out).log_probabilities(feature_set.features[held_out]).exp().numpy()
        return float(np.abs(got - expected).max())

    assert largest_difference() < 5e-3  # where we stop by default
    monkeypatch.setattr(probe, "_GRADIENT", 1e-9)
    monkeypatch.setattr(probe, "_MOST_STEPS", 1000)
    assert largest_difference() < 1e-6


@pytest.mark.parametrize(
    "feature_set",
    [
        _features(100, 9, 4),
        _features(30, 70, 3),
        _features(60, 20, 3, rank=5),
        _features(30, 70, 3, rank=5),
        _features(50, 1, 2),
    ],
    ids=["tall", "wide", "rank-deficient", "wide and rank-deficient", "one feature"],
)
def test_hscore_equals_its_definition(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    class_means = np.stack([features[labels == label].mean(0) for label in range(feature_set.num_classes)])
    between = np.atleast_2d(np.cov(class_means[labels], rowvar=False))
    inverse = np.linalg.pinv(np.atleast_2d(np.cov(features, rowvar=False)), rcond=1e-10, hermitian=True)
    assert score(feature_set, ["hscore"], seed=0)["hscore"].value == pytest.approx(
        np.trace(inverse @ between), rel=1e-7
    )


def _greatest_evidence(features: Array, target: Array) -> float:
    """log p(y)/n, maximised over alpha and beta by a search that knows nothing of eigenvalues or fixed points."""
    kernel = features @ features.T
    kernel_scale = np.trace(kernel) / len(target)

    def loss(logs: Array) -> float:
        covariance = np.exp(-logs[1]) * np.eye(len(target)) + np.exp(-logs[0]) * kernel / kernel_scale
        return -float(multivariate_normal(np.zeros(len(target)), covariance).logpdf(target)) / len(target)

    starts = [(a, b) for a in (-2.0, 2.0, 6.0) for b in (0.0, 4.0)]
    options = {"xatol": 1e-7, "fatol": 1e-12, "maxiter": 2000}
    return -min(minimize(loss, start, method="Nelder-Mead", options=options).fun for start in starts)


@pytest.mark.parametrize(
    "feature_set",
    [
        _features(60, 6, 3),
        _features(60, 6, 2, separation=0.1),
        _features(30, 50, 3, separation=0.5),
        _features(40, 12, 3, rank=4),
        _features(30, 50, 3, rank=4),
        _features(50, 1, 2, separation=2.0),
        FeatureSet(features=_features(60, 6, 3).features + 30.0, labels=_features(60, 6, 3).labels, num_classes=3),
    ],
    ids=[
        "tall",
        "nearly noise",
        "wide",
        "rank-deficient",
        "wide and rank-deficient",
        "one feature",
        "far from the origin",
    ],
)
def test_logme_equals_the_greatest_evidence_found_by_brute_force(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    targets = np.eye(feature_set.num_classes)[labels]
    expected = np.mean([_greatest_evidence(features, target) for target in targets.T])
    assert score(feature_set, ["logme"], seed=0)["logme"].value == pytest.approx(expected, rel=1e-5)
