"""Processes that are forked by a server which has timm loaded already: each would take seconds to load it by itself.

In:  the environment of a worker, or a command line
Out: a process that looks like one of `subprocess` to whoever started it
What a fresh interpreter does is for `tests/unit/test_launch.py` and `tests/unit/test_timing_worker.py`.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, Self

from modelhound.launch.environment import child_environment
from modelhound.launch.worker import Worker

__all__ = ["ForkedProcess", "start_command", "start_worker"]


class ForkedProcess:
    """What is asked of a `subprocess.Popen`, of a process that leads a group of its own."""

    def __init__(
        self, work: Callable[..., None], *arguments: Any, environment: dict[str, str], words: IO[bytes]
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["warm", "modelhound.verbs.search", "modelhound.measuring"])
        theirs_in, ours_in = context.Pipe(duplex=False)
        ours_out, theirs_out = context.Pipe(duplex=False)
        begun, beginning = context.Pipe(duplex=False)
        pipes = (theirs_in, theirs_out, Connection(os.dup(words.fileno())))
        self._process = context.Process(target=_begin, args=(beginning, pipes, environment, work, arguments))
        self._process.start()
        for each in (*pipes, beginning):
            each.close()
        begun.recv()  # from here on it can be ended with its group
        self.stdin = os.fdopen(os.dup(ours_in.fileno()), "wb")
        self.stdout = os.fdopen(os.dup(ours_out.fileno()), "rb")
        for each in (ours_in, ours_out, begun):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self.stdin.close()
        self.stdout.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return self.returncode


def start_worker(self: Worker) -> None:
    """Takes the place of `Worker._start`."""
    self._words = tempfile.TemporaryFile()  # noqa: SIM115
    forked = ForkedProcess(_serve, environment=child_environment(self.environment), words=self._words)
    self._child = forked  # type: ignore[assignment]


def start_command(argv: Sequence[str], words: IO[bytes]) -> ForkedProcess:
    """`hound ARGV` in the current folder; its errors go to `words`."""
    return ForkedProcess(_run_command, list(argv), environment=child_environment(), words=words)


def _start_as_usual() -> None:
    """In a process that a server has forked, and which otherwise starts others as it was started: by a second server, that has
    nothing loaded."""
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)


def _begin(
    beginning: Connection,
    pipes: tuple[Connection, ...],
    environment: dict[str, str],
    work: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    os.setsid()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
    os.environ.clear()
    os.environ.update(environment)
    _start_as_usual()
    beginning.send(None)
    beginning.close()
    work(*arguments)


def _serve() -> None:
    from modelhound.launch.worker_child import _serve

    _serve()


def _run_command(argv: list[str]) -> None:
    from modelhound.__main__ import main

    sys.argv[1:] = argv
    main()
