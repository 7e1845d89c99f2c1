"""Small networks and data to train on, and several ranks in forked processes: no interpreter has to load torch again."""

import multiprocessing
import queue
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from modelhound.compat import import_timm
from modelhound.data import Dataset, open_dataset
from modelhound.meter import laps
from modelhound.models import Network
from modelhound.settings import RecipeSettings
from modelhound.training import Bench, Delays, distributed, intervening, set_up, split_items
from small_form import FORM

__all__ = ["bench_of", "brightness", "count_time", "on_ranks", "quick", "tiny_network"]

import_timm()  # once, before anything is forked

SIDE, _ = FORM.input_size


class Clock:
    """Ticks a millisecond whenever somebody looks at it, and by as much as anybody sleeps: no machine is too busy for it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def look(self) -> float:
        self.seconds += 0.001
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def count_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a clock for all that trains and measures training."""
    clock = Clock()
    for room in (laps, distributed, intervening):
        monkeypatch.setattr(room, "seconds_now", clock.look)
    monkeypatch.setattr(time, "sleep", clock.sleep)


class TinyBody(nn.Module):
    """A convolution without batch normalisation, and a classifier that nobody asks."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 5, stride=2)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(8, 4)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.convolution(images).relu()).mean((2, 3))


def tiny_network(*, seed: int = 0, dropout: float = 0.0, **replaced: Any) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = TinyBody(dropout=dropout)
    return Network(**{"module": body, "extract": body.features, "preprocessing": FORM, **replaced})


def brightness(folder: Path, *, num_classes: int = 3, per_class: int = 20) -> Dataset:
    """Images whose class is a brightness."""
    generator = np.random.default_rng(0)
    for label in range(num_classes):
        (folder / f"class{label}").mkdir(parents=True)
        for index in range(per_class):
            noise = generator.normal(40 + 170 * label / (num_classes - 1), 12, size=(SIDE, SIDE, 3))
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"class{label}" / f"{index:03}.png")
    return open_dataset(str(folder))


def quick(**changed: Any) -> RecipeSettings:
    """A recipe that learns brightnesses in a moment."""
    return RecipeSettings(**{"epochs": 4, "batch": 8, "rate": 0.03, "workers": 0, "augment": "none", **changed})


def bench_of(
    network: Network, dataset: Dataset, recipe: RecipeSettings, *, device: str = "cpu", delays: Delays | None = None
) -> Bench:
    """Ready to be trained on four fifths of the items."""
    return set_up(network, *split_items(dataset, seed=recipe.seed), recipe, device=device, delays=delays)


def on_ranks(num_ranks: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `work` returns on each rank, with gloo between them."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    meeting = folder / f"meeting-{num_ranks}-{len(list(folder.glob('meeting-*')))}"
    processes = [
        context.Process(target=_one_rank, args=(rank, num_ranks, str(meeting), answers, work, arguments))
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    try:
        found = sorted((answers.get(timeout=120) for _ in processes), key=lambda each: each[0])
    except queue.Empty:
        raise AssertionError(f"ranks ended with {[process.exitcode for process in processes]}") from None
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
    for _, value, error in found:
        assert error is None, error
        del value
    return [value for _, value, _ in found]


def _one_rank(rank: int, num_ranks: int, meeting: str, answers: Any, work: Callable[..., Any], arguments: Any) -> None:
    import datetime

    torch.set_num_threads(1)
    try:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=num_ranks,
            timeout=datetime.timedelta(seconds=100),
        )
        answers.put((rank, work(*arguments), None))
        torch.distributed.barrier()
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
