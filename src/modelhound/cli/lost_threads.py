"""End a command that would wait for ever for a thread that had no memory to begin.

In:  what Python says of errors that nobody can catch
Out: a sentence and exit code 1 where one of them is such a thread; the usual lines on stderr for all others
Nothing here knows what the threads were for. Python waits for a new thread to say that it has begun; one that has no memory
even for that dies without a word, and whoever started it waits without end.
"""

import _thread
import os
import queue
import sys
from typing import Any

__all__ = ["end_where_threads_are_lost"]

_BEGIN_SECONDS = 20.0


def end_where_threads_are_lost() -> None:
    """From now on, until this process ends; a MemoryError where there is no memory for one thread to begin with."""
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    has_begun = _thread.allocate_lock()
    has_begun.acquire()
    try:
        _thread.start_new_thread(_listen, (told, has_begun))  # not as a Thread, for which Python would wait
    except RuntimeError as error:
        raise MemoryError(str(error)) from error
    if not has_begun.acquire(timeout=_BEGIN_SECONDS):
        raise MemoryError("a thread did not begin")
    sys.unraisablehook = told.put  # written in C: in a thread without memory, nothing written in Python can run


def _listen(told: "queue.SimpleQueue[Any]", has_begun: _thread.LockType) -> None:
    has_begun.release()
    while True:
        unraisable = told.get()
        if unraisable.exc_type is MemoryError and "thread started by" in (unraisable.err_msg or ""):
            os.write(
                2,
                b"hound: memory ran out while a thread was started: whatever was finished is kept, free some memory and start "
                b"the same command again to go on\n",
            )
            os._exit(1)  # as if killed, which loses nothing: nobody can tell whoever waits
        sys.__unraisablehook__(unraisable)
        del unraisable
