"""Fine-tune one network on one data set, on this rank.

In:  a Network, a data set, a recipe, a device; other ranks do the same beside this one where torch.distributed is set up
Out: a Trained: the network with its new head, its scores after each epoch, and where every second went
Nothing here knows a run folder or a command. Given a folder for checkpoints, it goes on from what lies there.

    full     every weight learns
    head     the network is run anew in every epoch, only the new head learns
    cached   the network is run once over all items; the head learns from the stored features
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from modelhound.data import Dataset
from modelhound.meter import Meter, seconds_now
from modelhound.models import Network
from modelhound.records import EpochDone, PhaseSamples, Progress, Watch, silent, to_plain
from modelhound.records.train import STEP_PHASES
from modelhound.settings import METRICS, RecipeSettings
from modelhound.training.bench import Bench, set_up, split_items
from modelhound.training.checkpoints import Keeper, Progressed
from modelhound.training.feed import Moved
from modelhound.training.layout import tuned_convolutions
from modelhound.training.learned import ItemSketch, sketch_items, tell_learned, tell_shared
from modelhound.training.losses import LossLog, check_finite, or_precision
from modelhound.training.trainable import Trainable, evaluate_batch

__all__ = ["Trained", "fine_tune", "prepare_to_learn", "train"]

_CLASSES_FOR_TOP5 = 6
_SECONDS_BETWEEN_WORDS = 0.1
_NOT_DECISIVE = ("workers", "compile", "epochs", "patience")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A fine-tuned network and how it came about."""

    trainable: Trainable
    """The network with its head after the last epoch, the best or not, on its device, in evaluation mode: inputs -> logits."""
    metric: str
    score: float
    """After the last epoch; with patience, after the best."""
    top5: float | None
    epochs: tuple[EpochDone, ...]
    losses: tuple[float, ...]
    """Of every step, over the items of all ranks."""
    phases: tuple[PhaseSamples, ...]
    """Where this rank's time went in this start; they add up to `wall_seconds`."""
    wall_seconds: float
    num_steps: int
    """In this start."""
    batch: int
    num_parts: int
    num_workers: int
    precision: str
    peak_memory_bytes: int
    checkpoint: Path | None
    stopped: str
    notes: tuple[str, ...]

    @property
    def num_items(self) -> int:
        """Items this rank went through in this start, repeats included."""
        return self.num_steps * self.batch

    @property
    def step_seconds(self) -> float:
        """The median step of this start; 0 where it had none."""
        steps = [each.seconds for each in self.phases if each.phase in STEP_PHASES]
        return float(np.median(np.sum(steps, axis=0))) if self.num_steps else 0.0


def fine_tune(
    network: Network, dataset: Dataset, recipe: RecipeSettings, *, device: str = "cpu", watch: Watch = silent
) -> Trained:
    """Learn from four fifths of the items, be tested on the others, and keep nothing on the disk.

    The network is changed: its weights by learning, its place to the device.
    """
    items, held_out = split_items(dataset, seed=recipe.seed)
    return train(set_up(network, items, held_out, recipe, device=device), watch=watch)


def train(
    bench: Bench,
    *,
    model: str = "",
    stamp: str = "",
    learned: Sequence[ItemSketch] = (),
    checkpoints: Path | None = None,
    watch: Watch = silent,
) -> Trained:
    """Run the recipe of the bench to its end, or on from where the newest checkpoint of the same weights left off.

    `learned` is from which items these weights have learned before.
    """
    meter = Meter(bench.device)
    keeper = Keeper(checkpoints, bench.network, keep_best=bench.recipe.patience is not None) if checkpoints else None
    identity = _identity(bench)
    history = _History(bench, model=model, stamp=stamp, identity=identity, learned=learned)
    if keeper is not None:
        earlier = keeper.load(bench.trainable, bench.stepper.optimiser, model=model, identity=identity, stamp=stamp)
        if earlier is not None:
            history.resume(earlier)
    bench.laps.begin()
    if bench.recipe.mode == "cached":
        with bench.laps.between("extract features"):
            bench.cache(watch)
    before = bench.stepper.num_batches
    with tuned_convolutions():
        stopped = _run_epochs(bench, history, keeper, watch)
    wall_seconds, phases = bench.laps.wall_seconds, bench.laps.samples()
    best = history.best() if bench.recipe.patience is not None else history.epochs[-1]
    bench.trainable.eval()
    return Trained(
        trainable=bench.trainable,
        metric=METRICS[bench.course.dataset.task],
        score=best.score,
        top5=best.top5,
        epochs=tuple(history.epochs),
        losses=tuple(history.losses),
        phases=phases,
        wall_seconds=wall_seconds,
        num_steps=bench.stepper.num_batches - before,
        batch=bench.course.batch,
        num_parts=bench.stepper.num_parts,
        num_workers=bench.course.workers,
        precision=bench.stepper.precision,
        peak_memory_bytes=meter.peak_memory_bytes,
        checkpoint=keeper.path_of(best.epoch) if keeper else None,
        stopped=stopped,
        notes=(
            *_notes(bench),
            *_losses_of_checkpoints(keeper),
            *filter(None, [tell_learned(learned, bench.test), tell_shared(bench.course.dataset, bench.test)]),
        ),
    )


