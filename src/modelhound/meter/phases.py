"""The phases of one job, timed.

In:  pieces of work, each with the name of its phase
Out: raw samples in seconds per phase; memory peaks
Nothing here knows what the work is for. A phase on a CUDA device begins and ends with a synchronisation, so that its
seconds are the device's too and not only those of handing work over; or the device notes them itself, and is asked later:
then a host that waits beside work handed over before takes nothing from anybody.
"""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from modelhound.meter.clock import seconds_now
from modelhound.meter.memory import peak_bytes, reset_peak
from modelhound.records import PhaseSamples

__all__ = ["Meter"]

Item = TypeVar("Item")

_END = object()


@dataclass(slots=True)
class _Level:
    """What is known of the phases within one that is still open."""

    seconds: float = 0.0
    """By the host's clock."""
    noted: list[tuple[Any, Any]] = field(default_factory=list)
    """Events at both ends of each, where the device notes them."""
    by_device: bool = False


class Meter:
    """Times the phases of one job: enter `phase` around each piece, then ask for the `samples`."""

    def __init__(self, device: str = "cpu", *, keep_peak: bool = False) -> None:
        self.device = device
        self.current_phase = ""
        self._levels = [_Level()]
        self._samples: dict[str, list[float]] = {}
        self._noted: list[tuple[str, Any, Any, list[tuple[Any, Any]]]] = []  # phase, events at both ends, and within
        self._started = seconds_now()
        if self._on_cuda:
            import torch

            # Before the first use of CUDA there are no peaks to reset, and torch says so by an error.
            torch.cuda.init()  # type: ignore[no-untyped-call]
            if not keep_peak:
                torch.cuda.reset_peak_memory_stats(device)
        elif not keep_peak:
            reset_peak()

    @contextlib.contextmanager
    def phase(self, name: str, *, on_host: bool = False, later: bool = False) -> Iterator[None]:
        """Add the seconds of the enclosed work to phase `name`; a piece that fails adds none but stays the current phase.

        Of a phase within a phase, the seconds count for the inner one only. Work `on_host` does not wait for the device. With
        `later` nobody does until the samples are asked for: what the device notes on its way is what counts, for phases
        within as well.
        """
        outer, self.current_phase = self.current_phase, name
        by_device = self._on_cuda and (later or self._levels[-1].by_device)
        begun = self._note_now() if by_device else None
        if not (on_host or by_device):
            self._synchronise()
        start = seconds_now()
        self._levels.append(_Level(by_device=by_device))
        try:
            yield
        except BaseException:
            self._levels.pop()
            raise
        if not (on_host or by_device):
            self._synchronise()
        elapsed = seconds_now() - start
        within = self._levels.pop()
        seconds = self._samples.setdefault(name, [])
        if by_device:
            ended = self._note_now()
            self._noted.append((name, begun, ended, within.noted))
            self._levels[-1].noted.append((begun, ended))
        else:
            seconds.append(elapsed - within.seconds)
        self._levels[-1].seconds += elapsed
        if len(self._levels) > 1:
            self.current_phase = outer

    def waiting(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """Hand the items on, and add the seconds spent waiting for each of them to phase `name`."""
        iterator = iter(items)
        while True:
            self.current_phase = name
            start = seconds_now()
            item = next(iterator, _END)
            if item is _END:
                return  # nothing came, so nothing was waited for
            self._samples.setdefault(name, []).append(seconds_now() - start)
            yield cast(Item, item)

    @property
    def samples(self) -> tuple[PhaseSamples, ...]:
        """Every phase entered so far, in order of first entry."""
        for name, begun, ended, within in self._noted:
            ended.synchronize()
            milliseconds = begun.elapsed_time(ended) - sum(first.elapsed_time(last) for first, last in within)
            self._samples[name].append(max(0.0, milliseconds / 1000))
        self._noted.clear()
        return tuple(PhaseSamples(phase=name, seconds=tuple(times)) for name, times in self._samples.items())

    def wait(self) -> None:
        """Until the device is through with all phases that were to be asked for later."""
        for _, _, ended, _ in self._noted:
            ended.synchronize()

    @property
    def wall_seconds(self) -> float:
        """Seconds since this meter was made."""
        return seconds_now() - self._started

    @property
    def peak_memory_bytes(self) -> int:
        """Most memory held since this meter was made, or since the one before it where that peak is kept: of the CUDA device,
        else of the process (where the system cannot reset that, since it began)."""
        if self._on_cuda:
            import torch

            return int(torch.cuda.max_memory_allocated(self.device))
        return peak_bytes()

    @property
    def _on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    def _note_now(self) -> Any:
        """An event that holds the time at which the device comes here."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _synchronise(self) -> None:
        if self._on_cuda:
            import torch

            torch.cuda.current_stream(self.device).synchronize()
