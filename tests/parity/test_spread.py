"""A search spread over workers finds exactly what one machine finds, whoever dies meanwhile.

The workers here are calls in this process, with everything pickled on its way, as Ray does; `tests/ray` has real ones.
"""

import contextlib
import importlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import modelhound
from modelhound.measuring import deciding, spread
from modelhound.measuring.share import Sight
from modelhound.meter import Lanes
from modelhound.records import Failure, silent
from modelhound.settings import SearchSettings

RACERS = "zoo:resnet-garments_a,zoo:resnet-glyphs,zoo:vit-rotation,zoo:mobilenet-shapes,zoo:resmlp-rotation"
OPTIONS: dict[str, Any] = {"limit": 400, "top": 1, "scorers": "ridge", "workers": 0, "device": "cpu"}


class _DiedError(Exception):
    """How a worker ends here."""


class _Calls:
    """Two workers that take turns; those that are told to die do so after having sent so many things."""

    def __init__(self, dies_after: dict[int, int], dies_of: str = "") -> None:
        self._dies_of = dies_of
        self.workers: tuple[int, ...] = (0, 1)
        self.num_lost = 0
        self._dies_after = dies_after
        self._next = 2
        self.parcels: list[tuple[int, str, tuple[str, ...]]] = []

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
        module, _, name = function.partition(":")
        call = getattr(importlib.import_module(module), name)
        now = 0.0
        while not deal.is_done:
            for worker in self.workers:
                now += 1.0
                parcel = deal.take(worker, now)
                if parcel is None:
                    continue
                given = argument(parcel)
                self.parcels.append((worker, name, parcel.models))
                try:
                    if name == "run_share" and given and self._dies_of in map(str, given.models):
                        raise _DiedError
                    if given is not None:
                        send = self._sender(worker, receive)
                        call(pickle.loads(common), pickle.loads(pickle.dumps(given)), send)
                    deal.finish(worker, now)
                except _DiedError:
                    self._replace(worker, deal)
                    break

    def _sender(self, worker: int, receive: Callable[[int, Any], None]) -> Callable[[Any], None]:
        def send(value: Any) -> None:
            left = self._dies_after.get(worker, 1000)
            if left == 0:
                raise _DiedError
            self._dies_after[worker] = left - 1
            receive(worker, pickle.loads(pickle.dumps(value)))

        return send

    def _replace(self, worker: int, deal: Any) -> None:
        deal.lose(worker)
        self.num_lost += 1
        self.workers = (*(each for each in self.workers if each != worker), self._next)
        self._next += 1


