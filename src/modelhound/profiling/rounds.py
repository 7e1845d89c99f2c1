"""What is measured in one go: the configurations of one model on one data set and device.

In:  a bench, a data set, configurations
Out: a Round, which knows roughly what it will cost; a folder to work in
Nothing here is timed.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from modelhound.data import Dataset
from modelhound.errors import RequestError
from modelhound.profiling.benches import Bench
from modelhound.profiling.configurations import Configuration
from modelhound.records import ConfigurationProfiled
from modelhound.settings import ProfileSettings
from modelhound.store import cache_folder

__all__ = ["Round", "in_order", "work_folder"]

_CUDA_IS_FASTER = 50.0  # roughly, and only for the progress bar
_LOCK, _LOCK_SECONDS = "lock", 60.0
_MIN_UNIT = 2e9  # multiplications: what a configuration costs however little it computes, for the progress bar


@dataclass(frozen=True, slots=True)
class Round:
    """What is to be measured of one model on one data set and device."""

    bench: Bench
    stamp: str
    dataset: Dataset
    device: str
    configurations: tuple[Configuration, ...]

    @property
    def cost(self) -> float:
        """In multiplications of a CPU, for the progress bar: each configuration, and one pass to store outputs."""
        layers, parts = self.bench.layers, self.bench.num_parts
        costs = [
            layers.flops_per_item(0, each.trunk_stop) + len(each.heads) * layers.flops_per_item(each.first, parts)
            for each in self.configurations
        ]
        whole = layers.flops_per_item(0, parts) if any(each.is_fed_with_outputs for each in self.configurations) else 0
        computing = (sum(costs) + whole) / (1 if self.device == "cpu" else _CUDA_IS_FASTER)
        return computing + _MIN_UNIT * len(costs)


def in_order(
    records: Sequence[ConfigurationProfiled], settings: ProfileSettings, devices: Sequence[str]
) -> list[ConfigurationProfiled]:
    """By device, data set and model, and the configurations of a model as they were asked for, joint models last."""
    asked = [each.text for each in (*settings.part_spans(), *settings.joint_spans())]
    data = [settings.data, *settings.also]
    forms = ("full", "part", "joint", "apart")
    models = list(dict.fromkeys(record.model for record in records))

    def place(record: ConfigurationProfiled) -> tuple[int, int, int, int, int, str]:
        return (
            devices.index(record.device),
            data.index(record.data) if record.data in data else len(data),
            models.index(record.model),
            forms.index(record.form),
            asked.index(record.layers) if record.layers in asked else 0,
            record.configuration,
        )

    return sorted(records, key=place)


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for weights and stored outputs, gone afterwards; those of processes that were killed are removed too.

    Each is locked by its process for as long as that lives, which also processes of other containers and machines can see.
    """
    root = cache_folder() / "profile"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(root / _LOCK, timeout=_LOCK_SECONDS):  # nobody is between making a folder and locking it
            for left in root.iterdir():
                if left.is_dir() and _is_left(left):
                    shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(dir=root))
            own = filelock.FileLock(folder / _LOCK)
            own.acquire()
    except OSError as error:
        raise RequestError(
            f"cannot use the cache folder {str(root)!r}: expected a folder that can be made and written, but "
            f"{error.strerror or error}; set MODELHOUND_CACHE to another one"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        own.release()


def _is_left(folder: Path) -> bool:
    """Whether nobody holds it any more."""
    try:
        with filelock.FileLock(folder / _LOCK, timeout=0):
            return True
    except filelock.Timeout:
        return False
