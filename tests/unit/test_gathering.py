"""Groups of things that wait for each other."""

import threading
from concurrent.futures import ThreadPoolExecutor

from modelhound.measuring.gathering import Gathering


def test_a_group_is_full_when_it_has_as_many_members_as_it_may() -> None:
    gathering: Gathering[str] = Gathering(most=3, room_bytes=1000)
    assert gathering.add("a", 1) == []
    assert gathering.add("b", 1) == []
    assert gathering.add("c", 1) == ["a", "b", "c"]
    assert gathering.add("d", 1) == []
    assert gathering.rest() == ["d"]
    assert gathering.rest() == []


def test_a_group_is_full_when_one_more_might_not_find_room() -> None:
    gathering: Gathering[str] = Gathering(most=10, room_bytes=100)
    assert gathering.add("large", 40) == []
    assert gathering.add("small", 10) == []
    assert gathering.add("another", 20) == ["large", "small", "another"]  # with another large one it would be 110
    assert gathering.add("the next group", 40) == []


def test_without_room_nothing_waits() -> None:
    gathering: Gathering[str] = Gathering(most=10, room_bytes=0)
    assert gathering.add("at once", 1) == ["at once"]


def test_what_several_threads_bring_comes_out_once() -> None:
    gathering: Gathering[int] = Gathering(most=7, room_bytes=10**9)
    together = threading.Barrier(4)

    def bring(first: int) -> list[int]:
        together.wait(20)
        return [each for number in range(first, first + 100) for each in gathering.add(number, 1)]

    with ThreadPoolExecutor(4) as threads:
        groups = [each for taken in threads.map(bring, range(0, 400, 100)) for each in taken]
    assert len(groups) == 399  # 57 groups of 7
    assert sorted([*groups, *gathering.rest()]) == list(range(400))
