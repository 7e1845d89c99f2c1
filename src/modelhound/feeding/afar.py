"""The same study on every machine of a Ray cluster: how a machine loads is measured there, with the data as it finds them.

In:  what was asked, the function that does it on one machine, the folder that results are kept in
Out: what the function brought back on each machine, and a run folder for each, which is filled here as records come
Nothing here knows what is measured. A machine gets what its folder holds already, so that a worker that dies, or the next start
of the same command, goes on where it was.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from modelhound.errors import RequestError
from modelhound.launch.hosts import join_hosts
from modelhound.meter import utc_now
from modelhound.records import Progress, Record, Watch, to_plain
from modelhound.settings import LoaderSearchSettings
from modelhound.store import RunFolder, open_run, read_run

__all__ = ["Keep", "Keeper", "feed_hosts", "keep_here", "relay_to"]


class Keeper(Protocol):
    """Where results are kept: a run folder, or somebody who passes them on to one."""

    def append(self, record: Record) -> None: ...

    def write_answer(self, answer: msgspec.Struct, *, headline: str) -> None: ...


Keep = Callable[
    [Path, LoaderSearchSettings, Mapping[str, Any]], contextlib.AbstractContextManager[tuple[Keeper, Sequence[Record]]]
]
"""Path, what was asked, what decides the numbers -> where to keep results, and what is known."""


class _Opened(msgspec.Struct, frozen=True, kw_only=True):
    identity: dict[str, Any]


class _Answered(msgspec.Struct, frozen=True, kw_only=True):
    answer: msgspec.Struct
    headline: str


@contextlib.contextmanager
def keep_here(
    path: Path, settings: LoaderSearchSettings, identity: Mapping[str, Any]
) -> Iterator[tuple[Keeper, Sequence[Record]]]:
    """In a run folder of this machine."""
    with open_run(path, verb="loader", at=utc_now(), settings=to_plain(settings), identity=identity) as run:
        yield run, read_run(path).records


def relay_to(send: Callable[[Any], None], known: Sequence[Record]) -> Keep:
    """On a machine of the cluster: in the run folder of whoever asked."""

    @contextlib.contextmanager
    def keep(
        path: Path, settings: LoaderSearchSettings, identity: Mapping[str, Any]
    ) -> Iterator[tuple[Keeper, Sequence[Record]]]:
        send(_Opened(identity=dict(identity)))
        yield _Relay(send), known

    return keep


@dataclasses.dataclass(frozen=True, slots=True)
class _Relay:
    send: Callable[[Any], None]

    def append(self, record: Record) -> None:
        self.send(record)

    def write_answer(self, answer: msgspec.Struct, *, headline: str) -> None:
        self.send(_Answered(answer=answer, headline=headline))


def feed_hosts(
    settings: LoaderSearchSettings, base: Path, function: str, *, watch: Watch
) -> tuple[dict[str, tuple[Path, Any]], dict[str, str]]:
    """By machine: its run folder and what the function sent last; and why others brought nothing.

    The function is called there as function(settings, known records, send), see `relay_to`.
    """
    alone = dataclasses.replace(settings, on="local", run=None, out=None)
    runs: dict[str, RunFolder] = {}
    found: dict[str, tuple[Path, Any]] = {}

    def folder(host: str) -> Path:
        return base.with_name(f"{base.name}-{host}")

    def known(host: str) -> tuple[Record, ...]:
        with contextlib.suppress(RequestError):  # it is new
            return read_run(folder(host)).records
        return ()

    with contextlib.ExitStack() as stack, join_hosts(settings.on) as hosts:

        def receive(host: str, sent: Any) -> None:
            match sent:
                case _Opened(identity=identity) if host not in runs:
                    opening = open_run(
                        folder(host), verb="loader", at=utc_now(), settings=to_plain(alone), identity=identity
                    )
                    runs[host] = stack.enter_context(opening)
                case _Opened():  # a worker that died and came back
                    pass
                case _Answered(answer=answer, headline=headline):
                    runs[host].write_answer(answer, headline=headline)
                case Progress():
                    watch(msgspec.structs.replace(sent, task=f"{sent.task} on {host}"))
                case Record():
                    runs[host].append(sent)
                case _:
                    found[host] = (folder(host), sent)

        lost = hosts.run(function, alone, known, receive)
    return dict(sorted(found.items())), lost
