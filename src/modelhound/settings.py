"""What was asked: plain, frozen, checked, and the same object from Python, argv and a file.

In:  values a person chose
Out: settings that are valid as far as can be told without looking at the machine
Nothing here opens a file, imports torch or looks for a device: settings describe and never act.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal, get_args

from modelhound.errors import RequestError

__all__ = [
    "ACCURACY_SCORERS",
    "DEFAULT_MODELS",
    "DEFAULT_SCORERS",
    "DEFAULT_TOP",
    "METRICS",
    "PLAIN",
    "ROLES",
    "SCORERS",
    "SCORERS_BEYOND_CLASSES",
    "TASKS",
    "DataSettings",
    "ModelSettings",
    "PrepareSettings",
    "SearchSettings",
    "Task",
    "decisive_scorer",
    "parse_bytes",
    "scorers_for",
]

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
    "leep",
)
"""Every scorer there is; a test holds this list equal to the files in `scores`."""

DEFAULT_SCORERS = ("ridge", "knn", "probe", "hscore", "logme")

Task = Literal["classification", "multilabel", "regression"]
TASKS: tuple[Task, ...] = get_args(Task)
"""What is to be told of an item: its one class, which of several labels it has, or a number."""

DEFAULT_TOP = 5
"""How many of the best models a search makes sure of unless told."""

METRICS: dict[Task, str] = {"classification": "accuracy", "multilabel": "ranking precision", "regression": "R2"}
"""What a score that judges item by item is the mean of."""

SCORERS_BEYOND_CLASSES: dict[Task, tuple[str, ...]] = {
    "multilabel": ("ridge", "knn", "probe", "logme"),
    "regression": ("ridge", "knn", "logme"),
}
"""Those that also judge tasks without one class per item; all others need classes."""

ACCURACY_SCORERS = ("ridge", "knn", "probe", "centroid", "sgd_probe")
"""Those that judge item by item: their value is a share of items. The first of these that is asked for decides a ranking."""

_TOO_LARGE = 1 << 32  # of counts and seeds: what every generator of random numbers takes


DEFAULT_MODELS = {
    "image": ("zoo:*",),
    "text": (
        "hf:sentence-transformers/all-MiniLM-L6-v2",
        "hf:distilbert/distilbert-base-uncased",
        "hf:google-bert/bert-base-uncased",
        "hf:FacebookAI/roberta-base",
        "hf:albert/albert-base-v2",
    ),
}
"""What --models auto means, by what the items are."""

ROLES = ("text", "pair", "image", "label")
"""What a column of a table can be: a text, the second text of a pair, an image (a path, or the file itself), the target."""


@dataclass(frozen=True)
class DataSettings:
    """Which items, and what is to be told of them."""

    data: str
    """digits, fashion, sms; a folder with one folder of images per class; a CSV, JSONL, Parquet or tar file."""

    _: KW_ONLY

    columns: tuple[str, ...] = ()
    """Of a table: which column is what, such as text=review,label=stars; roles are text, pair, image and label."""

    task: Literal["auto", "classification", "multilabel", "regression"] = "auto"
    """What is to be told of an item: one class, several labels, a number; auto looks at the labels."""

    split: str | None = None
    """Which part of a data set that comes in parts, such as train or test; the default is train."""

    limit: int | None = None
    """Use at most this many items, the same number of every class as far as possible."""

    seed: int = 0
    """Decides which items --limit takes, how splits are drawn, and random weights."""

    def __post_init__(self) -> None:
        _tidy(self, "columns", split_list(self.columns))
        self.roles()
        _check_text("data", self.data)
        _check_choices("task", (self.task,), ("auto", *TASKS))
        _check_at_least("limit", self.limit, 4)
        _check_at_least("seed", self.seed, 0)

    def roles(self) -> dict[str, str]:
        """The columns as role -> name."""
        pairs = [each.partition("=") for each in self.columns]
        for given, (role, _, column) in zip(self.columns, pairs, strict=True):
            if role not in ROLES or not column:
                raise RequestError(
                    f"cannot use --columns {given!r}: expected ROLE=COLUMN with a role of {', '.join(ROLES)}, "
                    "such as text=review"
                )
        return {role: column for role, _, column in pairs}

    def asked_task(self) -> Task | None:
        """The task, or None to find out."""
        return None if self.task == "auto" else self.task


@dataclass(frozen=True)
class ModelSettings:
    """Which models, and how they are to be used."""

    _: KW_ONLY

    models: tuple[str, ...] = ("auto",)
    """References or globs: zoo:NAME, timm:NAME, tv:NAME, hf:ORG/NAME[@REVISION], file:PATH, py:MODULE:FUNCTION; auto is
    zoo:* for images and five well-known encoders from the hub for texts."""

    where: str | None = None
    """Keep only models for which this holds, such as "params < 30e6 and family == 'resnet'"."""

    weights: Literal["pretrained", "random"] = "pretrained"
    """random: do not load any weights, to try things out or as a control."""

    arch: str | None = None
    """For file:X.safetensors: the network its tensors belong to, such as timm:resnet18 or hf:ORG/NAME."""

    pooling: Literal["auto", "mean", "cls", "max"] = "auto"
    """How a text's tokens become one vector; auto is their mean."""

    layers: Literal["last", "mean", "best"] = "last"
    """Which layers of a text encoder: the last, the mean of all, or the one that scores best."""

    tokens: int | None = None
    """Cut texts after this many tokens; the default is what each model takes, 512 at most."""

    allow_code: tuple[str, ...] = ()
    """Models (ORG/NAME or a path) that may run code of their own; all others must do without."""

    def __post_init__(self) -> None:
        _tidy(self, "models", split_list(self.models))
        _tidy(self, "allow_code", split_list(self.allow_code))
        if not self.models:
            raise RequestError("cannot work without models: expected at least one reference, such as --models 'zoo:*'")
        _check_choices("weights", (self.weights,), ("pretrained", "random"))
        _check_choices("pooling", (self.pooling,), ("auto", "mean", "cls", "max"))
        _check_choices("layers", (self.layers,), ("last", "mean", "best"))
        _check_at_least("tokens", self.tokens, 4)


