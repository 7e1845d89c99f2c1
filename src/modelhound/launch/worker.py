"""A process that runs one call after the other, and may die without taking this one along.

In:  the dotted name of a function, its arguments as JSON values, and how long it may take
Out: an Outcome for each call: what it returned, or how it ended and the last words it wrote
Nothing here knows what a function does. The first call pays for starting an interpreter and for imports, the next do not.
After any failure (an exception, a death, a deadline) the process is ended, so that the next call begins in a clean one.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from modelhound.launch.environment import child_environment
from modelhound.launch.fresh import Outcome, name_ending

__all__ = ["Worker"]

_TAIL_CHARACTERS = 2000
_GRACE_SECONDS = 2.0


class Worker:
    """Runs calls in a child process; enter it, so that the child ends with the work."""

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        self.environment = dict(environment or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None
        self._replies = b""

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *ended: object) -> None:
        self.retire()

    @property
    def is_running(self) -> bool:
        """Whether the next call finds a process that has its imports behind it."""
        return self._child is not None and self._child.poll() is None

    def call(self, function: str, *arguments: Any, timeout_seconds: float = 60.0) -> Outcome:
        """Call `function` ("package.module:name") in the child, which is started if there is none, and wait for it."""
        if not self.is_running:
            self.retire()
            self._start()
        try:
            reply = self._ask({"function": function, "arguments": arguments}, timeout_seconds)
        except BaseException:  # Ctrl-C: the child is in the middle of something nobody will ask for
            self.retire()
            raise
        if reply is not None and "value" in reply:
            return Outcome(value=reply["value"], ok=True, ending="returned", last_words="")
        return self._explain_failure(reply)

    def retire(self) -> None:
        """End the child, whatever it is doing; the next call starts another."""
        child, self._child, self._replies = self._child, None, b""
        if child is not None:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)  # it leads a group of its own, its children included
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        if self._words is not None:
            self._words.close()
            self._words = None

    def _start(self) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (a pipe could fill up while nobody reads it)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "modelhound.launch.worker_child"],
            env=child_environment(self.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends the child
        )

    def _ask(self, question: dict[str, Any], timeout_seconds: float) -> dict[str, Any] | None:
        """The child's reply; None where it is too late or the child is gone."""
        assert self._child is not None
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            # A reply comes in one piece or in several that follow each other at once: the deadline is for the first.
            while b"\n" not in self._replies:
                if not selector.select(timeout_seconds):
                    return None
                read = os.read(self._child.stdout.fileno(), 1 << 20)
                if not read:
                    return None
                self._replies += read
        line, _, self._replies = self._replies.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _explain_failure(self, reply: dict[str, Any] | None) -> Outcome:
        ending = "timed out"
        if reply is not None:
            ending = f"raised {reply['error']}"
        elif self._has_ended():
            assert self._child is not None
            ending = name_ending(self._child.returncode)
        words = f"{self._last_words()}\n{reply['traceback']}" if reply is not None else self._last_words()
        self.retire()
        value = reply.get("message") if reply is not None else None
        return Outcome(value=value, ok=False, ending=ending, last_words=words[-_TAIL_CHARACTERS:])

    def _has_ended(self) -> bool:
        """A closed pipe comes a moment before the end of its process."""
        assert self._child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._replies or self._child.stdout is None:
                return self._child.poll() is not None
            selector = selectors.DefaultSelector()
            selector.register(self._child.stdout, selectors.EVENT_READ)
            closed = bool(selector.select(0))
            selector.close()
            if closed:
                self._child.wait(_GRACE_SECONDS)
        return self._child.poll() is not None

    def _last_words(self) -> str:
        if self._words is None:
            return ""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - _TAIL_CHARACTERS))
        return self._words.read().decode(errors="replace").strip()
