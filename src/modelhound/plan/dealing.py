"""Hand out the parcels of a placement while workers come, die and fall behind.

In:  a Placement; who is free, who is lost, what is finished, and when
Out: what each free worker shall do next
Each worker gets its own parcels first, in order. One that has none left takes the last of whoever has most left; and when all
parcels are out, a copy of one that takes far longer than predicted: its worker may have stopped. Whoever is first counts.
Nothing here knows what a parcel holds or reads a clock: seconds are told.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Deal:
    """Who has what. Workers are numbers; the first ones are those that the placement was made for."""

    shares: Sequence[Sequence[Parcel]]
    speeds: Sequence[float]
    least_patience_seconds: float = _LEAST_PATIENCE_SECONDS
    _left: list[deque[Parcel]] = field(init=False)
    _returned: deque[Parcel] = field(init=False, default_factory=deque)
    _out: dict[int, _Out] = field(init=False, default_factory=dict)
    _finished: set[Parcel] = field(init=False, default_factory=set)
    _pace: list[float] = field(init=False, default_factory=list)
    num_moved: int = field(init=False, default=0)
    """Parcels that another worker took than the one they were meant for."""
    num_copied: int = field(init=False, default=0)
    """Parcels that were given to a second worker while the first still had them."""

    def __post_init__(self) -> None:
        self._left = [deque(share) for share in self.shares]

    @property
    def is_done(self) -> bool:
        """Whether every parcel was finished by somebody."""
        return len(self._finished) == sum(len(share) for share in self.shares)

    def take(self, worker: int, now: float) -> Parcel | None:
        """What this free worker shall do; None where there is nothing for it, at present."""
        parcel = self._next(worker, now)
        if parcel is not None:
            self._out[worker] = _Out(parcel, now)
        return parcel

    def finish(self, worker: int, now: float) -> list[int]:
        """The worker is done with its parcel; those who still work on a copy of it, in vain."""
        done = self._out.pop(worker)
        self._pace.append((now - done.since) / max(done.parcel.seconds, 1e-9))
        self._finished.add(done.parcel)
        in_vain = [other for other, out in self._out.items() if out.parcel == done.parcel]
        for other in in_vain:
            del self._out[other]
        return in_vain

    def lose(self, worker: int) -> None:
        """The worker is gone: what it had is for the next that is free, what it would have got for all others."""
        out = self._out.pop(worker, None)
        if out is not None and out.parcel not in self._finished and not self._is_out(out.parcel):
            self._returned.append(out.parcel)
        if worker < len(self._left):
            self._returned.extend(self._left[worker])
            self._left[worker].clear()

    def has(self, worker: int) -> Parcel | None:
        out = self._out.get(worker)
        return None if out is None else out.parcel

    def _next(self, worker: int, now: float) -> Parcel | None:
        if worker < len(self._left) and self._left[worker]:
            return self._left[worker].popleft()
        if self._returned:
            self.num_moved += 1
            return self._returned.popleft()
        longest = max(range(len(self._left)), key=self._seconds_left, default=None)
        if longest is not None and self._left[longest]:
            self.num_moved += 1
            return self._left[longest].pop()
        return self._late(now)

    def _seconds_left(self, worker: int) -> float:
        return sum(parcel.seconds for parcel in self._left[worker]) / self.speeds[worker]

    def _late(self, now: float) -> Parcel | None:
        """The parcel that is overdue most."""
        pace = float(np.median(self._pace)) if self._pace else 1.0
        overdue = {
            worker: now - out.since - max(self.least_patience_seconds, _PATIENCE * pace * out.parcel.seconds)
            for worker, out in self._out.items()
            if sum(each.parcel == out.parcel for each in self._out.values()) == 1
        }
        latest = max(overdue, key=overdue.__getitem__, default=None)
        if latest is None or overdue[latest] <= 0:
            return None
        self.num_copied += 1
        return self._out[latest].parcel

    def _is_out(self, parcel: Parcel) -> bool:
        return any(out.parcel == parcel for out in self._out.values())
