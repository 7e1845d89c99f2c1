"""Where every second of a loop of training steps goes, for next to nothing.

In:  the loop calls `lap(phase)` whenever a phase ends
Out: for each phase of a step one sample per step; samples of what happens between steps; they add up to the wall clock
Nothing here knows what is trained.

On a CPU, a phase lasts as long as the host needs for it. On a GPU the host runs ahead, so its clock says little: events are put
into the GPU's own queue, and read when they have passed, without ever waiting for them. Time in which the GPU has nothing to do
is charged to whatever the host was waiting for: data, or a copy that was on its way.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from modelhound.meter.clock import seconds_now
from modelhound.records import PhaseSamples
from modelhound.records.train import STEP_PHASES

if TYPE_CHECKING:
    import torch

__all__ = ["Arrival", "DeviceLaps", "HostLaps", "Laps", "make_laps"]

FIRST_BATCH = "first batch"
BETWEEN = "between steps"

_READ_AFTER = 64  # laps; by then the oldest have nearly always passed


class Arrival:
    """A batch that was copied to the GPU beside its work."""

    __slots__ = ("copied", "copying")

    def __init__(self, copying: "torch.cuda.Event", copied: "torch.cuda.Event") -> None:
        self.copying, self.copied = copying, copied


class Laps(Protocol):
    """What the loop tells, whatever the device."""

    def begin(self) -> None:
        """The loop starts now."""

    def lap(self, phase: str) -> None:
        """Whatever went on since the lap before was `phase`."""

    def arrive(self, arrival: Arrival | None, *, is_first: bool) -> None:
        """A batch is there: on a GPU, since the lap before data were waited for or copied."""

    def lap_backward(self, sent_at: float, sent_event: "torch.cuda.Event | None") -> None:
        """The backward pass is over; the last gradients were sent at the given time, 0 and None where none were."""

    def end_step(self) -> None:
        """The laps up to here were one step."""

    def between(self, phase: str) -> "contextmanager[None]":  # type: ignore[valid-type]
        """Around what is no part of a step, such as a test: one sample of its own."""


class HostLaps:
    """For a CPU: the host's clock at the end of each phase."""

    def __init__(self) -> None:
        self._steps: dict[str, list[float]] = {phase: [] for phase in STEP_PHASES}
        self._others: dict[str, list[float]] = {}
        self._now = dict.fromkeys(STEP_PHASES, 0.0)
        self._started = self._last = seconds_now()

    def begin(self) -> None:
        self._started = self._last = seconds_now()

    def lap(self, phase: str) -> None:
        now = seconds_now()
        if phase in self._now:
            self._now[phase] += now - self._last
        else:
            self._others.setdefault(phase, []).append(now - self._last)
        self._last = now

    def arrive(self, arrival: Arrival | None, *, is_first: bool) -> None:
        self.lap(FIRST_BATCH if is_first else "wait for data")

    def lap_backward(self, sent_at: float, sent_event: "torch.cuda.Event | None") -> None:
        if sent_at > self._last:
            self._now["backward"] += sent_at - self._last
            self._last = sent_at
            self.lap("communication")
        else:
            self.lap("backward")

    def end_step(self) -> None:
        self.lap("other")
        for phase, samples in self._steps.items():
            samples.append(self._now[phase])
            self._now[phase] = 0.0

    @contextmanager
    def between(self, phase: str) -> Iterator[None]:
        self.lap(BETWEEN)
        yield
        self.lap(phase)

    def samples(self) -> tuple[PhaseSamples, ...]:
        """All samples so far; those of one step stand at the same place in each of its phases."""
        return _as_samples(self._steps, self._others)

    @property
    def wall_seconds(self) -> float:
        return seconds_now() - self._started


