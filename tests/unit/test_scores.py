"""The frame around scorers, the algebra they share, and what is particular to one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from modelhound import scores
from modelhound.errors import DataError, RequestError
from modelhound.scores import FeatureSet, gbc, knn, score
from modelhound.scores.algebra import Algebra
from modelhound.scores.leep import leep
from modelhound.scores.nleep import start
from modelhound.scores.probe import fit_probe
from modelhound.scores.products import add_square, mirror
from modelhound.scores.registry import REGISTRY
from modelhound.scores.split import draw_held_out, draw_held_out_of_each_class
from modelhound.settings import ACCURACY_SCORERS, DEFAULT_SCORERS, SCORERS, Task


def _random(num_items: int, num_features: int, num_classes: int, *, seed: int = 0) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num_items, num_features, generator=generator) + 1
    return FeatureSet(features=features, targets=torch.arange(num_items) % num_classes, num_classes=num_classes)


def _labelled(features: list[list[float]], labels: list[int]) -> FeatureSet:
    return FeatureSet(features=torch.tensor(features), targets=torch.tensor(labels), num_classes=max(labels) + 1)


def test_the_registry_holds_just_the_scorers_that_settings_offer() -> None:
    assert tuple(REGISTRY) == SCORERS


def test_the_default_scorers_and_those_that_give_accuracies_are_among_them() -> None:
    assert DEFAULT_SCORERS == ("ridge", "knn", "probe", "hscore", "logme")
    assert set(ACCURACY_SCORERS) <= set(SCORERS)
    judged = score(_random(40, 4, 2), SCORERS, seed=0).values
    assert {name for name, each in judged.items() if each.item_scores is not None} == set(ACCURACY_SCORERS)


def test_the_public_names_are_these() -> None:
    assert scores.__all__ == [
        *("MOST_TOGETHER", "Begun", "FeatureSet", "Groundwork", "Score", "Scores", "begin", "finish", "score"),
        "scoring_bytes",
        "suits_one_thread",
    ]


def test_scores_come_back_in_the_order_asked_for() -> None:
    assert list(score(_random(20, 4, 2), ["logme", "ridge"], seed=0).values) == ["logme", "ridge"]


def test_every_scorer_is_timed_once_under_its_name() -> None:
    seen: list[str] = []

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        seen.append(f"enter {name}")
        yield
        seen.append(f"leave {name}")

    score(_random(20, 4, 2), ["knn", "hscore"], seed=0, timed=timed)
    assert seen == ["enter knn", "leave knn", "enter hscore", "leave hscore"]


def test_an_unknown_scorer_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(RequestError, match="cannot score by 'lepp': expected one of ridge, knn"):
        score(_random(20, 4, 2), ["lepp"], seed=0)


@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 1, 2]])
def test_labels_that_cannot_rank_anything_are_refused(labels: list[int]) -> None:
    with pytest.raises(DataError, match="cannot score features"):
        score(_labelled([[1.0], [2.0], [3.0]], labels), ["ridge"], seed=0)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 0), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(3, 2), torch.zeros(3)),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2])),
        (torch.zeros(3, 2), torch.tensor([0, 1, -1])),
    ],
)
def test_features_and_labels_that_do_not_fit_are_refused(features: torch.Tensor, labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="cannot use"):
        FeatureSet(features=features, targets=labels, num_classes=2)


@pytest.mark.parametrize(
    ("task", "targets", "num_classes"),
    [
        ("multilabel", torch.zeros(3, 2), 2),
        ("multilabel", torch.zeros(3, 2, dtype=torch.bool), 3),
        ("multilabel", torch.zeros(3, dtype=torch.bool), 1),
        ("multilabel", torch.zeros(3, 0, dtype=torch.bool), 0),
        ("regression", torch.zeros(3, dtype=torch.int64), 1),
        ("regression", torch.zeros(3, 1), 1),
        ("regression", torch.zeros(3), 2),
        ("regression", torch.tensor([1.0, float("nan"), 2.0]), 1),
        ("regression", torch.tensor([1.0, float("inf"), 2.0]), 1),
        ("ranking", torch.zeros(3), 1),
    ],
)
def test_targets_that_do_not_fit_their_task_are_refused(task: Task, targets: torch.Tensor, num_classes: int) -> None:
    with pytest.raises(ValueError, match="cannot use"):
        FeatureSet(features=torch.zeros(3, 2), targets=targets, num_classes=num_classes, task=task)


def test_predicting_the_mean_of_the_others_has_an_r2_that_is_known() -> None:
    # With n items the mean of the others is off by n / (n - 1) times what the mean of all is off.
    given = FeatureSet(features=torch.ones(10, 3), targets=torch.arange(10.0), num_classes=1, task="regression")
    for scorer in ("ridge", "knn"):  # all others are as near as any, so all vote
        assert score(given, [scorer], seed=0).values[scorer].value == pytest.approx(1 - (10 / 9) ** 2)


def test_numbers_that_are_a_linear_function_of_the_features_have_an_r2_of_one() -> None:
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    targets = features.double() @ torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64) + 7
    given = FeatureSet(features=features, targets=targets, num_classes=1, task="regression")
    assert score(given, ["ridge"], seed=0).values["ridge"].value == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("scorer", ["ridge", "knn"])
def test_numbers_far_from_zero_are_told_as_well_as_those_near_it(scorer: str) -> None:
    """Moments of a day as seconds since 1970, say; items that look alike share the last seat."""
    features = torch.randn(16, 3, generator=torch.Generator().manual_seed(0)).repeat(5, 1)
    numbers = features.double().sum(1) + torch.arange(80) % 7

    def told(offset: float) -> float:
        given = FeatureSet(features=features, targets=numbers + offset, num_classes=1, task="regression")
        return score(given, [scorer], seed=0).values[scorer].value

    assert told(1e8) == pytest.approx(told(0.0), abs=1e-5)


@pytest.mark.parametrize("distance", [1e4, 1e15])
def test_a_held_out_item_far_off_does_not_change_what_is_learned(distance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    features = torch.randn(400, 32, generator=generator) + 0.7 * torch.randn(4, 32, generator=generator)[labels]
    near = Algebra(FeatureSet(features=features, targets=labels, num_classes=4))
    features = features.clone()
    features[near.split(0).held_out.nonzero()[0]] *= distance
    far = Algebra(FeatureSet(features=features, targets=labels, num_classes=4))
    expected, found = (fit_probe(each, each.split(0)).weights for each in (near, far))
    assert float((found - expected).abs().max()) < 0.01 * float(expected.abs().max())


def test_labels_are_tested_on_a_fifth_of_the_items_drawn_by_the_seed() -> None:
    assert [int(draw_held_out(num_items, seed=0).sum()) for num_items in (2, 10, 101)] == [1, 2, 20]
    assert torch.equal(draw_held_out(50, seed=1), draw_held_out(50, seed=1))
    assert not torch.equal(draw_held_out(50, seed=0), draw_held_out(50, seed=1))


def test_a_symmetric_product_in_panels_is_the_whole_product() -> None:
    for num_columns in (1, 3, 8, 21):
        rows = torch.randn(5, num_columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        total = torch.zeros(num_columns, num_columns, dtype=torch.float64)
        add_square(total, rows[:2])
        add_square(total, rows[2:])
        torch.testing.assert_close(mirror(total), rows.T @ rows)


@pytest.fixture
def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[int, ...]]]:
    """Counts real calls of a function of torch.linalg by the shapes it was given."""

    def start(name: str) -> list[tuple[int, ...]]:
        original, shapes = getattr(torch.linalg, name), []

        def counted(matrix: torch.Tensor, *args: object, **options: object) -> object:
            shapes.append(tuple(matrix.shape))
            return original(matrix, *args, **options)

        monkeypatch.setattr(torch.linalg, name, counted)
        return shapes

    return start


@pytest.mark.parametrize(("num_items", "num_features", "side"), [(50, 8, 8), (20, 60, 20)])
def test_all_scorers_together_decompose_once_and_on_the_smaller_side(
    count_calls: Callable[[str], list[tuple[int, ...]]], num_items: int, num_features: int, side: int
) -> None:
    shapes = count_calls("eigh")
    score(_random(num_items, num_features, 2), SCORERS, seed=0)
    assert shapes == [(side, side)]


@pytest.mark.parametrize("scorer", ["knn", "probe", "centroid", "sgd_probe", "sfda"])
def test_a_scorer_that_needs_no_decomposition_causes_none(
    count_calls: Callable[[str], list[tuple[int, ...]]], scorer: str
) -> None:
    shapes = count_calls("eigh")
    score(_random(50, 8, 2), [scorer], seed=0)
    assert shapes == []


@pytest.mark.parametrize(("num_items", "num_features"), [(50, 8), (20, 60), (30, 30)])
def test_the_algebra_holds_a_singular_value_decomposition_of_the_centred_features(
    num_items: int, num_features: int
) -> None:
    given = _random(num_items, num_features, 3)
    algebra = Algebra(given)
    centred = given.features.double() - given.features.double().mean(0)
    left, roots, right = torch.linalg.svd(centred, full_matrices=False)
    rank = min(num_items - 1, num_features)
    torch.testing.assert_close(algebra.spectrum.values, roots[:rank].square())
    got = torch.cat([rows for _, rows in algebra.left_blocks()])
    torch.testing.assert_close(got @ got.T, left[:, :rank] @ left[:, :rank].T)
    torch.testing.assert_close(algebra.targets_in_left, got.T @ torch.eye(3, dtype=torch.float64)[given.targets])
    mean = right[:rank] @ given.features.double().mean(0)
    torch.testing.assert_close(algebra.mean_in_right.abs(), mean.abs())  # the sign of a direction is arbitrary


@pytest.mark.parametrize(("num_items", "num_features"), [(50, 8), (20, 60)])
def test_the_size_of_blocks_does_not_matter(monkeypatch: pytest.MonkeyPatch, num_items: int, num_features: int) -> None:
    given = _random(num_items, num_features, 3)
    whole = score(given, SCORERS, seed=0).values
    monkeypatch.setattr(scores.algebra, "BLOCK_BYTES", 8 * 60 * 3)
    monkeypatch.setattr(knn, "BLOCK_ROWS", 7)
    monkeypatch.setattr(gbc, "_BLOCK_VALUES", 1)
    pieces = score(given, SCORERS, seed=0).values
    for name in whole:
        assert pieces[name].value == pytest.approx(whole[name].value, abs=1e-9)


@pytest.mark.parametrize("num_features", [6, 80])
def test_directions_that_are_only_rounding_are_dropped(num_features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # float32 products: the last bits of these features have full rank
    features = torch.randn(50, 3, generator=generator) @ torch.randn(3, num_features, generator=generator)
    assert len(Algebra(FeatureSet(features=features, targets=torch.arange(50) % 2, num_classes=2)).spectrum.values) == 3


@pytest.mark.parametrize("num_features", [6, 80])
def test_noise_of_a_network_s_own_precision_is_no_direction(num_features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 3, generator=generator) @ torch.randn(3, num_features, generator=generator)
    features += 1e-6 * torch.randn(50, num_features, generator=generator)
    assert len(Algebra(FeatureSet(features=features, targets=torch.arange(50) % 2, num_classes=2)).spectrum.values) == 3


@pytest.mark.parametrize("num_features", [6, 80])
def test_features_that_vary_in_their_last_bit_only_count_as_constant(num_features: int) -> None:
    flips = torch.randint(2, (50, num_features), generator=torch.Generator().manual_seed(0))
    features = torch.where(flips == 1, torch.tensor(3.3), torch.nextafter(torch.tensor(3.3), torch.tensor(4.0)))
    given = FeatureSet(features=features, targets=torch.arange(50) % 2, num_classes=2)
    assert len(Algebra(given).spectrum.values) == 0
    assert score(given, ["hscore"], seed=0).values["hscore"].value == 0.0


def test_one_hot_features_have_an_h_score_of_the_number_of_classes_less_one() -> None:
    labels = torch.arange(40) % 4
    given = FeatureSet(features=torch.eye(4)[labels], targets=labels, num_classes=4)
    assert score(given, ["hscore"], seed=0).values["hscore"].value == pytest.approx(3.0)


def test_features_independent_of_the_labels_have_an_h_score_near_zero() -> None:
    value = score(_random(4000, 4, 4), ["hscore"], seed=0).values["hscore"].value
    assert 0 <= value < 0.02  # 4 features x 3 degrees of freedom / 4000 items is to be expected


def test_duplicates_share_the_last_seats_whatever_their_order() -> None:
    # Seven copies of one vector: 4 of class 0 and 3 of class 1, and a class far away that lets k be 2.
    near, far = [1.0, 0.0], [0.0, 1.0]
    features, labels = [near] * 7 + [far] * 3, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    # An item of class 0 sees 3 copies of either class, and of equals the lower class wins; one of class 1 sees 4 against 2.
    expected = [1.0] * 4 + [0.0] * 3 + [1.0] * 3
    for order in (list(range(10)), list(reversed(range(10))), [5, 0, 7, 6, 1, 9, 2, 4, 8, 3]):
        given = _labelled([features[i] for i in order], [labels[i] for i in order])
        got = score(given, ["knn"], seed=0).values["knn"].item_scores
        assert got is not None
        np.testing.assert_array_equal(got, np.float32([expected[i] for i in order]))


def test_a_vector_of_zeros_goes_with_the_majority() -> None:
    given = _labelled([[0.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3], [-1.0, 0.1], [-1.0, 0.2]], [0, 0, 0, 0, 1, 1])
    got = score(given, ["knn"], seed=0).values["knn"].item_scores
    assert got is not None
    np.testing.assert_array_equal(got, np.ones(6, dtype=np.float32))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([100, 100], 5), ([100, 6], 5), ([100, 4], 3), ([100, 2], 1), ([100, 1], 5), ([9, 0, 4], 3)],
)
def test_the_number_of_neighbours_follows_the_smallest_class(counts: list[int], expected: int) -> None:
    assert knn.choose_num_neighbours(torch.tensor(counts, dtype=torch.float64)) == expected


def test_a_held_out_fifth_is_a_fifth_of_each_class() -> None:
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([50, 11, 2, 1]))
    held_out = draw_held_out_of_each_class(labels, torch.bincount(labels).double(), seed=0)
    assert [int(held_out[labels == label].sum()) for label in range(4)] == [10, 2, 1, 0]


def test_another_seed_holds_out_other_items() -> None:
    labels = torch.arange(100) % 2
    counts = torch.tensor([50.0, 50.0], dtype=torch.float64)
    assert not torch.equal(
        draw_held_out_of_each_class(labels, counts, seed=0), draw_held_out_of_each_class(labels, counts, seed=1)
    )
    assert torch.equal(
        draw_held_out_of_each_class(labels, counts, seed=1), draw_held_out_of_each_class(labels, counts, seed=1)
    )


def test_classes_of_two_items_can_all_be_probed() -> None:
    labels = torch.arange(20) % 10
    given = FeatureSet(features=torch.eye(10)[labels], targets=labels, num_classes=10)
    result = score(given, ["probe"], seed=0).values["probe"]
    assert result.item_scores is not None
    assert np.isnan(result.item_scores).sum() == 10
    assert result.value == 1.0


def test_both_probes_hold_out_the_same_items() -> None:
    for seed in (0, 1):
        judged = score(_random(60, 5, 3), ["probe", "sgd_probe"], seed=seed).values
        exact, walked = judged["probe"].item_scores, judged["sgd_probe"].item_scores
        assert exact is not None
        assert walked is not None
        np.testing.assert_array_equal(np.isnan(exact), np.isnan(walked))


def test_plain_descent_learns_what_can_be_learned() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1000) % 100
    features = torch.eye(100)[labels] + 0.02 * torch.randn(1000, 100, generator=generator)
    assert score(FeatureSet(features=features, targets=labels, num_classes=100), ["sgd_probe"], seed=0).values[
        "sgd_probe"
    ].value > 0.99  # fmt: skip


def test_an_item_does_not_take_part_in_its_own_class_mean() -> None:
    # Item 2 would pull the mean of class 0 to 2.0, as near as that of class 1; without it that mean is 0.5.
    given = _labelled([[0.0], [1.0], [5.0], [8.0], [9.0]], [0, 0, 0, 1, 1])
    got = score(given, ["centroid"], seed=0).values["centroid"].item_scores
    assert got is not None
    np.testing.assert_array_equal(got, np.float32([1, 1, 0, 1, 1]))


def test_the_item_of_a_class_of_one_is_never_right() -> None:
    given = _labelled([[0.0], [1.0], [50.0]], [0, 0, 1])
    got = score(given, ["centroid"], seed=0).values["centroid"].item_scores
    assert got is not None
    np.testing.assert_array_equal(got, np.float32([1, 1, 0]))


def test_clusters_that_are_the_labels_have_a_leep_of_zero() -> None:
    labels = torch.arange(12) % 3
    assert leep(torch.eye(5)[labels], labels) == pytest.approx(0.0)  # two clusters stay empty


def test_clusters_that_tell_nothing_have_a_leep_of_minus_the_entropy_of_the_labels() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert leep(torch.full((4, 2), 0.5), labels) == pytest.approx(-entropy)


def test_leep_counts_labels_by_cluster_and_not_clusters_by_label() -> None:
    # P(y=0|z=0) = 1.5/2, P(y=0|z=1) = .5/2; by hand: items 0 and 1 expect 0.75 and 0.5 of class 0, items 2 and 3 of class 1.
    soft = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])
    assert leep(soft, torch.tensor([0, 0, 1, 1])) == pytest.approx((2 * np.log(0.75) + 2 * np.log(0.5)) / 4)
    # more clusters than classes, one of them shared: the two do not change places
    shared = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert leep(shared, torch.tensor([0, 0, 1, 1])) == pytest.approx(np.log(0.5) / 2)


def test_clusters_found_without_labels_can_be_the_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    features = 50 * torch.eye(3)[labels] + torch.randn(90, 3, generator=generator)
    assert score(FeatureSet(features=features, targets=labels, num_classes=3), ["nleep"], seed=0).values[
        "nleep"
    ].value == pytest.approx(0.0, abs=1e-6)  # fmt: skip


def test_the_seed_draws_where_a_mixture_starts() -> None:
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(start(points, 5, seed=0), start(points, 5, seed=0))
    assert not torch.equal(start(points, 5, seed=0), start(points, 5, seed=1))


def test_a_mixture_has_no_more_components_than_different_items() -> None:
    points = torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    assert start(points, 15, seed=0).shape == (30, 3)


def test_classes_that_coincide_overlap_fully_and_far_ones_not_at_all() -> None:
    noise = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)).repeat(3, 1)
    labels = torch.arange(3).repeat_interleave(30)
    same = FeatureSet(features=noise, targets=labels, num_classes=3)
    apart = FeatureSet(features=noise + 100.0 * torch.eye(4)[labels], targets=labels, num_classes=3)
    assert score(same, ["gbc"], seed=0).values["gbc"].value == pytest.approx(-6.0)
    assert score(apart, ["gbc"], seed=0).values["gbc"].value == pytest.approx(0.0, abs=1e-9)


def test_one_hot_features_save_their_whole_coding_rate_but_one_direction_per_class() -> None:
    labels = torch.arange(40) % 4
    given = FeatureSet(features=torch.eye(4)[labels], targets=labels, num_classes=4)
    # 3 directions of variance 1/3 for all items, one of length 1 for each class
    expected = 1.5 * np.log(1 + 1e4 / 3) - 0.5 * np.log(1 + 1e4)
    assert score(given, ["transrate"], seed=0).values["transrate"].value == pytest.approx(expected)


@pytest.mark.parametrize("num_features", [3, 8, 200])
def test_classes_without_any_spread_have_labels_that_are_certain(num_features: int) -> None:
    """Of the scatter within classes only rounding is left, which is no scatter of anything."""
    labels = torch.zeros(60, dtype=torch.int64)
    labels[-2:] = torch.tensor([1, 2])
    for seed in range(20):
        means = torch.randn(3, num_features, generator=torch.Generator().manual_seed(seed))
        given = FeatureSet(features=means[labels], targets=labels, num_classes=3)
        assert score(given, ["sfda"], seed=0).values["sfda"].value == pytest.approx(0.0, abs=1e-3)


def test_small_features_are_scored_alike_however_many_threads_there_are() -> None:
    """To the last bit: several models that are scored at once have a thread each, one by itself may have them all."""
    before = torch.get_num_threads()
    found = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        try:
            found.append(score(_random(300, 64, 5), DEFAULT_SCORERS, seed=0).values)
            assert torch.get_num_threads() == num_threads
        finally:
            torch.set_num_threads(before)
    assert {name: each.value for name, each in found[0].items()} == {
        name: each.value for name, each in found[1].items()
    }
