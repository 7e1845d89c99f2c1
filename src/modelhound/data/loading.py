"""Batches of a data set, as one model wants them, in order and on the host.

In:  a Dataset, a Preprocessing, a batch size
Out: pairs of images (float32, NCHW) and labels (int64)
Nothing here knows the model, and nothing here moves a batch to a device. The plain path: one item after the other through
Pillow and timm's transform, in worker processes where that pays.
"""

import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelhound.data.dataset import Dataset
from modelhound.data.preprocessing import Preprocessing, make_transform
from modelhound.errors import DataError, RequestError
from modelhound.meter import count_cores

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["load_batches"]

_MAX_WORKERS = 16  # with 500x375 JPEGs, 16 still beat 8 by two thirds; beyond that nothing was measured
_MIN_ITEMS_FOR_WORKERS = 64  # starting and stopping processes takes as long as reading a few dozen photos
_BATCHES_AHEAD = 2  # per worker; torch's own default
_BYTES_PER_VALUE = 4
_SHARED_MEMORY = "/dev/shm"


def load_batches(
    dataset: Dataset,
    preprocessing: Preprocessing,
    *,
    batch: int,
    workers: int | None = None,
    device: "str | torch.device" = "cpu",
) -> "Iterator[tuple[Tensor, Tensor]]":
    """All items in order, `batch` at a time; the last batch may be smaller.

    `workers` processes do the reading, 0 means this one; None chooses. Batches for a CUDA `device` are pinned, so that
    they can be copied while it computes. Processes end with the iterator, however it ends.
    """
    if batch < 1:
        raise RequestError(f"cannot load batches of {batch} items: expected at least 1, use --batch 64")
    if workers is not None and workers < 0:
        raise RequestError(f"cannot load with {workers} workers: expected 0 or more, use --workers 0")
    items = _Batches(dataset, preprocessing, batch)
    num_workers = _choose_workers(items) if workers is None else min(workers, len(items))
    return _stream(items, num_workers, pin_memory=str(device).startswith("cuda"))


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why a batch could not be made. Sent as a value: torch would wrap an exception into a page of traceback."""

    message: str


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches by number, for torch's DataLoader. Holds no transform: each process makes its own, once."""

    dataset: Dataset
    preprocessing: Preprocessing
    batch: int

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch)

    def __getitem__(self, number: int) -> "tuple[Tensor, Tensor] | _Failed":
        import torch

        transform = make_transform(self.preprocessing)
        indices = range(number * self.batch, min((number + 1) * self.batch, len(self.dataset)))
        images = []
        with _one_thread():
            for index in indices:
                try:
                    images.append(transform(self.dataset.read_image(index)))
                except DataError as error:
                    return _Failed(str(error))
                except Exception as error:
                    name = self.dataset.item_names[index]
                    return _Failed(f"cannot prepare {name!r}: expected an image, but {type(error).__name__}: {error}")
            labels = torch.tensor([self.dataset.labels[index] for index in indices], dtype=torch.int64)
            return torch.stack(images), labels


@contextmanager
def _one_thread() -> Iterator[None]:
    """Without torch's threads: one image is too little work for them, and on a busy machine waiting for each other
    made it 40 times slower. torch's own workers do the same."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _choose_workers(items: _Batches) -> int:
    """As many processes as have something to do and as fit into shared memory, through which batches travel."""
    dataset = items.dataset
    if dataset.reader.in_memory or len(dataset) < _MIN_ITEMS_FOR_WORKERS:
        return 0
    height, width = items.preprocessing.input_size
    batch_bytes = items.batch * len(items.preprocessing.mean) * height * width * _BYTES_PER_VALUE
    useful = min(count_cores(), _MAX_WORKERS, len(items))
    # Containers often have 64 MB of it, and a worker that needs more is killed by SIGBUS. Half is left to others.
    return min(useful, _free_shared_memory() // 2 // (batch_bytes * (_BATCHES_AHEAD + 1)))


def _free_shared_memory() -> int:
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:  # not Linux: shared memory is not a file system with a limit of its own
        return sys.maxsize


def _stream(items: _Batches, num_workers: int, *, pin_memory: bool) -> "Iterator[tuple[Tensor, Tensor]]":
    make_transform(items.preprocessing)  # before any fork, so that workers inherit timm instead of importing it each
    iterator: Iterator[Any] | None = None
    try:
        with _interrupts_held_back(), _warnings_ignored(), _described_errors(items.dataset.name):
            iterator = _start(items, num_workers, pin_memory)
        for _ in range(len(items)):
            with _described_errors(items.dataset.name):
                made = next(iterator)
            if isinstance(made, _Failed):
                raise DataError(made.message)
            yield made
    finally:
        # The iterator would stop its workers when it is collected, but a traceback may keep it alive for long.
        stop = getattr(iterator, "_shutdown_workers", None)
        if stop is not None:
            with _interrupts_held_back():
                stop()


def _start(items: _Batches, num_workers: int, pin_memory: bool) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    return iter(
        DataLoader(
            items,  # type: ignore[arg-type]  # a length and items by number are all it needs
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=_BATCHES_AHEAD if num_workers else None,
            pin_memory=pin_memory,
            worker_init_fn=_keep_quiet,
            generator=torch.Generator(),  # or each pass would draw from, and so change, the global random state
        )
    )


@contextmanager
def _described_errors(name: str) -> Iterator[None]:
    """What torch raises when a process cannot start or dies says neither which data nor what to do."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"cannot load {name!r}: expected worker processes to go on, but {error}; use --workers 0, or a smaller --batch "
            "if memory is short"
        ) from error


def _as_it_is(made: Any) -> Any:
    return made


def _keep_quiet(worker: int) -> None:
    """In a worker: leave Ctrl-C to the main process, which ends the workers, and never write to its terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


@contextmanager
def _warnings_ignored() -> Iterator[None]:
    """torch warns of more workers than cores, Python of forking beside threads: the one was asked for, the other is usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Deliver Ctrl-C afterwards: in between, some processes would be started and known to nobody.

    Python hands signals to the main thread only, so elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def remember(signum: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if interrupted and callable(before):
            before(signal.SIGINT, None)  # usually raises KeyboardInterrupt
