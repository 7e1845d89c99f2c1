"""What can be asked of `hound loader`, and what it recommends: settings of a DataLoader, as an object and as a file."""

import importlib
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from modelhound.errors import RequestError
from modelhound.settings.checks import (
    check_at_least,
    check_choices,
    check_device,
    check_place,
    parse_share,
    split_list,
    tidy,
    whole_numbers,
)
from modelhound.settings.data import DataSettings
from modelhound.settings.models import ModelSettings

__all__ = ["KINDS", "TUNABLE", "LoaderFile", "LoaderSearchSettings", "LoaderSettings"]

_AUTO = ("auto",)
KINDS = ("raw", "preprocessed")
"""Items as they are, to be decoded and normalised; items as `hound prepare` writes them, only to be read."""

TUNABLE = ("prefetch", "pin", "persistent")

_Count = Annotated[int, msgspec.Meta(ge=1)]


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to load: one batch size and number of workers for all models, and for what they were found."""

    batch: _Count
    workers: Annotated[int, msgspec.Meta(ge=0)]
    prefetch: _Count = 2
    """Batches that each worker is ahead."""
    pin: bool = False
    persistent: bool = False
    kind: Literal["raw", "preprocessed"] = "raw"
    data: str = ""
    """The data set it was measured on, as it was given."""
    data_kind: str = ""
    """What is alike in data sets that load alike; see `data.recommended`."""
    machine_kind: str = ""
    device: str = ""
    num_items: int = 0
    """Length of the run that it is best for."""
    compute_batch: _Count | None = None
    """Batch size from which on computing alone gets no faster: for whoever loads in another way."""

    def options(self) -> dict[str, Any]:
        """The same as keywords of torch.utils.data.DataLoader."""
        return {
            "batch_size": self.batch,
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch if self.workers else None,
            "pin_memory": self.pin,
            "persistent_workers": self.persistent and self.workers > 0,
        }

    def dataloader(self, dataset: Any, **more: Any) -> Any:
        """torch's DataLoader of any data set of yours with these settings; `more` are further keywords of it."""
        # By name: whoever only reads settings must not have to load torch.
        return importlib.import_module("torch.utils.data").DataLoader(dataset, **{**self.options(), **more})


class LoaderFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `hound loader --out FILE` writes and `--loader FILE` takes."""

    format: Literal["modelhound loader settings, 1"] = "modelhound loader settings, 1"
    settings: Annotated[tuple[LoaderSettings, ...], msgspec.Meta(min_length=1)]
    """One for each kind of items that was measured."""


@dataclass(frozen=True)
class LoaderSearchSettings(ModelSettings, DataSettings):
    """Which batch size and number of workers suit all these models on this machine?"""

    _: KW_ONLY

    batch: tuple[int | str, ...] = _AUTO
    """Batch sizes to choose from, such as 32,64,128; auto suits the device."""

    workers: tuple[int | str, ...] = _AUTO
    """Numbers of loader processes to choose from, such as 0,1,2; auto goes from 0 to the number of cores."""

    kind: tuple[str, ...] = _AUTO
    """raw (decoded and normalised), preprocessed (only read; made for the time being if need be); auto is what the data are."""

    length: int | None = None
    """How many items long the run to choose for is, several passes if need be; the default is the data set once, judged by
    runs of at most 2000 items."""

    grid: bool = False
    """Measure every pair with every model; otherwise loading and computing apart, and only the few best pairs for real."""

    repeats: int = 1
    """With --grid: how often each pair is measured."""

    budget: float = 0.2
    """Without --grid: share of the grid's time that may be spent at most; what is needed to choose at all is run in
    any case, which is more than that for few items."""

    prefetch: int = 2
    """Batches that each worker is ahead."""

    pin: Literal["auto", "yes", "no"] = "auto"
    """Load into pinned memory; auto does so for a GPU."""

    persistent: bool = False
    """Keep workers between passes."""

    tune: tuple[str, ...] = ()
    """Also try other values of prefetch, pin, persistent at the recommended pair."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the networks' arithmetic; auto is fp32 on a CPU and bf16 on a GPU, as searches run them."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    on: str = "local"
    """Where to measure: local; ray or ray://HOST:PORT, every machine of a Ray cluster for itself, all at once."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    out: Path | None = None
    """File for the recommended settings, to be used as --loader FILE."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        tidy(self, "batch", _numbers("batch", self.batch, least=1))
        tidy(self, "workers", _numbers("workers", self.workers, least=0))
        tidy(self, "kind", split_list(self.kind))
        tidy(self, "tune", split_list(self.tune))
        for name in ("run", "out"):
            if isinstance(getattr(self, name), str):
                tidy(self, name, Path(getattr(self, name)))
        check_choices("kind", self.kind, KINDS, auto=True)
        if self.tune:
            check_choices("tune", self.tune, TUNABLE)
        check_choices("pin", (self.pin,), ("auto", "yes", "no"))
        check_choices("precision", (self.precision,), ("auto", "fp32", "bf16"))
        check_at_least("length", self.length, 1)
        check_at_least("repeats", self.repeats, 1)
        check_at_least("prefetch", self.prefetch, 1)
        check_device(self.device)
        check_place(self.on)
        tidy(self, "budget", parse_share("budget", self.budget, least=0.0001))
        if self.grid and self.budget != type(self).budget:
            raise RequestError("cannot use --budget with --grid: expected one of them, the grid measures every pair")
        if self.workers == (0,) and (self.persistent or self.prefetch != type(self).prefetch):
            given = "persistent" if self.persistent else "prefetch"
            raise RequestError(
                f"cannot use --{given} with --workers 0: expected loader processes, leave one of them out"
            )
        if self.repeats != 1 and not self.grid:
            raise RequestError("cannot use --repeats without --grid: expected --grid, the race repeats what it has to")


def _numbers(name: str, given: object, *, least: int) -> tuple[int | str, ...]:
    """Different whole numbers in order, or auto."""
    if given in ("auto", _AUTO, list(_AUTO)):
        return _AUTO
    return tuple(sorted(whole_numbers(name, given, least=least, such_as="32,64" if least else "0,1,2", auto=True)))
