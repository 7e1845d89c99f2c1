"""A Ray cluster: where it is, whether anybody is there, what it has.

In:  what --on says
Out: Ray, connected to that cluster; or a sentence on why not, within seconds
Nothing here knows what the cluster is for. Ray itself asks at a wrong address for minutes and writes into the terminal
meanwhile, so that a process of its own asks first: it can be ended, and nobody reads what it writes.

Ray is an extra: pip install 'modelhound[ray]'.
"""

import importlib
import signal
import socket
from typing import Any

from modelhound.errors import CrewError, RequestError, first_line
from modelhound.launch.fresh import run_in_fresh_process

__all__ = ["connect", "disconnect", "find_device", "greet_cluster", "parse_address"]

_KNOCK_SECONDS = 8
_IMPORT_SECONDS = 120.0  # of Ray, on a machine with much to do


def parse_address(on: str) -> str | None:
    """What --on names; None where it is plain `ray`: the cluster that this machine is part of, or this machine alone."""
    return on.removeprefix("ray").removeprefix("://") or None


def find_device(address: str | None) -> str:
    """cuda if the cluster has GPUs, else cpu. The connection stays, for a crew to be joined."""
    return "cuda" if connect(address).cluster_resources().get("GPU", 0) >= 1 else "cpu"


_connected: list[str | None] = []
"""The address, if it was us who connected: then we also end it."""


def connect(address: str | None) -> Any:
    """Ray, connected to the cluster at `address` unless somebody has connected it already."""
    ray = _import_ray()
    if ray.is_initialized():
        return ray
    try:
        _knock(address)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="error",
            **({"include_dashboard": False} if address is None else {}),
        )
    except Exception as error:  # whatever Ray says of an address
        reason = first_line(error)
        raise RequestError(
            f"cannot reach a Ray cluster at {address or 'this machine'!r}: {reason}; check the address, or leave --on out"
        ) from error
    _connected.append(address)
    return ray


def disconnect(ray: Any) -> None:
    """End the connection if it was `connect` who made it."""
    if _connected:
        _connected.clear()
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Is there anybody, and is it Ray?"""
    if address is None:
        return
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()
    greet = "modelhound.launch.connection:greet_cluster"
    answer = run_in_fresh_process(greet, address, _KNOCK_SECONDS, timeout_seconds=_IMPORT_SECONDS)
    if answer.value is not None or answer.ending == "SIGALRM":  # of other endings Ray itself will know more
        raise CrewError(
            "what listens there does not answer as Ray does, whose own port is 6379 unless you chose another"
        )


def greet_cluster(address: str, seconds: int) -> str | None:
    """In a process of its own, which an alarm ends: ask the cluster for its name. What came instead, if something did."""
    client = getattr(importlib.import_module("ray._raylet"), "GcsClient", None)
    if client is None:  # it is no part of what Ray promises
        return None
    signal.alarm(seconds)
    try:
        client(address=address)
    except Exception as error:
        return first_line(error)
    finally:
        signal.alarm(0)
    return None


def _import_ray() -> Any:
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise RequestError("cannot use --on ray: expected Ray, run: pip install 'modelhound[ray]'") from error
    return ray
