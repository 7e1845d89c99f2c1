"""What holds a computation up: handing work over, moving bytes, or computing?

In:  the time of one point, its FLOPs and bytes, the most this machine was seen to do of each, host and device times if known
Out: the regime, the shares of both ceilings that were reached, and a sentence
Nothing here measures a ceiling or knows what was computed.

Time cannot be less than FLOPs / highest rate nor than bytes / highest bandwidth (Williams, Waterman and Patterson, "Roofline",
CACM 2009); the bound that is nearer is the one that holds, if it is near. Operators that run one after the other, each at one
of the ceilings, reach at least half of one of them together: what they compute and what they move take the whole time, so one
of the two takes half of it or more. A call that reaches less than half of both is therefore held up by something else. Where
the device waits, that is the host, which hands over one kernel after the other; it is told from host and device times only.
Where the device is busy all the while, its kernels use little of it. Without those times nobody knows which of the two it is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

import msgspec

from modelhound.analysis.wording import plural, share_text
from modelhound.errors import RequestError

__all__ = [
    "BOUND_WORDS",
    "Bound",
    "Ceilings",
    "Regime",
    "bounds_text",
    "find_regime",
    "least_seconds",
    "middle_share_text",
    "reorder_seconds",
    "waiting_share",
]

Bound = Literal["launch", "memory", "compute", "neither", "unknown"]

BOUND_WORDS: dict[Bound, str] = {
    "launch": "launch-bound",
    "memory": "memory-bound",
    "compute": "compute-bound",
    "neither": "far below both ceilings",
    "unknown": "not explained",
}
"""What is said of a point, wherever a person reads it."""

_SHARE_OF = {
    "launch": "of the time",
    "memory": "of the ceiling",
    "compute": "of the ceiling",
    "neither": "of the nearer one",
}

LAUNCH_WAIT = 0.2  # a device that waits this share of the time is held up by the host
LAUNCH_HOST = 0.9  # so is one whose host is busy handing over this share of the time
_REORDERED = ("convolution", "grouped")
LEAST_SHARE = 0.5  # of a ceiling: whatever runs at the ceilings reaches that of one of them


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """The most this device was seen to do, in the precision that was used."""

    flops_per_second: float
    bytes_per_second: float
    kinds: dict[str, float] = msgspec.field(default_factory=dict)
    """FLOP/s of kinds of operators, where they were measured apart; all others have `flops_per_second`."""

    def rate_of(self, kind: str) -> float:
        return self.kinds.get(kind, self.flops_per_second)

    def mix(self, flops_by_kind: Mapping[str, float]) -> float:
        """The FLOP/s of these together, each kind at its own ceiling."""
        seconds = sum(flops / self.rate_of(kind) for kind, flops in flops_by_kind.items())
        return sum(flops_by_kind.values()) / seconds if seconds else self.flops_per_second


class Regime(msgspec.Struct, frozen=True, kw_only=True):
    """What one point is bound by. Shares are of the ceilings and of the time."""

    bound: Bound
    compute_share: float | None
    memory_share: float | None
    waiting_share: float | None
    """Of the time the device waits; None where device time is not known."""
    share: float | None
    """That of what it is bound by: of the time, or of the ceiling; of the nearer ceiling where it is neither."""
    flops_per_byte: float | None
    sentence: str

    @property
    def short_text(self) -> str:
        """compute 0.74: one cell of a table."""
        return self.bound if self.share is None else f"{self.bound} {share_text(self.share)}"


def find_regime(
    seconds: float,
    *,
    flops: float | None = None,
    moved_bytes: float | None = None,
    ceilings: Ceilings | None = None,
    host_seconds: float | None = None,
    device_seconds: float | None = None,
) -> Regime:
    """The regime of one point; whatever is not known may be left out, and the answer may then be unknown."""
    _check(seconds, flops, moved_bytes, ceilings)
    compute = flops / ceilings.flops_per_second / seconds if flops is not None and ceilings else None
    memory = moved_bytes / ceilings.bytes_per_second / seconds if moved_bytes is not None and ceilings else None
    waiting = waiting_share(seconds, device_seconds)
    host = None if host_seconds is None else min(1.0, host_seconds / seconds)
    bound, share, sentence = _judge(compute, memory, waiting, host)
    return Regime(
        bound=bound,
        compute_share=compute,
        memory_share=memory,
        waiting_share=waiting,
        share=share,
        flops_per_byte=flops / moved_bytes if flops is not None and moved_bytes else None,
        sentence=sentence,
    )


def bounds_text(regimes: Iterable[Regime]) -> str:
    """How many points are bound by what, the most first: 9 points are compute-bound (0.74 of the ceiling in the middle)."""
    groups: dict[Bound, list[Regime]] = {}
    for regime in regimes:
        groups.setdefault(regime.bound, []).append(regime)
    counted = sorted(groups.items(), key=lambda group: -len(group[1]))
    return ", ".join(
        f"{plural(len(alike), 'point is', 'points are')} {BOUND_WORDS[bound]}{_in_brackets(alike)}"
        for bound, alike in counted
    )


def middle_share_text(regimes: Sequence[Regime]) -> str:
    """Of points bound by the same: 0.74 of the ceiling in the middle. Empty where no share is known."""
    shares = [regime.share for regime in regimes if regime.share is not None]
    if not shares:
        return ""
    return f"{share_text(median(shares))} {_SHARE_OF[regimes[0].bound]}" + (" in the middle" if len(shares) > 1 else "")


def _in_brackets(alike: Sequence[Regime]) -> str:
    share = middle_share_text(alike)
    why = ""
    if alike[0].bound == "neither":
        why = f": {_why_neither(all(regime.waiting_share is not None for regime in alike))}"
    return f" ({share}{why})" if share else ""


def least_seconds(
    operators: Sequence[tuple[str, float, float, float, int]], ceilings: Ceilings, *, batch: int = 1, width: float = 1.0
) -> tuple[float, float]:
    """What operators would take at the ceilings, one after the other: those bound by computing, and those bound by memory.

    An operator is its kind, its FLOPs and bytes for each item, its bytes of weights, and how many there are of it; `width` is
    what a number takes, in units of the width that bytes were counted with.
    """
    computing = moving = 0.0
    for kind, flops, item_bytes, weight_bytes, number in operators:
        compute = batch * flops / ceilings.rate_of(kind)
        memory = (batch * item_bytes + weight_bytes) * width / ceilings.bytes_per_second
        computing, moving = (
            (computing + number * compute, moving) if compute >= memory else (computing, moving + number * memory)
        )
    return computing, moving


def reorder_seconds(
    operators: Sequence[tuple[str, float, float, float, int]], ceilings: Ceilings, *, batch: int = 1, width: float = 1.0
) -> float:
    """What it takes to bring inputs and results of convolutions into another order in memory, and back.

    Libraries do that where their quick kernels want channels last or in blocks: what a convolution reads and writes is then
    read and written twice more.
    """
    moved = sum(
        number * (batch * item_bytes + weight_bytes)
        for kind, _, item_bytes, weight_bytes, number in operators
        if kind in _REORDERED
    )
    return 2 * moved * width / ceilings.bytes_per_second


def waiting_share(seconds: float, device_seconds: float | None) -> float | None:
    """The share of the time in which the device had nothing to do."""
    return None if device_seconds is None else min(1.0, max(0.0, 1 - device_seconds / seconds))


def _check(seconds: float, flops: float | None, moved_bytes: float | None, ceilings: Ceilings | None) -> None:
    given = {"seconds": seconds}
    if ceilings is not None:
        given |= {"flops_per_second": ceilings.flops_per_second, "bytes_per_second": ceilings.bytes_per_second}
    for name, value in given.items():
        if not (math.isfinite(value) and value > 0):
            raise RequestError(
                f"cannot find a regime from {name} {value!r}: expected a positive number, measure it again"
            )
    for name, count in (("flops", flops), ("moved_bytes", moved_bytes)):
        if count is not None and not (math.isfinite(count) and count >= 0):
            raise RequestError(f"cannot find a regime from {name} {count!r}: expected a number from 0, or leave it out")


def _judge(
    compute: float | None, memory: float | None, waiting: float | None, host: float | None
) -> tuple[Bound, float | None, str]:
    if waiting is not None and waiting >= LAUNCH_WAIT:
        return "launch", waiting, f"launch-bound: {waiting:.0%} of the time the device waits for the host"
    if waiting is None and host is not None and host >= LAUNCH_HOST:
        return "launch", host, f"launch-bound: for {host:.0%} of the time the host is handing work over"
    if compute is None or memory is None:
        return "unknown", None, "cannot be told: FLOPs, bytes and measured ceilings are needed"
    share = max(compute, memory)
    if share < LEAST_SHARE:
        reached = f"reaches {share_text(compute)} of the compute ceiling and {share_text(memory)} of the memory ceiling"
        return "neither", share, f"{BOUND_WORDS['neither']}: {reached}; {_why_neither(waiting is not None)}"
    bound: Bound = "compute" if compute >= memory else "memory"
    if share > 1:  # bytes are counted as if nothing were fused or cached
        reached = f"at the {bound} ceiling, which caches let it pass {share_text(share)} times"
        return bound, share, f"{bound}-bound: {reached}"
    return bound, share, f"{bound}-bound: reaches {share_text(share)} of the {bound} ceiling"


def _why_neither(is_busy: bool) -> str:
    """What is left where no ceiling is near; a device known to be busy does not wait between its kernels."""
    return "kernels that use little of the device" + ("" if is_busy else ", or time between them")
