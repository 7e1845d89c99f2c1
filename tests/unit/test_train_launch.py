"""One function on several ranks: values come back, a dead rank ends the others, and errors stay what they are."""

import atexit
import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from modelhound.errors import DataError, RankError, RequestError
from modelhound.launch import Cluster, rank_child, ranks, run_on_ranks, slurm
from modelhound.launch.ranks import follow
from modelhound.records import Progress


def add_up(argument: Any) -> dict[str, Any]:
    import torch
    from torch import distributed

    atexit.register(os.abort)  # as torch sometimes does when it is taken down: work that is done is not lost by that
    total = torch.tensor([distributed.get_rank() + argument])
    distributed.all_reduce(total)
    return {"rank": distributed.get_rank(), "total": int(total), "threads": os.environ["OMP_NUM_THREADS"]}


def die(argument: Any) -> None:
    from torch import distributed

    if distributed.get_rank() == 1:
        traceback.print_stack()
        print("the last words of rank one", flush=True)  # noqa: T201
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()  # waits for somebody who is gone


def refuse(argument: Any) -> None:
    from torch import distributed

    if distributed.get_rank() == 0:
        raise DataError("cannot use 'these': expected others")
    distributed.barrier()


def hold_out(argument: Any) -> None:
    """A rank that nothing but SIGKILL ends, as one that is stuck in a driver."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranks.put_file(Path(argument), msgspec.json.encode(Progress(task=str(os.getpid()), done=0, total=1)))
    time.sleep(300)


def call(name: str, folder: Path, *, num_ranks: int = 2, **environment: str) -> list[Any]:
    environment = {"OMP_NUM_THREADS": "1", **environment}
    return run_on_ranks(f"test_train_launch:{name}", None, num_ranks=num_ranks, folder=folder, environment=environment)


def test_a_killed_rank_ends_the_run_with_its_name_and_last_words_and_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(RankError, match=r"rank 1 of 2 ended by SIGKILL.*, rank-1.log: the last words of rank one$"):
        call("die", tmp_path / "ranks", TMPDIR=str(elsewhere))
    log = (tmp_path / "ranks" / "rank-1.log").read_text()
    assert "test_train_launch.py" in log  # where it was: in the log, and not in the message
    assert list(elsewhere.iterdir()) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside threads
def test_an_error_of_ours_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is forked here and not started by torchrun, which would load torch twice and adds nothing to this."""

    def run_rank(folder: Path, environment: dict[str, str], **asked: Any) -> str | None:
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
        for name, value in (environment | alone).items():
            monkeypatch.setenv(name, value)
        forked = multiprocessing.get_context("fork").Process(target=lambda: os._exit(rank_child.main(folder)))
        forked.start()
        forked.join(60)
        return None if forked.exitcode == 0 else f"its rank ended with {forked.exitcode}"

    monkeypatch.setattr(ranks, "run_agent", run_rank)
    with pytest.raises(DataError, match=r"^cannot use 'these': expected others$"):
        call("refuse", tmp_path / "ranks", num_ranks=1)


