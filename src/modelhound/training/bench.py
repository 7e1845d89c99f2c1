"""Everything that is needed to train one network on this rank, laid out and ready.

In:  a Network, training and test items, a recipe, a device
Out: a Bench: the Trainable, its Stepper, its batches
Nothing here trains. What cannot work is refused here, before anything is run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from modelhound.data import Dataset, Preprocessing, load_batches, modality_of
from modelhound.data.loading import BATCHES_AHEAD
from modelhound.errors import DataError, RequestError
from modelhound.features import suitable_batch
from modelhound.meter import choose_precision
from modelhound.meter.laps import DeviceLaps, HostLaps, Laps, make_laps
from modelhound.models import Network
from modelhound.models.computing import quick_linear
from modelhound.records import Progress, Watch, silent
from modelhound.scores.split import draw_held_out, draw_held_out_of_each_class
from modelhound.settings import RecipeSettings
from modelhound.training.augmenting import Augmentation, choose_augmentation
from modelhound.training.delaying import Delays, prepare_delays, slow_down_reading
from modelhound.training.distributed import Link, synchronise_batchnorm
from modelhound.training.feed import Course, Moved, choose_workers, move, move_batches
from modelhound.training.recipe import Schedule, choose_rate, make_optimiser
from modelhound.training.stepping import Linear, Stepper
from modelhound.training.trainable import Trainable, count_outputs, make_trainable

__all__ = ["Bench", "set_up", "split_items"]

_NUM_SAMPLES = 2  # items to try a network on
_CUDA_BATCH = 128  # of a training step, which holds activations that a forward pass alone lets go of
_MOST_CPU_BATCH = 64
# Unless asked for: batch normalisation takes an image's own brightness and contrast off where it is alone.
_LEAST_BATCH = 4


@dataclass(slots=True, kw_only=True)
class Bench:
    """One network, ready to be trained on this rank."""

    network: Network
    trainable: Trainable
    """With the network in it; what is kept in the end."""
    stepper: Stepper
    course: Course
    test: Dataset
    cached: "_Cached | None"
    """Features of all items, once `cache` has computed them."""
    recipe: RecipeSettings
    link: Link
    device: str
    laps: HostLaps | DeviceLaps
    target_mean: float
    target_scale: float

    def cache(self, watch: Watch = silent) -> None:
        """Compute the features of all items, where the head is to learn from stored ones."""
        if self.recipe.mode == "cached" and self.cached is None:
            self.cached = _cache(self.trainable, self.course, self.test, self.stepper, watch)

    def feed(self, first_epoch: int, end_epoch: int) -> Iterator[Moved]:
        """The batches of these epochs, on the device."""
        if self.cached is not None:
            return self.cached.batches(self.course, first_epoch, end_epoch, self.laps)
        return move_batches(self.course.batches(first_epoch, end_epoch), self.device, self.laps)

    def feed_test(self) -> Iterator[Moved]:
        """This rank's share of the test items, on the device."""
        share = range(self.link.rank, len(self.test), self.link.num_ranks)
        if self.cached is not None:
            yield from self.cached.test_batches(share, self.course.batch)
        elif len(share):
            course = replace(
                self.course, dataset=self.test, num_ranks=1, rank=0, batch=min(self.course.batch, len(self.test))
            )
            for batch in course.stream(share):
                yield move(batch, self.device)

    @property
    def learner(self) -> Trainable:
        """What is run in a step: of cached features, the head alone."""
        return self.stepper.trainable


