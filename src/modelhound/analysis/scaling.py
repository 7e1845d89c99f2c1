"""How training scales with the number of ranks, where the rest goes, and when a further one is no longer worth it.

In:  one RankTrained per rank of runs of one model on several numbers of ranks, every run over the same items
Out: speed-up and efficiency per number of ranks, the loss split by cause, a fitted law, the last rank that gives half its worth
Nothing here measures.

Efficiency is the speed-up divided by the number of ranks. What is missing to 1 is split by what the ranks' seconds went to
beyond what one rank spent on its share of the same items:

    data            waiting for batches and copying them
    communication   the exchange of gradients that the backward pass does not hide, as the rank that waited least saw it
    stragglers      the rest of that wait: ranks that wait for a slower one
    launch          the first batch of each rank: starting loaders
    other           the rest, such as cores that ranks share

The law, in seconds per item on n ranks: serial + parallel / n + exchange * (n - 1) / n^2. What all ranks share (disk, cores
that decode) does not shrink; computing does; and in a ring every rank passes (n - 1) / n of the gradients on, once for n
batches. All terms are at least zero and fitted to the measured times.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy import optimize

from modelhound.analysis.wording import plural
from modelhound.errors import RequestError
from modelhound.records import ModelTrained, RankTrained
from modelhound.records.train import DATA_PHASES, STEP_PHASES

__all__ = ["Scaling", "ScalingLaw", "ScalingPoint", "measure_scaling", "speedup_text"]

_WORTH = 0.5
_MOST_RANKS = 4096
_NOTHING = 1e-6  # of a time: what rounding may leave of a term that is not needed


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number of ranks."""

    num_ranks: int
    seconds_per_item: float
    """Of all ranks together: wall time of an epoch's steps over its items."""
    speedup: float
    efficiency: float
    losses: dict[str, float]
    """Share of the ranks' time lost by cause; with the efficiency they add up to 1."""


