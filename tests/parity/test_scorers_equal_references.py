"""Scorers give the same numbers as plain, slow or other people's implementations of the same definitions."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh, solve_triangular
from scipy.optimize import minimize
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import label_ranking_average_precision_score, r2_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.preprocessing import StandardScaler

from modelhound.scores import FeatureSet, hscore_shrunk, logistic, nleep, score, sfda, sgd_probe
from modelhound.scores.algebra import MOST_MAIN_DIRECTIONS, Algebra
from modelhound.scores.knn import choose_num_neighbours
from modelhound.scores.outcomes import judge_items
from modelhound.scores.probe import fit_probe
from modelhound.scores.ridge import RELATIVE_PENALTIES, _find_freedoms, _leave_out

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
    return FeatureSet(features=features, targets=labels, num_classes=num_classes)


def _plain(feature_set: FeatureSet) -> tuple[Array, NDArray[np.int64]]:
    return feature_set.features.double().numpy(), feature_set.targets.numpy()


def _far_from_the_origin() -> FeatureSet:
    given = _features(200, 10, 3)
    return FeatureSet(features=200.0 + given.features, targets=given.targets, num_classes=3)


RIDGE_SHAPES = {
    "tall": _features(50, 8, 3),
    "wide": _features(30, 70, 3),
    "square": _features(30, 30, 2),
    "rank-deficient": _features(40, 12, 3, rank=4),
    "wide and rank-deficient": _features(30, 70, 3, rank=4),
    "one feature": _features(40, 1, 2),
    "more classes than directions": _features(60, 3, 8, separation=2.0),
}


def _refit(features: Array, targets: Array, penalty: float) -> Array:
    predicted = np.empty_like(targets)
    for item in range(len(features)):
        others = np.arange(len(features)) != item
        # svd: the solver that does not mind rank-deficient features and tiny penalties
        model = Ridge(alpha=penalty, solver="svd").fit(features[others], targets[others])
        predicted[item] = model.predict(features[item : item + 1])
    return predicted


def _leave_each_out(algebra: Algebra, penalty: float) -> torch.Tensor:
    kept = (algebra.spectrum.values / (algebra.spectrum.values + penalty))[:, None]
    freedoms = _find_freedoms(algebra, kept)[:, 0]
    blocks = algebra.fitted_blocks(kept * algebra.targets_in_left)
    return torch.cat([_leave_out(algebra, rows, fitted, freedoms[rows]) for rows, fitted in blocks])


@pytest.mark.parametrize("feature_set", RIDGE_SHAPES.values(), ids=RIDGE_SHAPES.keys())
def test_ridge_in_closed_form_equals_refitting_without_each_item(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    targets = np.eye(feature_set.num_classes)[labels]
    algebra = Algebra(feature_set)
    scale = float(algebra.spectrum.values.mean())
    errors, accuracies = [], []
    for relative in RELATIVE_PENALTIES:
        expected = _refit(features, targets, relative * scale)
        got = _leave_each_out(algebra, relative * scale)
        np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-8)
        errors.append(np.square(expected - targets).sum())
        accuracies.append((expected.argmax(1) == labels).mean())
    assert score(feature_set, ["ridge"], seed=0).values["ridge"].value == pytest.approx(
        accuracies[int(np.argmin(errors))]
    )


@pytest.mark.parametrize(
    "feature_set",
    [
        _features(150, 10, 3),
        _features(60, 100, 4),
        _features(40, 5, 8),
        _features(2100, 3, 3, separation=1.0),
        _far_from_the_origin(),
    ],
    ids=["tall", "wide", "small classes", "more than one block", "cosines that float32 cannot tell apart"],
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
    got = score(feature_set, ["knn"], seed=0).values["knn"].item_scores
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
    np.testing.assert_array_equal(score(feature_set, ["knn"], seed=0).values["knn"].item_scores, np.float32(hits))


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
    held_out = algebra.split(5).held_out
    train, test = (~held_out).numpy(), held_out.numpy()
    scaler = StandardScaler().fit(features[train])
    # The two columns of our two-class probe share one penalty, so its difference is penalised half as much.
    strength = 2.0 if feature_set.num_classes == 2 else 1.0
    model = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000, solver="newton-cg")
    model.fit(scaler.transform(features[train]), labels[train])
    expected = model.predict_proba(scaler.transform(features[test]))
    accuracy = model.score(scaler.transform(features[test]), labels[test])
    assert score(feature_set, ["probe"], seed=5).values["probe"].value == pytest.approx(accuracy)

    def largest_difference() -> float:
        got = fit_probe(algebra, algebra.split(5)).logits(feature_set.features[held_out]).softmax(1).numpy()
        return float(np.abs(got - expected).max())

    assert largest_difference() < 5e-3  # where we stop by default
    monkeypatch.setattr(logistic, "_PRODUCTS", torch.float64)
    monkeypatch.setattr(logistic, "_GRADIENT", 1e-9)
    monkeypatch.setattr(logistic, "_MOST_STEPS", 1000)
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
    assert score(feature_set, ["hscore"], seed=0).values["hscore"].value == pytest.approx(
        np.trace(inverse @ between), rel=1e-7
    )


def _greatest_evidence(features: Array, target: Array) -> float:
    """log p(y)/n, maximised over alpha and beta by a search that knows nothing of eigenvalues or fixed points."""
    kernel = features @ features.T
    kernel_scale = np.trace(kernel) / len(target)

    def loss(logs: Array) -> float:
        covariance = np.exp(-logs[1]) * np.eye(len(target)) + np.exp(-logs[0]) * kernel / kernel_scale
        root = np.linalg.cholesky(covariance)
        log_density = -np.square(solve_triangular(root, target, lower=True)).sum() / 2 - np.log(np.diag(root)).sum()
        return -float(log_density / len(target) - np.log(2 * np.pi) / 2)

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
        FeatureSet(features=_features(60, 6, 3).features + 30.0, targets=_features(60, 6, 3).targets, num_classes=3),
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
    assert score(feature_set, ["logme"], seed=0).values["logme"].value == pytest.approx(expected, rel=1e-5)


def _imbalanced() -> FeatureSet:
    given = _features(300, 9, 4)
    kept = (given.targets != 2) | (torch.arange(300) < 40)
    kept &= (given.targets != 3) | (torch.arange(300) == 3)  # and a class of one
    return FeatureSet(features=given.features[kept], targets=given.targets[kept], num_classes=4)


EVERY_SHAPE = pytest.mark.parametrize(
    "feature_set",
    [
        _features(100, 9, 4),
        _features(30, 70, 3),
        _features(60, 20, 3, rank=5),
        _features(30, 70, 3, rank=5),
        _features(80, 6, 2, separation=0.3),
        _imbalanced(),
        _features(50, 1, 2),
        _features(200, 80, 3, separation=0.3),
    ],
    ids=[
        "tall",
        "wide",
        "rank-deficient",
        "wide and rank-deficient",
        "two classes",
        "imbalanced",
        "one feature",
        "many directions",
    ],
)


def _value(feature_set: FeatureSet, scorer: str) -> float:
    return score(feature_set, [scorer], seed=0).values[scorer].value


@EVERY_SHAPE
def test_centroid_equals_taking_the_means_anew_without_each_item(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    hits = []
    for item in range(len(labels)):
        others = np.arange(len(labels)) != item
        distances = np.full(feature_set.num_classes, np.inf)
        for label in np.unique(labels[others]):
            distances[label] = np.linalg.norm(features[others & (labels == label)].mean(0) - features[item])
        hits.append(distances.argmin() == labels[item])
    got = score(feature_set, ["centroid"], seed=0).values["centroid"].item_scores
    np.testing.assert_array_equal(got, np.float32(hits))


@EVERY_SHAPE
def test_sgd_probe_equals_torch_s_own_layer_loss_and_optimiser(feature_set: FeatureSet) -> None:
    features, _ = _plain(feature_set)
    algebra = Algebra(feature_set)
    held_out = algebra.split(5).held_out
    scaler = StandardScaler().fit(features[~held_out])
    scaled = torch.from_numpy(scaler.transform(features)) / np.sqrt(features.shape[1])
    layer = torch.nn.Linear(features.shape[1], feature_set.num_classes).double()
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimiser = torch.optim.SGD(layer.parameters(), lr=sgd_probe.RATE)
    inputs, targets = scaled[~held_out], feature_set.targets[~held_out]
    generator = torch.Generator().manual_seed(5)
    for _ in range(sgd_probe.EPOCHS):
        for batch in torch.randperm(len(inputs), generator=generator).split(sgd_probe.BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(layer(inputs[batch]), targets[batch]).backward()
            optimiser.step()
    with torch.no_grad():
        expected = layer(scaled[held_out]).log_softmax(1)
    layer_by_hand = sgd_probe.fit_sgd_probe(algebra, algebra.split(5), seed=5)
    got = layer_by_hand.logits(feature_set.features[held_out]).log_softmax(1)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    accuracy = float((expected.argmax(1) == feature_set.targets[held_out]).double().mean())
    assert score(feature_set, ["sgd_probe"], seed=5).values["sgd_probe"].value == pytest.approx(accuracy)


@EVERY_SHAPE
def test_the_shrunk_h_score_equals_its_definition_with_scikit_learn_s_shrinkage(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    shrunk, shrinkage = ledoit_wolf(features)
    if feature_set.features.shape[1] == 1:
        shrinkage = 0.0  # scikit-learn says so too, but by way of rounding
    assert hscore_shrunk.find_shrinkage(Algebra(feature_set)) == pytest.approx(shrinkage, rel=1e-6)
    class_means = np.stack([features[labels == label].mean(0) for label in range(feature_set.num_classes)])
    between = np.atleast_2d(np.cov(class_means[labels], rowvar=False, bias=True))
    expected = (1 - shrinkage) * np.trace(np.linalg.solve(shrunk, between))
    assert _value(feature_set, "hscore_shrunk") == pytest.approx(expected, rel=1e-6)


@EVERY_SHAPE
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_nleep_equals_leep_of_scikit_learn_s_mixture_from_the_same_start(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    centred = features - features.mean(0)
    left, roots, _ = np.linalg.svd(centred, full_matrices=False)
    num_directions = min(32, int(np.searchsorted(np.cumsum(roots**2) / np.sum(roots**2), 0.8)) + 1)
    points = left[:, :num_directions] * roots[:num_directions]
    num_components = min(5 * feature_set.num_classes, len(labels) // 4)
    # distances, and so the start, do not mind the signs of directions
    owners = nleep.start(torch.from_numpy(points), num_components, seed=0).numpy()
    sums = owners.sum(0)
    means = owners.T @ points / sums[:, None]
    least = nleep.LEAST_VARIANCE * np.square(points).mean()
    variances = np.stack([points[owner == 1].var(0) for owner in owners.T]) + least
    mixture = GaussianMixture(
        len(sums),
        covariance_type="diag",
        tol=nleep.TOLERANCE,
        reg_covar=least,
        max_iter=nleep.MOST_STEPS,
        init_params="random",
        weights_init=sums / len(points),
        means_init=means,
        precisions_init=1 / variances,
    )
    shares = mixture.fit(points).predict_proba(points)
    joint = np.stack([shares[labels == label].sum(0) for label in range(feature_set.num_classes)])
    expected = np.mean([np.log((joint[y] / joint.sum(0)) @ share) for y, share in zip(labels, shares, strict=True)])
    assert _value(feature_set, "nleep") == pytest.approx(expected, rel=1e-6)


@EVERY_SHAPE
def test_transrate_equals_its_definition(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    centred = features - features.mean(0)
    centred /= np.sqrt(np.square(centred).sum(1).mean())

    def rate(rows: Array) -> float:
        return float(np.linalg.slogdet(np.eye(rows.shape[1]) + rows.T @ rows / (len(rows) * 1e-4))[1]) / 2

    classes = [centred[labels == label] for label in range(feature_set.num_classes)]
    expected = rate(centred) - sum(len(rows) / len(centred) * rate(rows) for rows in classes)
    assert _value(feature_set, "transrate") == pytest.approx(expected, rel=1e-5)


@EVERY_SHAPE
def test_gbc_equals_the_sum_over_pairs_with_full_matrices(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    centred = features - features.mean(0)
    left, roots, _ = np.linalg.svd(centred, full_matrices=False)
    kept = np.flatnonzero(roots**2 > 1e-10 * roots[0] ** 2)[:MOST_MAIN_DIRECTIONS]
    points = left[:, kept] * roots[kept]
    clouds = [points[labels == label] for label in range(feature_set.num_classes)]
    within = sum(np.square(cloud - cloud.mean(0)).sum() for cloud in clouds) / points.size
    covariances = [np.diag(cloud.var(0) + max(1e-3 * within, 1e-6 * np.square(points).mean())) for cloud in clouds]
    expected = 0.0
    for one in range(len(clouds)):
        for other in range(len(clouds)):
            if one == other:
                continue
            middle = (covariances[one] + covariances[other]) / 2
            apart = clouds[one].mean(0) - clouds[other].mean(0)
            logs = [np.linalg.slogdet(matrix)[1] for matrix in (middle, covariances[one], covariances[other])]
            distance = apart @ np.linalg.solve(middle, apart) / 8 + (logs[0] - (logs[1] + logs[2]) / 2) / 2
            expected -= np.exp(-distance)
    assert _value(feature_set, "gbc") == pytest.approx(expected, rel=1e-6)


def _fisher_log_probabilities(features: Array, labels: NDArray[np.int64], shrinkage: float) -> Array:
    """Classes by projecting on the generalised eigenvectors of the scatter between and the shrunk one within classes."""
    num_items, num_classes = len(labels), labels.max() + 1
    means = np.stack([features[labels == label].mean(0) for label in range(num_classes)])
    shares = np.bincount(labels) / num_items
    deviations = features - means[labels]
    within = deviations.T @ deviations / num_items
    num_directions = min(features.shape[1], num_items - 1)
    within = (1 - shrinkage) * within + shrinkage * np.trace(within) / num_directions * np.eye(len(within))
    spread = means - features.mean(0)
    _, directions = eigh((spread.T * shares) @ spread, within)
    directions = directions[:, -min(num_classes - 1, features.shape[1]) :]
    seen, seen_means = features @ directions, means @ directions
    logits = seen @ seen_means.T - np.square(seen_means).sum(1) / 2 + np.log(shares)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


@EVERY_SHAPE
def test_sfda_equals_fisher_s_directions_before_and_after_mixing(feature_set: FeatureSet) -> None:
    features, labels = _plain(feature_set)
    algebra = Algebra(feature_set)
    means = np.stack([features[labels == label].mean(0) for label in range(feature_set.num_classes)])
    within = (features - means[labels]).T @ (features - means[labels])
    largest = float(np.linalg.eigvalsh(within)[-1] / np.trace(within))
    compact = sfda._within(algebra.compact_scatter, algebra.compact_class_sums, algebra.counts)
    shrinkage = sfda.find_shrinkage(algebra, compact)
    assert shrinkage == pytest.approx(np.exp(-5 * largest), rel=0.01)
    own = np.arange(len(labels)), labels
    trust = np.exp(_fisher_log_probabilities(features, labels, shrinkage)[own])[:, None]
    others = np.stack([features[labels != label].mean(0) for label in range(feature_set.num_classes)])
    mixed = trust * features + (1 - trust) * others[labels]
    expected = _fisher_log_probabilities(mixed, labels, shrinkage)[own].mean()
    assert _value(feature_set, "sfda") == pytest.approx(expected, rel=1e-6)


def _labels_and_numbers(num_items: int, num_features: int, *, rank: int | None = None) -> tuple[FeatureSet, FeatureSet]:
    """The same features with four labels, one of them rare, and with a number."""
    given = _features(num_items, num_features, 2, rank=rank)
    generator = torch.Generator().manual_seed(3)
    seen = (given.features - given.features.mean(0)) @ torch.randn(num_features, 4, generator=generator)
    hidden = seen / seen.std(0) + 0.7 * torch.randn(num_items, 4, generator=generator)
    labels = hidden > torch.tensor([0.0, 0.5, -0.5, 1.2])
    numbers = 20.0 + 5.0 * hidden[:, 0].double()
    return (
        FeatureSet(features=given.features, targets=labels, num_classes=4, task="multilabel"),
        FeatureSet(features=given.features, targets=numbers, num_classes=1, task="regression"),
    )


BEYOND = {
    "tall": _labels_and_numbers(80, 9),
    "wide": _labels_and_numbers(40, 70),
    "rank-deficient": _labels_and_numbers(60, 20, rank=5),
    "wide and rank-deficient": _labels_and_numbers(40, 70, rank=5),
    "fewer directions than labels": _labels_and_numbers(80, 2),
}
EVERY_SHAPE_BEYOND = pytest.mark.parametrize(("with_labels", "with_numbers"), BEYOND.values(), ids=BEYOND.keys())


def _item_precisions(truth: Array, predicted: Array) -> Array:
    return np.array(
        [label_ranking_average_precision_score(t[None], p[None]) for t, p in zip(truth, predicted, strict=True)]
    )


def test_outcomes_of_labels_equal_scikit_learn_s_with_ties_and_with_all_or_no_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(200, 5, generator=generator) < 0.4
    truth[0], truth[1] = False, True
    predicted = torch.randint(4, (200, 5), generator=generator).double()  # full of ties
    given = FeatureSet(features=torch.zeros(200, 1), targets=truth, num_classes=5, task="multilabel")
    got = judge_items(Algebra(given), slice(None), predicted)
    np.testing.assert_allclose(got.numpy(), _item_precisions(truth.numpy(), predicted.numpy()), atol=1e-12)


def _leave_out_at_best_penalty(feature_set: FeatureSet, targets: Array) -> Array:
    features = feature_set.features.double().numpy()
    scale = float(Algebra(feature_set).spectrum.values.mean())
    fits = [_refit(features, targets, relative * scale) for relative in RELATIVE_PENALTIES]
    return min(fits, key=lambda fit: float(np.square(fit - targets).sum()))


@EVERY_SHAPE_BEYOND
def test_ridge_on_labels_and_numbers_equals_refitting_without_each_item(
    with_labels: FeatureSet, with_numbers: FeatureSet
) -> None:
    truth = with_labels.targets.numpy()
    predicted = _leave_out_at_best_penalty(with_labels, truth.astype(np.float64))
    got = score(with_labels, ["ridge"], seed=0).values["ridge"]
    np.testing.assert_allclose(got.item_scores, _item_precisions(truth, predicted), atol=1e-6)
    assert got.value == pytest.approx(label_ranking_average_precision_score(truth, predicted))
    numbers = with_numbers.targets.numpy()
    predicted = _leave_out_at_best_penalty(with_numbers, numbers[:, None])
    assert _value(with_numbers, "ridge") == pytest.approx(r2_score(numbers, predicted))


@EVERY_SHAPE_BEYOND
def test_knn_on_labels_and_numbers_equals_the_mean_of_scikit_learn_s_neighbours(
    with_labels: FeatureSet, with_numbers: FeatureSet
) -> None:
    features = with_labels.features.double().numpy()
    neighbours = NearestNeighbors(n_neighbors=5, metric="cosine", algorithm="brute").fit(features).kneighbors()[1]
    truth = with_labels.targets.numpy()
    votes = truth[neighbours].sum(1)
    assert _value(with_labels, "knn") == pytest.approx(label_ranking_average_precision_score(truth, votes))
    numbers = with_numbers.targets.numpy()
    assert _value(with_numbers, "knn") == pytest.approx(r2_score(numbers, numbers[neighbours].mean(1)))


@EVERY_SHAPE_BEYOND
def test_probe_on_labels_equals_scikit_learn_with_one_model_per_label(
    monkeypatch: pytest.MonkeyPatch, with_labels: FeatureSet, with_numbers: FeatureSet
) -> None:
    algebra = Algebra(with_labels)
    held_out = algebra.split(5).held_out.numpy()
    features, truth = with_labels.features.double().numpy(), with_labels.targets.numpy()
    scaler = StandardScaler().fit(features[~held_out])
    train, test = scaler.transform(features[~held_out]), scaler.transform(features[held_out])
    expected = np.empty((held_out.sum(), 4))
    for label in range(4):
        model = LogisticRegression(tol=1e-10, max_iter=10_000, solver="newton-cg").fit(train, truth[~held_out, label])
        expected[:, label] = model.decision_function(test)
    monkeypatch.setattr(logistic, "_PRODUCTS", torch.float64)
    monkeypatch.setattr(logistic, "_GRADIENT", 1e-9)
    monkeypatch.setattr(logistic, "_MOST_STEPS", 1000)
    got = fit_probe(algebra, algebra.split(5)).logits(with_labels.features[torch.from_numpy(held_out)])
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-5)
    value = score(with_labels, ["probe"], seed=5).values["probe"].value
    assert value == pytest.approx(label_ranking_average_precision_score(truth[held_out], expected))


@EVERY_SHAPE_BEYOND
def test_logme_of_labels_and_numbers_equals_the_greatest_evidence_found_by_brute_force(
    with_labels: FeatureSet, with_numbers: FeatureSet
) -> None:
    features, truth = with_labels.features.double().numpy(), with_labels.targets.double().numpy()
    expected = np.mean([_greatest_evidence(features, target) for target in truth.T])
    assert _value(with_labels, "logme") == pytest.approx(expected, rel=1e-5)
    # a search over scales cannot see units: look for numbers of about 1, and move the result by the logarithm of the unit
    numbers = with_numbers.targets.double().numpy()
    unit = np.sqrt(np.square(numbers).mean())
    expected = _greatest_evidence(features, numbers / unit) - np.log(unit)
    assert _value(with_numbers, "logme") == pytest.approx(expected, rel=1e-5)
