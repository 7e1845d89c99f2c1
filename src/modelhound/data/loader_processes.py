"""Processes that load batches: how they begin and end, and when they are given up.

In:  the iterator of torch's DataLoader that has started them
Out: an error of ours in time, whatever becomes of them: killed, stopped, without memory to hand a batch over
Nothing here knows what a batch is.
"""

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import queues
from typing import Any

from modelhound.errors import DataError
from modelhound.meter import seconds_now

__all__ = [
    "Deadline",
    "begin_worker",
    "described_errors",
    "interrupts_held_back",
    "stop_workers",
    "warnings_ignored",
]

_DEADLINE_SECONDS = 600.0  # for a batch
_LOOK_SECONDS = 5.0


def begin_worker(worker: int, *, parent: int) -> None:
    """In a worker: leave Ctrl-C to the main process, which ends the workers, and never write to its terminal. A batch that it
    cannot hand over, for want of shared memory, ends it: Python would drop the batch, and somebody would wait for it."""
    _end_with(parent)
    queues.Queue._on_queue_feeder_error = staticmethod(lambda error, batch: os._exit(1))  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _end_with(parent: int) -> None:
    """End this process with the one that started it. torch watches whoever is the parent when it begins to: whoever adopts a
    worker whose parent was killed before that, or a server that forks for others, with which a worker may outlive them all."""
    if multiprocessing.get_start_method() != "forkserver" and os.getppid() != parent:
        os._exit(1)
    starter = multiprocessing.parent_process()

    def wait() -> None:
        assert starter is not None
        starter.join()
        os._exit(1)

    if starter is not None:
        threading.Thread(target=wait, name="end with the parent", daemon=True).start()


def stop_workers(iterator: Iterator[Any] | None) -> None:
    stop = getattr(iterator, "_shutdown_workers", None)
    if stop is not None:
        with interrupts_held_back():
            with suppress(RuntimeError):  # that one was killed is known by now, or does not matter any more
                _wake_senders(iterator)
                stop()
            for worker in getattr(iterator, "_workers", ()):
                worker.kill()  # one that is stopped takes no other signal, and Python would wait for it at its end


def _wake_senders(iterator: Iterator[Any] | None) -> None:
    """Wake the threads that send to the workers. Where Ctrl-C came while one was being woken, Python still counts that sleep as
    one to be ended, and would end it once more instead of the sleep since: the worker would not hear that it is to end, and
    torch would wait 5 s for each of those."""
    for sending in getattr(iterator, "_index_queues", ()):
        asleep = getattr(sending, "_notempty", None)  # it is no part of what Python promises
        if asleep is not None:
            with asleep:
                asleep.notify_all()


class Deadline:
    """Ends the processes when one batch takes too long, and says so; lift it in the end. One that is stopped never answers, and
    torch would wait for ever; with a deadline of its own it would notice later that one has died."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._processes = getattr(iterator, "_workers", ())
        self._waiting_since: float | None = None
        self._is_lifted = threading.Event()
        self._is_past = False
        if self._processes:
            threading.Thread(target=self._watch, name="deadline of batches", daemon=True).start()

    @contextmanager
    def kept(self, data: str) -> Iterator[None]:
        """Around waiting for a batch of these data."""
        self._waiting_since = seconds_now()
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            if not self._is_past:
                raise
            raise DataError(
                f"cannot load {data!r}: expected a batch within {_DEADLINE_SECONDS:.0f} s, but none came and the worker "
                "processes were ended; see whether the disk answers, then start again, or use --workers 0"
            ) from error
        finally:
            self._waiting_since = None

    def lift(self) -> None:
        self._is_lifted.set()

    def _watch(self) -> None:
        while not self._is_lifted.wait(_LOOK_SECONDS):
            since = self._waiting_since
            if since is not None and seconds_now() - since > _DEADLINE_SECONDS:
                self._is_past = True
                for process in self._processes:
                    process.kill()  # who waits for it notices that
                return


@contextmanager
def described_errors(name: str) -> Iterator[None]:
    """What torch raises when a process cannot start or dies says neither which data nor what to do."""
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        reason = str(error) or "one ended in the middle of a batch"
        raise DataError(
            f"cannot load {name!r}: expected worker processes to go on, but {reason}; use --workers 0, or a smaller --batch "
            "if memory is short"
        ) from error


@contextmanager
def warnings_ignored() -> Iterator[None]:
    """torch warns of more workers than cores, Python of forking beside threads: the one was asked for, the other is usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Deliver Ctrl-C afterwards: in between, some processes would be started and known to nobody.

    Python hands signals to the main thread only, so elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def remember(signum: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if interrupted and callable(before):
            before(signal.SIGINT, None)  # usually raises KeyboardInterrupt
