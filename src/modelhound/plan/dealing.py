"""Hand out the parcels of a placement while workers come, die and fall behind.

In:  a Placement; who is free, who is lost, what is finished, and when
Out: what each free worker shall do next
Each worker gets its own parcels first, in order. One that has none left takes what lost workers have left, in pieces that keep
all busy; then the end of what is left to whoever would be done last, cut such that both end together; and when all parcels are
out, a copy of one that takes far longer than predicted: its worker may have stopped. Whoever is first counts.
Nothing here knows what a parcel holds or reads a clock: seconds are told.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from modelhound.plan.placing import Parcel

__all__ = ["Deal"]

_PATIENCE = 3.0  # times what a parcel should take, before another worker tries it too
_LEAST_PATIENCE_SECONDS = 5.0


@dataclass(slots=True)
class _Out:
    """A parcel that a worker has."""

    parcel: Parcel
    since: float


class Deal:
    """Who has what. Workers are numbers; the first ones are those that the placement was made for."""

    def __init__(
        self,
        shares: Sequence[Sequence[Parcel]],
        speeds: Sequence[float],
        least_patience_seconds: float = _LEAST_PATIENCE_SECONDS,
        *,
        is_told: Callable[[str], bool] = lambda model: False,
    ) -> None:
        """`is_told` says of a model whether it is through already, though its parcel is not."""
        self._is_told = is_told
        self._speeds = speeds
        self._least_patience_seconds = least_patience_seconds
        self._left = [deque(share) for share in shares]
        self._seconds_left = [
            sum(parcel.seconds for parcel in share) / speed for share, speed in zip(shares, speeds, strict=True)
        ]
        self._num_unfinished = sum(len(share) for share in shares)
        self._returned: list[Parcel] = []
        self._out: dict[int, _Out] = {}
        self._pace: list[float] = []
        self._paces: dict[int, float] = {}
        self._late_from = 0.0  # nothing that is out is late before this
        self.num_moved = 0
        """Parcels that another worker took than the one they were meant for."""
        self.num_copied = 0
        """Parcels that were given to a second worker while the first still had them."""

    @property
    def is_done(self) -> bool:
        """Whether every parcel was finished by somebody."""
        return self._num_unfinished == 0

    def take(self, worker: int, now: float) -> Parcel | None:
        """What this free worker shall do; None where there is nothing for it, at present."""
        parcel = self._next(worker, now)
        if parcel is not None:
            self._out[worker] = _Out(parcel, now)
            self._late_from = 0.0
        return parcel

    def finish(self, worker: int, now: float) -> list[int]:
        """The worker is done with its parcel; those who still work on a copy of it, in vain."""
        done = self._out.pop(worker)
        self._paces[worker] = (now - done.since) / max(done.parcel.seconds, 1e-9)
        self._pace.append(self._paces[worker])
        self._num_unfinished -= 1
        self._late_from = 0.0
        in_vain = [other for other, out in self._out.items() if out.parcel is done.parcel]
        for other in in_vain:
            del self._out[other]
        return in_vain

    def lose(self, worker: int) -> None:
        """The worker is gone: what it had is for the next that is free, what it would have got for all others."""
        out = self._out.pop(worker, None)
        self._late_from = 0.0
        if out is not None and all(other.parcel is not out.parcel for other in self._out.values()):
            left = out.parcel.without(self._is_told)
            if left.models:
                self._returned.append(left)
            else:
                self._num_unfinished -= 1
        if worker < len(self._left):
            self._returned.extend(self._left[worker])
            self._left[worker].clear()
            self._seconds_left[worker] = 0.0

    def _next(self, worker: int, now: float) -> Parcel | None:
        if worker < len(self._left) and self._left[worker]:
            return self._pop(worker, self._left[worker].popleft())
        if self._returned:
            self.num_moved += 1
            together = sum(each.seconds for each in self._returned)
            longest = max(range(len(self._returned)), key=lambda place: self._returned[place].seconds)
            fair = together / max(1, len(self._out))
            return self._piece(self._returned.pop(longest), self._returned.append, fair)
        waiting = [other for other, left in enumerate(self._left) if left]
        if waiting:
            self.num_moved += 1
            ahead = {other: self._seconds_ahead(other, now) for other in waiting}
            last = max(waiting, key=ahead.__getitem__)
            # half of it, such that both end at the same time
            return self._pop(last, self._piece(self._left[last].pop(), self._left[last].append, ahead[last] / 2))
        return self._late(now)

    def _seconds_ahead(self, worker: int, now: float) -> float:
        """Until it would be through with all that it has, in seconds as they were predicted."""
        out = self._out.get(worker)
        if out is None:
            return self._seconds_left[worker]
        pace = max(self._paces.get(worker, 1.0), 1e-9)
        return max(0.0, out.parcel.seconds - (now - out.since) / pace) + self._seconds_left[worker]

    def _piece(self, parcel: Parcel, put_back: Callable[[Parcel], None], seconds: float) -> Parcel:
        """So much of a parcel that somebody else was meant for."""
        parts = parcel.cut(seconds) if parcel.seconds > seconds else None
        if parts is None:
            return parcel
        rest, piece = parts
        put_back(rest)
        self._num_unfinished += 1
        return piece

    def _pop(self, worker: int, parcel: Parcel) -> Parcel:
        self._seconds_left[worker] = sum(each.seconds for each in self._left[worker]) / self._speeds[worker]
        return parcel

    def _late(self, now: float) -> Parcel | None:
        """The parcel that is overdue most."""
        if now < self._late_from:
            return None
        pace = float(np.median(self._pace)) if self._pace else 1.0
        copies = Counter(id(out.parcel) for out in self._out.values())
        due = {
            worker: out.since + max(self._least_patience_seconds, _PATIENCE * pace * out.parcel.seconds)
            for worker, out in self._out.items()
            if copies[id(out.parcel)] == 1
        }
        latest = min(due, key=due.__getitem__, default=None)
        self._late_from = due[latest] if latest is not None else math.inf
        if latest is None or now <= due[latest]:
            return None
        self.num_copied += 1
        return self._out[latest].parcel
