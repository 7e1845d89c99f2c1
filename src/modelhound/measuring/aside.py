"""Scoring beside the device's other work.

In:  work on the features of one model
Out: the same work done: in threads with a stream each where there is a CUDA device, at once on a CPU
Nothing here knows what the work is.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch

from modelhound.compat import is_out_of_memory
from modelhound.features.engine import Rows
from modelhound.meter import Lanes

__all__ = ["Aside"]

_SCORERS_AT_ONCE = 3  # on a device: scoring is many small steps, between which it would wait
_MOST_WAITING = 2 * _SCORERS_AT_ONCE  # features that are scored or wait for it, all of them on the device
_WARM_UP_SECONDS = 60.0  # after which the threads stop waiting for each other


class Aside:
    """Scores while the device goes on with other models: in threads with a stream each; on a CPU, at once."""

    def __init__(self, device: str, lanes: Lanes) -> None:
        self._device, self._lanes = device, lanes
        self._threads = (
            ThreadPoolExecutor(_SCORERS_AT_ONCE, thread_name_prefix="score", initializer=self._settle_in)
            if device != "cpu"
            else None
        )
        self._waiting: list[Future[None]] = []
        self._room = threading.BoundedSemaphore(_MOST_WAITING)

    def _settle_in(self) -> None:
        """One stream for each thread: memory that was freed on one stream is not given to another."""
        torch.cuda.set_stream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def do(self, work: Callable[[str, Rows], None], model: str, rows: Rows, keep: Callable[[], None]) -> None:
        """Score, then keep; waits while many others are waiting for it. What went wrong before may be raised here."""
        if self._threads is None:
            self._do(work, model, rows, keep)
            return
        made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        made.record(torch.cuda.current_stream(self._device))
        for each in self._waiting:
            if each.done():
                each.result()
        self._room.acquire()
        task = self._threads.submit(self._do_on_stream, work, model, rows, keep, made)
        task.add_done_callback(lambda _: self._room.release())
        self._waiting.append(task)

    def warm_up(self, work: Callable[[], None]) -> None:
        """Do this once beforehand in every thread: what is done for the first time takes a second or more."""
        if self._threads is not None:
            together = threading.Barrier(_SCORERS_AT_ONCE)  # so that no thread takes the turn of another
            for _ in range(_SCORERS_AT_ONCE):
                self._threads.submit(self._warm_up, work, together)

    def _warm_up(self, work: Callable[[], None], together: threading.Barrier) -> None:
        with contextlib.suppress(Exception):
            together.wait(_WARM_UP_SECONDS)
            work()

    def wait(self) -> None:
        """Until all of it is done; what went wrong is raised here."""
        for each in self._waiting:
            each.result()
        self._waiting.clear()

    def _do(self, work: Callable[[str, Rows], None], model: str, rows: Rows, keep: Callable[[], None]) -> None:
        with self._lanes.span("scoring", "score", model):
            work(model, rows)
        with self._lanes.span("scoring", "keep features", model):
            try:
                keep()
            except Exception as error:  # what is not kept is made again another time
                if not is_out_of_memory(error):
                    raise

    def _do_on_stream(
        self,
        work: Callable[[str, Rows], None],
        model: str,
        rows: Rows,
        keep: Callable[[], None],
        made: torch.cuda.Event,
    ) -> None:
        own = torch.cuda.current_stream(self._device)
        made.wait(own)
        rows.features.record_stream(own)
        self._do(work, model, rows, keep)
        own.synchronize()
