"""Batches of a data set, as one model wants them, in order and on the host.

In:  a Dataset, a Preprocessing (of images) or a Tokenising (of texts), a batch size
Out: Batches: images as float32 NCHW or the tensors that a text encoder takes, with the items' targets
Nothing here knows the model. The plain path: one image after the other through Pillow and timm's transform, in worker
processes where that pays; texts a batch at a time through the model's own tokenizer. Prepared items whose resize and crop are
the model's own are copied instead of decoded, and come out the same to the last bit.
"""

import functools
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from modelhound.compat import one_thread
from modelhound.data.batch import Batch
from modelhound.data.dataset import Dataset
from modelhound.data.loader_processes import (
    Deadline,
    begin_worker,
    described_errors,
    interrupts_held_back,
    stop_workers,
    warnings_ignored,
)
from modelhound.data.normalising import normalise
from modelhound.data.preprocessing import OwnTransform, Preprocessing, Variant, make_cut, make_transform
from modelhound.data.source import Modality, UnreadableItemError
from modelhound.data.sources.prepared import PreparedReader
from modelhound.data.tokenising import Tokenising, load_tokenizer, tokenise
from modelhound.errors import DataError, ModelError, RequestError
from modelhound.meter import count_cores

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader

__all__ = [
    "BATCHES_AHEAD",
    "Batch",
    "InputForm",
    "check_modality",
    "free_shared_memory",
    "load_batches",
    "modality_of",
    "useful_workers",
]

InputForm = Preprocessing | OwnTransform | Tokenising
"""What a model wants its input to look like."""

BATCHES_AHEAD = 2
"""Per worker, unless told; torch's own default."""

_MAX_WORKERS = 16  # with 500x375 JPEGs, 16 still beat 8 by two thirds; beyond that nothing was measured
_CORES_FOR_GPU = 2  # one launches kernels and must not wait for a core, one pins batches
_MIN_ITEMS_FOR_WORKERS = 64  # starting and stopping processes takes as long as reading a few dozen photos
_BYTES_PER_VALUE, _NUM_CHANNELS = 4, 3
_SHARED_MEMORY = "/dev/shm"


def modality_of(form: InputForm) -> Modality:
    """What a model that wants this form of input looks at."""
    return "text" if isinstance(form, Tokenising) else "image"


def check_modality(dataset: Dataset, form: InputForm) -> None:
    """Raise a ModelError if a model that wants `form` is made for other items than these."""
    if modality_of(form) != dataset.modality:
        raise ModelError(
            f"cannot feed it {dataset.modality}s: expected {modality_of(form)}s, choose a model made for {dataset.modality}s"
        )


