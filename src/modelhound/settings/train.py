"""What can be asked of `hound train`, and the recipe that every fine-tuning follows."""

import dataclasses
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import (
    check_at_least,
    check_choices,
    check_device,
    check_number,
    part_of,
    split_list,
    tidy,
    whole_numbers,
)
from modelhound.settings.data import DataSettings
from modelhound.settings.models import ModelSettings

__all__ = ["DEFAULT_TRAINED_MODELS", "MODES", "RecipeSettings", "TrainSettings"]

DEFAULT_TRAINED_MODELS = ("timm:efficientnet_b0", "timm:efficientnet_b3", "timm:efficientnet_b5")
"""The research's experiment: a small, a middling and a large network of one family."""

MODES = ("full", "head", "cached")
AUGMENTATIONS = ("none", "crop", "flip", "strong")
_MOST_RANKS = 4096
_OF_A_CLUSTER = ("partition", "minutes", "gpus", "nodes", "dry_run")


@dataclass(frozen=True)
class RecipeSettings:
    """How a network is fine-tuned, whatever the data and the machine."""

    _: KW_ONLY

    mode: Literal["full", "head", "cached"] = "full"
    """full: every weight; head: a new last layer on the frozen network; cached: the same on features computed once."""

    epochs: int = 10
    """How often every training item is seen."""

    batch: int | None = None
    """Items per step and rank; the default suits the device and the size of the items."""

    accumulate: int = 1
    """Batches per step of the optimiser: the effective batch is --batch x --accumulate x ranks."""

    optimiser: Literal["adamw", "sgd"] = "adamw"
    """adamw, or sgd with Nesterov's momentum of 0.9."""

    rate: float | None = None
    """The highest learning rate; the default follows mode, optimiser and whether items are images or texts."""

    decay: float = 0.01
    """Weight decay; biases and normalisation have none."""

    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls after it has risen in the first twentieth of the steps; constant does neither."""

    augment: Literal["auto", "none", "crop", "flip", "strong"] = "auto"
    """crop: a random part; flip: mirrored too; strong: other contrast and a blank patch too; auto is crop, none for texts."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the arithmetic (weights are fp32); auto is fp32 on a CPU and bf16 on a GPU."""

    batchnorm: Literal["own", "sync", "frozen"] = "own"
    """Statistics of batch normalisation: each rank its own, of all ranks together, or those the network came with."""

    patience: int | None = None
    """Stop when the test score has not risen for so many epochs, and keep the best; the default trains to the end."""

    compile: bool = False
    """Compile the network with torch.compile: half a minute or more before the first step, faster steps on a GPU."""

    workers: int | None = None
    """Processes that load items, for each rank; the default follows cores, ranks and items."""

    seed: int = 0
    """Decides which items are taken and held out, the new head, the order of items, augmentation and dropout."""

    def __post_init__(self) -> None:
        check_choices("mode", (self.mode,), MODES)
        check_choices("optimiser", (self.optimiser,), ("adamw", "sgd"))
        check_choices("schedule", (self.schedule,), ("cosine", "linear", "constant"))
        check_choices("augment", (self.augment,), ("auto", *AUGMENTATIONS))
        check_choices("precision", (self.precision,), ("auto", "fp32", "bf16"))
        check_choices("batchnorm", (self.batchnorm,), ("own", "sync", "frozen"))
        for name, least in (
            ("epochs", 1),
            ("batch", 1),
            ("accumulate", 1),
            ("patience", 1),
            ("workers", 0),
            ("seed", 0),
        ):
            check_at_least(name, getattr(self, name), least)
        if self.rate is not None:
            check_number("rate", self.rate, least=0, most=100, above_least=True)
        check_number("decay", self.decay, least=0, most=10)
        if self.mode == "cached" and self.augment not in ("auto", "none"):
            raise RequestError(
                f"cannot use --augment {self.augment} with --mode cached: expected none, since features are computed once; "
                "use --mode head"
            )
        if self.mode != "full" and self.batchnorm == "sync":
            raise RequestError(
                f"cannot use --batchnorm sync with --mode {self.mode}: expected --mode full, the network is frozen otherwise"
            )

    def recipe(self) -> "RecipeSettings":
        """The recipe alone, without what a subclass adds."""
        return part_of(RecipeSettings, self)


