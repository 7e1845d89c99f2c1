"""Many tasks by several threads, what comes of them in the order of the tasks.

In:  a function, tasks, a number of threads
Out: what the function made of each task, one after the other
Nothing here knows what is done. Threads are never far ahead of whoever takes what they made, so that little waits in memory;
whoever stops taking, or is interrupted, drops what was not begun.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["work_in_order"]

Task = TypeVar("Task")
Made = TypeVar("Made")


def work_in_order(
    work: Callable[[Task], Made],
    tasks: Iterable[Task],
    *,
    threads: int,
    ahead: int,
    name: str,
    begin: Callable[[], None] | None = None,
) -> Iterator[Made]:
    """Yield `work(task)` of each task; at most `ahead` of them are begun and not yet taken. Each thread calls `begin` first."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=begin)
    waiting: deque[Future[Made]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # failed or interrupted: the queue is dropped