def load_batches(
    dataset: Dataset,
    form: InputForm,
    *,
    batch: int,
    workers: int | None = None,
    device: "str | torch.device" = "cpu",
    prefetch: int = BATCHES_AHEAD,
    pin: bool | None = None,
    persistent: bool = False,
    passes: int = 1,
    pixels: bool = False,
) -> Iterator[Batch]:
    """All items in order, `batch` at a time; the last batch of each of the `passes` may be smaller.

    `workers` processes do the reading, 0 means this one; None chooses. Each of them is up to `prefetch` batches ahead.
    Batches for a CUDA `device` are pinned, so that they can be copied while it computes, unless `pin` says otherwise. Processes
    end with each pass unless they are `persistent`, and always with the iterator, however it ends. With `pixels`, images that
    are resized, cropped and normalised travel as bytes, a quarter of the memory, and become the same numbers on their device:
    on a CPU to the last bit, on others but for rounding.
    """
    if batch < 1:
        raise RequestError(f"cannot load batches of {batch} items: expected at least 1, use --batch 64")
    if workers is not None and workers < 0:
        raise RequestError(f"cannot load with {workers} workers: expected 0 or more, use --workers 0")
    if prefetch < 1 or passes < 1:
        raise RequestError(
            f"cannot load {passes} passes, {prefetch} batches ahead: expected 1 or more of each, use --prefetch {BATCHES_AHEAD}"
        )
    check_modality(dataset, form)
    items = _Batches(dataset, form, batch, pixels)
    on_gpu = str(device).startswith("cuda")
    num_workers = _choose_workers(items, prefetch, on_gpu=on_gpu) if workers is None else min(workers, len(items))
    pin_memory = on_gpu if pin is None else pin
    manner = _Manner(num_workers=num_workers, prefetch=prefetch, pin=pin_memory, persistent=persistent, passes=passes)
    return _stream(items, manner)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manner:
    """How batches are fetched; what they hold does not depend on it."""

    num_workers: int
    prefetch: int
    pin: bool
    persistent: bool
    passes: int


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a batch could not be made. Sent as a value: torch would wrap an exception into a page of traceback."""

    kind: type[DataError] | type[ModelError]
    message: str
    trace: str
    """Where it happened, for whoever wants to know; not part of the message."""


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches by number, for torch's DataLoader. Holds no transform: each process makes its own, once."""

    dataset: Dataset
    form: InputForm
    batch: int
    pixels: bool = False

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch)

    def __getitem__(self, number: int) -> Batch | _Failed:
        import torch

        indices = range(number * self.batch, min((number + 1) * self.batch, len(self.dataset)))
        targets = torch.from_numpy(self.dataset.targets[indices.start : indices.stop])
        with one_thread():  # on a busy machine torch's own made one image 40 times slower
            try:
                if isinstance(self.form, Tokenising):
                    tokens, num_truncated = self._tokens(indices, self.form)
                    return Batch(inputs=tokens, targets=targets, num_truncated=num_truncated)
                form, reader = self.form, self.dataset.reader
                if self.pixels and isinstance(form, Preprocessing):
                    return Batch(inputs=self._pixels(indices, form), targets=targets, form=form)
                if isinstance(reader, PreparedReader) and isinstance(form, Preprocessing) and reader.holds(form):
                    pixels = self._stored(indices, reader, form)
                    images = normalise(pixels, form, torch.float32, torch.contiguous_format)
                    return Batch(inputs=images, targets=targets)
                transform = make_transform(form)
                made = [self._made(index, transform) for index in indices]
                self._check_alike(indices, made)
                return Batch(inputs=torch.stack(made), targets=targets)
            except (DataError, ModelError) as error:
                return _Failed(type(error), str(error), traceback.format_exc())

    def _made(self, index: int, transform: Callable[[Any], Any]) -> Any:
        """What the transform makes of one image."""
        name = self.dataset.item_names[index]
        try:
            image = self.dataset.read(index)
            assert isinstance(image, Image.Image)  # texts were refused when loading began
            return self.form.make(image, name) if isinstance(self.form, OwnTransform) else transform(image)
        except (DataError, ModelError):
            raise
        except Exception as error:
            raise DataError(
                f"cannot prepare {name!r}: expected an image, but {type(error).__name__}: {error}"
            ) from error

    def _check_alike(self, indices: Sequence[int], made: Sequence[Any]) -> None:
        """A transform of one's own may keep the shape of the image."""
        odd = next((place for place, each in enumerate(made) if each.shape != made[0].shape), None)
        if odd is not None:
            first, other = (
                f"{tuple(made[place].shape)} of {self.dataset.item_names[indices[place]]!r}" for place in (0, odd)
            )
            raise ModelError(
                f"cannot make a batch of {self.dataset.name!r}: expected tensors of one shape, but its own transform made "
                f"{first} and {other}; let it crop or stretch all images to one size"
            )

    def _stored(self, indices: Sequence[int], reader: PreparedReader, form: Preprocessing) -> "Tensor":
        import torch

        try:
            return torch.from_numpy(reader.read_pixels(indices, form))
        except UnreadableItemError as error:
            raise DataError(f"cannot load {self.dataset.name!r}: expected whole prepared items, but {error}") from error

    def _pixels(self, indices: Sequence[int], form: Preprocessing) -> "Tensor":
        """The images resized and cropped, and no more."""
        import torch

        reader = self.dataset.reader
        if isinstance(reader, PreparedReader) and reader.holds(form):
            return self._stored(indices, reader, form)
        cut = make_cut(Variant.of(form))
        return torch.from_numpy(np.stack([np.asarray(self._made(index, cut)) for index in indices]))

    def _tokens(self, indices: Sequence[int], form: Tokenising) -> "tuple[dict[str, Tensor], int]":
        texts = [self.dataset.read(index) for index in indices]
        return tokenise(texts, form)  # type: ignore[arg-type]  # as above


