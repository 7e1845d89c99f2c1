"""What a search found, in sentences: the same ones in a terminal and on a page.

In:  a Ranking, the data set's name, seconds by phase
Out: one sentence on which model and how good, one on those it cannot be told from, one on where the time went
What finals found is told by `finals_wording`. Nothing here knows where the words are shown.
"""

from collections.abc import Mapping

from modelhound.analysis.search_tables import time_text
from modelhound.analysis.wording import count_text, duration_text, metric_interval_text, metric_text
from modelhound.records import Ranking

__all__ = ["best_sentence", "shares_text", "tau_text", "tie_sentence", "time_sentence"]

_MEANINGS = {
    "accuracy": "of {items:,} items are recognised from its features",
    "ranking precision": "ranking precision of the labels of {items:,} items, told from its features",
    "R2": "is the R2 of {items:,} numbers told from its features",
}
_LEAST_SHARE = 0.005  # of the time; what takes less is not worth a word


def best_sentence(ranking: Ranking, data: str) -> tuple[str, str]:
    """Its first words, which stand out, and the rest; of a ranking that has models."""
    best = ranking.models[0]
    claim = f"suits {data} best" if len(ranking.models) > 1 else f"is the only model measured on {data}"
    meaning = _MEANINGS.get(ranking.metric, ranking.metric).format(items=ranking.num_items)
    return best.model, (
        f" {claim}: {metric_text(ranking.metric, best.score)} ({metric_interval_text(ranking.metric, best.interval)}, "
        f"{ranking.confidence:.0%} interval) {meaning}."
    )


def tie_sentence(ranking: Ranking) -> tuple[str, str, str]:
    """Who shares rank 1: what comes before the smallest of them, its name, which stands out, and the rest; all empty where
    nobody does."""
    tied = [row for row in ranking.models if row.rank == 1]
    if len(tied) < 2:
        return "", "", ""
    smallest = min(tied, key=lambda row: row.num_parameters)
    told = f"{len(tied)} models share rank 1: {ranking.num_items:,} items cannot tell them apart"
    if smallest is tied[0]:
        return f"{told}, and none of them is smaller than ", smallest.model, "."
    return (
        f"{told}. The smallest of them is ",
        smallest.model,
        f" ({count_text(smallest.num_parameters)} parameters).",
    )


def tau_text(tau: float) -> str:
    """Of Kendall: signed, and never a zero below zero."""
    return f"{round(tau, 2) + 0.0:+.2f}"


def time_sentence(phases: Mapping[str, float], device: str, precision: str = "") -> str:
    """Where the time of all models together went, from most to least; fp32 goes without saying."""
    total = sum(phases.values())
    if not phases.get("forward") or total <= 0:
        return f"No features had to be made: they are remembered. Scoring them took {duration_text(total)}."
    where = f"{device}, {precision}" if precision == "bf16" else device
    return f"Where the {time_text(total)} of model time went ({where}): {shares_text(phases)}."


def shares_text(phases: Mapping[str, float]) -> str:
    """forward 85%, score 10%: from most to least, without what is next to nothing."""
    total = max(sum(phases.values()), 1e-12)
    parts = sorted(phases.items(), key=lambda phase: -phase[1])
    return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts if seconds / total >= _LEAST_SHARE)
