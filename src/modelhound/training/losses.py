"""The loss of every step, read without holding up the device.

In:  one number per step, on the device
Out: the numbers, a little later; a loss that is no number ends training
Nothing here knows what the loss is of. On a GPU the numbers are fetched in the background, some at a time: asking for each
would make the host wait for the device in every step.
"""

import math

import torch

from modelhound.errors import ModelError

__all__ = ["LossLog", "check_finite", "or_precision"]

_STEPS_PER_FETCH = 32


class LossLog:
    """The losses of the steps of one epoch."""

    def __init__(self, device: str, *, otherwise: str, first_step: int = 0) -> None:
        """`otherwise` ends the sentence where a loss is no number: what is left, and what to do."""
        self.values: list[float] = []
        self._on_cuda = device.startswith("cuda")
        self._first_step, self._otherwise = first_step, otherwise
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
            check_finite(value, f"at step {self._first_step + len(self.values) + 1}", self._otherwise)
            self.values.append(value)


def check_finite(loss: float, where: str, otherwise: str) -> None:
    """A ModelError where a loss is no number; it ends with `otherwise`: what is left, and what to do."""
    if not math.isfinite(loss):
        raise ModelError(f"cannot go on training: expected a finite loss, found {loss} {where}; {otherwise}")


def or_precision(precision: str) -> str:
    """More advice for those whose loss is no number, where more bits may help."""
    return "" if precision == "fp32" else " or use --precision fp32"
