"""Models and a data set -> a record of each model, with its scores and where its time went.

    scoring    features of one model -> its record
    plainly    one model after the other, everything anew: the reference
    foreseeing what it would take, before anything runs
    together   all models at once, with everything shared, and those dropped that have lost

Nothing here knows run folders or rankings.
"""

from modelhound.measuring.foreseeing import foresee
from modelhound.measuring.plainly import measure_plainly
from modelhound.measuring.scoring import Job
from modelhound.measuring.together import measure_together

__all__ = ["Job", "foresee", "measure_plainly", "measure_together"]
