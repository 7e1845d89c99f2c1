"""Whether something that is done in steps will be over in time, by what its steps take now.

In:  the seconds that are left, how many steps there are, a word after each of them
Out: a TimeUpError as soon as the steps so far say that the end would come too late
Nothing here knows what a step does. What was foretold on an idle machine does not count on one that is busy.
"""

from modelhound.meter import seconds_now

__all__ = ["Hourglass", "TimeUpError"]

_LEAST_STEPS, _ENOUGH_STEPS = 3, 20  # that must have been seen, after a first one that takes longer
_LEAST_SHARE = 0.1  # of all steps up to that, so that a hiccup at the start does not end it


class TimeUpError(Exception):
    """It would not be over in time."""


class Hourglass:
    """Turned when it is made."""

    def __init__(self, seconds_left: float | None) -> None:
        """None: there is all the time in the world."""
        self._end = None if seconds_left is None else seconds_now() + seconds_left
        self._num_steps, self._share_after = 0, 0.0
        self._num_done, self._first_done = 0, 0.0

    def begin(self, num_steps: int, *, share_after: float = 0.0) -> None:
        """So many steps, and then something that takes a share of what they take."""
        self._num_steps, self._share_after = num_steps, share_after
        self._num_done = 0

    def check(self) -> None:
        """After each step, and before the first."""
        if self._end is None:
            return
        now = seconds_now()
        self._num_done += self._num_steps > 0
        if self._num_done == 1:
            self._first_done = now
        if now > self._end or self._expected_end(now) > self._end:
            raise TimeUpError

    def _expected_end(self, now: float) -> float:
        num_seen = self._num_done - 1
        if num_seen < max(_LEAST_STEPS, min(_ENOUGH_STEPS, _LEAST_SHARE * self._num_steps)):
            return now
        step_seconds = (now - self._first_done) / num_seen
        return now + step_seconds * (self._num_steps - self._num_done + self._share_after * self._num_steps)