class _History:
    """What came of each epoch so far."""

    def __init__(self, bench: Bench, *, model: str, stamp: str, identity: str, learned: Sequence[ItemSketch]) -> None:
        self._bench, self._model, self._stamp, self._identity = bench, model, stamp, identity
        self.epochs: list[EpochDone] = []
        self.losses: list[float] = []
        self._learned = tuple(dict.fromkeys((*learned, sketch_items(bench.course.dataset.digests))))

    def resume(self, earlier: Progressed) -> None:
        self.epochs, self.losses = list(earlier.epochs), list(earlier.losses)
        self._bench.stepper.resume_at(earlier.num_batches, earlier.num_steps, earlier.num_parts)

    def best(self) -> EpochDone:
        return max(self.epochs, key=lambda each: each.score)

    def progressed(self) -> Progressed:
        bench = self._bench
        return Progressed(
            model=self._model,
            stamp=self._stamp,
            identity=self._identity,
            task=bench.course.dataset.task,
            class_names=bench.course.dataset.class_names,
            target_mean=bench.target_mean,
            target_scale=bench.target_scale,
            num_batches=bench.stepper.num_batches,
            num_steps=bench.stepper.num_steps,
            num_parts=bench.stepper.num_parts,
            epochs=tuple(self.epochs),
            losses=tuple(self.losses),
            learned=self._learned,
        )


def _run_epochs(bench: Bench, history: _History, keeper: Keeper | None, watch: Watch) -> str:
    """All epochs that are not behind yet; why it ended."""
    recipe, laps = bench.recipe, bench.laps
    first = len(history.epochs)
    patience = recipe.patience
    feed = bench.feed(first, recipe.epochs)
    try:
        for epoch in range(first, recipe.epochs):
            if patience is not None and history.epochs and len(history.epochs) - history.best().epoch >= patience:
                return f"stopped early: no better for {patience} epochs"
            started = seconds_now()
            losses = _run_steps(bench, feed, epoch, _after_divergence(bench, keeper), watch)
            with laps.between("evaluate"):
                history.losses += losses
                done = _evaluate(bench, epoch, losses, seconds_now() - started)
                # the last step may have spoiled the weights: they must not become the newest checkpoint
                check_finite(
                    done.test_loss, f"on the test items after epoch {epoch + 1}", _after_divergence(bench, keeper)
                )
                history.epochs.append(done)
            if keeper is not None:
                with laps.between("save checkpoint"):
                    if bench.link.is_first:
                        keeper.save(bench.trainable, bench.stepper.optimiser, history.progressed())
    finally:
        close = getattr(feed, "close", None)
        if close is not None:
            close()  # ends the loader processes now, not when somebody collects the garbage
    return "finished"


def _losses_of_checkpoints(keeper: Keeper | None) -> list[str]:
    damaged = keeper.damaged if keeper is not None else []
    return [
        f"{each.name} was damaged on the disk; what came after the one before it was trained again" for each in damaged
    ]


def _after_divergence(bench: Bench, keeper: Keeper | None) -> str:
    """What is left and what to do; without checkpoints nobody meant to keep anything, and rates are not asked for."""
    also = or_precision(bench.stepper.precision)
    if keeper is None:
        return f"leave this model out{also}"
    newest = keeper.newest()
    kept = f"the last good checkpoint is {newest.name}" if newest else "nothing was kept yet"
    return f"{kept}; use a lower --rate{also}"


