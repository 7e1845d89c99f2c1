"""What is done best for several at once waits until enough have come.

In:  things, from any thread, with the bytes that each holds while it waits
Out: groups of them
Nothing here knows what they are.
"""

import threading
from typing import Generic, TypeVar

__all__ = ["Gathering"]

Each = TypeVar("Each")


class Gathering(Generic[Each]):
    """A group is full when it has `most` members, or when one more might not find room."""

    def __init__(self, *, most: int, room_bytes: float) -> None:
        self._most, self._room_bytes = most, room_bytes
        self._alone = threading.Lock()
        self._group: list[Each] = []
        self._largest = self._held = 0

    def add(self, each: Each, num_bytes: int) -> list[Each]:
        """The group that is full now; nothing while it is not."""
        with self._alone:
            self._group.append(each)
            self._held += num_bytes
            self._largest = max(self._largest, num_bytes)
            is_full = len(self._group) >= self._most or self._held + self._largest > self._room_bytes
            return self._take() if is_full else []

    def rest(self) -> list[Each]:
        """All that still wait."""
        with self._alone:
            return self._take()

    def _take(self) -> list[Each]:
        group, self._group = self._group, []
        self._largest = self._held = 0
        return group
