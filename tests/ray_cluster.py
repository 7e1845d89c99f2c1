"""A Ray cluster of two nodes in processes of this machine, and something to do to its workers."""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

__all__ = ["look_at_common", "meanwhile", "start_cluster"]


@contextlib.contextmanager
def start_cluster(home: Path) -> Iterator[Any]:
    """Two nodes, with a home and a folder of their own."""
    from ray.cluster_utils import Cluster

    import ray

    short = tempfile.mkdtemp(prefix="hound", dir="/tmp")  # sockets lie in it, whose paths must not be long
    # everything that Ray writes, with the file of its address, for which it makes no folder where it was told of one itself
    own = {"HOME": str(home), "OMP_NUM_THREADS": "1", "RAY_TMPDIR": short}
    before = {name: os.environ.get(name) for name in own}
    os.environ |= own
    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}
    try:
        made = Cluster(initialize_head=True, head_node_args=options)
        made.add_node(num_cpus=1, object_store_memory=100_000_000)
        ray.init(address=made.address, log_to_driver=False)
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
    finally:
        shutil.rmtree(short, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def look_at_common(common: Any, argument: Any, send: Callable[[Any], None]) -> None:
    """Runs on a worker: where the array lies that all were given, and whether it is a copy of its own."""
    array = common["pixels"]
    send((argument, os.getpid(), array.__array_interface__["data"], bool(array.flags.writeable), int(array.sum())))


def meanwhile(
    act: Callable[[psutil.Process], None], after: float, ready: Callable[[], bool] = lambda: True
) -> threading.Thread:
    """Do something to one of the workers, `after` seconds from when there is one and all is ready."""
    earlier = {process.pid for process in _workers()}  # dismissed by the test before, and about to go

    def wait_and_act() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if ready() and [process for process in _workers() if process.pid not in earlier]:
                time.sleep(after)
                there = [process for process in _workers() if process.pid not in earlier]
                with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                    act(there[0])
                    return
            time.sleep(0.05)

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


def _workers() -> list[psutil.Process]:
    """Processes of the cluster that do our work."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "_Worker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
