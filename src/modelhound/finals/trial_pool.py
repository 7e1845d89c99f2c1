"""Many trials: one after the other here, or several at once in processes of their own on a GPU that one cannot fill.

In:  TrialRequests
Out: a TrialResult for each, told as soon as it is there
Nothing here knows what the trials are for.
"""

import contextlib
import pickle
import queue
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from modelhound.errors import BrokenItemError, DataError, HoundError, RequestError, StoreError
from modelhound.finals.trials import Classroom, TrialRequest, TrialResult, run_trial
from modelhound.launch.worker import Worker
from modelhound.meter import seconds_now
from modelhound.records import to_plain

__all__ = ["TrialPool"]

_LEAST_DEADLINE_SECONDS = 900.0  # starting, reading weights and decoding all items are not part of what is expected
_TIMES_EXPECTED = 10.0
_NUM_ATTEMPTS = 2
_NOT_ITS_FAULT = (RequestError, DataError, BrokenItemError, StoreError)


class TrialPool:
    """Runs trials; enter it, so that its processes end with it."""

    def __init__(self, room: Classroom, *, num_processes: int = 0) -> None:
        """With `num_processes` 0, trials run in this process."""
        self._room, self.num_processes = room, num_processes
        self._stack = contextlib.ExitStack()
        self._workers: list[Worker] = []
        self._items = ""
        self._is_left = False

    def __enter__(self) -> Self:
        if self.num_processes:
            self._room.held.clear()  # each process holds items of its own from now on
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hound-finals-"))
            self._items = str(Path(folder) / "items.pickle")
            Path(self._items).write_bytes(pickle.dumps((self._room.dataset, self._room.folds)))
            self._workers = [
                self._stack.enter_context(Worker(environment={"OMP_NUM_THREADS": "1"}))
                for _ in range(self.num_processes)
            ]
        return self

    def __exit__(self, *ended: object) -> None:
        self._is_left = True
        self._stack.close()

    def run(
        self,
        requests: Sequence[TrialRequest],
        done: Callable[[int, TrialResult], None],
        *,
        until: float | None = None,
    ) -> None:
        """All of them, in any order; `done` is told the place of each with its result, from this thread.

        Where there is an end of time (by the clock of `meter`), what would not be over by then is given up, and nothing is
        begun after that.
        """
        if not self._workers:
            for place, request in enumerate(requests):
                here = run_trial(_within(request, until), self._room)
                done(place, here)
                if here.is_given_up:
                    return
            return
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(len(requests)):
            waiting.put(place)
        results: queue.SimpleQueue[tuple[int, TrialResult | Exception]] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=self._serve, args=(worker, requests, until, waiting, results), daemon=True)
            for worker in self._workers[: len(requests)]
        ]
        for thread in threads:
            thread.start()
        try:
            num_left = len(requests)
            while num_left:
                place, result = results.get()
                if isinstance(result, Exception):
                    raise result
                done(place, result)
                num_left -= 1
                if result.is_given_up:
                    num_left -= _empty(waiting)
        except BaseException:
            _empty(waiting)  # or workers would go on, whatever becomes of the pool
            raise
        for thread in threads:
            thread.join()

    def _serve(
        self,
        worker: Worker,
        requests: Sequence[TrialRequest],
        until: float | None,
        waiting: "queue.SimpleQueue[int]",
        results: "queue.SimpleQueue[tuple[int, TrialResult | Exception]]",
    ) -> None:
        """One worker: take the next request until there is none, or no time."""
        while True:
            try:
                place = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                result = self._ask(worker, _within(requests[place], until))
            except Exception as error:  # told to whoever waits, who would wait for ever otherwise
                results.put((place, error))
                continue
            results.put((place, result))
            if result.is_given_up:
                return

    def _ask(self, worker: Worker, request: TrialRequest) -> TrialResult:
        """A process that is killed, or stops and answers to nobody, gets a second try in a fresh one; one that ended with the
        pool does not, or the fresh one would outlive it."""
        for _ in range(_NUM_ATTEMPTS):
            outcome = worker.call(
                "modelhound.finals.trials:run_trial_elsewhere",
                to_plain(request),
                self._items,
                self.num_processes,
                timeout_seconds=self._deadline_seconds(request),
            )
            if outcome.ok:
                return msgspec.convert(outcome.value, TrialResult)
            if self._is_left or outcome.ending.startswith("raised"):
                break
        for kind in _NOT_ITS_FAULT:
            if outcome.ending == f"raised {kind.__name__}":
                raise kind(str(outcome.value))
        if outcome.ending.startswith("raised"):
            raise HoundError(f"cannot run a trial of {request.model}: {outcome.ending[7:]}: {outcome.value}")
        return TrialResult(error=f"its process ended: {outcome.ending}", try_again=True)

    def _deadline_seconds(self, request: TrialRequest) -> float:
        """All of them share one device, so that each may take as many times longer."""
        return max(_LEAST_DEADLINE_SECONDS, _TIMES_EXPECTED * self.num_processes * request.expected_seconds)


def _within(request: TrialRequest, until: float | None) -> TrialRequest:
    """With the time that is left when it begins."""
    return request if until is None else msgspec.structs.replace(request, seconds_left=until - seconds_now())


def _empty(waiting: "queue.SimpleQueue[int]") -> int:
    """How many will not be begun."""
    count = 0
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()
            count += 1
    return count
