"""What a search found, in sentences: the same ones in a terminal and on a page.

In:  a Ranking, the data set's name, seconds by phase
Out: one sentence on which model and how good, one on those it cannot be told from, one on where the time went
What finals found is told by `finals_wording`. Nothing here knows where the words are shown.
"""

from collections.abc import Mapping

from modelhound.analysis.search_tables import time_text
from modelhound.analysis.wording import all_models_text, count_text, duration_text, metric_interval_text, metric_text
from modelhound.records import Ranking

__all__ = ["best_sentence", "control_sentence", "shares_text", "tau_text", "tie_sentence", "time_sentence"]

_MEANINGS = {
    "accuracy": "of {items:,} items are recognised from its features",
    "ranking precision": "ranking precision of the labels of {items:,} items, told from its features",
    "R2": "is the R2 of {items:,} numbers told from its features",
}
_GUESSING = {
    "accuracy": "naming the most frequent class every time",
    "ranking precision": "ordering labels by how often they come",
    "R2": "naming the mean every time",
}
_CLOSE = 0.1  # of the way from guessing to telling everything: who comes no farther should know where guessing stands
_LEAST_SHARE = 0.005  # of the time; what takes less is not worth a word


def best_sentence(ranking: Ranking, data: str) -> tuple[str, str]:
    """Its first words, which stand out, and the rest; of a ranking that has models. What guessing would reach is told where
    the best comes close to it."""
    best = ranking.models[0]
    score = f"{metric_text(ranking.metric, best.score)} ({metric_interval_text(ranking.metric, best.interval)}, "
    score += f"{ranking.confidence:.0%} interval)"
    guessed = "" if ranking.guess is None else f"{_GUESSING.get(ranking.metric, 'guessing')} would reach "
    guessed += "" if ranking.guess is None else metric_text(ranking.metric, ranking.guess)
    if not ranking.is_guess_beaten:
        return f"No model is clearly better than guessing on {data}", (
            f": {best.model} reaches {score}, {guessed}. Labels that are noise look like this; so do too few items."
        )
    # those that left the race count in the control only
    is_alone = len(ranking.models) == 1 and len(ranking.by_size) < 2
    claim = f"is the only model measured on {data}" if is_alone else f"suits {data} best"
    meaning = _MEANINGS.get(ranking.metric, ranking.metric).format(items=ranking.num_items)
    is_close = ranking.guess is not None and best.interval[0] - ranking.guess < _CLOSE * (1 - ranking.guess)
    return best.model, f" {claim}: {score} {meaning}{f'; {guessed}' if is_close else ''}."


def tie_sentence(ranking: Ranking) -> tuple[str, str, str]:
    """Who shares rank 1: what comes before the smallest of them, its name, which stands out, and the rest; all empty where
    nobody does."""
    tied = [row for row in ranking.models if row.rank == 1]
    if len(tied) < 2 or not ranking.is_guess_beaten:  # of those that tell nothing, none is worth naming
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


def control_sentence(ranking: Ranking) -> str:
    """What a list ordered by size says, and of which models; empty where that cannot be told."""
    if ranking.size_agreement is None:
        return ""
    num_left = len(ranking.by_size) - len(ranking.models)
    left = f", the {num_left} that left the race early behind the others," if num_left > 1 else ""
    left = ", the one that left the race early behind the others," if num_left == 1 else left
    return (
        f"Control: a list ordered by size alone agrees with this ranking of {all_models_text(len(ranking.by_size))}{left} by "
        f"Kendall's tau = {tau_text(ranking.size_agreement)} (1 the same order, 0 no relation)."
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