def set_up(
    network: Network,
    dataset: Dataset,
    test: Dataset,
    recipe: RecipeSettings,
    *,
    device: str,
    delays: Delays | None = None,
    prefetch: int = BATCHES_AHEAD,
) -> Bench:
    """Lay everything out; `dataset` holds the training items."""
    delays = delays or Delays()
    if torch.device(device).index is not None:
        torch.cuda.set_device(device)  # what asks for the current device means this one
    prepare_delays(device)
    link = Link(device)
    _check(dataset, test, network)
    dataset, test, mean, scale = _standardise(dataset, test)
    course = _lay_course(network, dataset, recipe, link, device, prefetch)
    course = replace(course, dataset=slow_down_reading(dataset, delays.loading_seconds / course.batch))
    num_outputs = count_outputs(dataset.task, len(dataset.class_names))
    sample = move(
        next(load_batches(dataset.select(range(_NUM_SAMPLES)), network.preprocessing, batch=2, workers=0)), device
    )
    trainable = make_trainable(network, sample.inputs, num_outputs, mode=recipe.mode, device=device, seed=recipe.seed)
    if recipe.batchnorm == "sync" and link.num_ranks > 1:
        synchronise_batchnorm(trainable.body, device)
    precision = choose_precision(recipe.precision, device)
    learner = _head_alone(trainable) if recipe.mode == "cached" else trainable
    bench = Bench(
        network=network,
        trainable=trainable,
        stepper=_make_stepper(learner, recipe, course, link, precision, dataset, quick_linear(device, network)),
        course=course,
        test=test,
        cached=None,
        recipe=recipe,
        link=link,
        device=device,
        laps=make_laps(device),
        target_mean=mean,
        target_scale=scale,
    )
    bench.stepper.model_delay_seconds = delays.model_seconds
    link.traffic.delay_seconds = delays.network_seconds
    return bench


def split_items(dataset: Dataset, *, seed: int) -> tuple[Dataset, Dataset]:
    """What to train and what to test on: a fifth of each class is held out, as scorers hold it out."""
    if dataset.task == "classification":
        labels = torch.from_numpy(dataset.targets)
        counts = torch.bincount(labels, minlength=len(dataset.class_names))
        held_out = draw_held_out_of_each_class(labels, counts, seed=seed)
    else:
        held_out = draw_held_out(len(dataset), seed=seed)
    learned, tested = (part.nonzero().squeeze(1).tolist() for part in (~held_out, held_out))
    return dataset.select(learned), dataset.select(tested)


def _check(dataset: Dataset, test: Dataset, network: Network) -> None:
    for items, use in ((dataset, "train"), (test, "test")):
        if len(items) < (_NUM_SAMPLES if use == "train" else 1):
            raise DataError(
                f"cannot {use} on {items.name!r}: expected items, this part of it has {len(items)}; use another"
            )
        if items.task == "classification" and int(items.targets.max()) >= len(dataset.class_names):
            raise DataError(
                f"cannot {use} on {items.name!r}: expected labels below {len(dataset.class_names)}, one for each class of the "
                f"training items, found {int(items.targets.max())}; train on a part that has all classes"
            )
    if modality_of(network.preprocessing) != dataset.modality:
        raise RequestError(
            f"cannot train a network of {modality_of(network.preprocessing)}s on {dataset.name!r}: expected one of "
            f"{dataset.modality}s, choose another --model"
        )


def _standardise(dataset: Dataset, test: Dataset) -> tuple[Dataset, Dataset, float, float]:
    """Numbers to tell are brought to mean 0 and variance 1 over the training items; classes and labels stay."""
    if dataset.task != "regression":
        return dataset, test, 0.0, 1.0
    mean, scale = float(np.mean(dataset.targets)), float(np.std(dataset.targets)) or 1.0
    scaled = [replace(each, targets=(each.targets - mean) / scale) for each in (dataset, test)]
    return scaled[0], scaled[1], mean, scale


def _lay_course(
    network: Network, dataset: Dataset, recipe: RecipeSettings, link: Link, device: str, prefetch: int
) -> Course:
    """This rank's way through the items: how many at a time, and how many processes load them."""
    batch = _choose_batch(network, dataset, recipe, link, device)
    workers = choose_workers(
        dataset,
        network.preprocessing,
        asked=recipe.workers,
        num_local_ranks=link.num_local_ranks,
        batch=batch,
        prefetch=prefetch,
        device=device,
    )
    return Course(
        dataset=dataset,
        form=network.preprocessing,
        batch=batch,
        seed=recipe.seed,
        rank=link.rank,
        num_ranks=link.num_ranks,
        workers=workers,
        prefetch=prefetch,
        device=device,
    )


