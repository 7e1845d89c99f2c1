"""What happened at the same time as what.

In:  pieces of work, each on a lane such as decoding, weights, device, scoring
Out: spans, in seconds since this began
Nothing here knows what the work is for. Threads may write at once. Work of a device that nobody waits for is timed by the
device itself, which is asked when the timeline is.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from modelhound.meter.clock import seconds_now
from modelhound.records import Span, Timeline

__all__ = ["Lanes"]

_GAP_SECONDS = 0.002  # nothing a reader could see


class Lanes:
    """Collects spans. Neighbours that tell the same become one: a search of many small steps stays readable."""

    def __init__(self) -> None:
        self._began = seconds_now()
        self._alone = threading.Lock()
        self._spans: list[Span] = []
        self._noted: list[tuple[str, str, str, Any, Any]] = []  # lane, phase, detail, events at both ends
        self._first: Any = None  # event on the device, and
        self._first_seconds = 0.0  # when the host saw it

    @contextlib.contextmanager
    def span(self, lane: str, phase: str, detail: str = "") -> Iterator[None]:
        """Note when the enclosed work began and ended, also if it fails."""
        start = seconds_now() - self._began
        try:
            yield
        finally:
            end = seconds_now() - self._began
            with self._alone:
                self._spans.append(Span(lane=lane, phase=phase, start_seconds=start, end_seconds=end, detail=detail))

    @contextlib.contextmanager
    def device_span(self, device: str, lane: str, phase: str, detail: str = "") -> Iterator[None]:
        """The same for work of a device, which is not waited for."""
        if not device.startswith("cuda"):
            with self.span(lane, phase, detail):
                yield
            return
        begun = self._note_now(device)
        try:
            yield
        finally:
            ended = self._note_now(device)
            with self._alone:
                self._noted.append((lane, phase, detail, begun, ended))

    def _note_now(self, device: str) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        if self._first is None:
            event.synchronize()  # once, so that both clocks tell the same moment
            self._first, self._first_seconds = event, seconds_now() - self._began
        return event

    def _ask_device(self) -> None:
        for lane, phase, detail, *ends in self._noted:
            # of a device that broke down nothing is known; the models that it broke down over say so
            with contextlib.suppress(RuntimeError):
                ends[1].synchronize()
                start, end = (self._first_seconds + self._first.elapsed_time(each) / 1000 for each in ends)
                self._spans.append(Span(lane=lane, phase=phase, start_seconds=start, end_seconds=end, detail=detail))
        self._noted.clear()

    def timeline(self) -> Timeline:
        """All spans so far, in order of beginning."""
        with self._alone:
            self._ask_device()
            ordered = sorted(self._spans, key=lambda span: (span.lane, span.start_seconds))
        merged: list[Span] = []
        for span in ordered:
            last = merged[-1] if merged else None
            if last is not None and _tell_the_same(last, span):
                end = max(last.end_seconds, span.end_seconds)
                merged[-1] = Span(
                    lane=span.lane,
                    phase=span.phase,
                    start_seconds=last.start_seconds,
                    end_seconds=end,
                    detail=span.detail,
                )
            else:
                merged.append(span)
        merged.sort(key=lambda span: span.start_seconds)
        return Timeline(wall_seconds=seconds_now() - self._began, spans=tuple(merged))


def _tell_the_same(first: Span, second: Span) -> bool:
    is_near = second.start_seconds - first.end_seconds < _GAP_SECONDS
    return is_near and (first.lane, first.phase, first.detail) == (second.lane, second.phase, second.detail)
