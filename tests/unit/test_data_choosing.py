from itertools import pairwise

import numpy as np
import pytest

from modelhound.data.choosing import choose_balanced

SKEWED = np.repeat(np.arange(4), [3, 50, 10, 200])


def counts(chosen: np.ndarray, labels: np.ndarray = SKEWED) -> list[int]:
    return np.bincount(labels[chosen], minlength=labels.max() + 1).tolist()


def test_every_class_gets_the_same_share() -> None:
    labels = np.tile(np.arange(5), 20)
    assert counts(choose_balanced(labels, limit=50, seed=1), labels) == [10] * 5


def test_small_classes_leave_their_share_to_the_others() -> None:
    assert counts(choose_balanced(SKEWED, limit=43, seed=0)) == [3, 15, 10, 15]
    assert counts(choose_balanced(SKEWED, limit=123, seed=0)) == [3, 50, 10, 60]


@pytest.mark.parametrize("limit", [8, 9, 17, 41, 100, 262])
def test_the_limit_is_used_up_and_no_class_is_more_than_one_ahead(limit: int) -> None:
    taken = np.array(counts(choose_balanced(SKEWED, limit=limit, seed=3)))
    assert taken.sum() == limit
    open_classes = taken < np.bincount(SKEWED)
    assert taken[open_classes].max() - taken[open_classes].min() <= 1
    assert (taken[~open_classes] <= taken[open_classes].max()).all()


@pytest.mark.parametrize("limit", [263, 264, 10**9])
def test_a_limit_beyond_the_data_takes_everything(limit: int) -> None:
    assert choose_balanced(SKEWED, limit=limit, seed=0).tolist() == list(range(263))


def test_positions_are_sorted_and_unique() -> None:
    chosen = choose_balanced(SKEWED, limit=100, seed=5).tolist()
    assert chosen == sorted(set(chosen))


def test_the_seed_decides_and_nothing_else() -> None:
    first = choose_balanced(SKEWED, limit=40, seed=1).tolist()
    np.random.default_rng(9).random(100)
    assert choose_balanced(SKEWED.copy(), limit=40, seed=1).tolist() == first
    assert choose_balanced(SKEWED, limit=40, seed=2).tolist() != first


def test_a_smaller_limit_takes_a_subset() -> None:
    chosen = [set(choose_balanced(SKEWED, limit=limit, seed=0).tolist()) for limit in range(8, 263)]
    assert all(small < large for small, large in pairwise(chosen))
