"""Run one function on N ranks under torchrun, and end when the first of them dies.

In:  the dotted name of a function, its argument as JSON values, how many ranks, a folder for their files
Out: what rank 0 .. N-1 returned; or an error that says which rank died how, with the end of its log
Nothing here knows what the function does. When it is called, torch.distributed is ready: NCCL on GPUs where torch has it, else
gloo. Every rank writes files of its own, all in `folder`:

    rank-0.log        what it printed
    rank-0.json       what it returned
    rank-0.error      why it gave up
    rank-0.progress   how far it has come, rewritten as it goes
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from modelhound import errors
from modelhound.errors import HoundError, RankError
from modelhound.launch.environment import child_environment
from modelhound.launch.fresh import name_ending
from modelhound.records import Progress, Watch, silent

__all__ = ["PARENT", "REQUEST", "Cluster", "GaveUp", "LaunchRequest", "follow", "put_file", "run_agent", "run_on_ranks"]

_TAIL_LINES, _TAIL_CHARACTERS = 5, 600
_FRAME = re.compile(r"\s|Traceback \(most recent|frame #\d|The above exception|During handling of")
_POLL_SECONDS = 0.1
_FOLLOW_SECONDS = 1.0
REQUEST = "request.json"
PARENT = "MODELHOUND_PARENT"  # in the environment of ranks: the process that they end with
_PATIENCE_SECONDS = 10.0  # for ranks to end after they were told to


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The machines that ranks are spread over; this one is number `node`."""

    num_nodes: int = 1
    node: int = 0
    address: str = "localhost"
    """Where node 0 listens."""
    port: int = 0
    """0 takes a free one, which only a single node can."""
    ranks_per_node: int = 0
    """How many fit on one node; 0 is as many as are asked for."""
    job: str = ""
    """What tells this start from earlier ones, whose files may still lie in the folder that nodes share."""

    @property
    def over(self) -> str:
        """The sign that the first of several nodes puts up when all launches are done."""
        return f"over-{self.job}"

    def for_ranks(self, num_ranks: int) -> "Cluster":
        """The nodes that so many ranks take, the first ones."""
        if self.num_nodes == 1 or num_ranks <= self.ranks_per_node:
            return Cluster(job=self.job)
        num_nodes, over = divmod(num_ranks, self.ranks_per_node)
        if over or num_nodes > self.num_nodes:
            raise errors.RequestError(
                f"cannot spread {num_ranks} ranks over {self.num_nodes} nodes of {self.ranks_per_node}: expected whole nodes, "
                "choose other --ranks"
            )
        return replace(self, num_nodes=num_nodes)


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the children are told, in a file beside theirs."""

    function: str
    argument: Any
    device: str
    deadline_seconds: float
    search_path: tuple[str, ...]
    num_ranks: int
    num_nodes: int
    number: str
    """Of this launch: other nodes take part in each once."""
    job: str
    """Other nodes take part in launches of their own job only."""


class GaveUp(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank gave up: one of our own errors, which the caller shall see as such."""

    error: str
    message: str


