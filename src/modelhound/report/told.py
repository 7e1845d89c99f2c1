"""What a verb says on the first screen of its page, and what it has to say after the charts.

In:  whatever `timing_answers` and `job_answers` have found in a run
Out: a Told, which `any_page` turns into a Page
Nothing here knows a verb.
"""

from dataclasses import dataclass

from modelhound.report.next_steps import Steps
from modelhound.report.parts import Figure, Sentence
from modelhound.report.verb_numbers import Numbers

__all__ = ["Told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The first screen of a page."""

    answer: Sentence
    sentences: tuple[str, ...] = ()
    """Below the answer; where there are none, those that the run's answer holds."""
    remarks: tuple[str, ...] | None = None
    """After the charts; None for whatever sentences the run's answer holds."""
    remarks_title: str = "What follows"
    figures: tuple[Figure, ...] = ()
    next_steps: Steps = ()
    numbers: Numbers | None = None
    """What to show in tables, where that is not the answer as it is."""
