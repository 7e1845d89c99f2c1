"""Listening to workers, and what they may use of their machine, without a cluster."""

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from modelhound.errors import CrewError
from modelhound.launch import crew as crew_module
from modelhound.launch.crew import Crew, _Hand, _Worker


class Busy:
    """One parcel, which is done when its worker says so."""

    def __init__(self) -> None:
        self.is_done, self._is_taken = False, False

    def take(self, worker: int, now: float) -> Any:
        taken, self._is_taken = self._is_taken, True
        return None if taken else "a parcel"

    def finish(self, worker: int, now: float) -> list[int]:
        self.is_done = True
        return []

    def lose(self, worker: int) -> None:
        raise AssertionError("nobody dies here")


def make_crew(answers: int, *, answers_come: bool) -> Crew:
    """With one worker, which has nothing to tell for so many answers and is through then."""
    left = [answers]

    def wait(references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        threading.Event().wait(0.02)
        return (references, []) if answers_come else ([], references)

    def get(reference: Any) -> tuple[list[Any], bool, None]:
        left[0] -= 1
        return [], left[0] == 0, None

    exceptions = SimpleNamespace(RayError=OSError)
    ray = SimpleNamespace(nodes=list, wait=wait, get=get, exceptions=exceptions)
    crew = Crew(ray, device="cpu", whole_machines=False, deadline_seconds=0.1)
    remote = SimpleNamespace(remote=lambda *asked: "a reference")
    crew._hands[0] = _Hand(0, "node", SimpleNamespace(begin=remote, tell=remote))
    return crew


def work(crew: Crew) -> Busy:
    deal = Busy()
    crew.run(deal, "a:function", None, lambda parcel: parcel, lambda worker, sent: None)
    return deal


def test_a_worker_that_answers_may_take_as_long_as_it_needs_for_what_it_has_to_tell() -> None:
    assert work(make_crew(15, answers_come=True)).is_done


def test_workers_that_do_not_answer_at_all_are_given_up() -> None:
    with pytest.raises(CrewError, match="no worker has answered"):
        work(make_crew(1, answers_come=False))


@pytest.mark.parametrize(
    ("device", "whole_machines", "num_threads"), [("cpu", False, 8), ("cuda", False, 2), ("cpu", True, 8)]
)
def test_the_processors_of_a_machine_are_shared_by_the_workers_on_it(
    device: str, whole_machines: bool, num_threads: int
) -> None:
    names = {"NodeManagerHostname": "a", "NodeManagerAddress": "a", "NodeManagerPort": 1}
    node = {"NodeID": "node", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0}, **names}
    ray = SimpleNamespace(nodes=lambda: [node])
    crew = Crew(ray, device=device, whole_machines=whole_machines, deadline_seconds=1)
    assert crew._threads_of("node") == num_threads


@pytest.mark.parametrize(
    ("here", "there", "num_threads"), [(None, False, "4"), (None, True, "1"), ("3", False, "3"), ("3", True, "3")]
)
def test_a_worker_uses_its_share_of_the_processors_unless_somebody_has_said_how_many(
    here: str | None, there: bool, num_threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Ray's choice, or that of whoever has started it there
    monkeypatch.setattr("sys.path", ["somewhere"])
    monkeypatch.setattr(crew_module, "_was_given", lambda name: there)
    monkeypatch.setattr(crew_module.psutil, "cpu_count", lambda logical: 4)
    _Worker((), {} if here is None else {"OMP_NUM_THREADS": here}, 8)
    assert os.environ["OMP_NUM_THREADS"] == num_threads


def leave(common: Any, argument: Any, send: Any) -> None:
    send(argument)
    raise SystemExit(3)


def test_a_function_that_asks_the_process_to_end_is_over_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    worker = _Worker((), {}, 1)
    worker.begin(f"{__name__}:leave", None, "first")
    told: list[Any] = []
    for _ in range(100):
        sent, is_over, error = worker.tell(0.1)
        told += sent
        if is_over:
            break
    assert (told, is_over) == (["first"], True)
    assert str(error) == "cannot go on: code on a worker asked its process to end (SystemExit: 3); see what it runs"
