"""One short fine-tuning, tested on items that it did not learn from.

In:  a TrialRequest, the data set and which fold each item belongs to
Out: a TrialResult: the score of every tested item, or why there is none
Nothing here knows what other trials there are. It stands on `training`: the same new head, optimiser, augmentation and
arithmetic as `hound train`; items are decoded once (`held_items`) and tested once, at the end.

A trial is one stage of several. Its checkpoint holds the network after it; the next stage goes on from there. Where that is
gone, earlier stages are run again.
"""

import contextlib
import itertools
import pickle
import shutil
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from modelhound.compat import import_timm
from modelhound.data import Dataset
from modelhound.errors import RequestError, StoreError, explain_error, is_out_of_memory
from modelhound.features import build_network
from modelhound.finals.held_items import HeldItems
from modelhound.finals.hourglass import Hourglass, TimeUpError
from modelhound.meter import seconds_now
from modelhound.models import ModelRef, source_of
from modelhound.records import EpochDone, pack_items, to_plain
from modelhound.scores.outcomes import rank_labels
from modelhound.settings import ModelSettings, RecipeSettings, Task
from modelhound.training import Bench, set_up
from modelhound.training.checkpoints import Keeper, Progressed, is_whole, read_identity
from modelhound.training.feed import Moved
from modelhound.training.learned import learned_by, sketch_items
from modelhound.training.loop import prepare_to_learn
from modelhound.training.losses import LossLog, check_finite, or_precision
from modelhound.training.trainable import loss_of

__all__ = ["Classroom", "TrialRequest", "TrialResult", "run_trial", "run_trial_elsewhere"]

_SMALL_BATCHES = (8, 32)  # the least and the most
_LEAST_STEPS = 16  # in an epoch: two epochs of fewer steps say next to nothing (see docs/trust.md)
_MANY_ITEMS = 4096  # from here on, batches are as `hound train` takes them
_STEPS_TIMED = 2
_TESTING_SHARE = 1 / 3  # of what learning from an item takes, that testing it does
_NUM_SEEDS = 1 << 32  # that a recipe takes; the largest that a search takes is among them


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One trial."""

    model: str
    model_settings: ModelSettings
    rate: float
    fold: int
    """Tested on; learned from are the items of all other folds. Items of fold -1 belong to none and are never learned from."""
    cycles: tuple[int, ...]
    """Epochs of every stage up to this one."""
    device: str
    seed: int
    stamp: str = ""
    """Changes with the model's weights; a checkpoint of others is not gone on from."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    folder: str | None = None
    """For checkpoints; without it there is one stage only."""
    probe: bool = False
    """Only find out how long a step takes."""
    expected_seconds: float = 0.0
    """Of all its stages, where nothing else runs; 0 where nobody knows."""
    seconds_left: float | None = None
    """A trial that will not be over by then is given up as soon as its steps say so; a probe tells what it has seen."""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    item_scores: bytes = b""
    loss: float = 0.0
    num_steps: int = 0
    seconds: float = 0.0
    """Of a probe: for one item."""
    checkpoint: str = ""
    error: str = ""
    try_again: bool = False
    """Whether the error says nothing of the network."""
    is_given_up: bool = False
    """Whether it would not have been over in time; there is nothing else to tell then."""


@dataclass(frozen=True, slots=True)
class Classroom:
    """What trials on one data set have in common."""

    dataset: Dataset
    folds: NDArray[np.int64]
    held: HeldItems

    def learned_from(self, fold: int) -> NDArray[np.int64]:
        return np.flatnonzero((self.folds >= 0) & (self.folds != fold))

    def tested_on(self, fold: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.folds == fold)


def run_trial(request: TrialRequest, room: Classroom) -> TrialResult:
    """Run it here; whatever a network raises is told in the result, and only what is not its fault is raised."""
    hourglass = Hourglass(request.seconds_left)
    try:
        if request.probe:
            return _time_steps(request, room)
        hourglass.check()
        return _run_stages(request, room, hourglass)
    except (RequestError, StoreError):
        raise
    except TimeUpError:
        return TrialResult(is_given_up=True)
    except Exception as error:  # a stranger's network: it diverges, runs out of memory, cannot be trained
        return TrialResult(error=explain_error(error), try_again=is_out_of_memory(error))
    finally:
        if request.device.startswith("cuda"):
            torch.cuda.empty_cache()  # others train on the same device


_rooms: dict[str, Classroom] = {}