class ScalingLaw(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per item on n ranks: serial + parallel / n + exchange * (n - 1) / n^2."""

    serial_seconds: float
    parallel_seconds: float
    exchange_seconds: float

    def seconds_at(self, num_ranks: int) -> float:
        return (
            self.serial_seconds
            + self.parallel_seconds / num_ranks
            + self.exchange_seconds * (num_ranks - 1) / num_ranks**2
        )


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """How one model scales."""

    model: str
    points: tuple[ScalingPoint, ...]
    law: ScalingLaw | None
    """None where fewer than two numbers of ranks were measured."""
    last_worthy_rank: int | None
    """The largest number of ranks of which the last one adds at least half of what the first one does; None where all do up
    to thousands, or nothing is known."""
    sentence: str


def measure_scaling(trained: Sequence[ModelTrained], ranks: Sequence[RankTrained]) -> Scaling:
    """The scaling of one model; the smallest number of ranks is what others are compared with."""
    if not trained:
        raise RequestError("cannot tell how nothing scales: expected one or more finished runs")
    by_count = {run.num_ranks: [rank for rank in ranks if rank.num_ranks == run.num_ranks] for run in trained}
    counts = sorted(count for count, of_count in by_count.items() if len(of_count) == count)
    if not counts:
        raise RequestError("cannot tell how it scales: expected the records of every rank of a run, some are missing")
    base = counts[0]
    base_rate = _item_seconds(by_count[base]) * base  # of one rank, as if the smallest number scaled perfectly
    points = tuple(_point(count, by_count[count], by_count[base], base_rate) for count in counts)
    law = _fit(points) if len(points) > 1 else None
    last = _last_worthy(law) if law else None
    return Scaling(
        model=trained[0].model, points=points, law=law, last_worthy_rank=last, sentence=_sentence(points, law, last)
    )


def _item_seconds(ranks: Sequence[RankTrained]) -> float:
    """Wall seconds of all steps over the items that all ranks together went through."""
    return max(_step_total(rank) for rank in ranks) / sum(rank.num_items for rank in ranks)


def _step_total(rank: RankTrained) -> float:
    return rank.seconds_of(*STEP_PHASES, "first batch")


def _point(count: int, ranks: Sequence[RankTrained], base: Sequence[RankTrained], base_rate: float) -> ScalingPoint:
    seconds = _item_seconds(ranks)
    speedup = base_rate / seconds
    efficiency = speedup / count
    return ScalingPoint(
        num_ranks=count,
        seconds_per_item=seconds,
        speedup=speedup,
        efficiency=efficiency,
        losses=_split_loss(ranks, base, 1 - efficiency),
    )


def _split_loss(ranks: Sequence[RankTrained], base: Sequence[RankTrained], lost: float) -> dict[str, float]:
    """Shares of the ranks' whole time, `other` being what remains."""
    whole = float(np.mean([_step_total(rank) for rank in ranks]))
    waits = _communication(ranks)
    least = float(waits.min(0).sum()) if waits.size else 0.0
    extra = {
        "data": _more_than_base(ranks, base, *DATA_PHASES),
        "communication": least - _share_of_base(ranks, base, "communication"),
        "stragglers": float(waits.mean(0).sum()) - least if waits.size else 0.0,
        "launch": _more_than_base(ranks, base, "first batch"),
    }
    shares = {cause: max(0.0, seconds) / whole for cause, seconds in extra.items()}
    return {**shares, "other": lost - sum(shares.values())}


def _communication(ranks: Sequence[RankTrained]) -> npt.NDArray[np.float64]:
    """Seconds of each step on each rank, [ranks, steps]."""
    rows = [told for rank in ranks if (told := rank.samples_of("communication"))]
    length = min((len(row) for row in rows), default=0)
    return np.array([row[:length] for row in rows])


def _more_than_base(ranks: Sequence[RankTrained], base: Sequence[RankTrained], *phases: str) -> float:
    return float(np.mean([rank.seconds_of(*phases) for rank in ranks])) - _share_of_base(ranks, base, *phases)


def _share_of_base(ranks: Sequence[RankTrained], base: Sequence[RankTrained], *phases: str) -> float:
    """What the smallest run spent on as many items as each of these ranks has."""
    per_item = float(np.mean([rank.seconds_of(*phases) / rank.num_items for rank in base]))
    return per_item * float(np.mean([rank.num_items for rank in ranks]))


def _fit(points: Sequence[ScalingPoint]) -> ScalingLaw:
    counts = np.array([point.num_ranks for point in points], dtype=np.float64)
    times = np.array([point.seconds_per_item for point in points])
    terms = np.stack([np.ones_like(counts), 1 / counts, (counts - 1) / counts**2], axis=1)
    weights = 1 / times  # relative errors count
    # two points cannot tell three terms apart: what does not shrink, or where even that is too little, what is exchanged
    choices = [(0, 1), (1, 2)] if len(points) < 3 else [(0, 1, 2), (0, 1)]
    fits = [(*optimize.nnls(terms[:, chosen] * weights[:, None], times * weights), chosen) for chosen in choices]
    laws = [(residual, _law(found, chosen)) for found, residual, chosen in fits]
    # one rank exchanges nothing, and would take no time at all if nothing else were left
    possible = [(residual, law) for residual, law in laws if law.seconds_at(1) > _NOTHING * times.max()]
    return min(possible, key=lambda fit: round(fit[0], 9))[1]


def _law(found: npt.NDArray[np.float64], chosen: Sequence[int]) -> ScalingLaw:
    """Terms that were not fitted are nothing."""
    serial, parallel, exchange = (float(dict(zip(chosen, found, strict=True)).get(term, 0.0)) for term in range(3))
    return ScalingLaw(serial_seconds=serial, parallel_seconds=parallel, exchange_seconds=exchange)


def _last_worthy(law: ScalingLaw) -> int | None:
    """Throughput gained by rank n, against that of the first."""
    first = 1 / law.seconds_at(1)
    before = first
    for count in range(2, _MOST_RANKS + 1):
        now = 1 / law.seconds_at(count)
        if now - before < _WORTH * first:
            return count - 1
        before = now
    return None


def _sentence(points: Sequence[ScalingPoint], law: ScalingLaw | None, last: int | None) -> str:
    most = points[-1]
    if law is None:
        return f"measured on {plural(most.num_ranks, 'rank')} only: run --ranks 1,2 or more to see how it scales"
    causes = {cause: share for cause, share in most.losses.items() if share > 0.01}
    text = f"{plural(most.num_ranks, 'rank')} are {speedup_text(points)}, an efficiency of {most.efficiency:.0%}"
    if causes:
        text += ", lost to " + ", ".join(f"{cause} {share:.0%}" for cause, share in _largest_first(causes))
    if last is None:
        return text + "; by the fitted law every further rank is worth it as far as thousands"
    return text + f"; by the fitted law a rank beyond {last} adds less than half of what the first one does"


def speedup_text(points: Sequence[ScalingPoint]) -> str:
    """Of the most ranks; what one would do is only assumed where it was not measured."""
    fewest, most = points[0].num_ranks, points[-1]
    one = "one" if fewest == 1 else f"one would be if {fewest} scaled perfectly"
    return f"{most.speedup:.2f}x as fast as {one}"


def _largest_first(causes: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(causes.items(), key=lambda each: -each[1])
