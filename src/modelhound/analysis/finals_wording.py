"""What finals found, in sentences.

In:  a FinalsAnswer, how large each model is, the data set's name
Out: one sentence on who won and how sure that is, one on what that rests on, one on what it took
Nothing here knows where they are shown.
"""

from collections.abc import Mapping

from modelhound.analysis.wording import count_text, duration_text, metric_interval_text, metric_text
from modelhound.records import Finalist, FinalsAnswer

__all__ = [
    "STATES",
    "basis_sentence",
    "chance_text",
    "cost_sentence",
    "headline_sentence",
    "no_winner_text",
    "verdict_sentence",
]

STATES = {"in": "to the end", "dropped": "dropped: had lost", "left behind": "left: budget", "failed": "failed"}
"""How far a finalist came, for a table."""


def verdict_sentence(finals: FinalsAnswer, data: str, num_parameters: Mapping[str, int]) -> tuple[str, str]:
    """Its first words, which stand out, and the rest."""
    if finals.verdict == "failed":
        return "No finalist could be fine-tuned", "; what failed, and why, is told below."
    if finals.verdict == "cannot tell":
        return "Cannot tell", (
            f": none of {len(finals.finalists)} finalists tells the items of {data} better than guessing by how often each "
            "answer comes. Labels that are noise look like this; so do too few items."
        )
    first = finals.finalists[0]
    expected, chance = _expectation(finals, first), chance_text(first.chance)
    if finals.verdict == "won":
        return first.model, f" wins the finals on {data}, the best with a chance of {chance}: {expected}."
    tied = [row for row in finals.finalists if row.place == first.place]
    if len(tied) == 1:
        return first.model, (
            f" is ahead on {data} with a chance of {chance} to be the best, which is not certain: {expected}."
        )
    smallest = min(tied, key=lambda row: num_parameters.get(row.model, 0))
    return f"Cannot tell {len(tied)} finalists apart", (
        f" on {data}: {first.model} is ahead with a chance of {chance} to be the best: {expected}. The smallest of them is "
        f"{smallest.model} ({count_text(num_parameters.get(smallest.model, 0))} parameters)."
    )


def headline_sentence(finals: FinalsAnswer, data: str) -> tuple[str, str]:
    """The same without what figures beside it tell: for large letters."""
    if finals.verdict in ("failed", "cannot tell"):
        return verdict_sentence(finals, data, {})
    first = finals.finalists[0]
    chance = f"a chance of {chance_text(first.chance)} to be the best"
    num_tied = sum(row.place == first.place for row in finals.finalists)
    if finals.verdict == "won":
        return first.model, f" wins the finals on {data}, with {chance}."
    if num_tied == 1:
        return first.model, f" is ahead on {data}, but only with {chance}."
    return f"Cannot tell {num_tied} finalists apart", f" on {data}: {first.model} is ahead, with {chance}."


def no_winner_text(finals: FinalsAnswer) -> str:
    """Why nobody won, in a few words; of finals without a winner."""
    return "no finalist could be fine-tuned" if finals.verdict == "failed" else "no finalist is better than guessing"


def basis_sentence(finals: FinalsAnswer) -> str:
    """How much training the verdict rests on; empty where there was none."""
    first = finals.finalists[0] if finals.finalists else None
    if first is None or not first.num_items:
        return ""
    epochs = f"{first.num_epochs} of {finals.full_epochs} epochs"
    return f"This rests on {epochs} of fine-tuning, tested on {first.num_items:,} items."


def chance_text(chance: float) -> str:
    """62%; of what resampling cannot tell from certain, more than 99%."""
    return "more than 99%" if chance > 0.99 else f"{chance:.0%}"


def cost_sentence(finals: FinalsAnswer) -> str:
    """How long it took beside what it saves, and why it ended."""
    ended = {
        "certain": "They ended when the winner was certain.",
        "budget": "What is left of the budget is too little for the next rung; a larger --finals-budget goes on from here.",
        "finished": "They went on until no rung or no rival was left.",
    }.get(finals.ended, "")
    share = finals.spent_seconds / finals.full_seconds if finals.full_seconds else 0.0
    return (
        f"Finals took {duration_text(finals.spent_seconds)}, {share:.1%} of the "
        f"{duration_text(finals.full_seconds)} that fine-tuning every model would take (their budget: "
        f"{duration_text(finals.budget_seconds)}). {ended}"
    ).rstrip()


def _expectation(finals: FinalsAnswer, row: Finalist) -> str:
    if row.predicted is None or row.interval is None:
        return "nothing can be foretold of it"
    return (
        f"{metric_text(finals.metric, row.predicted)} ({metric_interval_text(finals.metric, row.interval)}, "
        f"{finals.confidence:.0%} interval) {finals.metric} expected after full fine-tuning"
    )