def test_a_rank_does_not_outlive_the_command_that_started_it() -> None:
    """Killed with SIGKILL, it can tell nobody."""
    command = subprocess.Popen(["sleep", "60"])
    waiting = (
        "import sys, time, modelhound.launch.rank_child as child; child._SECONDS_BETWEEN_LOOKS = 0.02; "
        "child.end_with(int(sys.argv[1])); time.sleep(0.3); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", waiting, str(command.pid)], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        assert rank.stdout.read(1) == b"\n"  # it has looked more than once, and goes on
        command.kill()  # and a zombie from then on, since nobody has asked how it ended
        assert rank.wait(30) == 4
    command.wait()


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("how", ["the command is interrupted", "torchrun is killed"])
def test_a_rank_does_not_outlive_its_launch(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that started it goes on, perhaps with the next launch in the same folder."""
    monkeypatch.setattr(ranks, "_PATIENCE_SECONDS", 0.5)
    started: list[int] = []

    def watch(progress: Progress) -> None:
        if not started:
            started.append(int(progress.task))
            if how == "the command is interrupted":
                raise KeyboardInterrupt
            psutil.Process(started[0]).parent().kill()  # type: ignore[union-attr]

    with pytest.raises((KeyboardInterrupt, RankError)):
        run_on_ranks(
            "test_train_launch:hold_out",
            str(tmp_path / "rank-0.progress"),
            num_ranks=1,
            folder=tmp_path,
            environment={"OMP_NUM_THREADS": "1"},
            watch=watch,
        )
    tries = 0
    while _is_alive(started[0]) and (tries := tries + 1) < 600:
        time.sleep(0.05)
    assert not _is_alive(started[0])


def test_ranks_are_spread_over_whole_nodes() -> None:
    cluster = Cluster(num_nodes=4, node=1, address="first", port=29500, ranks_per_node=8)
    assert cluster.for_ranks(8) == Cluster()
    assert cluster.for_ranks(16).num_nodes == 2
    with pytest.raises(RequestError, match="whole nodes"):
        cluster.for_ranks(12)
    with pytest.raises(RequestError, match="whole nodes"):
        cluster.for_ranks(64)


def test_ranks_on_two_nodes_find_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two agents on this machine, as on two nodes that share a folder; the second learns from there what to do."""
    monkeypatch.setattr(ranks, "_FOLLOW_SECONDS", 0.05)
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
    first, second = (
        Cluster(num_nodes=2, node=node, address="localhost", port=port, ranks_per_node=1) for node in (0, 1)
    )
    environment = {"OMP_NUM_THREADS": "1"}
    helper = threading.Thread(target=follow, args=(tmp_path, second), kwargs={"environment": environment})
    helper.start()
    try:
        values = run_on_ranks(
            "test_train_launch:add_up",
            5,
            num_ranks=2,
            folder=tmp_path / "run" / "ranks",
            environment=environment,
            cluster=first,
        )
    finally:
        (tmp_path / second.over).touch()
        helper.join(60)
    assert values == [{"rank": rank, "total": 11, "threads": "1"} for rank in range(2)]
    assert not helper.is_alive()


def test_a_job_that_is_submitted_again_is_not_misled_by_what_the_one_before_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed job leaves its request behind, a finished one the sign that it is over."""
    joined: list[str] = []
    new = Cluster(num_nodes=2, node=1, ranks_per_node=1, job="8.0")
    monkeypatch.setattr(ranks, "_FOLLOW_SECONDS", 0.01)

    def join(folder: Path, **asked: Any) -> None:
        joined.append(folder.parent.name)
        (tmp_path / new.over).touch()

    monkeypatch.setattr(ranks, "run_agent", join)
    for job in ("7.0", "8.0"):
        (tmp_path / job / "ranks").mkdir(parents=True)
        request = ranks.LaunchRequest(
            function="os:getpid",
            argument=None,
            device="cpu",
            deadline_seconds=1.0,
            search_path=(),
            num_ranks=2,
            num_nodes=2,
            number=job,
            job=job,
        )
        ranks.put_file(tmp_path / job / "ranks" / "request.json", msgspec.json.encode(request))
    (tmp_path / Cluster(job="7.0").over).touch()
    follow(tmp_path, new)
    assert joined == ["8.0"]


def test_a_slurm_script_asks_for_what_was_asked(tmp_path: Path) -> None:
    job = slurm.Job(name="hound-train", partition="gpu", minutes=90, num_nodes=2, num_gpus=4, num_cores=32)
    script = slurm.make_script(job, tmp_path / "slurm")
    for line in ("--partition=gpu", "--time=90", "--nodes=2", "--gpus-per-node=4", "--cpus-per-task=32"):
        assert f"#SBATCH {line}\n" in script
    assert not (tmp_path / "slurm").exists()


def test_submitting_without_slurm_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    job = slurm.Job(name="hound-train", partition=None, minutes=1, num_nodes=1, num_gpus=0, num_cores=1)
    with pytest.raises(RequestError, match="expected its command sbatch"):
        slurm.submit(job, tmp_path / "slurm", "os:getpid", None)


def test_a_job_is_handed_to_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the cluster's commands: it takes the script and gives the job a number."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("sbatch", "srun", "sacct"):
        (commands / name).write_text(
            f'#!/bin/sh\n[ {name} = sbatch ] && cp "$1" {tmp_path}/taken && echo "Submitted batch job 17"\n'
        )
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    job = slurm.Job(name="hound-train", partition=None, minutes=5, num_nodes=1, num_gpus=1, num_cores=8)
    assert slurm.submit(job, tmp_path / "slurm", "modelhound.verbs.train:train_on_node", {"data": "digits"}) == "17"
    assert "#SBATCH --gpus-per-node=1" in (tmp_path / "taken").read_text()


@pytest.mark.parametrize(
    ("listed", "first"),
    [("node7", "node7"), ("gpu[03-05,9]", "gpu03"), ("a1,b2", "a1"), ("r[1-2]n[04-8]-x,b", "r1n04-x")],
)
def test_a_node_finds_its_place(listed: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NUM_NODES", "3"), ("ID", "41007"), ("NODELIST", listed)):
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.setenv("SLURM_NODEID", "2")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert slurm.find_place() == Cluster(
        num_nodes=3, node=2, address=first, port=29507, ranks_per_node=4, job="41007.0"
    )