@dataclass(frozen=True)
class TrainSettings(RecipeSettings, DataSettings):
    """Fine-tune networks on 1 to N ranks, and know where every second went."""

    _: KW_ONLY

    model: tuple[str, ...] = DEFAULT_TRAINED_MODELS
    """References of the networks to fine-tune, one after the other, as in `hound search`."""

    where: str | None = None
    """Keep only models for which this holds, such as "params < 30e6 and family == 'resnet'"."""

    weights: Literal["pretrained", "random"] = "pretrained"
    """random: train from scratch."""

    arch: str | None = None
    """For file:X.safetensors: the network its tensors belong to, such as timm:resnet18 or hf:ORG/NAME."""

    tokens: int | None = None
    """Cut texts after this many tokens; the default is what each model takes, 512 at most."""

    allow_code: tuple[str, ...] = ()
    """Models (ORG/NAME or a path) that may run code of their own; all others must do without."""

    test: str | None = None
    """Which part of the data set to test on, such as test; the default holds out a fifth of the items."""

    ranks: tuple[str, ...] = ("1",)
    """How many processes, one GPU each where there are GPUs; 1,2,4 runs the series and tells how it scales."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N; several ranks take the first GPUs."""

    loader: Path | None = None
    """A file that `hound loader` wrote: its batch size and number of workers are used where none are given."""

    verdict: Literal["auto", "dose", "none"] = "auto"
    """auto: find what bounds the run by making parts of it free; dose: also delay each part and see what it costs."""

    trace: int = 0
    """Steps to record with torch's profiler: a trace for Perfetto and a table of operators."""

    slurm: bool = False
    """Submit the run as a SLURM job instead of running it here."""

    partition: str | None = None
    """For --slurm: the partition."""

    minutes: int = 60
    """For --slurm: the time limit."""

    gpus: int | None = None
    """For --slurm: GPUs per node; the default is what --ranks need."""

    nodes: int = 1
    """For --slurm: how many nodes."""

    dry_run: bool = False
    """For --slurm: print the script and submit nothing."""

    run: Path | None = None
    """Folder for results and checkpoints; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        RecipeSettings.__post_init__(self)
        tidy(self, "model", split_list(self.model))
        tidy(self, "allow_code", split_list(self.allow_code))
        ranks = whole_numbers("ranks", self.ranks, least=1, most=_MOST_RANKS, such_as="1,2,4")
        tidy(self, "ranks", tuple(map(str, ranks)))
        for name in ("run", "loader"):
            if isinstance(getattr(self, name), str):
                tidy(self, name, Path(getattr(self, name)))
        if not self.model:
            raise RequestError("cannot train without a model: expected a reference, such as --model zoo:resnet-shapes")
        check_device(self.device)
        check_choices("weights", (self.weights,), ("pretrained", "random"))
        check_choices("verdict", (self.verdict,), ("auto", "dose", "none"))
        for name, least in (("tokens", 4), ("trace", 0), ("minutes", 1), ("gpus", 0), ("nodes", 1)):
            check_at_least(name, getattr(self, name), least)
        if self.loader is not None and self.batch is not None and self.workers is not None:
            raise RequestError(
                "cannot use --loader with --batch and --workers: expected one of them, the file would change nothing"
            )
        if self.mode == "cached" and (self.trace or self.verdict == "dose"):
            given = f"--trace {self.trace}" if self.trace else "--verdict dose"
            raise RequestError(
                f"cannot use {given} with --mode cached: expected steps that run the network, use --mode full or head"
            )
        self._check_cluster()

    def num_ranks(self) -> tuple[int, ...]:
        """How many processes, in the order asked for."""
        return tuple(int(each) for each in self.ranks)

    def model_settings(self) -> ModelSettings:
        """What is asked of a model when it is built."""
        return ModelSettings(
            models=self.model, weights=self.weights, arch=self.arch, tokens=self.tokens, allow_code=self.allow_code
        )

    def as_job(self) -> "TrainSettings":
        """The same request as a job of the cluster runs it: with nothing left to submit."""
        return dataclasses.replace(self, slurm=False, **{name: getattr(TrainSettings, name) for name in _OF_A_CLUSTER})

    def _check_cluster(self) -> None:
        given = [name for name in _OF_A_CLUSTER if getattr(self, name) != getattr(TrainSettings, name)]
        if given and not self.slurm:
            raise RequestError(
                f"cannot use --{given[0].replace('_', '-')} without --slurm: expected a cluster, add --slurm or leave it out"
            )
        most = max(self.num_ranks())
        if self.slurm and self.gpus and most > self.gpus * self.nodes:
            raise RequestError(
                f"cannot run {most} ranks with --nodes {self.nodes} and --gpus {self.gpus}: expected one GPU each, raise "
                "one of them"
            )