def _choose_batch(network: Network, dataset: Dataset, recipe: RecipeSettings, link: Link, device: str) -> int:
    """What was asked for or suits the device, as far as there are items for every rank."""
    asked = recipe.batch
    if asked is None:
        most = _CUDA_BATCH if device.startswith("cuda") else _MOST_CPU_BATCH
        asked = min(most, suitable_batch(network.preprocessing, device))
        # a few steps per epoch at least, or a small data set would be learned from in one
        asked = max(_LEAST_BATCH, min(asked, len(dataset) // (8 * link.num_ranks)))
    return max(1, min(asked, len(dataset) // link.num_ranks))


def _make_stepper(
    learner: Trainable,
    recipe: RecipeSettings,
    course: Course,
    link: Link,
    precision: str,
    dataset: Dataset,
    linear: Linear,
) -> Stepper:
    rate = choose_rate(recipe, dataset.modality)
    kind = choose_augmentation(recipe, dataset.modality)
    if kind != "none" and not isinstance(course.form, Preprocessing):
        if recipe.augment != "auto":
            raise RequestError(
                f"cannot use --augment {kind} here: expected images that are resized and normalised, use --augment none"
            )
        kind = "none"
    steps_per_epoch = -(-course.steps_per_epoch // recipe.accumulate)
    return Stepper(
        learner,
        make_optimiser(learner, recipe, rate, course.device),
        Schedule(recipe, rate, steps_per_epoch * recipe.epochs),
        Augmentation(kind, seed=recipe.seed, batch=course.batch, rank=link.rank, num_ranks=link.num_ranks),
        recipe=recipe,
        task=dataset.task,
        link=link,
        device=course.device,
        precision=precision,
        linear=linear,
    )


def _head_alone(trainable: Trainable) -> Trainable:
    return Trainable(torch.nn.Identity(), _as_they_are, trainable.head, frozen=True)


def _as_they_are(features: Any) -> Any:
    return features


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cached:
    """Features of all items, on the device."""

    features: torch.Tensor
    targets: torch.Tensor
    test_features: torch.Tensor
    test_targets: torch.Tensor

    def batches(self, course: Course, first_epoch: int, end_epoch: int, laps: Laps) -> Iterator[Moved]:
        is_first = True
        for epoch in range(first_epoch, end_epoch):
            positions = torch.from_numpy(course.positions(epoch)).to(self.features.device)
            for chosen in positions.split(course.batch):  # type: ignore[no-untyped-call]
                moved = Moved(self.features[chosen], self.targets[chosen])
                laps.arrive(None, is_first=is_first)
                is_first = False
                yield moved

    def test_batches(self, share: range, batch: int) -> Iterator[Moved]:
        if not share:
            return
        for chosen in torch.tensor(share, dtype=torch.int64).split(batch):  # type: ignore[no-untyped-call]
            yield Moved(self.test_features[chosen], self.test_targets[chosen])


def _cache(trainable: Trainable, course: Course, test: Dataset, stepper: Stepper, watch: Watch) -> _Cached:
    link, parts = stepper.link, []
    for items, what in ((course.dataset, "training"), (test, "test")):
        share = list(range(link.rank, len(items), link.num_ranks))
        reading = replace(course, dataset=items, num_ranks=1, rank=0, batch=min(course.batch, len(items)))
        rows = []
        with torch.inference_mode(), stepper.computing():
            trainable.eval()
            for batch in reading.stream(share) if share else ():
                rows.append(trainable.extract(move(batch, course.device).inputs).float())
                watch(Progress(task=f"features of {what} items", done=sum(map(len, rows)), total=len(share)))
        width = int(link.largest(rows[0].shape[1] if rows else 0))  # a rank without items has none of its own
        features = link.gather(torch.cat(rows) if rows else torch.empty((0, width), device=course.device))
        parts += [features.clone(), torch.from_numpy(items.targets).to(course.device)]
    return _Cached(features=parts[0], targets=parts[1], test_features=parts[2], test_targets=parts[3])
