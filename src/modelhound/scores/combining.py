"""Problems that threads bring at about the same time, solved as one.

In:  a problem, from any thread, which waits for what is found
Out: what was found for it, by whichever thread came first for all that were waiting by then
Nothing here knows what the problems are. A problem that comes alone is solved at once: nobody waits for company.
"""

import threading
import traceback
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["Combining"]

Problem = TypeVar("Problem")
Found = TypeVar("Found")


class Combining(Generic[Problem, Found]):
    """`solve` gets problems of one kind, at most so many, and gives back what it found for each, in their order."""

    def __init__(
        self,
        solve: Callable[[Sequence[Problem]], Sequence[Found]],
        *,
        kind: Callable[[Problem], Hashable],
        most: Callable[[Problem], int],
    ) -> None:
        self._solve, self._kind, self._most = solve, kind, most
        self._waiting: list[tuple[Problem, Future[Found]]] = []
        self._alone = threading.Lock()  # for a moment, to look at who is waiting
        self._leading = threading.Lock()  # as long as it takes to solve

    def bring(self, problem: Problem) -> Found:
        """What is found for it; what goes wrong is raised by all whose problems were solved together."""
        own: Future[Found] = Future()
        with self._alone:
            self._waiting.append((problem, own))
        with self._leading:
            if not own.done():  # nobody has taken it along
                self._lead(problem, own)
        return own.result()

    def _lead(self, problem: Problem, own: "Future[Found]") -> None:
        """Solve this one and those that wait and are of its kind."""
        with self._alone:
            kind = self._kind(problem)
            others = [each for each in self._waiting if each[1] is not own and self._kind(each[0]) == kind]
            group = [(problem, own), *others[: self._most(problem) - 1]]
            taken = {id(each[1]) for each in group}
            self._waiting = [each for each in self._waiting if id(each[1]) not in taken]
        try:
            found = self._solve([each for each, _ in group])
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # or whoever keeps the error keeps all that filled the memory
            for _, future in group:
                future.set_exception(error)
            return
        for (_, future), each in zip(group, found, strict=True):
            future.set_result(each)
