"""The best of a search once more, by short fine-tuning: a race that costs real training, and decides what features cannot.

    entering    from the ranking of a search to its finals
    items       which fold each item belongs to
    held_items  items decoded once, for every epoch, rate, fold and network
    trials      one short fine-tuning, tested on items that it did not learn from
    hourglass   whether it will be over in time
    trial_pool  many of them, one by one or several at once
    job         what is asked for, and how a trial is asked for and written down
    spending    what may be spent and was spent, and when to stop
    holding     the race, from what it will cost to its end
    answering   who won, as records say it

Nothing here decides whom to train next: see `analysis.finals`.
"""

from modelhound.finals.entering import enter_finals
from modelhound.finals.holding import hold_finals
from modelhound.finals.items import check_finals
from modelhound.finals.job import FinalsJob

__all__ = ["FinalsJob", "check_finals", "enter_finals", "hold_finals"]
