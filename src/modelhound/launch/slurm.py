"""Run a function as a SLURM job, once on every node, through submitit.

In:  the dotted name of a function, its argument as JSON values, what to ask of the cluster
Out: the number of the job; or the script that would be submitted; in the job, this node's place among the others
Nothing here knows what the function does. submitit is an extra: pip install 'modelhound[slurm]'.
"""

import importlib
import os
import pkgutil
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelhound.errors import RequestError, first_line
from modelhound.launch.ranks import Cluster

__all__ = ["Job", "find_place", "make_script", "submit"]

_FIRST_PORT, _NUM_PORTS = 29_500, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to ask of the cluster."""

    name: str
    partition: str | None
    minutes: int
    num_nodes: int
    num_gpus: int
    """Per node; 0 asks for none."""
    num_cores: int
    """Per node: without a word SLURM gives each task a single one."""

    def parameters(self) -> dict[str, Any]:
        """As submitit's SlurmExecutor names them: one task per node, which starts the ranks there."""
        asked = {
            "job_name": self.name,
            "time": self.minutes,
            "nodes": self.num_nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": self.num_cores,
        }
        if self.partition is not None:
            asked["partition"] = self.partition
        if self.num_gpus:
            asked["gpus_per_node"] = self.num_gpus
        return asked


@dataclass(frozen=True, slots=True)
class _Call:
    """What is pickled into the job; the function is looked up where it runs."""

    function: str
    argument: Any

    def __call__(self) -> None:
        pkgutil.resolve_name(self.function)(self.argument)


def make_script(job: Job, folder: Path) -> str:
    """The script that would be given to sbatch; it needs no cluster to know."""
    slurm = _import_submitit().slurm.slurm
    command = f"{sys.executable} -u -m submitit.core._submit {folder.resolve()}"
    script: str = slurm._make_sbatch_string(command=command, folder=folder.resolve(), **job.parameters())
    return script


def submit(job: Job, folder: Path, function: str, argument: Any) -> str:
    """Hand the job over; its number. Logs and what it returns go to `folder`."""
    submitit = _import_submitit()
    if shutil.which("sbatch") is None:
        raise RequestError(
            "cannot submit to SLURM: expected its command sbatch on this machine, found none; log in to the cluster, see the "
            "script with --dry-run, or leave --slurm out to train here"
        )
    try:
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**job.parameters())
        return str(executor.submit(_Call(function, argument)).job_id)
    except Exception as error:  # whatever the cluster's commands say
        reason = first_line(error)
        raise RequestError(
            f"cannot submit to SLURM: {reason}; check --partition, --minutes, --gpus, --nodes and --workers"
        ) from error


def find_place() -> Cluster:
    """This node among those of the job it runs in."""
    num_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    number = int(os.environ.get("SLURM_JOB_ID", "0"))
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    first = re.sub(r"\[(\d+)[^]]*\]", r"\1", os.environ.get("SLURM_JOB_NODELIST", "localhost")).split(",")[0]
    return Cluster(
        num_nodes=num_nodes,
        node=int(os.environ.get("SLURM_NODEID", "0")),
        address=first,
        port=_FIRST_PORT + number % _NUM_PORTS,
        ranks_per_node=int(os.environ.get("SLURM_GPUS_ON_NODE") or 1),
        job=f"{number}.{restarts}",
    )


def _import_submitit() -> Any:
    try:
        importlib.import_module("submitit.slurm.slurm")
        return importlib.import_module("submitit")
    except ImportError as error:
        raise RequestError("cannot use --slurm: expected submitit, run: pip install 'modelhound[slurm]'") from error