@dataclass(frozen=True)
class SearchSettings(ModelSettings, DataSettings):
    """Which pretrained network suits this data set?"""

    _: KW_ONLY

    top: int | None = None
    """How many of the best models you want to know, and how many are listed; the default finds the best 5 and lists all."""

    scorers: tuple[str, ...] = ("auto",)
    """ridge, knn, probe, centroid, sgd_probe (the first decides), hscore, hscore_shrunk, logme, leep, nleep, transrate, gbc,
    sfda; auto is ridge, knn, probe, hscore and logme, as far as the task allows."""

    exhaustive: bool = False
    """Measure every model on every item; otherwise those that cannot be among the --top best any more are dropped early."""

    risk: float = 0.01
    """Drop a model only if its chance of being among the --top best is smaller than this."""

    plain: bool = False
    """One model after the other, nothing shared, nothing dropped: slow, for comparison."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the networks' arithmetic; auto is fp32 on a CPU and bf16 on a GPU."""

    memory: str | None = None
    """Memory of the device to use at most, such as 4GB; the default is most of what is free."""

    batch: int | None = None
    """Items per forward pass; the default suits the device and the size of the items."""

    workers: int | None = None
    """Threads that decode items, with --plain processes that load them; the default follows the number of cores and items."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        _tidy(self, "scorers", split_list(self.scorers))
        if isinstance(self.run, str):
            _tidy(self, "run", Path(self.run))
        if self.scorers != ("auto",):
            _check_choices("scorers", self.scorers, SCORERS)
        _check_at_least("top", self.top, 1)
        _check_at_least("batch", self.batch, 1)
        _check_at_least("workers", self.workers, 0)
        _check_text("device", self.device)
        _check_choices("precision", (self.precision,), ("auto", "fp32", "bf16"))
        if not isinstance(self.risk, int | float) or not 0 <= self.risk <= 0.5:
            raise RequestError(f"cannot use --risk {self.risk!r}: expected a number from 0 to 0.5, such as 0.01")
        if self.plain and self.precision == "bf16":
            raise RequestError("cannot use --precision bf16 with --plain: expected fp32, which is what plain means")
        if self.plain and self.memory is not None:
            raise RequestError(
                "cannot use --memory with --plain: expected no limit, since nothing is planned; leave it out"
            )
        if (self.plain or self.exhaustive) and self.risk != type(self).risk:
            raise RequestError("cannot use --risk where no model is dropped: leave it out, or --plain and --exhaustive")
        self.memory_bytes()

    def memory_bytes(self) -> int | None:
        """The memory asked for, in bytes."""
        return None if self.memory is None else parse_bytes("memory", self.memory)


@dataclass(frozen=True)
class _DataAndOut:
    """The two that need no name, in this order. Fields keep the place of the first class that has them."""

    data: str

    out: Path
    """Folder for the prepared items; it is a data set then: hound search OUT."""


@dataclass(frozen=True)
class PrepareSettings(DataSettings, _DataAndOut):
    """Decode a data set once, so that every later search only has to copy."""

    _: KW_ONLY

    models: tuple[str, ...] = ()
    """References or globs of the models it is for: each distinct way to resize and crop is written once."""

    size: int | None = None
    """Without --models: bring the shorter side to so many pixels and cut out the middle; the default is 224."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        _tidy(self, "models", split_list(self.models))
        if isinstance(self.out, str):
            _tidy(self, "out", Path(self.out))
        _check_text("out", str(self.out))
        _check_at_least("size", self.size, 8)
        if self.models and self.size is not None:
            raise RequestError(
                "cannot use --size together with --models: expected one of them, the models say what sizes they need"
            )


