"""Run a function somewhere else.

    arithmetic (that may end the process that tries it)
    connection (to a Ray cluster, for the two that run there)
    crew       on workers of a Ray cluster that die, are replaced and overtaken
    fresh      in a new interpreter, once
    hosts      on every machine of a Ray cluster, each for itself
    ranks      on N ranks at once, under torchrun
    slurm      as a SLURM job, once on every node
    worker     one call after the other in a process that stays warm until a call fails

Nothing here knows what the function does.
"""

from modelhound.launch.fresh import Outcome, run_in_fresh_process
from modelhound.launch.ranks import Cluster, run_on_ranks
from modelhound.launch.worker import Worker

__all__ = ["Cluster", "Outcome", "Worker", "run_in_fresh_process", "run_on_ranks"]