def _run_steps(bench: Bench, feed: Iterator[Moved], epoch: int, otherwise: str, watch: Watch) -> list[float]:
    """One epoch; the loss of each step, over the items of all ranks. `otherwise` is told where one is no number."""
    stepper, laps, course, recipe = bench.stepper, bench.laps, bench.course, bench.recipe
    torch.manual_seed((recipe.seed * 1_000_003 + epoch) * 4099 + bench.link.rank)  # dropout, the same after a resume
    prepare_to_learn(bench)
    log = LossLog(bench.device, first_step=stepper.num_batches, otherwise=otherwise)
    said = 0.0
    num_steps, total = course.steps_per_epoch, course.steps_per_epoch * recipe.epochs
    for number in range(num_steps):
        group = number // recipe.accumulate * recipe.accumulate
        size = min(recipe.accumulate, num_steps - group)
        loss = stepper.step(next(feed), laps, is_last=number + 1 == group + size, num_in_group=size)
        log.add(loss)
        if (now := seconds_now()) - said > _SECONDS_BETWEEN_WORDS:
            said = now
            detail = f"epoch {epoch + 1}/{recipe.epochs}, loss {log.latest:.3f}" if log.values else ""
            watch(Progress(task="training", done=epoch * num_steps + number, total=total, detail=detail))
        laps.lap("logging")
        laps.end_step()
    with laps.between("logging at the end of epochs"):
        values = torch.tensor(log.finish(), dtype=torch.float64)
        shared: list[float] = (bench.link.total(values) / bench.link.num_ranks).tolist()
    watch(Progress(task="training", done=(epoch + 1) * num_steps, total=total))
    return shared


def prepare_to_learn(bench: Bench) -> None:
    """Training mode, but for statistics that shall stay as they are."""
    bench.learner.train()
    if bench.recipe.batchnorm == "frozen":
        for module in bench.learner.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


def _evaluate(bench: Bench, epoch: int, losses: Sequence[float], seconds: float) -> EpochDone:
    task = bench.course.dataset.task
    sums = torch.zeros(4, dtype=torch.float64, device=bench.device)
    bench.learner.eval()
    with torch.inference_mode(), bench.stepper.computing():
        for moved in bench.feed_test():
            sums += evaluate_batch(task, bench.learner(moved.inputs), moved.targets)
    count, score, among, loss = bench.link.total(sums.clone()).tolist()
    has_top5 = task == "classification" and len(bench.course.dataset.class_names) >= _CLASSES_FOR_TOP5
    return EpochDone(
        epoch=epoch + 1,
        loss=math.fsum(losses) / max(1, len(losses)),
        score=score / count,
        top5=among / count if has_top5 else None,
        test_loss=loss / count,
        rate=bench.stepper.schedule.rate_at(max(0, bench.stepper.num_steps - 1)),
        seconds=seconds,
    )


def _identity(bench: Bench) -> str:
    """A digest of whatever decides the numbers."""
    recipe = {name: value for name, value in to_plain(bench.recipe.recipe()).items() if name not in _NOT_DECISIVE}
    if bench.recipe.schedule != "constant":
        recipe["epochs"] = bench.recipe.epochs  # the rate of every step depends on how many there are
    told = [recipe, bench.course.batch, bench.link.num_ranks, bench.course.dataset.fingerprint, bench.test.fingerprint]
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()


def _notes(bench: Bench) -> Iterator[str]:
    if bench.stepper.num_parts > 1:
        yield (
            f"a batch of {bench.course.batch} did not fit into memory: it was cut into {bench.stepper.num_parts} parts whose "
            "gradients were added up; batch normalisation saw the parts"
        )
    if bench.recipe.batch is not None and bench.course.batch < bench.recipe.batch:
        yield (
            f"a batch of {bench.recipe.batch} is more than there are items for each rank: batches of {bench.course.batch} "
            "were used"
        )
    left_out = len(bench.course.dataset) - bench.course.steps_per_epoch * bench.course.batch * bench.link.num_ranks
    if left_out:
        yield (
            f"{left_out} of {len(bench.course.dataset)} items did not fill a batch and were left out of each epoch, others "
            "each time"
        )
    if bench.recipe.patience is not None:
        yield "the best epoch was chosen by its test score, which is therefore a little too good"
