"""Scoring beside other work, or many models at once.

In:  work on the features of one model, as soon as they are there
Out: the same work done, and the features kept
Where networks run on a CUDA device, models are scored in threads with a stream each while the device goes on with others. On a
CPU networks take all cores until features are there: small ones wait until there is a model for each core, and are scored at
once then; large ones are scored when they come, by all cores. Nothing here knows what the work is.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import NamedTuple, Protocol, Self

import torch

from modelhound.compat import threads_kept
from modelhound.errors import is_out_of_memory
from modelhound.features.engine import Rows
from modelhound.measuring.gathering import Gathering
from modelhound.measuring.scoring import Job
from modelhound.meter import Lanes
from modelhound.scores import suits_one_thread

__all__ = ["Aside", "BesideDevice", "OnCores", "cores_at_once", "open_aside"]

# On a device scoring is many small steps, between which it would wait. Each thread more makes all others slower, those that
# run networks too; with one, all wait while something is learned of many models (benchmarks/results/engine_log_202611.md).
_SCORERS_AT_ONCE = 2
_MOST_WAITING = 8  # features that are scored or kept or wait for it, all of them on the device
_WAITING_BYTES = 2**28  # of features that wait for others on a host
_WARM_UP_SECONDS = 60.0  # after which the threads stop waiting for each other

Work = Callable[[str, Rows], None]


def open_aside(job: Job, lanes: Lanes) -> "Aside":
    """The one that suits where networks run."""
    if job.device != "cpu":
        return BesideDevice(job.device, lanes)
    return OnCores(lanes, num_items=len(job.dataset), at_once=_most_at_once(job))


def cores_at_once(job: Job, num_features: int) -> int:
    """How many models with so many features are scored at once on a CPU."""
    return _most_at_once(job) if suits_one_thread(len(job.dataset), num_features) else 1


def _most_at_once(job: Job) -> int:
    # what several models take to be scored at once is in no plan, by which a limit of memory is kept
    return 1 if job.settings.memory is not None else torch.get_num_threads()


class Aside(Protocol):
    """Where features go. Leave it as a context, so that its threads end."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def warm_up(self, work: Callable[[], None]) -> None:
        """Do this once beforehand in every thread that scores, where what is done for the first time takes a second or more."""

    def do(self, work: Work, model: str, rows: Rows, keep: Callable[[], None]) -> None:
        """Score, then keep, now or later. What went wrong before may be raised here."""

    def wait(self) -> None:
        """Until all of it is done; what went wrong is raised here."""


class _Piece(NamedTuple):
    work: Work
    model: str
    rows: Rows
    keep: Callable[[], None]


class OnCores:
    """An Aside of a CPU."""

    def __init__(self, lanes: Lanes, *, num_items: int, at_once: int) -> None:
        self._lanes, self._num_items = lanes, num_items
        self._threads = ThreadPoolExecutor(at_once, "score", initializer=torch.set_num_threads, initargs=(1,))
        self._waiting: Gathering[_Piece] = Gathering(most=at_once, room_bytes=_WAITING_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def warm_up(self, work: Callable[[], None]) -> None:
        """Nothing takes long for the first time."""

    def do(self, work: Work, model: str, rows: Rows, keep: Callable[[], None]) -> None:
        piece = _Piece(work, model, rows, keep)
        if suits_one_thread(self._num_items, rows.features.shape[-1]):
            self._do_at_once(self._waiting.add(piece, rows.features.nbytes))
        else:
            self._do_at_once([piece])

    def wait(self) -> None:
        self._do_at_once(self._waiting.rest())

    def _do_at_once(self, pieces: Sequence[_Piece]) -> None:
        if len(pieces) == 1:
            (piece,) = pieces
            _score(self._lanes, piece.work, piece.model, piece.rows)
        else:
            with threads_kept():
                scored = [
                    self._threads.submit(_score, self._lanes, piece.work, piece.model, piece.rows) for piece in pieces
                ]
                wait_for(scored)
            for each in scored:
                each.result()
        for piece in pieces:
            _keep(self._lanes, piece.model, piece.keep)


class BesideDevice:
    """An Aside of a CUDA device. Features are kept by one more thread: while it waits for the disk, scorers go on."""

    def __init__(self, device: str, lanes: Lanes) -> None:
        self._device, self._lanes = device, lanes
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
            threads.shutdown(wait=True, cancel_futures=True)

    def warm_up(self, work: Callable[[], None]) -> None:
        together = threading.Barrier(_SCORERS_AT_ONCE)  # so that no thread takes the turn of another
        for _ in range(_SCORERS_AT_ONCE):
            self._scorers.submit(self._warm_up, work, together)

    def _warm_up(self, work: Callable[[], None], together: threading.Barrier) -> None:
        with contextlib.suppress(Exception):
            together.wait(_WARM_UP_SECONDS)
            work()

    def do(self, work: Work, model: str, rows: Rows, keep: Callable[[], None]) -> None:
        """Waits while many others are waiting."""
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

    def wait(self) -> None:
        for each in self._waiting:
            each.result()
        self._waiting.clear()

    def _score_on_stream(self, work: Work, model: str, rows: Rows, made: torch.cuda.Event) -> None:
        own = torch.cuda.current_stream(self._device)
        made.wait(own)
        rows.features.record_stream(own)
        _score(self._lanes, work, model, rows)
        own.synchronize()

    def _keep_once_scored(self, scored: Future[None], model: str, keep: Callable[[], None]) -> None:
        scored.result()  # and raise what went wrong there: nothing is kept then
        _keep(self._lanes, model, keep)


def _score(lanes: Lanes, work: Work, model: str, rows: Rows) -> None:
    with lanes.span("scoring", "score", model):
        work(model, rows)


def _keep(lanes: Lanes, model: str, keep: Callable[[], None]) -> None:
    with lanes.span("scoring", "keep features", model):
        try:
            keep()
        except Exception as error:  # what is not kept is made again another time
            if not is_out_of_memory(error):
                raise
