"""Who took how long: the seconds of steps that several models share, divided among them.

In:  what was measured, and for which models
Out: seconds of each model by phase
Nothing here knows what a step is. A device may still be at some of them: whoever asks waits until it is through, and several
threads may ask.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from modelhound.meter import Meter

__all__ = ["Accounts"]


class Accounts:
    """Of all models of one run."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, float]] = {}
        self._begun: deque[tuple[Sequence[str], Meter]] = deque()  # steps that the device may still be at, and for whom
        self._alone = threading.Lock()

    def charge(self, models: Sequence[str], meter: Meter) -> None:
        """What is over."""
        with self._alone:
            self._charge(models, meter)

    def add(self, models: Sequence[str], meter: Meter) -> None:
        """What the device may still be at; charged once it is over."""
        with self._alone:
            self._begun.append((models, meter))

    def catch_up(self, num_left: int) -> None:
        """Wait until the device is through with all steps but so many, and divide their seconds."""
        with self._alone:
            over = list(self._begun)[: max(0, len(self._begun) - num_left)]
        # A device that broke down over such a step says so to everybody from now on: each model that still needs it fails by
        # its own next step, those of this step included.
        for _, meter in over:
            with contextlib.suppress(RuntimeError):
                meter.wait()  # before others are held up, who ask for the seconds of steps that are over
        with self._alone:
            while len(self._begun) > num_left:
                with contextlib.suppress(RuntimeError):
                    self._charge(*self._begun.popleft())

    def seconds_of(self, model: str) -> Mapping[str, float]:
        """What was charged to a model that is done; may be asked by other threads."""
        with self._alone:
            waiting = [meter for models, meter in self._begun if model in models]
        for meter in waiting:
            meter.wait()  # here, so that the next step need not
        with self._alone:
            while any(model in models for models, _ in self._begun):
                self._charge(*self._begun.popleft())
            return self._seconds[model]

    def _charge(self, models: Sequence[str], meter: Meter) -> None:
        """Divide what was measured among the models it was for."""
        for samples in meter.samples:
            for model in models:
                own = self._seconds.setdefault(model, {})
                own[samples.phase] = own.get(samples.phase, 0.0) + samples.total / len(models)
