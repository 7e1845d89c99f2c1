"""Where a sweep runs: on this machine, or on all machines of a Ray cluster at once, each with its own devices.

In:  LatencySettings
Out: a Place that knows its devices and measures the points of a plan there
On a cluster a device has its machine's name in its own, as in cuda:0@node7, so that every point names its host and none is
confused with that of another. What is asked is planned here; machines measure at the same time, and each of them one point
after the other. A machine that is lost leaves its points as failed, to be tried again by the next start; one on which the
request could not even be looked at has none, which is told.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from modelhound.errors import CrewError
from modelhound.launch.hosts import Hosts, join_hosts
from modelhound.meter import describe_machine, utc_now
from modelhound.records import (
    CeilingsMeasured,
    LatencyFailed,
    LatencyMeasured,
    LatencyPoint,
    Progress,
    Record,
    RunStarted,
    Watch,
    silent,
)
from modelhound.settings import LatencySettings
from modelhound.timing.bench import Bench
from modelhound.timing.planning import SweepPlan, find_devices, plan_sweep
from modelhound.timing.sweeping import settled, sweep_points

__all__ = ["Place", "open_place"]

Tell = Callable[[Record], None]


class Place(Protocol):
    """Devices, and how to measure on them."""

    @property
    def devices(self) -> Mapping[str, tuple[str, ...]]:
        """Device -> precisions to use there."""

    @property
    def names(self) -> Mapping[str, str]:
        """What decides the numbers beside the request: device -> what it calls itself, where that could change."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the place, in sentences."""

    def plan(self, watch: Watch) -> SweepPlan:
        """Look at every model without running it."""

    def sweep(self, plan: SweepPlan, known: Sequence[Record], tell: Tell, watch: Watch) -> int:
        """Measure what is not known, and tell what the plan could not take up; how many points were known."""


@contextlib.contextmanager
def open_place(settings: LatencySettings, *, watch: Watch = silent) -> Iterator[Place]:
    """The place that the settings name, for as long as it is needed."""
    with Bench(settings) as bench:
        watch(Progress(task="starting", done=0, total=1))
        if settings.on == "local":
            here = _Here(settings, bench)
            watch(Progress(task="starting", done=1, total=1))
            yield here
        else:
            with join_hosts(settings.on) as hosts:
                afar = _Afar(settings, bench, hosts)
                watch(Progress(task="starting", done=1, total=1))
                yield afar


class _Here:
    def __init__(self, settings: LatencySettings, bench: Bench) -> None:
        self._settings, self._bench = settings, bench
        self.devices = find_devices(settings)
        self.names = {device: bench.find_device(device).name for device in self.devices}
        self.notes: tuple[str, ...] = ()

    def plan(self, watch: Watch) -> SweepPlan:
        return plan_sweep(self._settings, self.devices, self._bench, watch=watch)

    def sweep(self, plan: SweepPlan, known: Sequence[Record], tell: Tell, watch: Watch) -> int:
        tell(RunStarted(at=utc_now(), device=",".join(self.devices), machine=describe_machine()))
        for failure in plan.broken:
            tell(failure)
        return sweep_points(plan, self.devices, self._settings, self._bench, known=known, tell=tell, watch=watch)