@pytest.fixture(autouse=True)
def _race_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks: else it would not pay to race."""
    monkeypatch.setattr(deciding, "_JUDGE_SECONDS", {"cpu": 0.0, "cuda": 0.0})


def _search_spread(monkeypatch: pytest.MonkeyPatch, folder: Path, dies_after: dict[int, int]) -> tuple[Any, _Calls]:
    crew = _Calls(dies_after)

    @contextlib.contextmanager
    def join(address: str | None, *, device: str) -> Iterator[_Calls]:
        assert (address, device) == ("head:6379", "cpu")
        yield crew

    monkeypatch.setattr(spread, "join_crew", join)
    monkeypatch.setenv("MODELHOUND_CACHE", str(folder / "cache"))
    result = modelhound.search("fashion", RACERS, run=folder / "run", on="ray://head:6379", **OPTIONS)
    return result, crew


def _comparable(result: Any) -> dict[str, Any]:
    assert result.failures == ()
    return {
        "ranking": [(row.model, row.rank, row.score, row.interval, row.scores) for row in result.ranking.models],
        "dropped": sorted((each.model, each.num_items, each.score, each.chance) for each in result.dropped),
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one machine finds."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "_JUDGE_SECONDS", {"cpu": 0.0, "cuda": 0.0})
        patch.setenv("MODELHOUND_CACHE", str(folder / "cache"))
        found = _comparable(modelhound.search("fashion", RACERS, run=folder / "run", **OPTIONS))
    assert found["dropped"]
    return found


def test_two_workers_find_what_one_machine_finds(
    alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, crew = _search_spread(monkeypatch, tmp_path, {})
    assert _comparable(result) == alone
    assert {worker for worker, name, _ in crew.parcels if name == "run_share"} == {0, 1}
    assert result.warnings == ()
    again, crew = _search_spread(monkeypatch, tmp_path, {})
    assert crew.parcels == []  # all of it was in the run folder
    assert _comparable(again) == alone


@pytest.mark.parametrize("dies_after", [{0: 1, 1: 3}, {0: 4, 2: 0, 3: 1}])
def test_workers_that_die_change_nothing(
    dies_after: dict[int, int], alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, crew = _search_spread(monkeypatch, tmp_path, dict(dies_after))
    assert _comparable(result) == alone
    assert crew.num_lost >= 1
    assert f"{crew.num_lost} workers of the cluster died" in result.warnings[0]


def test_models_that_fail_are_told_once_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken_network.py").write_text("def make():\n    raise ValueError('not today')\n")
    monkeypatch.setattr(spread, "join_crew", lambda address, device: contextlib.nullcontext(_Calls({})))
    models = ["zoo:resnet-glyphs", "py:broken_network:make"]
    result = modelhound.search(
        "digits", models, limit=60, run=tmp_path / "run", on="ray", scorers="ridge", device="cpu"
    )
    assert [row.model for row in result.ranking.models] == models[:1]
    (failure,) = result.failures
    assert (failure.model, "not today" in failure.error) == (models[1], True)


def test_a_model_that_kills_every_worker_fails_alone(
    alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = "zoo:vit-rotation"
    crew = _Calls({}, victim)
    monkeypatch.setattr(spread, "join_crew", lambda address, device: contextlib.nullcontext(crew))
    result = modelhound.search("fashion", RACERS, run=tmp_path / "run", on="ray", **{**OPTIONS, "exhaustive": True})
    (failure,) = result.failures
    assert (failure.model, "every worker that ran it died" in failure.error) == (victim, True)
    assert len(result.ranking.models) == 4


@pytest.mark.parametrize("on", ["", "spark", "ray:", "ray://", 3])
def test_only_known_places_are_taken(on: Any) -> None:
    with pytest.raises(modelhound.RequestError, match="expected local, ray or ray://HOST:PORT"):
        SearchSettings("digits", on=on)


def test_a_late_copy_of_a_model_that_was_given_up_does_not_spoil_the_end() -> None:
    shown: list[str] = []
    job: Any = SimpleNamespace(
        models={}, dataset=[], tell=lambda record: None, watch=silent, show=lambda model, features: shown.append(model)
    )
    race = spread._SpreadRace(job, _Calls({}), Lanes())  # type: ignore[arg-type]
    race._receive(0, Failure(model="slow", phase="forward", error="every worker that ran it died"))
    race._receive(1, Sight(model="slow", features=np.ones((2, 2), np.float32)))
    race.close()
    assert shown == []


def test_of_all_parcels_the_features_of_the_best_model_are_kept_and_no_others() -> None:
    shown: list[str] = []
    job: Any = SimpleNamespace(models={}, dataset=[], show=lambda model, features: shown.append(model))
    race = spread._SpreadRace(job, _Calls({}), Lanes())  # type: ignore[arg-type]
    for model, score in (("c", 0.5), ("b", 0.9), ("d", 0.2), ("a", 0.9), ("e", 0.9)):
        race.finals[model] = np.full(4, score)
        race._receive(0, Sight(model=model, features=np.ones((2, 2), np.float32)))
    assert list(race._sights) == ["a"]  # of equals the first by name, as in the ranking
    race.close()
    assert shown == ["a"]


@pytest.mark.parametrize("option", [{"plain": True}, {"explain": True}])
def test_what_cannot_be_spread_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(modelhound.RequestError, match="with --on ray: expected --on local"):
        SearchSettings("digits", on="ray", **option)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(modelhound.RequestError, match=r"pip install 'modelhound\[ray\]'"):
        modelhound.search("digits", "zoo:resnet-glyphs", on="ray")
