"""The research's findings on training with several GPUs, as checks on what was measured here.

In:  ModelTrained and RankTrained records
Out: one Finding each: whether it holds here, does not, or cannot be told, and the figures behind it
Nothing here measures.

    larger-costs-more     a larger network of a family costs more time per item than a smaller one
    loading-stays         the time that data take does not shrink with more ranks
    second-helps-most     going from one to two ranks helps more than every further doubling
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from modelhound.analysis.wording import seconds_text
from modelhound.records import ModelTrained, RankTrained
from modelhound.records.train import DATA_PHASES

__all__ = ["Finding", "check_findings"]

_MARGIN = 0.02
_COMPUTE = ("forward", "backward", "optimiser")
_DATA = ("first batch", *DATA_PHASES)

Outcome = Literal["holds", "does not hold", "cannot be told"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of the research, looked at here."""

    name: str
    claim: str
    outcome: Outcome
    evidence: str


def check_findings(trained: Sequence[ModelTrained], ranks: Sequence[RankTrained]) -> tuple[Finding, ...]:
    """All checks, in the order above."""
    return (_larger_costs_more(trained, ranks), _loading_stays(ranks), _second_helps_most(ranks))


def _larger_costs_more(trained: Sequence[ModelTrained], ranks: Sequence[RankTrained]) -> Finding:
    sizes = {run.model: run.num_parameters for run in trained}
    fewest = min((rank.num_ranks for rank in ranks), default=1)
    costs = {
        model: _per_item(ranks, model, fewest, _COMPUTE)
        for model in sorted(sizes, key=lambda model: sizes[model])
        if any(rank.model == model and rank.num_ranks == fewest for rank in ranks)
    }
    values = list(costs.values())
    outcome: Outcome = "cannot be told"
    if len(values) > 1:
        outcome = _compare(values)
    evidence = ", ".join(f"{model} {seconds_text(value)} per item" for model, value in costs.items())
    return Finding(
        name="larger-costs-more",
        claim="a larger network costs more computing time per item than a smaller one",
        outcome=outcome,
        evidence=evidence if len(values) > 1 else "one model was trained; name several",
    )


def _compare(costs: Sequence[float]) -> Outcome:
    """Whether each costs more than the one before; what is alike but for the margin tells nothing."""
    pairs = list(itertools.pairwise(costs))
    if all(later > earlier * (1 + _MARGIN) for earlier, later in pairs):
        return "holds"
    return "does not hold" if any(later < earlier * (1 - _MARGIN) for earlier, later in pairs) else "cannot be told"


def _loading_stays(ranks: Sequence[RankTrained]) -> Finding:
    """Holds where the data time per item and rank does not fall by as much as the ranks grow in number."""
    told = []
    holds = []
    for model in dict.fromkeys(rank.model for rank in ranks):
        counts = sorted({rank.num_ranks for rank in ranks if rank.model == model})
        if len(counts) < 2:
            continue
        first, last = (_per_item(ranks, model, count, _DATA) for count in (counts[0], counts[-1]))
        if first == 0:  # cached features are not loaded
            continue
        # per item of its own share: the same time per item means that adding ranks did not make loading an item cheaper
        holds.append(last >= first * (1 - _MARGIN))
        told.append(
            f"{model} {seconds_text(first)} per item on {counts[0]}, {seconds_text(last)} on {counts[-1]} ranks"
        )
    return _finding(
        "loading-stays", "the time each rank spends on loading an item does not shrink with more ranks", holds, told
    )


def _second_helps_most(ranks: Sequence[RankTrained]) -> Finding:
    told = []
    holds = []
    for model in dict.fromkeys(rank.model for rank in ranks):
        counts = sorted({rank.num_ranks for rank in ranks if rank.model == model})
        if len(counts) < 3 or counts[:2] != [1, 2]:
            continue
        seconds = [_wall_per_item(ranks, model, count) for count in counts]
        if min(seconds) == 0:
            continue
        gains = [earlier / later for earlier, later in itertools.pairwise(seconds)]
        steps = list(zip(counts, counts[1:], gains, strict=False))
        # two to eight are two doublings, and two to three not a whole one
        doublings = [gain ** (1 / math.log2(after / before)) for before, after, gain in steps]
        holds.append(all(doublings[0] >= gain * (1 - _MARGIN) for gain in doublings[1:]))
        told.append(f"{model} " + ", ".join(f"{a} to {b} ranks {gain:.2f}x" for a, b, gain in steps))
    return _finding("second-helps-most", "going from 1 to 2 ranks helps more than every further doubling", holds, told)


def _finding(name: str, claim: str, holds: Sequence[bool], told: Sequence[str]) -> Finding:
    outcome: Outcome = "cannot be told"
    if holds:
        outcome = "holds" if all(holds) else "does not hold"
    return Finding(
        name=name,
        claim=claim,
        outcome=outcome,
        evidence="; ".join(told) or "too few numbers of ranks; run --ranks 1,2,4",
    )


def _per_item(ranks: Sequence[RankTrained], model: str, count: int, phases: Sequence[str]) -> float:
    """Mean over ranks of the seconds in these phases for each of the rank's own items."""
    chosen = [rank for rank in ranks if rank.model == model and rank.num_ranks == count]
    return float(np.mean([rank.seconds_of(*phases) / rank.num_items for rank in chosen]))


def _wall_per_item(ranks: Sequence[RankTrained], model: str, count: int) -> float:
    chosen = [rank for rank in ranks if rank.model == model and rank.num_ranks == count]
    return max(rank.wall_seconds for rank in chosen) / sum(rank.num_items for rank in chosen)
