"""Models and a data set -> a record of each model, with its scores and where its time went.

    scoring    features of one model -> its record; verdicts: what was found out about them before
    loading    what `hound loader` found, taken over
    plainly    one model after the other, everything anew: the reference
    foreseeing what it would take, before anything runs
    spread     the same on the machines of a Ray cluster; share is what each of its workers does
    together   all models at once, with everything shared, and those dropped that have lost; its parts are deciding, race,
               weighing (who stands where), judging (all scorers; gathering waits for others), aside
    comparison all that `hound breakeven` compares; comparing times one job of it: trainings, and searches (costs)
    taking_over  what earlier starts have measured, and in which of these ways the others are
    looking    the items as the best model sees them

Nothing here knows run folders or rankings.
"""

from modelhound.measuring.foreseeing import foresee
from modelhound.measuring.loading import use_recommended
from modelhound.measuring.plainly import measure_plainly
from modelhound.measuring.scoring import Job
from modelhound.measuring.spread import choose_spread_device, measure_spread
from modelhound.measuring.taking_over import Measured, measure_models, stamp_models
from modelhound.measuring.together import measure_together

__all__ = [
    "Job",
    "Measured",
    "choose_spread_device",
    "foresee",
    "measure_models",
    "measure_plainly",
    "measure_spread",
    "measure_together",
    "stamp_models",
    "use_recommended",
]
