"""Loader settings that were found earlier: in a file, or remembered for this machine and data that load alike.

In:  a file that `hound loader --out` wrote, or a Dataset and a device
Out: LoaderSettings, or None where nothing is known
Nothing here measures. What is remembered holds for data that load alike: of the same kind of source, with items of about the
same size, on the same processors. It is advice about speed: no number of a result depends on it.
"""

import math
from functools import lru_cache
from pathlib import Path

import msgspec
from PIL import Image

from modelhound.data.dataset import Dataset
from modelhound.data.sources.prepared import PreparedReader
from modelhound.errors import DataError, RequestError
from modelhound.meter import count_cores, describe_machine
from modelhound.settings import LoaderFile, LoaderSettings
from modelhound.store import Memo

__all__ = ["data_kind", "item_kind", "machine_kind", "read_loader", "remember_loader", "remembered_loader"]

_MEMO = "loader"


def read_loader(path: str | Path, kind: str | None = None) -> LoaderSettings:
    """The settings in a file written by `hound loader --out`; those of `kind` (raw, preprocessed) where it holds several."""
    try:
        held = msgspec.json.decode(Path(path).read_bytes(), type=LoaderFile)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
        raise RequestError(
            f"cannot use --loader {str(path)!r}: expected a file that `hound loader --out FILE` wrote, but {reason}"
        ) from error
    return next((each for each in held.settings if each.kind == kind), held.settings[0])


def remembered_loader(dataset: Dataset, *, device: str) -> LoaderSettings | None:
    """What `hound loader` recommended last for data that load like these on this machine and device."""
    found = Memo(_MEMO).look_up(_key(machine_kind(device), data_kind(dataset)))
    try:
        return None if found is None else msgspec.convert(found, LoaderSettings)
    except msgspec.ValidationError:  # written by another version
        return None


def remember_loader(settings: LoaderSettings) -> None:
    """Let later searches on this machine find it."""
    Memo(_MEMO).note(_key(settings.machine, settings.data_kind), msgspec.to_builtins(settings))


@lru_cache
def machine_kind(device: str) -> str:
    """The processors that decide how fast loading and computing are."""
    machine = describe_machine()
    gpu = f", {machine.gpus[0]}" if device.startswith("cuda") and machine.gpus else ""
    return f"{machine.cpu}, {count_cores()} cores{gpu}"


def item_kind(dataset: Dataset) -> str:
    """raw or preprocessed."""
    return "preprocessed" if isinstance(dataset.reader, PreparedReader) else "raw"


def data_kind(dataset: Dataset) -> str:
    """What is alike in data sets that load alike."""
    source = type(dataset.reader).__name__.lstrip("_").removesuffix("Reader")
    return f"{item_kind(dataset)} {dataset.modality}s, {source}, {_size(dataset)}"


def _size(dataset: Dataset) -> str:
    """About how large the first item is: photos take a hundred times longer than thumbnails."""
    try:
        item = dataset.read(0)
    except DataError:
        return "size unknown"
    count = item.width * item.height if isinstance(item, Image.Image) else sum(len(text) for text in item)
    nearest = 4 ** round(math.log(max(count, 1), 4))
    return f"about {nearest} {'pixels' if isinstance(item, Image.Image) else 'characters'}"


def _key(machine: str, kind: str) -> str:
    return f"{machine} | {kind}"
