"""How long it takes to train one model on some items.

In:  a model, a data set, a recipe
Out: a TrainingTimed: seconds of every epoch, and of what is done once
Nothing here knows run folders; the training itself is that of `hound train`.
"""

import gc

from modelhound.data import Dataset
from modelhound.features import load_network
from modelhound.meter import Meter
from modelhound.models import ModelRef
from modelhound.records import TrainingTimed, Watch, silent
from modelhound.settings import ModelSettings, RecipeSettings
from modelhound.training import fine_tune

__all__ = ["time_training"]


def time_training(
    model: ModelRef,
    dataset: Dataset,
    settings: ModelSettings,
    recipe: RecipeSettings,
    *,
    stamp: str,
    device: str,
    watch: Watch = silent,
) -> TrainingTimed:
    """From the file of weights to the last epoch's test."""
    gc.collect()  # or the rubbish of earlier jobs would be cleared in this one's time
    meter = Meter(device)
    network = load_network(model, settings, seed=recipe.seed, meter=meter)
    trained = fine_tune(network, dataset, recipe, device=device, watch=watch)
    wall_seconds = meter.wall_seconds
    tests = next((each.seconds for each in trained.phases if each.phase == "evaluate"), (0.0,) * len(trained.epochs))
    epochs = tuple(done.seconds + test for done, test in zip(trained.epochs, tests, strict=True))
    return TrainingTimed(
        model=str(model),
        stamp=stamp,
        mode=recipe.mode,
        num_items=len(dataset),
        num_epochs=len(epochs),
        epoch_seconds=epochs,
        once_seconds=max(0.0, wall_seconds - sum(epochs)),
        wall_seconds=wall_seconds,
        score=trained.score,
        phases=(*meter.samples, *trained.phases),
    )
