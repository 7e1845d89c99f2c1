"""What can be asked of `hound profile`."""

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import (
    check_at_least,
    check_choices,
    check_device,
    check_text,
    split_list,
    tidy,
    whole_numbers,
)
from modelhound.settings.data import DataSettings
from modelhound.settings.models import ModelSettings
from modelhound.settings.scorers import SCORERS

__all__ = ["PROFILE_MODELS", "LastLayers", "ProfileSettings"]

PROFILE_MODELS = {
    "image": (
        "timm:efficientnet_b0",
        "timm:mobilenetv3_large_100",
        "timm:resnet18",
        "timm:resnet50",
        "timm:resnet152",
        "timm:vit_base_patch16_224",
    ),
    "text": ("hf:google-bert/bert-base-uncased", "hf:FacebookAI/roberta-base"),
}
"""What --models auto means here: those that the research on bottlenecks looked at, by what the items are."""

_USUAL_BATCHES, _QUICK_BATCHES = 50, 5
_USUAL_WARMUP, _QUICK_WARMUP = 5, 1
_USUAL_REPEATS, _QUICK_REPEATS = 3, 2
_MOST_HEADS = 64
_MOST_CLASSES = 100_000  # a layer of 2048 inputs and so many outputs already takes 800 MB


@dataclass(frozen=True, slots=True)
class LastLayers:
    """The last layers of a model: a share of all, or a number of them."""

    text: str
    """As it is written: full, 50%, 3."""

    def __post_init__(self) -> None:
        share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", self.text)
        allowed = 0 < float(share[1]) <= 100 if share else self.text == "full" or _is_count(self.text)
        if not allowed:
            raise RequestError(
                f"cannot run {self.text!r} of a model: expected full, a share such as 50% or a number of last layers such as 3"
            )

    def count(self, num_layers: int) -> int:
        """How many of so many layers it means; a share means at least one."""
        if self.text == "full":
            return num_layers
        if self.text.endswith("%"):
            return max(1, round(num_layers * float(self.text[:-1]) / 100))
        return int(self.text)