def _choose_workers(items: _Batches, prefetch: int = BATCHES_AHEAD, *, on_gpu: bool = False) -> int:
    """As many processes as have something to do and as fit into shared memory, through which batches travel."""
    dataset = items.dataset
    if dataset.reader.in_memory or len(dataset) < _MIN_ITEMS_FOR_WORKERS:
        return 0
    if isinstance(items.form, Tokenising):
        return 0  # tokenizers bring their own threads
    useful = useful_workers(items.form, batch=items.batch, prefetch=prefetch, on_gpu=on_gpu, pixels=items.pixels)
    return min(useful, len(items))


def useful_workers(
    form: Preprocessing | OwnTransform,
    *,
    batch: int,
    prefetch: int,
    on_gpu: bool,
    pixels: bool = False,
    num_sharing: int = 1,
) -> int:
    """As many processes as have a core and fit into shared memory, where `num_sharing` share the machine alike.

    Beside a GPU two cores are left to the threads that feed it, as far as there are any.
    """
    cores = count_cores() // num_sharing
    height, width = form.input_size
    value_bytes = 1 if pixels and isinstance(form, Preprocessing) else _BYTES_PER_VALUE
    batch_bytes = batch * _NUM_CHANNELS * height * width * value_bytes
    # Containers often have 64 MB of it, and a worker that needs more is killed by SIGBUS. Half is left to others.
    fitting = free_shared_memory() // 2 // num_sharing // (batch_bytes * (prefetch + 1))
    return min(max(1, cores - _CORES_FOR_GPU if on_gpu else cores), _MAX_WORKERS, fitting)


def free_shared_memory() -> int:
    """Bytes left of what batches travel through from process to process."""
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:  # not Linux: shared memory is not a file system with a limit of its own
        return sys.maxsize


def _stream(items: _Batches, manner: _Manner) -> Iterator[Batch]:
    # before any fork, so that workers inherit libraries instead of importing them each
    if isinstance(items.form, Tokenising):
        load_tokenizer(items.form)
    elif items.pixels and isinstance(items.form, Preprocessing):
        make_cut(Variant.of(items.form))
    else:
        make_transform(items.form)
    # all of it: when a process is killed torch raises wherever we are
    with described_errors(items.dataset.name) if manner.num_workers else nullcontext():
        yield from _all_passes(items, manner)


def _all_passes(items: _Batches, manner: _Manner) -> Iterator[Batch]:
    loader = _make_loader(items, manner)
    iterator: Iterator[Any] | None = None
    try:
        for _ in range(manner.passes):
            if not manner.persistent:
                stop_workers(iterator)
            with interrupts_held_back(), warnings_ignored():
                iterator = iter(loader)  # persistent workers begin anew, others are started
            deadline = Deadline(iterator)
            try:
                yield from _one_pass(iterator, items, deadline)
            finally:
                deadline.lift()
    finally:
        # The iterator would stop its workers when it is collected, but a traceback may keep it alive for long.
        stop_workers(iterator)


def _one_pass(iterator: Iterator[Any], items: _Batches, deadline: Deadline) -> Iterator[Batch]:
    for _ in range(len(items)):
        with deadline.kept(items.dataset.name):
            made = next(iterator)
        if isinstance(made, _Failed):
            error = made.kind(made.message)
            error.add_note(made.trace)
            raise error
        yield made


def _make_loader(items: _Batches, manner: _Manner) -> "DataLoader[Any]":
    import torch
    from torch.utils.data import DataLoader

    with warnings_ignored():
        return DataLoader(
            items,  # type: ignore[arg-type]  # a length and items by number are all it needs
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=manner.num_workers,
            prefetch_factor=manner.prefetch if manner.num_workers else None,
            persistent_workers=manner.persistent and manner.num_workers > 0,
            pin_memory=manner.pin,
            worker_init_fn=functools.partial(begin_worker, parent=os.getpid()),
            generator=torch.Generator(),  # or each pass would draw from, and so change, the global random state
        )


def _as_it_is(made: Any) -> Any:
    return made
