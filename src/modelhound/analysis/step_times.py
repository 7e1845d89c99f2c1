"""How long data and training take, per batch and per epoch.

In:  a ModelTrained and the RankTrained of its first rank
Out: StepTimes: means over the steps of the last start; the first batch apart, which waits for the loader to start
Nothing here measures.
"""

import msgspec

from modelhound.records import ModelTrained, RankTrained
from modelhound.records.train import DATA_PHASES, STEP_PHASES

__all__ = ["StepTimes", "measure_steps"]

_TRAINING = tuple(phase for phase in STEP_PHASES if phase not in DATA_PHASES)


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one rank; what loader processes do meanwhile costs it nothing and is not in here."""

    data_seconds_per_batch: float
    training_seconds_per_batch: float
    data_seconds_per_epoch: float
    training_seconds_per_epoch: float
    first_batch_seconds: float


def measure_steps(run: ModelTrained, rank: RankTrained) -> StepTimes | None:
    """None of a start that had no steps left to do."""
    if not rank.num_steps:
        return None
    data, training = (rank.seconds_of(*phases) / rank.num_steps for phases in (DATA_PHASES, _TRAINING))
    steps_per_epoch = run.num_items // (run.batch * run.num_ranks)
    return StepTimes(
        data_seconds_per_batch=data,
        training_seconds_per_batch=training,
        data_seconds_per_epoch=data * steps_per_epoch,
        training_seconds_per_epoch=training * steps_per_epoch,
        first_batch_seconds=rank.seconds_of("first batch"),
    )
