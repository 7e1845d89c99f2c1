"""The same work on every machine of a Ray cluster, each for itself: what is measured there is of that machine alone.

In:  where the cluster is, the dotted name of a function, what it gets on each machine
Out: whatever the function sends, with the name of its machine, as soon as it does; of machines that are lost, why
Nothing here knows what the function does. It is called as function(common, argument, send) by a worker that has all of its
machine. A worker that dies is started anew on the same machine and called again, with the argument of that moment; nobody else
does its work; where nothing is left to do by then, nobody is called.
"""

import contextlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from modelhound.errors import HoundError, RequestError, first_line
from modelhound.launch.connection import parse_address
from modelhound.launch.crew import Crew, Send, join_crew

__all__ = ["Hosts", "join_hosts"]

_TRIES = 3  # of a machine whose worker dies


class _Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The function ended on a machine with an error."""

    sentence: str
    is_request: bool


@contextlib.contextmanager
def join_hosts(on: str) -> "Iterator[Hosts]":
    """All machines of the cluster that --on names."""
    with join_crew(parse_address(on), device="cpu", whole_machines=True) as crew:
        yield Hosts(crew)


class Hosts:
    """Made by `join_hosts`."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.names: tuple[str, ...] = tuple(sorted(crew.host_of(worker) for worker in crew.workers))
        """In order. Where several have the same name, they are numbered."""

    def run(
        self,
        function: str,
        common: Any,
        argument: Callable[[str], Any],
        receive: Callable[[str, Any], None],
    ) -> dict[str, str]:
        """Until it has ended on every machine for which `argument` gives something; why it did not on some of them.

        Where every machine refuses the request, it is what is wrong, in the words of the first.
        """
        wanted = [name for name in self.names if argument(name) is not None]
        deal = _HostDeal(self._crew, wanted)
        refused: dict[str, _Refused] = {}

        def hear(worker: int, sent: Any) -> None:
            host = deal.host_of(worker)
            if isinstance(sent, _Refused):
                refused[host] = sent
            else:
                receive(host, sent)

        if wanted:
            self._crew.run(
                deal,
                "modelhound.launch.hosts:call_here",
                self._crew.share(common),
                lambda host: None if (given := argument(host)) is None else (function, given),
                hear,
            )
        if wanted and len(refused) == len(wanted) and all(each.is_request for each in refused.values()):
            raise RequestError(refused[wanted[0]].sentence)
        return {**deal.lost, **{host: each.sentence for host, each in refused.items()}}


class _HostDeal:
    """Every machine gets its own work and no other."""

    def __init__(self, crew: Crew, wanted: list[str]) -> None:
        self._crew = crew
        self._waiting = dict.fromkeys(wanted)
        self._out: dict[int, str] = {}
        self._seen: dict[int, str] = {}
        self._tries: Counter[str] = Counter()

    @property
    def is_done(self) -> bool:
        """Whether nobody works, and nobody is left who could."""
        return not self._out and not any(self._can_be_done(host) for host in self._waiting)

    @property
    def lost(self) -> dict[str, str]:
        """Machines whose work nobody has finished, and why."""
        gone = "the machine is gone from the cluster"
        died = f"the worker died {_TRIES} times"
        return {host: died if self._tries[host] >= _TRIES else gone for host in self._waiting}

    def host_of(self, worker: int) -> str:
        return self._seen[worker]

    def take(self, worker: int, now: float) -> str | None:
        host = self._crew.host_of(worker)
        if host not in self._waiting or self._tries[host] >= _TRIES:
            return None
        del self._waiting[host]
        self._out[worker] = self._seen[worker] = host
        return host

    def finish(self, worker: int, now: float) -> list[int]:
        del self._out[worker]
        return []

    def lose(self, worker: int) -> None:
        host = self._out.pop(worker, None)
        if host is not None:
            self._tries[host] += 1
            self._waiting[host] = None

    def _can_be_done(self, host: str) -> bool:
        there = {self._crew.host_of(worker) for worker in self._crew.workers}
        return host in there and self._tries[host] < _TRIES


def call_here(common: Any, given: tuple[str, Any], send: Send) -> None:
    """On the machine: an error is told, so that it ends nothing but the work of this machine."""
    function, argument = given
    try:
        pkgutil.resolve_name(function)(common, argument, send)
    except HoundError as error:
        send(_Refused(sentence=str(error), is_request=isinstance(error, RequestError)))
    except Exception as error:
        send(_Refused(sentence=f"{type(error).__name__}: {first_line(error)}", is_request=False))