class DeviceLaps:
    """For a GPU: events in its queue at the end of each phase, read later."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._host = HostLaps()
        self._marks: deque[_Mark] = deque()
        self._steps: dict[str, list[float]] = {phase: [] for phase in STEP_PHASES}
        self._now = dict.fromkeys(STEP_PHASES, 0.0)
        self._last: torch.cuda.Event | None = None
        self._logging_seconds = 0.0

    def begin(self) -> None:
        self._synchronise()
        self._host.begin()
        self._last = self._record()

    def lap(self, phase: str) -> None:
        if phase == "logging":  # nothing of it is in the GPU's queue; see `arrive`
            before = self._host._last
            self._host.lap("other")
            self._logging_seconds += self._host._last - before
            return
        self._marks.append(_Mark(phase, self._record()))

    def arrive(self, arrival: Arrival | None, *, is_first: bool) -> None:
        phase = FIRST_BATCH if is_first else "wait for data"
        self._marks.append(_Mark(phase, self._record(), arrival, self._logging_seconds))
        self._logging_seconds = 0.0
        self._host.lap("other")

    def lap_backward(self, sent_at: float, sent_event: "torch.cuda.Event | None") -> None:
        if sent_event is not None:
            self._marks.append(_Mark("backward", sent_event))
            self.lap("communication")
        else:
            self.lap("backward")

    def end_step(self) -> None:
        self._marks.append(_Mark("", self._record()))
        self._host.lap("other")
        if len(self._marks) > _READ_AFTER:
            self._read(wait=False)

    @contextmanager
    def between(self, phase: str) -> Iterator[None]:
        self._read(wait=True)
        self._marks.append(_Mark(BETWEEN, self._record()))  # the GPU had nothing to do while its events were read
        self._read(wait=True)
        self._host.lap("other")
        yield
        self._synchronise()
        self._host.lap(phase)
        self._last = self._record()

    def samples(self) -> tuple[PhaseSamples, ...]:
        """As those of HostLaps."""
        self._read(wait=True)
        return _as_samples(self._steps, {**self._host._others})

    @property
    def wall_seconds(self) -> float:
        self._synchronise()
        return self._host.wall_seconds

    def _synchronise(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)

    def _record(self) -> "torch.cuda.Event":
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _read(self, *, wait: bool) -> None:
        if wait:
            self._synchronise()
        while self._marks and (wait or self._marks[0].event.query()):  # type: ignore[no-untyped-call]
            self._charge(self._marks.popleft())

    def _charge(self, mark: "_Mark") -> None:
        assert self._last is not None  # `begin` came first
        elapsed = self._last.elapsed_time(mark.event) / 1000
        if mark.phase in (FIRST_BATCH, BETWEEN):
            self._host._others.setdefault(mark.phase, []).append(elapsed)
        elif mark.arrival is not None:
            copying, copied = (
                self._last.elapsed_time(each) / 1000 for each in (mark.arrival.copying, mark.arrival.copied)
            )
            copy = max(0.0, min(copied, elapsed) - max(copying, 0.0))
            logging = min(elapsed - copy, mark.logging_seconds)
            self._now["data to device"] += copy
            self._now["logging"] += logging
            self._now["wait for data"] += elapsed - copy - logging
        else:
            self._now[mark.phase or "other"] += elapsed
        self._last = mark.event
        if not mark.phase:
            for phase, samples in self._steps.items():
                samples.append(self._now[phase])
                self._now[phase] = 0.0


class _Mark:
    """The end of a phase in the GPU's queue; an empty name ends a step."""

    __slots__ = ("arrival", "event", "logging_seconds", "phase")

    def __init__(
        self, phase: str, event: "torch.cuda.Event", arrival: Arrival | None = None, logging_seconds: float = 0.0
    ) -> None:
        self.phase, self.event, self.arrival, self.logging_seconds = phase, event, arrival, logging_seconds


def make_laps(device: str) -> HostLaps | DeviceLaps:
    return DeviceLaps(device) if device.startswith("cuda") else HostLaps()


def _as_samples(steps: dict[str, list[float]], others: dict[str, list[float]]) -> tuple[PhaseSamples, ...]:
    return tuple(PhaseSamples(phase=phase, seconds=tuple(seconds)) for phase, seconds in (steps | others).items())
