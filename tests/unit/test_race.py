"""Who leads a race of thousands."""

import threading
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from modelhound.measuring.race import Race


class _NeverWalked(dict[str, NDArray[np.float64]]):
    """Scores of models, of which only one may be looked at at a time."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("looks at all models again")

    def copy(self) -> NoReturn:
        raise AssertionError("looks at all models again")


def test_the_best_so_far_is_known_without_looking_at_all_others_again() -> None:
    race = Race.__new__(Race)  # no data set, no device
    race.finals, race._leader, race._leading = _NeverWalked(), None, threading.Lock()
    assert race._find_best() is None
    best = []
    for model, score in (("c", 0.5), ("b", 0.9), ("d", 0.2), ("a", 0.9), ("e", 0.9)):
        race.finals[model] = np.full(4, score)
        race._take_lead(model)
        best.append(race._find_best())
    assert best == ["c", "b", "b", "a", "a"]  # of equals the first by name, as in the ranking
