"""Loader settings that were found earlier: in a file, or remembered for this machine and data that load alike.

In:  a file that `hound loader --out` wrote, or a Dataset and a device
Out: LoaderSettings, or None where nothing is known
Nothing here measures. What is remembered holds for data that load alike: of the same kind of source, with items of about the
same size, on the same processors; and for runs that are not much longer than those it was found for, since what is best for a
few items, such as no loader processes at all, is bad for many. It is advice about speed: no number of a result depends on it.
"""

import contextlib
import math
from functools import lru_cache
from pathlib import Path

import msgspec
from PIL import Image

from modelhound.data.dataset import Dataset
from modelhound.data.sources.prepared import PreparedReader, PreparedSource
from modelhound.errors import DataError, RequestError
from modelhound.meter import count_cores, describe_machine
from modelhound.records import LoaderUsed
from modelhound.settings import LoaderFile, LoaderSettings
from modelhound.store import Memo

__all__ = [
    "data_kind",
    "find_loader",
    "item_kind",
    "machine_kind",
    "read_loader",
    "remember_loader",
    "remembered_loader",
    "take_from_file",
]

_MEMO = "loader"
_NONE = Path("none")
_LONGEST = 12  # 17 million items


def read_loader(path: str | Path, kind: str | None = None) -> LoaderSettings:
    """The settings in a file written by `hound loader --out`; those of `kind` (raw, preprocessed) where it holds several."""
    try:
        held = msgspec.json.decode(Path(path).read_bytes(), type=LoaderFile)
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
        raise RequestError(
            f"cannot use --loader {str(path)!r}: expected a file that `hound loader --out FILE` wrote, but {reason}"
        ) from error
    return next((each for each in held.settings if each.kind == kind), held.settings[0])


def take_from_file(
    path: Path, kind: str, *, device: str, batch: int | str | None, workers: int | None
) -> tuple[LoaderSettings, LoaderUsed]:
    """What to take over from such a file where `batch` and `workers` are left open, to load items of this kind by processes."""
    found = read_loader(path, kind)
    return found, _use(found, str(path), kind, device, plain=True, batch=batch, workers=workers)


def find_loader(
    asked: Path | None, dataset: Dataset, *, device: str, plain: bool, batch: int | None, workers: int | None
) -> tuple[LoaderSettings, LoaderUsed] | None:
    """What to take over where `batch` and `workers` are left open: from the file, else what is remembered; None without either.

    A `plain` path loads with processes, as was measured. Others load in their own way: what carries over is the batch size from
    which on computing alone gets no faster.
    """
    if asked == _NONE or (batch is not None and (workers is not None or not plain)):
        return None
    found = remembered_loader(dataset, device=device) if asked is None else read_loader(asked, item_kind(dataset))
    if found is None or (asked is None and not plain and found.compute_batch is None):
        return None
    origin = "remembered" if asked is None else str(asked)
    return found, _use(found, origin, item_kind(dataset), device, plain=plain, batch=batch, workers=workers)


def _use(
    found: LoaderSettings,
    origin: str,
    kind: str,
    device: str,
    *,
    plain: bool,
    batch: int | str | None,
    workers: int | None,
) -> LoaderUsed:
    other_kind = "" if found.kind == kind else f", {found.kind} items"
    machine = "" if found.machine_kind in ("", machine_kind(device)) else f" on {found.machine_kind}"
    return LoaderUsed(
        batch=None if batch is not None else found.batch if plain else found.compute_batch or found.batch,
        workers=found.workers if plain and workers is None else None,
        prefetch=found.prefetch if plain and (found.workers if workers is None else workers) else None,
        origin=origin,
        found_for=f"{found.data or 'other data'}{other_kind}{machine}",
        is_of_computing=batch is None and not plain and found.compute_batch is not None,
    )


def remembered_loader(dataset: Dataset, *, device: str) -> LoaderSettings | None:
    """What `hound loader` recommended last for data that load like these on this machine and device.

    For runs about as long as these items; else for longer ones, else for the next shorter ones.
    """
    memo, here = Memo(_MEMO), _round_length(len(dataset))
    for power in (*range(here, _LONGEST + 1), here - 1):
        found = memo.look_up(_key(machine_kind(device), data_kind(dataset), power))
        with contextlib.suppress(msgspec.ValidationError):  # written by another version
            if found is not None:
                return msgspec.convert(found, LoaderSettings)
    return None


def remember_loader(settings: LoaderSettings) -> None:
    """Let later searches on this machine find it."""
    key = _key(settings.machine_kind, settings.data_kind, _round_length(settings.num_items))
    Memo(_MEMO).note(key, msgspec.to_builtins(settings))


@lru_cache
def machine_kind(device: str) -> str:
    """The processors that decide how fast loading and computing are."""
    machine = describe_machine()
    gpu = f", {machine.gpus[0]}" if device.startswith("cuda") and machine.gpus else ""
    return f"{machine.cpu}, {count_cores()} cores{gpu}"


def item_kind(data: Dataset | str) -> str:
    """raw or preprocessed; of a data set, or of a reference that is not open yet."""
    is_prepared = PreparedSource().claims(data) if isinstance(data, str) else isinstance(data.reader, PreparedReader)
    return "preprocessed" if is_prepared else "raw"


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


def _round_length(num_items: int) -> int:
    """Of a run, as a power of four; one of which it is not known counts as long."""
    return min(_LONGEST, round(math.log(num_items, 4))) if num_items else _LONGEST


def _key(machine: str, kind: str, length: int) -> str:
    return f"{machine} | {kind} | about {4**length} items"
