"""What happened at the same time as what.

In:  pieces of work, each on a lane such as decoding, weights, device, scoring
Out: spans, in seconds since this began
Nothing here knows what the work is for. Threads may write at once. Work that was handed to a device and not waited for is not
seen: a span on a device's lane ends when the host has waited for it.
"""

import contextlib
import threading
from collections.abc import Iterator

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

    def timeline(self) -> Timeline:
        """All spans so far, in order of beginning."""
        with self._alone:
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