@dataclass(frozen=True)
class ProfileSettings(ModelSettings, DataSettings):
    """Where does the time of a model search go?"""

    _: KW_ONLY

    models: tuple[str, ...] = ("auto",)
    """References or globs as in `hound search`; auto is EfficientNet, MobileNet, ResNet-18, 50 and 152 and ViT for images,
    BERT and RoBERTa for texts."""

    weights: Literal["pretrained", "random"] = "random"
    """random: files of the model's size with made-up numbers, which take as long as trained ones; or pretrained."""

    parts: tuple[str, ...] = ("full", "50%", "25%", "3", "1")
    """How much of each model is run: full, a share of its last layers, or a number of them, fed with stored outputs."""

    joint: tuple[str, ...] = ("50%", "3")
    """Joint models: one trunk with several heads of so many last layers, against the same models run apart; or none."""

    heads: tuple[str, ...] = ("2",)
    """Of joint models: how many heads, or references of models that share the trunk and bring the further heads."""

    classes: tuple[str, ...] = ("1000", "100", "2")
    """Widths of the fully connected layer to score by; the first counts into the end-to-end time."""

    scorers: tuple[str, ...] = ("sgd_probe", "ridge")
    """Which scorers to time, as in `hound search`; the first counts into the end-to-end time, sgd_probe is one layer."""

    items: tuple[str, ...] = ()
    """Item counts to show the phases at, besides the one measured; those beyond it are extrapolated, and marked."""

    also: tuple[str, ...] = ()
    """Further data sets for the same profile, each with the models made for it: prepared items, texts."""

    batches: int | None = None
    """Batches to run; the default is 50, with --quick 5."""

    warmup: int | None = None
    """How many of them are the first few that rates leave out; the default is 5, with --quick 1."""

    batch: str = "auto"
    """Items per batch: a number; auto is one for every core of a CPU (at least 2; 2 with --quick) and 64 on a GPU; largest is
    the largest that fits."""

    repeats: int | None = None
    """How often reading weights and scoring are timed; the default is 3, with --quick 2."""

    workers: int | None = None
    """Processes that load items; the default follows the number of cores and items."""

    loader: Path | None = None
    """A file that `hound loader` wrote: it says how to load; batch size and number of workers where none are given."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the networks' arithmetic; auto is fp32 on a CPU and bf16 on a GPU."""

    device: tuple[str, ...] = ("auto",)
    """auto, cpu, cuda or cuda:N; several are measured one after the other and shown side by side."""

    quick: bool = False
    """A first impression in under two minutes: few batches."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        for name in ("parts", "joint", "heads", "scorers", "also", "device"):
            tidy(self, name, split_list(getattr(self, name)))
        classes = whole_numbers("classes", self.classes, least=2, most=_MOST_CLASSES, such_as="1000,100,2")
        tidy(self, "classes", tuple(map(str, classes)))
        items = whole_numbers("items", self.items, least=1, such_as="100,1000") if self.items else ()
        tidy(self, "items", tuple(map(str, items)))
        for name in ("run", "loader"):
            if isinstance(getattr(self, name), str):
                tidy(self, name, Path(getattr(self, name)))
        tidy(self, "batch", str(self.batch))
        if self.joint == ("none",):
            tidy(self, "joint", ())
        self._check()

    def part_spans(self) -> tuple[LastLayers, ...]:
        return tuple(LastLayers(text) for text in self.parts)

    def joint_spans(self) -> tuple[LastLayers, ...]:
        return tuple(LastLayers(text) for text in self.joint)

    def class_counts(self) -> tuple[int, ...]:
        return tuple(map(int, self.classes))

    def item_counts(self) -> tuple[int, ...]:
        return tuple(sorted(map(int, self.items)))

    def num_heads(self) -> int:
        """Of every joint model."""
        return int(self.heads[0]) if _is_count(self.heads[0]) else 1 + len(self.heads)

    def head_models(self) -> tuple[str, ...]:
        """References of the models that bring heads; none where heads are made up."""
        return () if _is_count(self.heads[0]) else self.heads

    def num_batches(self) -> int:
        return self.batches or (_QUICK_BATCHES if self.quick else _USUAL_BATCHES)

    def num_repeats(self) -> int:
        return self.repeats or (_QUICK_REPEATS if self.quick else _USUAL_REPEATS)

    def num_warmup(self) -> int:
        if self.warmup is not None:
            return self.warmup
        return min(_QUICK_WARMUP if self.quick else _USUAL_WARMUP, self.num_batches() - 1)

    def _check(self) -> None:
        if not self.parts and not self.joint:
            raise RequestError("cannot profile nothing: expected --parts full, --joint 50% or both")
        self.part_spans()
        if any(span.text == "full" for span in self.joint_spans()):
            raise RequestError("cannot use --joint full: expected fewer layers, such as 50%, so that a trunk is left")
        check_choices("scorers", self.scorers, SCORERS)
        check_choices("precision", (self.precision,), ("auto", "fp32", "bf16"))
        check_at_least("batches", self.batches, 2)
        check_at_least("warmup", self.warmup, 0)
        check_at_least("repeats", self.repeats, 1)
        check_at_least("workers", self.workers, 0)
        if self.loader is not None and self.batch != "auto" and self.workers is not None:
            raise RequestError(
                "cannot use --loader with --batch and --workers: expected one of them, the file would change nothing"
            )
        for name in self.also:
            check_text("also", name)
        for device in self.device:
            check_device(device)
        if not self.device:
            raise RequestError("cannot use an empty --device: expected auto, cpu, cuda or cuda:N")
        if self.num_warmup() >= self.num_batches():
            raise RequestError(
                f"cannot use --warmup {self.warmup} of {self.num_batches()} batches: expected fewer, so that some are left"
            )
        if self.batch not in ("auto", "largest") and not _is_count(self.batch):
            raise RequestError(f"cannot use --batch {self.batch!r}: expected a number, auto or largest")
        if not self.joint and self.heads != type(self).heads:
            raise RequestError("cannot use --heads with --joint none: expected joint models, leave one of them out")
        self._check_heads()

    def _check_heads(self) -> None:
        counts = [each for each in self.heads if re.fullmatch(r"-?\d+", each)]
        is_count = bool(counts) and _is_count(counts[0]) and 2 <= int(counts[0]) <= _MOST_HEADS
        if not self.heads or (counts and (len(self.heads) > 1 or not is_count)):
            raise RequestError(
                f"cannot use --heads {','.join(self.heads)!r}: expected one number from 2 to {_MOST_HEADS}, "
                "or references of models that share the trunk"
            )
        if self.head_models() and len(self.models) != 1:
            raise RequestError(
                f"cannot join {len(self.models)} --models with the heads of others: expected one model, whose trunk is used"
            )


def _is_count(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None and int(text) > 0
