"""Models, or the last layers of models, or joint models -> where the time of one job goes, phase by phase.

    layers         a network's parts -> layers that can be asked for by number or share
    weight_files   a model's tensors on disk, read whole or in part, from the disk or from memory
    assembling     tensors -> a network that holds just those
    feeding        items, or stored outputs of the layers before, a batch at a time
    benches        models taken apart, with their files and layers: everything that is not timed
    configurations which layers are run, and how
    jobs           one job from the files to the score, timed
    staging        what several jobs of one model stand on: outputs that were stored for them
    series         everything that was asked for, kept in a run folder as it comes
    rounds         what is measured in one go, and where its files lie
    stand_ins      text encoders where no hub answers

Nothing here knows what the seconds mean.
"""

from modelhound.profiling.rounds import work_folder
from modelhound.profiling.series import Series

__all__ = ["Series", "work_folder"]
