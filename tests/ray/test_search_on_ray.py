"""A real Ray cluster of two nodes: the same answer as on one machine, whatever is killed or stopped meanwhile.

Starting a cluster takes half a minute, so that this is part of `make test-faults` (HOUND_RAY=1) and not of every test run.
"""

import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import modelhound
from fault_log import FAULT_SEED, counted, wanted
from modelhound.launch.crew import join_crew
from modelhound.measuring import deciding, spread
from modelhound.plan import Deal, Parcel
from ray_cluster import meanwhile

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
NUM_KILLS = wanted("HOUND_NUM_RAY_KILLS", 1)
NUM_NODE_KILLS = -(-NUM_KILLS // 2)
RACERS = "zoo:resnet-garments_a,zoo:resnet-glyphs,zoo:vit-rotation,zoo:mobilenet-shapes,zoo:resmlp-rotation"
OPTIONS: dict[str, Any] = {"limit": 400, "top": 1, "scorers": "ridge,knn", "workers": 0, "device": "cpu"}


@pytest.fixture(autouse=True)
def _race_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks: else it would not pay to race. A late parcel is given to another soon."""
    free = {"cpu": 0.0, "cuda": 0.0}
    monkeypatch.setattr(deciding, "_JUDGE_SECONDS", free)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one machine finds."""
    free = {"cpu": 0.0, "cuda": 0.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "_JUDGE_SECONDS", free)
        patch.setenv("MODELHOUND_CACHE", str(tmp_path_factory.mktemp("cache")))
        result = modelhound.search("fashion", RACERS, run=tmp_path_factory.mktemp("local") / "run", **OPTIONS)
    found = _comparable(result)
    assert found["dropped"]
    assert found["ranking"]
    return found


def _comparable(result: Any) -> dict[str, Any]:
    assert result.failures == ()
    return {
        "ranking": [(row.model, row.rank, row.score, row.interval, row.scores) for row in result.ranking.models],
        "dropped": sorted((each.model, each.num_items, each.score, each.chance) for each in result.dropped),
    }


def test_what_all_workers_share_comes_to_a_machine_once_and_is_not_copied_by_whoever_looks_at_it(cluster: Any) -> None:
    """It is mapped: all parcels on a machine see the same bytes at the same place, which nobody can write."""
    pixels = np.ones(3_000_000, np.uint8)
    parcels = [Parcel(models=(str(number),), seconds=1.0) for number in range(6)]
    seen: list[Any] = []
    with join_crew(None, device="cpu") as crew:
        deal = Deal([parcels[:3], parcels[3:]], [1.0, 1.0])
        common = crew.share({"pixels": pixels})
        crew.run(
            deal,
            "ray_cluster:look_at_common",
            common,
            lambda parcel: parcel.models[0],
            lambda worker, sent: seen.append(sent),
        )
    assert sorted(name for name, *_ in seen) == ["0", "1", "2", "3", "4", "5"]
    assert len({pid for _, pid, *_ in seen}) == 2
    assert len({(pid, place) for _, pid, place, *_ in seen}) == 2
    assert {(writeable, total) for *_, writeable, total in seen} == {(False, 3_000_000)}


def test_a_cluster_finds_exactly_what_one_machine_finds(cluster: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    result = modelhound.search("fashion", RACERS, run=tmp_path / "run", on="ray", **OPTIONS)
    assert _comparable(result) == expected
    assert result.warnings == ()
    again = modelhound.search("fashion", RACERS, run=tmp_path / "run", on="ray", **OPTIONS)
    assert again.num_resumed == len(result.ranking.models)


@pytest.mark.parametrize("attempt", range(NUM_KILLS))
@counted("kill -9 of a Ray worker", "search --on ray")
def test_a_worker_killed_at_any_moment_is_replaced_and_nothing_is_lost(
    attempt: int, cluster: Any, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []

    def kill(process: psutil.Process) -> None:
        process.kill()
        killed.append(process.pid)

    moment = random.Random(f"Ray worker {attempt} {FAULT_SEED}").uniform(0, 7)
    for share in (1.0, 0.5, 0.25, 0.0):  # a quick machine may be through before
        monkeypatch.setenv("MODELHOUND_CACHE", str(tmp_path / f"cache-{share}"))
        over = threading.Event()
        thread = meanwhile(kill, after=share * moment, ready=lambda over=over: not over.is_set())
        result = modelhound.search("fashion", RACERS, run=tmp_path / f"run-{share}", on="ray", **OPTIONS)
        over.set()
        thread.join(1)
        if killed:
            break
    assert killed
    assert _comparable(result) == expected


@counted("SIGSTOP of a Ray worker", "search --on ray")
def test_a_worker_that_stops_is_overtaken(
    cluster: Any, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "_PATIENCE_SECONDS", 10.0)
    stopped: list[psutil.Process] = []

    def stop(process: psutil.Process) -> None:
        process.suspend()
        stopped.append(process)

    frozen = meanwhile(stop, after=1.0)
    try:
        result = modelhound.search("fashion", RACERS, run=tmp_path / "run", on="ray", **OPTIONS)
    finally:
        frozen.join(1)
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):  # Ray may have ended it
                process.kill()
    assert stopped
    assert _comparable(result) == expected


@pytest.mark.parametrize("attempt", range(NUM_NODE_KILLS))
@counted("kill of a Ray node", "search --on ray")
def test_a_node_that_dies_is_done_without(attempt: int, cluster: Any, expected: dict[str, Any], tmp_path: Path) -> None:
    """The last test: the cluster has one node less afterwards, unless another is added."""
    if not cluster.worker_nodes:
        cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
        cluster.wait_for_nodes()
    node = next(each for each in cluster.worker_nodes)
    done = threading.Event()
    in_time: list[bool] = []

    def remove(process: psutil.Process) -> None:
        cluster.remove_node(node, allow_graceful=False)
        in_time.append(not done.is_set())

    thread = meanwhile(remove, after=random.Random(f"Ray node {attempt} {FAULT_SEED}").uniform(0, 4))
    result = modelhound.search("fashion", RACERS, run=tmp_path / "run", on="ray", **OPTIONS)
    done.set()
    thread.join(60)
    assert in_time == [True]
    assert _comparable(result) == expected
