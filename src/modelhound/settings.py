"""What was asked: plain, frozen, checked, and the same object from Python, argv and a file.

In:  values a person chose
Out: settings that are valid as far as can be told without looking at the machine
Nothing here opens a file, imports torch or looks for a device: settings describe and never act.
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from modelhound.errors import RequestError

__all__ = ["ACCURACY_SCORERS", "DEFAULT_SCORERS", "SCORERS", "SearchSettings"]

SCORERS = (
    "ridge",
    "knn",
    "probe",
    "hscore",
    "logme",
    "centroid",
    "sgd_probe",
    "hscore_shrunk",
    "nleep",
    "transrate",
    "gbc",
    "sfda",
)
"""Every scorer there is; a test holds this list equal to the files in `scores`."""

DEFAULT_SCORERS = ("ridge", "knn", "probe", "hscore", "logme")

ACCURACY_SCORERS = ("ridge", "knn", "probe", "centroid", "sgd_probe")
"""Those that judge item by item: their value is a share of items. The first of these that is asked for decides a ranking."""

_TOO_LARGE = 1 << 32  # of counts and seeds: what every generator of random numbers takes


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Which pretrained network suits this data set?"""

    data: str
    """digits, fashion, or a folder that holds one folder of images per class."""

    _: KW_ONLY

    models: tuple[str, ...] = ("zoo:*",)
    """Model references or globs, such as zoo:resnet*,timm:resnet18."""

    where: str | None = None
    """Keep only models for which this holds, such as "params < 30e6 and family == 'resnet'"."""

    limit: int | None = None
    """Use at most this many items, the same number of every class as far as possible."""

    top: int | None = None
    """List only this many of the best models; all are measured and stored."""

    scorers: tuple[str, ...] = DEFAULT_SCORERS
    """ridge, knn, probe, centroid, sgd_probe (the first decides), hscore, hscore_shrunk, logme, nleep, transrate, gbc, sfda."""

    weights: Literal["pretrained", "random"] = "pretrained"
    """random: do not load any weights, to try things out or as a control."""

    batch: int | None = None
    """Items per forward pass; the default suits the device and the size of the images."""

    workers: int | None = None
    """Processes that load data; the default follows the number of cores and items."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    seed: int = 0
    """Decides which items --limit takes, how splits are drawn, and random weights."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        _tidy(self, "models", split_list(self.models))
        _tidy(self, "scorers", split_list(self.scorers))
        if isinstance(self.run, str):
            _tidy(self, "run", Path(self.run))
        if not self.models:
            raise RequestError(
                "cannot search without models: expected at least one reference, such as --models 'zoo:*'"
            )
        _check_choices("scorers", self.scorers, SCORERS)
        _check_choices("weights", (self.weights,), ("pretrained", "random"))
        _check_at_least("limit", self.limit, 4)
        _check_at_least("top", self.top, 1)
        _check_at_least("batch", self.batch, 1)
        _check_at_least("workers", self.workers, 0)
        _check_at_least("seed", self.seed, 0)
        _check_text("data", self.data)
        _check_text("device", self.device)


def split_list(given: str | Iterable[str]) -> tuple[str, ...]:
    """Take a list written as "a,b" or ("a,b", "c") apart; order is kept, repeats are dropped."""
    texts = [given] if isinstance(given, str) else list(given)
    parts = (part.strip() for text in texts for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _tidy(settings: object, name: str, value: object) -> None:
    """Put a value into its one form while a frozen object is still being made."""
    object.__setattr__(settings, name, value)


def _check_text(name: str, value: object) -> None:
    try:
        usable = isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:  # a path of bytes that are no text; it could not be written down
        usable = False
    if not usable:
        raise RequestError(f"cannot use --{name} {value!r}: expected text, in UTF-8")


def _check_at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and (type(value) is not int or not least <= value < _TOO_LARGE):
        raise RequestError(f"cannot use --{name} {value!r}: expected a whole number of at least {least}")


def _check_choices(name: str, values: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    if not values:
        raise RequestError(f"cannot use an empty --{name}: expected one or more of {', '.join(allowed)}")
    for value in values:
        if value not in allowed:
            raise RequestError(f"cannot use --{name} {value!r}: expected one of {', '.join(allowed)}")
