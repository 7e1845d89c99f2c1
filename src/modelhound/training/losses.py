"""The loss of every step, read without holding up the device.

In:  one number per step, on the device
Out: the numbers, a little later; a loss that is no number ends training
Nothing here knows what the loss is of. On a GPU the numbers are fetched in the background, some at a time: asking for each
would make the host wait for the device in every step.
"""

import math
from pathlib import Path

import torch

from modelhound.errors import ModelError

__all__ = ["LossLog", "check_finite"]

_USUAL_ADVICE = "use a lower --rate or --precision fp32"
_STEPS_PER_FETCH = 32


class LossLog:
    """The losses of the steps of one epoch."""

    def __init__(
        self, device: str, *, first_step: int = 0, last_good: Path | None = None, advice: str = _USUAL_ADVICE
    ) -> None:
        self.values: list[float] = []
        self._on_cuda = device.startswith("cuda")
        self._first_step, self._last_good, self._advice = first_step, last_good, advice
        self._waiting: list[torch.Tensor] = []
        self._fetched: tuple[torch.Tensor, torch.cuda.Event] | None = None

    @property
    def latest(self) -> float:
        return self.values[-1] if self.values else math.nan

    def add(self, loss: torch.Tensor) -> None:
        if not self._on_cuda:
            self._take([float(loss)])
            return
        self._waiting.append(loss)
        if len(self._waiting) >= _STEPS_PER_FETCH:
            self._collect()
            on_host = torch.stack(self._waiting).to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._fetched, self._waiting = (on_host, event), []

    def finish(self) -> list[float]:
        """All of them, waited for."""
        self._collect()
        if self._waiting:
            self._take(torch.stack(self._waiting).tolist())
            self._waiting = []
        return self.values

    def _collect(self) -> None:
        if self._fetched is not None:
            on_host, event = self._fetched
            event.synchronize()  # nearly always long past
            self._take(on_host.tolist())
            self._fetched = None

    def _take(self, values: list[float]) -> None:
        for value in values:
            where = f"at step {self._first_step + len(self.values) + 1}"
            check_finite(value, where, self._last_good, advice=self._advice)
            self.values.append(value)


def check_finite(loss: float, where: str, last_good: Path | None, *, advice: str = _USUAL_ADVICE) -> None:
    """A ModelError that says what is left and what to do where a loss is none."""
    if math.isfinite(loss):
        return
    kept = f"the last good checkpoint is {last_good.name}" if last_good else "nothing was kept yet"
    raise ModelError(f"cannot go on training: expected a finite loss, found {loss} {where}; {kept}; {advice}")