def run_on_ranks(
    function: str,
    argument: Any,
    *,
    num_ranks: int,
    folder: Path,
    device: str = "cpu",
    deadline_seconds: float = 600.0,
    environment: Mapping[str, str] | None = None,
    cluster: Cluster | None = None,
    watch: Watch = silent,
) -> list[Any]:
    """Call `function` ("package.module:name") with `argument` on every rank; the values they return, by rank.

    Ranks that wait for another one longer than `deadline_seconds` give up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("rank-*"):
        old.unlink()
    cluster = (cluster or Cluster()).for_ranks(num_ranks)
    request = LaunchRequest(
        function=function,
        argument=argument,
        device=device,
        deadline_seconds=deadline_seconds,
        search_path=tuple(path for path in sys.path if path),
        num_ranks=num_ranks,
        num_nodes=cluster.num_nodes,
        number=uuid.uuid4().hex,
        job=cluster.job,
    )
    put_file(folder / REQUEST, msgspec.json.encode(request))
    try:
        last_words = run_agent(
            folder, num_ranks=num_ranks, number=request.number, cluster=cluster, environment=environment, watch=watch
        )
    finally:
        (folder / REQUEST).unlink(missing_ok=True)  # nobody shall wait for a launch that is over
    if last_words is not None:
        raise _explain(folder, num_ranks, last_words)
    return [msgspec.json.decode((folder / f"rank-{rank}.json").read_bytes()) for rank in range(num_ranks)]


def follow(root: Path, cluster: Cluster, *, environment: Mapping[str, str] | None = None) -> None:
    """On a node that is not the first: take part in every launch below `root` that needs this node, until the first node
    has put up the sign that all is done."""
    seen: set[str] = set()
    while not (root / cluster.over).exists():
        for path in root.glob(f"*/*/{REQUEST}"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                request = msgspec.json.decode(path.read_bytes(), type=LaunchRequest)
                if request.number in seen or request.job != cluster.job:
                    continue
                seen.add(request.number)
                if cluster.node < request.num_nodes:
                    share = replace(cluster, num_nodes=request.num_nodes)
                    run_agent(
                        path.parent,
                        num_ranks=request.num_ranks,
                        number=request.number,
                        cluster=share,
                        environment=environment,
                    )
        threading.Event().wait(_FOLLOW_SECONDS)


def put_file(path: Path, content: bytes) -> None:
    """For other processes to read as a whole; unlike results, it need not survive the machine."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def run_agent(
    folder: Path,
    *,
    num_ranks: int,
    number: str,
    cluster: Cluster,
    environment: Mapping[str, str] | None = None,
    watch: Watch = silent,
) -> str | None:
    """torchrun on this node until all its ranks have ended; None if all went well, else what it said."""
    ranks_here, over = divmod(num_ranks, cluster.num_nodes)
    if over:
        raise errors.RequestError(
            f"cannot spread {num_ranks} ranks over {cluster.num_nodes} nodes: expected as many on each, choose other --ranks"
        )
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--max-restarts=0", f"--nproc-per-node={ranks_here}"),
        *(f"--nnodes={cluster.num_nodes}", "--rdzv-backend=c10d", f"--rdzv-id={number}"),
        f"--rdzv-endpoint={cluster.address}:{cluster.port}",
        f"--log-dir={os.devnull}",  # or it leaves a folder behind, in which there is nothing: all words go to ours
        *("-m", "modelhound.launch.rank_child", str(folder)),
    ]
    words = folder / f"agent-{cluster.node}.log"
    with words.open("wb") as output:
        agent = subprocess.Popen(
            command,
            env=child_environment({**(environment or {}), PARENT: str(os.getpid())}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C comes to us alone; we end the ranks
        )
        try:
            while _still_runs(agent):
                _tell(folder, watch)
        finally:
            _end(agent)
    if agent.returncode == 0:
        return None
    return words.read_text(errors="replace")


def _still_runs(agent: "subprocess.Popen[bytes]") -> bool:
    try:
        agent.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _tell(folder: Path, watch: Watch) -> None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        watch(msgspec.json.decode((folder / "rank-0.progress").read_bytes(), type=Progress))


def _end(agent: "subprocess.Popen[bytes]") -> None:
    """End the agent and with it its ranks."""
    if agent.poll() is not None:
        return  # ranks that it has left behind see that for themselves
    agent.send_signal(signal.SIGTERM)  # torchrun passes it on to the ranks
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.wait(_PATIENCE_SECONDS)
        return
    # torchrun gives every rank a session of its own, so that no signal to a group would reach them all
    ranks: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        ranks = psutil.Process(agent.pid).children(recursive=True)
    agent.kill()
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
    agent.wait()


def _explain(folder: Path, num_ranks: int, last_words: str) -> HoundError:
    """The first thing that went wrong, as one of our errors."""
    for rank in range(num_ranks):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            gave_up = msgspec.json.decode((folder / f"rank-{rank}.error").read_bytes(), type=GaveUp)
            kind = getattr(errors, gave_up.error, RankError)
            return kind(gave_up.message) if issubclass(kind, HoundError) else RankError(gave_up.message)
    failed = [
        (int(rank), int(code))
        for rank, code in re.findall(r"rank\s*:\s*(\d+) .*?exitcode\s*:\s*(-?\d+)", last_words, re.DOTALL)
    ]
    if not failed:
        return RankError(f"cannot run {num_ranks} ranks: torchrun ended early: {_tail(last_words)}")
    # One that was killed comes first: others that lost it died of that. SIGTERM is how torchrun stops the rest.
    rank, code = min(failed, key=lambda each: (each[1] >= 0, each[1] == -signal.SIGTERM))
    words = _tail(_read_log(folder, rank))
    return RankError(
        f"cannot go on: rank {rank} of {num_ranks} ended by {name_ending(code)}, and the others were stopped; start the same "
        f"command again to go on from the last checkpoint. The end of its log, rank-{rank}.log: {words}"
    )


def _read_log(folder: Path, rank: int) -> str:
    with contextlib.suppress(OSError):
        return (folder / f"rank-{rank}.log").read_text(errors="replace")
    return ""


def _tail(text: str) -> str:
    """The last lines without the frames of a traceback, which the log has: a result must not be full of paths."""
    lines = [line for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
    return " / ".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:] or "(it wrote nothing)"