def run_trial_elsewhere(request: dict[str, Any], items: str, num_processes: int) -> dict[str, Any]:
    """The same in one of several processes; `items` is a file that our own parent wrote a moment ago."""
    import_timm()
    asked = msgspec.convert(request, TrialRequest)
    if items not in _rooms:
        with Path(items).open("rb") as file:
            dataset, folds = pickle.load(file)
        _rooms[items] = Classroom(dataset, folds, HeldItems(dataset, asked.device, num_holders=num_processes))
    result: dict[str, Any] = to_plain(run_trial(asked, _rooms[items]))
    return result


def _time_steps(request: TrialRequest, room: Classroom) -> TrialResult:
    """Seconds per item of learning, after a first step that takes longer; by that one alone where it took all the time."""
    bench = _set_up(request, room, stage=0)
    batches = _batches(bench, room, room.learned_from(request.fold), epochs=_STEPS_TIMED + 1)
    prepare_to_learn(bench)
    bench.laps.begin()
    item_seconds: list[float] = []
    with contextlib.closing(batches):
        first = next(batches)  # where all items are decoded or loaders started: once, and not in every epoch
        began = ended = seconds_now()
        for moved in itertools.chain((first,), itertools.islice(batches, _STEPS_TIMED)):
            float(bench.stepper.step(moved, bench.laps))
            bench.laps.end_step()
            item_seconds.append((seconds_now() - ended) / max(1, len(moved)))
            ended = seconds_now()
            if request.seconds_left is not None and ended - began > request.seconds_left:
                break
    timed = item_seconds[1:] or item_seconds
    return TrialResult(seconds=sum(timed) / max(1, len(timed)), num_steps=len(timed))


def _run_stages(request: TrialRequest, room: Classroom, hourglass: Hourglass) -> TrialResult:
    """This stage, and those before it of which no checkpoint is left."""
    last, seconds = len(request.cycles) - 1, 0.0
    result = TrialResult()
    identity = _identity(request, room)
    for stage in range(_first_missing(request, identity), last + 1):
        bench = _set_up(request, room, stage=stage)
        keeper = Keeper(Path(request.folder), bench.network, keep_best=False) if request.folder else None
        if keeper is not None and stage > 0:
            keeper.load(bench.trainable, bench.stepper.optimiser, model=request.model, identity=identity)
        started = seconds_now()
        _learn(bench, room, room.learned_from(request.fold), hourglass, epochs=request.cycles[stage])
        scores, loss = _test(bench, room, room.tested_on(request.fold))
        seconds += seconds_now() - started
        checkpoint = _keep(keeper, bench, request, stage, identity) if keeper is not None else None
        result = TrialResult(
            item_scores=pack_items(scores),
            loss=loss,
            num_steps=bench.stepper.num_steps,
            seconds=seconds,
            checkpoint=str(checkpoint or ""),
        )
    return result


def _first_missing(request: TrialRequest, identity: str) -> int:
    """The stage to begin with: what lies there of this very stage or a later one is from a start that was killed. What was
    damaged since is made again, and so is what was learned from other items or weights."""
    if request.folder is None:
        return 0
    folder = Path(request.folder)
    newest = max(folder.glob("epoch-*"), default=None)
    if newest is None:
        return 0
    num_epochs = int(newest.name.rpartition("-")[2])
    earlier = [sum(request.cycles[: stage + 1]) for stage in range(len(request.cycles) - 1)]
    if num_epochs not in earlier or not is_whole(newest) or read_identity(newest) != identity:
        shutil.rmtree(folder)
        return 0
    return 1 + earlier.index(num_epochs)


def _set_up(request: TrialRequest, room: Classroom, *, stage: int) -> Bench:
    model, settings = ModelRef.parse(request.model), request.model_settings
    weights = source_of(model).read_weights(model.name) if settings.weights == "pretrained" else None
    network = build_network(model, weights, settings, seed=request.seed)
    learned, tested = room.learned_from(request.fold), room.tested_on(request.fold)
    recipe = RecipeSettings(
        epochs=max(1, request.cycles[stage]),
        rate=request.rate,
        batch=_choose_batch(len(learned)),
        precision=request.precision,
        seed=(request.seed + 101 * stage + 10007 * (request.fold + 1)) % _NUM_SEEDS,
    )
    return set_up(
        network,
        room.dataset.select(learned.tolist()),
        room.dataset.select(tested.tolist()),
        recipe,
        device=request.device,
    )


