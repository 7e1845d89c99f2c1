"""From a network, a data set and a recipe to a fine-tuned network, and where every second of it went.

In:  a Network of `models`, a Dataset of `data`, RecipeSettings
Out: a Trained; blocks of steps with parts of them made free; what the profiler saw
Nothing here knows a run folder, a command or what will be concluded.

    loop          train: epochs, tests, early stop, resume; fine_tune: that once, with nothing kept
    bench         everything laid out; feed, stepping, trainable, recipe, augmenting, losses, layout: its parts
    distributed   the other ranks
    intervening   parts of a step made free or slower, in turns; delaying makes them slower
    checkpoints   kept, gone on from, read back as models
    tracing       torch's profiler
    rank          all of it on one rank of a launch
    items         which items are trained and tested on
    limits        what is refused before anything is started
    series        every model on every number of ranks
"""

from modelhound.training.bench import Bench, set_up, split_items
from modelhound.training.delaying import Delays
from modelhound.training.loop import Trained, fine_tune, train

__all__ = ["Bench", "Delays", "Trained", "fine_tune", "set_up", "split_items", "train"]
