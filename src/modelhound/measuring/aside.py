"""Scoring beside the device's other work.

In:  work on the features of one model
Out: the same work done, and the features kept: in threads with a stream each where there is a CUDA device, at once on a CPU
Nothing here knows what the work is.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import torch

from modelhound.errors import is_out_of_memory
from modelhound.features.engine import Rows
from modelhound.meter import Lanes

__all__ = ["Aside"]

# On a device scoring is many small steps, between which it would wait. Each thread more makes all others slower, those that
# run networks too; with one, all wait while something is learned of many models (benchmarks/results/engine_202611.md).
_SCORERS_AT_ONCE = 2
_MOST_WAITING = 8  # features that are scored or kept or wait for it, all of them on the device
_WARM_UP_SECONDS = 60.0  # after which the threads stop waiting for each other


class Aside:
    """Scores while the device goes on with other models: in threads with a stream each; on a CPU, at once.

    Features are kept by one more thread: while it waits for the disk, scorers go on.
    """

    def __init__(self, device: str, lanes: Lanes) -> None:
        self._device, self._lanes = device, lanes
        self._scorers = self._keeper = None
        if device != "cpu":
            self._scorers = ThreadPoolExecutor(_SCORERS_AT_ONCE, "score", initializer=self._settle_in)
            self._keeper = ThreadPoolExecutor(1, "keep features", initializer=self._settle_in)
        self._waiting: list[Future[None]] = []
        self._room = threading.BoundedSemaphore(_MOST_WAITING)

    def _settle_in(self) -> None:
        """One stream for each thread: memory that was freed on one stream is not given to another.

        The device takes their small steps in between those of the networks, for which nobody waits as closely.
        """
        torch.cuda.set_stream(torch.cuda.Stream(self._device, priority=-1))  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for threads in (self._scorers, self._keeper):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)

    def do(self, work: Callable[[str, Rows], None], model: str, rows: Rows, keep: Callable[[], None]) -> None:
        """Score, then keep; waits while many others are waiting for it. What went wrong before may be raised here."""
        if self._scorers is None or self._keeper is None:
            self._score(work, model, rows)
            self._keep(model, keep)
            return
        made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        made.record(torch.cuda.current_stream(self._device))
        over = {each for each in self._waiting if each.done()}
        self._waiting = [each for each in self._waiting if each not in over]
        for each in over:
            each.result()
        self._room.acquire()
        scored = self._scorers.submit(self._score_on_stream, work, model, rows, made)
        kept = self._keeper.submit(self._keep_once_scored, scored, model, keep)
        kept.add_done_callback(lambda _: self._room.release())
        self._waiting.append(kept)

    def warm_up(self, work: Callable[[], None]) -> None:
        """Do this once beforehand in every thread that scores: what is done for the first time takes a second or more."""
        if self._scorers is not None:
            together = threading.Barrier(_SCORERS_AT_ONCE)  # so that no thread takes the turn of another
            for _ in range(_SCORERS_AT_ONCE):
                self._scorers.submit(self._warm_up, work, together)

    def _warm_up(self, work: Callable[[], None], together: threading.Barrier) -> None:
        with contextlib.suppress(Exception):
            together.wait(_WARM_UP_SECONDS)
            work()

    def wait(self) -> None:
        """Until all of it is done; what went wrong is raised here."""
        for each in self._waiting:
            each.result()
        self._waiting.clear()

    def _score(self, work: Callable[[str, Rows], None], model: str, rows: Rows) -> None:
        with self._lanes.span("scoring", "score", model):
            work(model, rows)

    def _keep(self, model: str, keep: Callable[[], None]) -> None:
        with self._lanes.span("scoring", "keep features", model):
            try:
                keep()
            except Exception as error:  # what is not kept is made again another time
                if not is_out_of_memory(error):
                    raise

    def _score_on_stream(
        self, work: Callable[[str, Rows], None], model: str, rows: Rows, made: torch.cuda.Event
    ) -> None:
        own = torch.cuda.current_stream(self._device)
        made.wait(own)
        rows.features.record_stream(own)
        self._score(work, model, rows)
        own.synchronize()

    def _keep_once_scored(self, scored: Future[None], model: str, keep: Callable[[], None]) -> None:
        scored.result()  # and raise what went wrong there: nothing is kept then
        self._keep(model, keep)