def _choose_batch(num_items: int) -> int | None:
    """So that few items are learned from in many steps; of many items, what `hound train` takes."""
    if num_items >= _MANY_ITEMS:
        return None
    least, most = _SMALL_BATCHES
    return max(1, min(num_items, max(least, min(most, num_items // _LEAST_STEPS))))


def _learn(bench: Bench, room: Classroom, positions: NDArray[np.int64], hourglass: Hourglass, *, epochs: int) -> None:
    torch.manual_seed(bench.recipe.seed)  # dropout
    prepare_to_learn(bench)
    bench.laps.begin()
    log = LossLog(bench.device, otherwise=_after_divergence(bench))
    num_items = bench.course.steps_per_epoch * bench.course.batch * epochs
    testing = len(bench.test) * _TESTING_SHARE / max(1, num_items)
    hourglass.begin(bench.course.steps_per_epoch * epochs, share_after=testing)
    with contextlib.closing(_batches(bench, room, positions, epochs=epochs)) as batches:
        for moved in batches:
            log.add(bench.stepper.step(moved, bench.laps))
            bench.laps.end_step()
            hourglass.check()
    log.finish()


def _batches(bench: Bench, room: Classroom, positions: NDArray[np.int64], *, epochs: int) -> Generator[Moved]:
    course = bench.course
    if not room.held.can_hold(course.form):
        yield from bench.feed(0, epochs)
        return
    targets = torch.from_numpy(course.dataset.targets)
    is_first = True
    for epoch in range(epochs):
        order = course.positions(epoch)
        for start in range(0, len(order), course.batch):
            chosen = order[start : start + course.batch]
            moved = room.held.take(course.form, positions[chosen], targets[torch.from_numpy(chosen)])
            bench.laps.arrive(None, is_first=is_first)
            is_first = False
            yield moved


def _test(bench: Bench, room: Classroom, positions: NDArray[np.int64]) -> tuple[NDArray[np.float32], float]:
    """The score of every item, in order, and the mean loss."""
    task = bench.test.task
    scores, losses = [], []
    bench.learner.eval()
    with torch.inference_mode(), bench.stepper.computing():
        for moved in _test_batches(bench, room, positions):
            logits = bench.learner(moved.inputs).float()
            scores.append(_judge(task, logits, moved.targets))
            losses.append(loss_of(task, logits, moved.targets).double() * len(moved))
    loss = float(sum(losses)) / max(1, len(positions))
    # the last step may have spoiled the weights
    check_finite(loss, "on the items it is tested on", _after_divergence(bench))
    return torch.cat(scores).float().cpu().numpy(), loss


def _after_divergence(bench: Bench) -> str:
    """Finals choose rates themselves, and a trial that came to nothing leaves nothing."""
    return (
        f"this short fine-tuning, at a learning rate of {bench.recipe.rate:.2g}, came to nothing; leave this model "
        f"out{or_precision(bench.stepper.precision)}; hound train takes a lower --rate for it"
    )


def _test_batches(bench: Bench, room: Classroom, positions: NDArray[np.int64]) -> Iterator[Moved]:
    form = bench.course.form
    if not room.held.can_hold(form):
        yield from bench.feed_test()
        return
    targets = torch.from_numpy(bench.test.targets)
    size = 4 * bench.course.batch  # nothing is kept for a backward pass
    for start in range(0, len(positions), size):
        yield room.held.take(form, positions[start : start + size], targets[start : start + size])


def _judge(task: Task, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As scorers judge items: right or wrong, the ranking of labels, or the share of the variance that is told."""
    if task == "classification":
        return (logits.argmax(1) == targets).double()
    if task == "multilabel":
        return rank_labels(targets.double(), logits.double())
    return 1 - (logits.squeeze(1) - targets.float()).square().double()


def _keep(keeper: Keeper, bench: Bench, request: TrialRequest, stage: int, identity: str) -> Path:
    """Named after the epochs of all stages so far, of which nothing is told one by one."""
    num_epochs = sum(request.cycles[: stage + 1])
    done = EpochDone(epoch=num_epochs, loss=0.0, score=0.0, top5=None, test_loss=0.0, rate=request.rate, seconds=0.0)
    return keeper.save(
        bench.trainable,
        bench.stepper.optimiser,
        Progressed(
            model=request.model,
            identity=identity,
            task=bench.test.task,
            class_names=bench.test.class_names,
            target_mean=bench.target_mean,
            target_scale=bench.target_scale,
            num_batches=bench.stepper.num_batches,
            num_steps=bench.stepper.num_steps,
            num_parts=bench.stepper.num_parts,
            epochs=(done,) * num_epochs,
            losses=(),
            learned=(*learned_by(request.model, request.model_settings), sketch_items(bench.course.dataset.digests)),
        ),
    )


def _identity(request: TrialRequest, room: Classroom) -> str:
    """Whatever decides the numbers."""
    learned = zlib.crc32(room.learned_from(request.fold).tobytes())
    return (
        f"finals: rate {request.rate:g}, fold {request.fold}, seed {request.seed}, precision {request.precision}, "
        f"items {room.dataset.fingerprint} {learned:08x}, weights {request.stamp}"
    )
