"""Which points cannot be measured, known before they are tried.

In:  the costs of all points, what each device has, and the outcome of every point as it comes
Out: for a point that would fail, the row that says so; None for one that is worth trying
Nothing here runs anything. A point that is as large as one that failed fails too, so none is tried twice, in this run or the
next: what ran out of memory is remembered by model, shape, precision, device and limit.
"""

from collections.abc import Mapping
from typing import Any

from modelhound.analysis.memory import MemoryModel, fit_memory
from modelhound.analysis.samples import median_of
from modelhound.analysis.wording import bytes_text
from modelhound.records import Cost, LatencyFailed, LatencyMeasured, LatencyPoint, WhyFailed
from modelhound.store import Memo

__all__ = ["Limits"]

_CALLS_OF_A_POINT = 5  # a first one, one to warm up, three that count
_HOPELESS = 2.0  # times the deadline by extrapolation

Group = tuple[str, str, str]


class Limits:
    """What is known of each network in each precision on each device."""

    def __init__(
        self,
        costs: Mapping[tuple[str, int], Cost],
        limit_bytes: Mapping[str, int],
        *,
        device_names: Mapping[str, str],
        stamps: Mapping[str, str] | None = None,
        timeout: float,
        memo: Memo | None,
    ) -> None:
        self._costs = costs
        self._limit_bytes = limit_bytes
        self._device_names = device_names
        self._stamps = stamps or {}
        self._timeout = timeout
        self._memo = memo
        self._probes: dict[Group, list[tuple[float, float]]] = {}
        self._slowest: dict[Group, tuple[float, float]] = {}  # FLOPs and seconds of the largest point that was timed
        self._full: dict[Group, LatencyPoint] = {}  # the smallest that ran out of memory
        self._late: dict[Group, LatencyPoint] = {}  # the smallest that timed out

    def expected_bytes(self, point: LatencyPoint) -> float:
        """What inputs and intermediate results hold at once, by their shapes."""
        cost = self._costs[point.model, point.size]
        return point.batch * (cost.input_bytes + cost.live_bytes) * point.width

    def flops(self, point: LatencyPoint) -> float:
        return point.batch * self._costs[point.model, point.size].flops

    def refuse(self, point: LatencyPoint) -> LatencyFailed | None:
        """The row of a point that would fail."""
        return self._too_large(point) or self._too_slow(point)

    def add(self, record: LatencyMeasured | LatencyFailed) -> None:
        """Learn from an outcome."""
        point = record.point
        group = _group(point)
        if isinstance(record, LatencyMeasured):
            self._probes.setdefault(group, []).append((self.expected_bytes(point), float(record.peak_memory_bytes)))
            flops, seconds = self.flops(point), median_of(record.seconds)
            self._slowest[group] = max(self._slowest.get(group, (0.0, 0.0)), (flops, seconds))
        elif record.why == "out of memory" and record.tried:
            smallest = self._full.get(group)
            if smallest is None or self.expected_bytes(point) < self.expected_bytes(smallest):
                self._full[group] = point
            if self._memo is not None:
                known = self._memo.look_up(self._key(point))
                self._memo.note(self._key(point), point.batch if known is None else min(known, point.batch))
        elif record.why == "timed out" and record.tried:
            smallest = self._late.get(group)
            if smallest is None or self.flops(point) < self.flops(smallest):
                self._late[group] = point

    def memory_model(self, point: LatencyPoint) -> MemoryModel:
        """What the probes so far say of this network in this precision on this device."""
        weight_bytes = self._costs[point.model, point.size].weight_bytes * point.width
        return fit_memory(weight_bytes, self._probes.get(_group(point), []))

    def _too_large(self, point: LatencyPoint) -> LatencyFailed | None:
        limit = self._limit_bytes[point.device]
        full = self._full.get(_group(point))
        if full is not None and self.expected_bytes(point) >= self.expected_bytes(full):
            return self._row(point, "out of memory", f"not tried: {full.shape_text} ran out of memory before")
        known: Any = self._memo.look_up(self._key(point)) if self._memo is not None else None
        if isinstance(known, int) and point.batch >= known:
            return self._row(
                point,
                "out of memory",
                f"not tried: batch {known} of this shape ran out of memory in an earlier run "
                f"(remembered in {self._memo.path.name if self._memo else ''} of the cache folder)",
            )
        model = self.memory_model(point)
        if model.is_hopeless(self.expected_bytes(point), limit):
            needed = model.predict(self.expected_bytes(point))
            seen = f"{model.num_probes} smaller points" if model.num_probes else "the shapes of its tensors"
            return self._row(
                point,
                "out of memory",
                f"not tried: needs about {bytes_text(needed)} by {seen}, and may use {bytes_text(limit)}",
            )
        return None

    def _too_slow(self, point: LatencyPoint) -> LatencyFailed | None:
        late = self._late.get(_group(point))
        if late is not None and self.flops(point) >= self.flops(late):
            return self._row(
                point, "timed out", f"not tried: {late.shape_text} took longer than {self._timeout:g} s before"
            )
        flops, seconds = self._slowest.get(_group(point), (0.0, 0.0))
        if not flops or self.flops(point) <= flops:
            return None
        expected = _CALLS_OF_A_POINT * seconds * self.flops(point) / flops
        if expected > _HOPELESS * self._timeout:
            return self._row(
                point,
                "timed out",
                f"not tried: would take about {expected:.0f} s by a smaller point, and may take {self._timeout:g} s",
            )
        return None

    def _row(self, point: LatencyPoint, why: WhyFailed, message: str) -> LatencyFailed:
        return LatencyFailed(
            point=point,
            why=why,
            tried=False,
            message=message,
            num_parameters=self._costs[point.model, point.size].num_parameters,
            timeout_seconds=self._timeout if why == "timed out" else None,
        )

    def _key(self, point: LatencyPoint) -> str:
        limit = float(f"{self._limit_bytes[point.device]:.1e}")  # free memory differs a little from day to day
        place = f"{self._device_names[point.device]} {bytes_text(limit)}"
        model = f"{point.model} {self._stamps.get(point.model, '')}".strip()  # one's own network may be smaller by now
        return f"{model} {'image' if point.image else 'tokens'} {point.size} {point.precision} {place}"


def _group(point: LatencyPoint) -> Group:
    return point.model, point.precision, point.device
