"""The best of a search once more, by short fine-tuning: a race that costs real training, and decides what features cannot.

    entering    from the ranking of a search to its finals
    items       which fold each item belongs to, and what guessing would score
    held_items  items decoded once, for every epoch, rate, fold and network
    trials      one short fine-tuning, tested on items that it did not learn from
    trial_pool  many of them, one by one or several at once
    holding     the race, from what it will cost to its answer

Nothing here decides whom to train next: see `analysis.finals`.
"""

from modelhound.finals.entering import enter_finals
from modelhound.finals.holding import FinalsJob, hold_finals
from modelhound.finals.items import check_finals

__all__ = ["FinalsJob", "check_finals", "enter_finals", "hold_finals"]
