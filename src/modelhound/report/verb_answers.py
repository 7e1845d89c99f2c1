"""What stands on top of the page of a verb.

In:  a finished run
Out: a Told: which, how sure, how fast, why, what to do now
To give a new verb such a beginning, add a function to `_ANSWERS`; without one, its page begins with the headline of the run.
"""

from collections.abc import Callable

import msgspec

from modelhound.report.job_answers import tell_breakeven, tell_profile, tell_train
from modelhound.report.timing_answers import tell_latency, tell_loader
from modelhound.report.told import Told
from modelhound.store import Run

__all__ = ["tell_answer"]


def tell_answer(run: Run) -> Told | None:
    """None where the verb has no such sentence, is not finished, found nothing, or is of another version."""
    tell = _ANSWERS.get(run.verb)
    if tell is None or run.answer is None:
        return None
    try:
        return tell(run, run.answer)
    except msgspec.MsgspecError:
        return None


_ANSWERS: dict[str, Callable[[Run, msgspec.Raw], Told | None]] = {
    "breakeven": tell_breakeven,
    "latency": tell_latency,
    "loader": tell_loader,
    "profile": tell_profile,
    "train": tell_train,
}