def scorers_for(task: Task, asked: Sequence[str] = ("auto",)) -> tuple[str, ...]:
    """The scorers asked for, or the usual ones, as far as they judge this task; asking for another is an error."""
    able = SCORERS_BEYOND_CLASSES.get(task, SCORERS)
    if tuple(asked) == ("auto",):
        return tuple(scorer for scorer in DEFAULT_SCORERS if scorer in able)
    unable = [scorer for scorer in asked if scorer not in able]
    if unable:
        raise RequestError(
            f"cannot use --scorers {unable[0]!r} for {task}: expected one or more of {', '.join(able)}, which need no classes"
        )
    return tuple(asked)


def decisive_scorer(scorers: Sequence[str]) -> str:
    """The scorer a ranking rests on: one that judges every item, so that items can be resampled."""
    for scorer in ACCURACY_SCORERS:
        if scorer in scorers:
            return scorer
    raise RequestError(
        f"cannot rank by {', '.join(scorers)} alone: expected at least one of {', '.join(ACCURACY_SCORERS)}, "
        "which judge item by item and so can say how sure a ranking is; add one to --scorers"
    )


def parse_bytes(name: str, text: str) -> int:
    """4GB, 512 MiB, 1e9: a number of bytes."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", str(text), flags=re.IGNORECASE)
    try:
        value = float(found[1]) if found else 0.0
    except ValueError:
        value = 0.0
    if found is None or not value > 0:
        raise RequestError(f"cannot use --{name} {text!r}: expected a size such as 4GB, 512MB or 8GiB")
    power = "kmgt".find(found[2].lower()) + 1 if found[2] else 0
    return int(value * (1024 if found[3] else 1000) ** power)


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


PLAIN = ModelSettings()
"""Nothing special asked of models."""
