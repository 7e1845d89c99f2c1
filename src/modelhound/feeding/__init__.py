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

from modelhound.feeding.afar import Keep, feed_hosts, keep_here, relay_to
from modelhound.feeding.concluding import headline, weigh_kinds
from modelhound.feeding.kinds import Case, study_kinds
from modelhound.feeding.supplying import build_networks

__all__ = [
    "Case",
    "Keep",
    "build_networks",
    "feed_hosts",
    "headline",
    "keep_here",
    "relay_to",
    "study_kinds",
    "weigh_kinds",
]