class _Afar:
    def __init__(self, settings: LatencySettings, bench: Bench, hosts: Hosts) -> None:
        self._settings, self._bench, self._hosts = settings, bench, hosts
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        lost = hosts.run("modelhound.timing.places:look_around", settings, lambda host: host, found.__setitem__)
        if not found:
            raise CrewError(
                f"cannot time models on this cluster: {'; '.join(f'{host}: {why}' for host, why in lost.items())}"
            )
        self.notes = tuple(f"nothing was timed on {host}: {why}" for host, why in sorted(lost.items()))
        self.devices = {
            _at(device, host): precisions for host in sorted(found) for device, precisions in found[host].items()
        }
        self.names: dict[str, str] = {}  # machines may come and go from one start to the next, each point names its own

    def plan(self, watch: Watch) -> SweepPlan:
        return plan_sweep(self._settings, self.devices, self._bench, sketch_on="cpu", watch=watch)

    def sweep(self, plan: SweepPlan, known: Sequence[Record], tell: Tell, watch: Watch) -> int:
        told: list[Record] = [*known]
        num_known = len(set(plan.points) & set(settled(known, self._settings.timeout, plan.stamps)))

        def receive(host: str, sent: Any) -> None:
            if isinstance(sent, Progress):
                watch(msgspec.structs.replace(sent, task=f"{sent.task} on {host}"))
            else:
                record = _with_device(sent, lambda device: _at(device, host))
                told.append(record)
                tell(record)

        lost = self._hosts.run(
            "modelhound.timing.places:sweep_share",
            None,
            lambda host: self._share(host, plan, told),
            receive,
        )
        done = {each.point for each in told if isinstance(each, LatencyMeasured | LatencyFailed)}
        for point in plan.points:
            why = lost.get(_host(point.device))
            if why is not None and point not in done:
                tell(LatencyFailed(point=point, why="crashed", tried=True, message=f"not measured: {why}"))
        for failure in plan.broken:  # not before the machines have told of their starts: it would be of an earlier one
            tell(failure)
        return num_known

    def _share(self, host: str, plan: SweepPlan, told: Sequence[Record]) -> "_Share | None":
        """What is left to do on one machine, with devices as it calls them; None where nothing is."""
        devices = {_bare(device): precisions for device, precisions in self.devices.items() if _host(device) == host}
        own = [point for point in plan.points if _host(point.device) == host]
        if settled(told, self._settings.timeout, plan.stamps).keys() >= set(own):
            return None
        return _Share(
            settings=dataclasses.replace(self._settings, on="local", run=None),
            devices=devices,
            plan=msgspec.structs.replace(plan, points=tuple(_local(point) for point in own)),
            known=tuple(_with_device(each, _bare) for each in told if _device_host(each) == host),
        )


class _Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one machine is asked for."""

    settings: LatencySettings
    devices: dict[str, tuple[str, ...]]
    plan: SweepPlan
    known: tuple[Record, ...]


def look_around(settings: LatencySettings, host: str, send: Callable[[Any], None]) -> None:
    """On a machine of the cluster: which devices are meant there?"""
    send(find_devices(settings))


def sweep_share(common: None, share: _Share, send: Callable[[Any], None]) -> None:
    """On a machine of the cluster: measure its points."""
    send(RunStarted(at=utc_now(), device=",".join(share.devices), machine=describe_machine()))
    with Bench(share.settings) as bench:
        sweep_points(share.plan, share.devices, share.settings, bench, known=share.known, tell=send, watch=send)


def _at(device: str, host: str) -> str:
    return ",".join(f"{each}@{host}" for each in device.split(","))


def _host(device: str) -> str:
    return device.partition("@")[2]


def _bare(device: str) -> str:
    return device.partition("@")[0]


def _local(point: LatencyPoint) -> LatencyPoint:
    return msgspec.structs.replace(point, device=_bare(point.device))


def _device_host(record: Record) -> str | None:
    if isinstance(record, LatencyMeasured | LatencyFailed):
        return _host(record.point.device)
    return _host(record.device) if isinstance(record, CeilingsMeasured) else None


def _with_device(record: Record, rename: Callable[[str], str]) -> Record:
    """The same with its device called otherwise."""
    if isinstance(record, LatencyMeasured | LatencyFailed):
        point = msgspec.structs.replace(record.point, device=rename(record.point.device))
        return msgspec.structs.replace(record, point=point)
    if isinstance(record, CeilingsMeasured | RunStarted):
        return msgspec.structs.replace(record, device=rename(record.device))
    return record
