"""Workers on the machines of a Ray cluster that do parcels of work, die, are replaced and overtaken.

In:  an address, the dotted name of a function, parcels
Out: whatever the function sends back, as soon as it does
Nothing here knows what the function does. It is called on a worker as function(common, argument, send); `common` goes through
the object store, once to every machine, and all workers of a machine look at the same copy. Which worker gets what next is the
business of a Deal. A worker that dies is started anew where its machine is still there; its parcel goes to whoever is free.
"""

import contextlib
import os
import pkgutil
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from modelhound.compat import WAITING_ASLEEP
from modelhound.errors import CrewError, RequestError, first_line
from modelhound.launch.connection import connect, disconnect
from modelhound.meter import seconds_now

__all__ = ["Crew", "Dealer", "Send", "join_crew"]

Send = Callable[[Any], None]

_POLL_SECONDS = 0.5
_LISTEN_SECONDS = 1.0  # a worker with nothing to tell answers after this
_START_SECONDS = 120.0
_STARTS = 3
_DEADLINE_SECONDS = 600.0
_THREADS = "OMP_NUM_THREADS"
_PASSED_ON = ("MODELHOUND_CACHE", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", _THREADS, *WAITING_ASLEEP)


class Dealer(Protocol):
    """Says who does what next."""

    @property
    def is_done(self) -> bool: ...

    def take(self, worker: int, now: float) -> Any: ...

    def finish(self, worker: int, now: float) -> list[int]: ...

    def lose(self, worker: int) -> None: ...


@dataclass(slots=True)
class _Hand:
    """One worker, and what it was asked last."""

    number: int
    node: str
    actor: Any
    listening: Any = None
    is_busy: bool = False
    in_vain: bool = False
    """Somebody else has finished what it does. It gets nothing new until it is through, perhaps in a later run."""


@contextlib.contextmanager
def join_crew(address: str | None, *, device: str, whole_machines: bool = False) -> "Iterator[Crew]":
    """Workers on the cluster at `address`, or on one of this machine alone: one for every GPU, or for every machine.

    With `whole_machines` there is one for every machine, which has all of its GPUs.
    """
    ray = connect(address)
    crew = Crew(ray, device=device, whole_machines=whole_machines)
    try:
        crew.start()
        yield crew
    finally:
        crew.dismiss()
        disconnect(ray)


class Crew:
    """Made by `join_crew`."""

    def __init__(
        self, ray: Any, *, device: str, whole_machines: bool, deadline_seconds: float = _DEADLINE_SECONDS
    ) -> None:
        self._ray, self._device, self._deadline_seconds = ray, device, deadline_seconds
        self._whole_machines = whole_machines
        self._names = _name_machines(ray.nodes())
        self._hands: dict[int, _Hand] = {}
        self._count = 0
        self.num_lost = 0
        """Workers that died so far."""

    @property
    def workers(self) -> tuple[int, ...]:
        """Numbers of those that are there; a number is never given twice."""
        return tuple(self._hands)

    def host_of(self, worker: int) -> str:
        """The name of the machine that it is on."""
        return self._names[self._hands[worker].node]

    def start(self) -> None:
        """One worker for every GPU, or one for every machine; all start at once, and one that dies at it is tried again."""
        asked = [(node, self._ask_for(node)) for node, number in self._places().items() for _ in range(number)]
        if not asked:
            what = "a GPU" if self._device != "cpu" else "a processor"
            raise RequestError(f"cannot spread work over this Ray cluster: expected a machine with {what} to spare")
        trouble: CrewError | None = None
        for node, actor in asked:
            try:
                self._welcome(node, actor)
            except CrewError as error:
                trouble = error
        if not self._hands and trouble is not None:
            raise trouble

    def share(self, value: Any) -> Any:
        """Put something where every machine can have it, once; give it to `run` as `common`."""
        return self._ray.put(value)

    def run(
        self,
        deal: Dealer,
        function: str,
        common: Any,
        argument: Callable[[Any], Any],
        receive: Callable[[int, Any], None],
    ) -> None:
        """Until every parcel is done: `argument` says what the function gets for a parcel, `receive` gets what it sends.

        `argument` may give None where nothing is left to do for a parcel by now.
        """
        heard = seconds_now()
        while not deal.is_done:
            for hand in list(self._hands.values()):
                while not hand.is_busy and (parcel := deal.take(hand.number, seconds_now())) is not None:
                    given = argument(parcel)
                    if given is None:
                        self._finish(hand, deal)
                        continue
                    hand.actor.begin.remote(function, common, given)
                    hand.is_busy, hand.in_vain = True, False
            if deal.is_done:
                break
            if self._listen(deal, receive):
                heard = seconds_now()
            self._check_alive(heard)

    def dismiss(self) -> None:
        for hand in self._hands.values():
            with contextlib.suppress(Exception):
                self._ray.kill(hand.actor)
        self._hands.clear()

    def _listen(self, deal: Dealer, receive: Callable[[int, Any], None]) -> bool:
        """Hear all workers that have something to tell; whether one answered, if only that there is nothing yet."""
        by_reference = {}
        for hand in self._hands.values():
            if hand.is_busy:
                if hand.listening is None:
                    hand.listening = hand.actor.tell.remote(_LISTEN_SECONDS)
                by_reference[hand.listening] = hand
        if not by_reference:
            threading.Event().wait(_POLL_SECONDS)  # all idle: a late parcel may be copied in a moment
            return False
        ready, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=_POLL_SECONDS)
        heard = False
        for reference in ready:
            hand = by_reference[reference]
            hand.listening = None
            try:
                sent, is_over, error = self._ray.get(reference)
            except self._ray.exceptions.RayError:
                self._replace(hand, deal)
                continue
            heard = True  # a large model may take an hour over many items
            if not hand.in_vain:
                for value in sent:
                    receive(hand.number, value)
                if error is not None:
                    raise error
            if is_over:
                hand.is_busy = False
                if not hand.in_vain:
                    self._finish(hand, deal)
        return heard

    def _finish(self, hand: _Hand, deal: Dealer) -> None:
        for other in deal.finish(hand.number, seconds_now()):
            self._hands[other].in_vain = True

    def _replace(self, hand: _Hand, deal: Dealer) -> None:
        deal.lose(hand.number)
        self.num_lost += 1
        del self._hands[hand.number]
        with contextlib.suppress(Exception):
            self._ray.kill(hand.actor)
        if self._places().get(hand.node, 0) > sum(other.node == hand.node for other in self._hands.values()):
            with contextlib.suppress(CrewError):  # others go on without it
                self._welcome(hand.node, self._ask_for(hand.node))

    def _check_alive(self, heard: float) -> None:
        if not self._hands:
            raise CrewError(
                "cannot go on: expected workers, but the last one of the cluster died; start the same command again, finished "
                "models are kept"
            )
        if seconds_now() - heard > self._deadline_seconds:
            raise CrewError(
                f"cannot go on: no worker has answered for {self._deadline_seconds:.0f} s; look after the cluster, then "
                "start the same command again, finished models are kept"
            )

    def _places(self) -> dict[str, int]:
        """How many workers each machine can have."""
        places = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                resources = node["Resources"]
                number = int(resources.get("GPU", 0)) if self._device != "cpu" else int(resources.get("CPU", 0) >= 1)
                places[node["NodeID"]] = number
        return places

    def _welcome(self, node: str, actor: Any) -> None:
        """Wait until a worker is there; one that is not gets successors, a few times."""
        for attempt in range(_STARTS):
            try:
                self._ray.get(actor.is_there.remote(), timeout=_START_SECONDS)
            except self._ray.exceptions.RayError as error:
                reason = first_line(error)
                trouble = CrewError(
                    f"cannot start a worker on the Ray cluster: {reason}; is modelhound installed on all of its machines?"
                )
                with contextlib.suppress(Exception):
                    self._ray.kill(actor)  # one that is only late would keep the place that its successor needs
                if attempt < _STARTS - 1:
                    actor = self._ask_for(node)
                continue
            self._hands[self._count] = _Hand(self._count, node, actor)
            self._count += 1
            return
        raise trouble

    def _ask_for(self, node: str) -> Any:
        """A worker on that machine, which will be there in a moment."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        maker = self._ray.remote(_Worker).options(
            num_cpus=1 if self._device == "cpu" else 0,
            num_gpus=self._gpus_of(node),
            max_concurrency=2,  # one call to begin, one to tell
            scheduling_strategy=strategy,
        )
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return maker.remote(tuple(path for path in sys.path if path), environment, self._threads_of(node))

    def _gpus_of(self, node: str) -> int:
        """What a worker there asks for: of a whole machine all, so that it sees them."""
        if not self._whole_machines:
            return 0 if self._device == "cpu" else 1
        return next((int(each["Resources"].get("GPU", 0)) for each in self._ray.nodes() if each["NodeID"] == node), 0)

    def _threads_of(self, node: str) -> int:
        """What one worker there may use of its processors."""
        processors = {each["NodeID"]: int(each["Resources"].get("CPU", 0)) for each in self._ray.nodes()}
        num_workers = 1 if self._whole_machines else self._places().get(node, 1)
        return max(1, processors.get(node, 1) // max(1, num_workers))


def _name_machines(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """By node: what the machine calls itself, with a number where several call themselves the same."""
    by_place = sorted(
        nodes, key=lambda node: (node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeManagerPort"])
    )
    alive = [node for node in by_place if node["Alive"]]
    same = Counter(node["NodeManagerHostname"] for node in alive)
    count: Counter[str] = Counter()
    names = {}
    for node in alive:
        name = node["NodeManagerHostname"]
        count[name] += 1
        names[node["NodeID"]] = name if same[name] == 1 else f"{name}-{count[name]}"
    return names


def _was_given(name: str) -> bool:
    """Whether this process was started with that variable, where the system tells."""
    with contextlib.suppress(OSError):
        return any(
            each.startswith(f"{name}=".encode()) for each in Path("/proc/self/environ").read_bytes().split(b"\0")
        )
    return False


class _Worker:
    """Lives in a process of the cluster: calls functions in a thread, and tells what they send."""

    def __init__(self, search_path: tuple[str, ...], environment: Mapping[str, str], num_threads: int) -> None:
        if not _was_given(_THREADS):  # then Ray has set it to 1, whatever the machine has
            os.environ[_THREADS] = str(min(num_threads, psutil.cpu_count(logical=False) or num_threads))
        os.environ.update(environment)  # before torch is loaded
        sys.path[:] = dict.fromkeys((*search_path, *sys.path))
        self._sent: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def is_there(self) -> bool:
        return True

    def begin(self, function: str, common: Any, argument: Any) -> None:
        threading.Thread(target=self._work, args=(function, common, argument), daemon=True).start()

    def tell(self, seconds: float) -> tuple[list[Any], bool, Exception | None]:
        """What was sent since the last time, whether that is all, and what went wrong."""
        sent: list[Any] = []
        with contextlib.suppress(queue.Empty):
            kind, value = self._sent.get(timeout=seconds)
            while True:
                if kind == "over":
                    return sent, True, value
                sent.append(value)
                kind, value = self._sent.get_nowait()
        return sent, False, None

    def _work(self, function: str, common: Any, argument: Any) -> None:
        error: Exception | None = None
        try:
            pkgutil.resolve_name(function)(common, argument, lambda value: self._sent.put(("sent", value)))
        except Exception as raised:
            error = raised
        except SystemExit as left:  # which ends this thread alone: nobody would ever hear that it is over
            error = CrewError(
                f"cannot go on: code on a worker asked its process to end (SystemExit: {left}); see what it runs"
            )
        self._sent.put(("over", error))
