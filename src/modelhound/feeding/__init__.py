"""Models fed by a DataLoader, for real and in parts: data x batch x workers -> measured runs.

    pages      which files lie behind a data set; make them cold, make them warm
    runs       one measurement each: a whole run, loading without a model, computing without loading
    supplying  networks on the device, items of the kind asked for
    ledger     what a study is about, and the book of what was measured for it
    sweeping   the few measurements that any run can be composed of
    studying   which runs to make: the whole grid, or as few as it takes to be sure
    tuning     other options at the recommended pair
    concluding which pairs to look at, and from a study to its answer
    kinds      all kinds of items that were asked for
    afar       the same on every machine of a cluster

Nothing here decides what to recommend (see `analysis`) or writes a file. The loading path is `data.load_batches`, the one that
searches and training use.
"""

from modelhound.feeding.ledger import Study
from modelhound.feeding.runs import Feed, measure_run
from modelhound.feeding.studying import Studied, stretch, study
from modelhound.feeding.sweeping import compose_run
from modelhound.feeding.tuning import tune

__all__ = ["Feed", "Studied", "Study", "compose_run", "measure_run", "stretch", "study", "tune"]
