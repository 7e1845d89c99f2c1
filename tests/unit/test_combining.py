"""Problems of several threads: who waits is taken along, and everybody gets what is theirs."""

import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from modelhound.scores.combining import Combining


class Solving:
    """Squares numbers; the first problem takes until so many others wait."""

    def __init__(self, *, most: int = 10) -> None:
        self.groups: list[list[int]] = []
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.combining = Combining(self.solve, kind=lambda number: number % 2, most=lambda number: most)

    def solve(self, numbers: Sequence[int]) -> list[int]:
        self.groups.append(list(numbers))
        if not self.has_begun.is_set():
            self.has_begun.set()
            assert self.may_end.wait(20)
        if 13 in numbers:
            raise ValueError("13")
        return [number**2 for number in numbers]

    def run(self, first: int, others: Sequence[int]) -> "list[int | ValueError]":
        with ThreadPoolExecutor(1 + len(others)) as threads:
            asked = [threads.submit(self.combining.bring, first)]
            assert self.has_begun.wait(20)
            asked += [threads.submit(self.combining.bring, other) for other in others]
            deadline = time.monotonic() + 20
            while len(self.combining._waiting) < len(others) and time.monotonic() < deadline:
                time.sleep(0.001)
            self.may_end.set()
            return [each.result() if each.exception() is None else ValueError() for each in asked]


def test_those_that_wait_are_solved_together_by_kind_and_each_gets_its_own() -> None:
    solving = Solving()
    assert solving.run(2, [4, 5, 6, 7, 8]) == [4, 16, 25, 36, 49, 64]
    assert solving.groups[0] == [2]  # nobody waits for company
    assert sorted(map(sorted, solving.groups[1:])) == [[4, 6, 8], [5, 7]]


def test_no_more_are_taken_along_than_there_is_room_for() -> None:
    solving = Solving(most=2)
    assert sorted(solving.run(2, [4, 6, 8, 10])) == [4, 16, 36, 64, 100]  # type: ignore[type-var]
    assert sorted(map(len, solving.groups)) == [1, 2, 2]


def test_what_goes_wrong_is_told_to_those_it_concerns_and_the_next_goes_on() -> None:
    solving = Solving()
    found = solving.run(2, [4, 13, 15])
    assert found[:2] == [4, 16]
    assert [type(each) for each in found[2:]] == [ValueError, ValueError]
    assert solving.combining.bring(3) == 9


def test_an_error_does_not_hold_on_to_what_was_being_solved() -> None:
    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    def fail(numbers: Sequence[int]) -> list[int]:
        stacked = Large()
        held.append(weakref.ref(stacked))
        raise MemoryError

    combining = Combining(fail, kind=lambda number: 0, most=lambda number: 1)
    with pytest.raises(MemoryError) as error:
        combining.bring(1)
    assert held[0]() is None
    assert error.value is not None


@pytest.mark.parametrize("number", [1, 2])
def test_one_that_comes_alone_is_solved_at_once(number: int) -> None:
    solving = Solving()
    solving.may_end.set()
    assert solving.combining.bring(number) == number**2
