"""`hound latency` and `hound loader` on every machine of a real Ray cluster, whatever is killed meanwhile."""

from pathlib import Path
from typing import Any

import psutil
import pytest

import modelhound
from fault_log import counted
from modelhound.errors import RequestError
from modelhound.store import read_run
from ray_cluster import meanwhile

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
POINTS: dict[str, Any] = {"batch": (1, 2, 4), "seconds": 0.05, "device": "cpu", "precision": "fp32", "on": "ray"}
PAIRS: dict[str, Any] = {"batch": (8, 24), "workers": (0, 1), "limit": 48, "device": "cpu", "grid": True, "on": "ray"}
MODEL = "zoo:resnet-glyphs"


def _hosts(result: Any) -> list[str]:
    return [record.point.device.partition("@")[2] for record in result.measured]


def _has_records(run: Path) -> bool:
    try:
        return any(record.__class__.__name__.endswith("Measured") for record in read_run(run).records)
    except RequestError:
        return False


def test_every_point_is_timed_on_every_machine_and_named_after_it(cluster: Any, tmp_path: Path) -> None:
    result = modelhound.latency(MODEL, run=tmp_path / "run", **POINTS)
    hosts = _hosts(result)
    assert hosts == sorted(hosts)
    assert len(set(hosts)) == 2
    assert [record.point.batch for record in result.measured] == [1, 2, 4, 1, 2, 4]
    assert {each.device for each in result.ceilings} == {record.point.device for record in result.measured}
    again = modelhound.latency(MODEL, run=tmp_path / "run", **POINTS)
    assert again.num_resumed == 6
    assert [each.seconds for each in again.measured] == [each.seconds for each in result.measured]


def test_a_sweep_whose_worker_is_killed_loses_no_point(cluster: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(process: psutil.Process) -> None:
        process.kill()
        killed.append(process.pid)

    thread = meanwhile(kill, after=0.0, ready=lambda: _has_records(tmp_path / "run"))
    with counted("kill -9 of a Ray worker", "latency --on ray"):
        result = modelhound.latency(MODEL, run=tmp_path / "run", **{**POINTS, "seconds": 0.5, "width": 0.001})
        thread.join(1)
        assert killed
        assert result.failed == ()
        assert len(result.measured) == 6


def test_a_pair_is_found_for_every_machine_though_a_worker_is_killed(cluster: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(process: psutil.Process) -> None:
        process.kill()
        killed.append(process.pid)

    def is_under_way() -> bool:
        return any(_has_records(run) for run in tmp_path.glob("run-*"))

    thread = meanwhile(kill, after=0.0, ready=is_under_way)
    with counted("kill -9 of a Ray worker", "loader --on ray"):
        result = modelhound.loader("digits", MODEL, run=tmp_path / "run", out=tmp_path / "best.json", **PAIRS)
        thread.join(1)
        assert killed
        assert len(result.hosts) == 2
        assert result.lost == {}
        for each in result.hosts:
            assert each.recommended is not None
            assert each.run == tmp_path / f"run-{each.host}"
            assert read_run(each.run).answer is not None
            assert (tmp_path / f"best-{each.host}.json").exists()
            cells = {(run.batch, run.workers) for run in each.runs}
            assert cells == {(8, 0), (8, 1), (24, 0), (24, 1)}


def test_what_no_machine_can_do_is_refused_in_a_sentence(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such path"):
        modelhound.loader("/nowhere", MODEL, run=tmp_path / "run", on="ray")
    with pytest.raises(RequestError, match="expected auto, cpu, cuda"):
        modelhound.latency(MODEL, run=tmp_path / "run", device="tpu", on="ray")


def test_points_of_a_machine_that_dies_are_rows_that_say_so(cluster: Any, tmp_path: Path) -> None:
    """The last test: the cluster has one node less afterwards."""
    node = next(each for each in cluster.worker_nodes)
    thread = meanwhile(
        lambda process: cluster.remove_node(node, allow_graceful=False),
        after=0.0,
        ready=lambda: _has_records(tmp_path / "run"),
    )
    with counted("kill of a Ray node", "latency --on ray"):
        result = modelhound.latency(MODEL, run=tmp_path / "run", **{**POINTS, "seconds": 1.0, "width": 0.001})
        thread.join(60)
        measured = set(_hosts(result))
        assert {each.point.device.partition("@")[2] for each in result.failed} - measured or len(measured) == 2
        assert len(result.measured) + len(result.failed) == 6
        assert all("not measured: the machine is gone" in each.message for each in result.failed)
        assert len(result.measured) >= 3
