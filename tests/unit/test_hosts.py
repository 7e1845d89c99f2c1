"""The same work on every machine of a cluster, whose workers are calls in this process here; `tests/ray` has real ones."""

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import modelhound
from modelhound.errors import CrewError, ModelError, RequestError
from modelhound.feeding import afar
from modelhound.launch import hosts
from modelhound.records import LatencyFailed, LatencyMeasured
from modelhound.store import read_run
from modelhound.timing import Bench, places
from modelhound.verbs.latency import explain_latency


class _DiedError(BaseException):
    """How a worker ends here; nothing below may catch it."""


class _Machines:
    """A crew of one worker for each machine; `dies` says after how many things sent, and whether the machine goes too."""

    def __init__(self, names: tuple[str, ...], dies: dict[str, list[int]], gone: tuple[str, ...] = ()) -> None:
        self._by_worker = dict(enumerate(names))
        self._dies, self._gone = dies, gone

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(self._by_worker)

    def host_of(self, worker: int) -> str:
        return self._by_worker[worker]

    def share(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def run(
        self,
        deal: Any,
        function: str,
        common: bytes,
        argument: Callable[[Any], Any],
        receive: Callable[[int, Any], None],
    ) -> None:
        assert function == "modelhound.launch.hosts:call_here"
        while not deal.is_done:
            for worker in self.workers:
                host = deal.take(worker, 0.0)
                if host is None:
                    continue
                given = pickle.loads(pickle.dumps(argument(host)))
                if given is None:
                    deal.finish(worker, 0.0)
                    continue
                try:
                    hosts.call_here(pickle.loads(common), given, self._sender(worker, receive))
                    deal.finish(worker, 0.0)
                except _DiedError:
                    deal.lose(worker)
                    del self._by_worker[worker]
                    if host not in self._gone:
                        self._by_worker[worker + 100] = host

    def _sender(self, worker: int, receive: Callable[[int, Any], None]) -> Callable[[Any], None]:
        lives = self._dies.get(self._by_worker[worker], [])
        left = [lives.pop(0) if lives else 10**6]

        def send(value: Any) -> None:
            if left[0] == 0:
                raise _DiedError
            left[0] -= 1
            receive(worker, pickle.loads(pickle.dumps(value)))

        return send


def say_three_things(common: str, argument: str, send: Callable[[Any], None]) -> None:
    for number in range(3):
        send(f"{common} {argument} {number}")


def say_four_things(common: str, argument: str, send: Callable[[Any], None]) -> None:
    say_three_things(common, argument, send)
    send("nothing new")


def refuse(common: str, argument: str, send: Callable[[Any], None]) -> None:
    if argument in common:
        raise RequestError(f"cannot do {argument!r}")
    if argument == "odd":
        raise ModelError("cannot build it")
    send("done")


def _run(machines: _Machines, function: str, common: str = "all") -> tuple[list[tuple[str, Any]], dict[str, str]]:
    heard: list[tuple[str, Any]] = []
    lost = hosts.Hosts(machines).run(  # type: ignore[arg-type]
        f"{__name__}:{function}", common, lambda host: host, lambda host, sent: heard.append((host, sent))
    )
    return heard, lost


def test_every_machine_is_heard_under_its_own_name() -> None:
    heard, lost = _run(_Machines(("b", "a"), {}), "say_three_things")
    assert lost == {}
    assert sorted(heard) == [(host, f"all {host} {number}") for host in "ab" for number in range(3)]


def test_a_worker_that_dies_begins_again_on_its_own_machine() -> None:
    heard, lost = _run(_Machines(("a", "b"), {"a": [1]}), "say_three_things")
    assert lost == {}
    assert [sent for host, sent in heard if host == "a"] == ["all a 0", "all a 0", "all a 1", "all a 2"]


def test_a_machine_whose_worker_always_dies_is_given_up_and_the_others_go_on() -> None:
    heard, lost = _run(_Machines(("a", "b"), {"a": [1, 1, 1, 1]}), "say_three_things")
    assert lost == {"a": "the worker died 3 times"}
    assert [sent for host, sent in heard if host == "b"] == ["all b 0", "all b 1", "all b 2"]


def test_the_work_of_a_machine_that_is_gone_is_done_by_nobody() -> None:
    heard, lost = _run(_Machines(("a", "b"), {"a": [1]}, gone=("a",)), "say_three_things")
    assert lost == {"a": "the machine is gone from the cluster"}
    assert [host for host, _ in heard] == ["a", "b", "b", "b"]


def test_where_nothing_is_left_to_do_after_a_death_nobody_is_called_again() -> None:
    heard: list[str] = []

    def left(host: str) -> str | None:
        return None if len(heard) == 3 else host

    lost = hosts.Hosts(_Machines(("a",), {"a": [3]})).run(  # type: ignore[arg-type]
        f"{__name__}:say_four_things", "all", left, lambda host, sent: heard.append(sent)
    )
    assert (heard, lost) == (["all a 0", "all a 1", "all a 2"], {})


def test_what_one_machine_refuses_is_told_and_what_all_refuse_is_the_requests_fault() -> None:
    assert _run(_Machines(("a", "odd"), {}), "refuse")[1] == {"a": "cannot do 'a'", "odd": "cannot build it"}
    assert _run(_Machines(("x", "odd"), {}), "refuse")[0] == [("x", "done")]
    with pytest.raises(RequestError, match="cannot do 'a'"):
        _run(_Machines(("a", "l"), {}), "refuse")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes --on ray mean machines of this process."""

    def make(names: tuple[str, ...], dies: dict[str, list[int]] | None = None, gone: tuple[str, ...] = ()) -> None:
        @contextlib.contextmanager
        def join(on: str) -> Iterator[hosts.Hosts]:
            assert on == "ray"
            yield hosts.Hosts(_Machines(names, dies or {}, gone))  # type: ignore[arg-type]

        monkeypatch.setattr(places, "join_hosts", join)
        monkeypatch.setattr(afar, "join_hosts", join)

    return make


POINTS: dict[str, Any] = {"batch": (1, 2), "seconds": 0.01, "device": "cpu", "precision": "fp32", "on": "ray"}


@pytest.fixture
def _one_bench(monkeypatch: pytest.MonkeyPatch, warm_workers: None) -> Iterator[None]:
    """All machines are this one: they need not start a process each."""
    settings = {name: value for name, value in POINTS.items() if name != "on"}
    with Bench(modelhound.LatencySettings(models=("zoo:resnet-glyphs",), **settings)) as bench:

        def lend(settings: modelhound.LatencySettings) -> contextlib.AbstractContextManager[Bench]:
            bench.ceilings.clear()  # those of another machine
            return contextlib.nullcontext(bench)

        monkeypatch.setattr(places, "Bench", lend)
        yield


@pytest.mark.usefixtures("_one_bench")
def test_a_sweep_over_two_machines_survives_a_death_and_the_loss_of_one(
    cluster: Callable[..., None], tmp_path: Path
) -> None:
    # b is gone after its first point: it tells that it began, what it can do at most, and twice how far it is
    cluster(("b", "a"), {"b": [1, 5], "a": [1, 4]}, gone=("b",))
    first = modelhound.latency("zoo:resnet-glyphs", run=tmp_path / "run", **POINTS)
    assert [each.point.device for each in first.measured] == ["cpu@a", "cpu@a", "cpu@b"]
    (lost,) = first.failed
    assert (lost.point.device, lost.message) == ("cpu@b", "not measured: the machine is gone from the cluster")
    assert {each.device for each in first.ceilings} == {"cpu@a", "cpu@b"}
    cluster(("a", "b"))
    second = modelhound.latency("zoo:resnet-glyphs", run=tmp_path / "run", **POINTS)
    assert second.num_resumed == 3
    assert second.failed == ()
    assert [each.point.device for each in second.measured] == ["cpu@a", "cpu@a", "cpu@b", "cpu@b"]
    kept = [each for each in read_run(tmp_path / "run").records if isinstance(each, LatencyMeasured | LatencyFailed)]
    assert len(kept) == 5


@pytest.mark.usefixtures("_one_bench")
def test_a_machine_that_cannot_do_what_was_asked_is_named_beside_the_times_of_the_others(
    cluster: Callable[..., None], tmp_path: Path
) -> None:
    cluster(("a", "b"), {"b": [0]}, gone=("b",))
    result = modelhound.latency("zoo:resnet-glyphs", run=tmp_path / "run", **POINTS)
    assert {each.point.device for each in result.measured} == {"cpu@a"}
    assert result.notes[0] == "nothing was timed on b: the machine is gone from the cluster"


def test_a_pair_is_found_for_every_machine_and_nothing_is_measured_twice(
    cluster: Callable[..., None], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"batch": (8, 24), "workers": 0, "limit": 48, "device": "cpu", "grid": True, "on": "ray"}
    cluster(("b", "a"), {"b": [12]})
    result = modelhound.loader("digits", "zoo:resnet-glyphs", run=tmp_path / "run", out=tmp_path / "x.json", **options)
    assert [each.host for each in result.hosts] == ["a", "b"]
    assert list(result.to_json()["hosts"]) == ["a", "b"]
    for each in result.hosts:
        assert each.recommended is not None
        assert {(run.batch, run.workers) for run in read_run(each.run).of(type(each.runs[0]))} == {(8, 0), (24, 0)}
        assert (tmp_path / f"x-{each.host}.json").exists()
    cluster(("a", "b"))
    again = modelhound.loader("digits", "zoo:resnet-glyphs", run=tmp_path / "run", **options)
    assert [each.num_resumed for each in again.hosts] == [len(each.runs) for each in result.hosts]


def test_a_cluster_without_a_machine_that_works_says_why(cluster: Callable[..., None], tmp_path: Path) -> None:
    cluster(("a",), {"a": [0]}, gone=("a",))
    with pytest.raises(CrewError, match="a: the machine is gone"):
        modelhound.latency("zoo:resnet-glyphs", run=tmp_path / "run", **POINTS)
    with pytest.raises(RequestError, match="cannot use --explain with --on ray"):
        explain_latency(modelhound.LatencySettings(models=("zoo:resnet-glyphs",), on="ray"))
