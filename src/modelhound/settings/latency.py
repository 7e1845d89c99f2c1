"""What can be asked of `hound latency`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import (
    check_at_least,
    check_choices,
    check_device,
    check_number,
    check_place,
    parse_bytes,
    parse_share,
    split_list,
    tidy,
    whole_numbers,
)
from modelhound.settings.models import ModelSettings

__all__ = ["LATENCY_MODELS", "PRECISIONS", "LatencySettings"]

LATENCY_MODELS = (
    "hf:google-bert/bert-base-uncased",
    "hf:albert/albert-base-v2",
    "hf:distilbert/distilbert-base-uncased",
    "hf:allenai/longformer-base-4096",
    "tv:mobilenet_v2",
    "tv:resnet18",
    "tv:squeezenet1_0",
    "tv:vgg16",
    "tv:mnasnet1_0",
)
"""What --models auto means: four encoders of texts and five networks of images, built from their published shapes."""

PRECISIONS = ("fp32", "fp32-strict", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class LatencySettings:
    """How fast are these networks, how does that grow, and why?"""

    _: KW_ONLY

    models: tuple[str, ...] = ("auto",)
    """References or globs: zoo:NAME, timm:NAME, tv:NAME, hf:ORG/NAME[@REVISION], file:PATH, py:MODULE:FUNCTION; auto is nine
    well-known networks of texts and images."""

    batch: tuple[str | int, ...] = ()
    """Batch sizes, such as 1,2,4. Axes that are given are combined with each other; one that is not given stays as it is:
    batch 1, each model's own image size, 128 tokens. Without any, each axis is swept by itself."""

    image: tuple[str | int, ...] = ()
    """Sides of the images in pixels, such as 64,224."""

    sequence: tuple[str | int, ...] = ()
    """Lengths of the texts in tokens, such as 16,128."""

    precision: tuple[str, ...] = ("auto",)
    """fp32 (as torch has it: a GPU's convolutions round to tf32), fp32-strict (nothing rounds), tf32 (all does), bf16, fp16;
    auto is fp32 on a CPU, fp32 and bf16 on a GPU."""

    device: tuple[str, ...] = ("auto",)
    """auto, cpu, cuda or cuda:N, or several of them."""

    weights: Literal["random", "pretrained"] = "random"
    """random: nothing is downloaded, and times are the same."""

    where: str | None = None
    """Keep only models for which this holds, such as "params < 30e6 and family == 'resnet'"."""

    arch: str | None = None
    """For file:X.safetensors: the network its tensors belong to, such as timm:resnet18 or hf:ORG/NAME."""

    allow_code: tuple[str, ...] = ()
    """Models (ORG/NAME or a path) that may run code of their own; all others must do without."""

    seconds: float = 0.5
    """Sample a point for at most this long (a few calls are always timed), less where its time is known well enough before."""

    width: float = 0.02
    """Known well enough: the interval of the median reaches no farther than this share to either side."""

    sampling: Literal["adaptive", "timm"] = "adaptive"
    """timm: ten calls to warm up, forty that count, and their mean, as timm's own benchmark does it."""

    compile: bool = False
    """Let torch compile the networks; what that takes is told apart from their times."""

    timeout: float = 120.0
    """Seconds after which a point is given up, and larger ones of the same network with it."""

    memory: str | None = None
    """What one point may use at most, such as 4GB; the default is what the device has."""

    margin: float = 0.1
    """How far an exponent may lie from what a hypothesis says, for it to hold."""

    seed: int = 0
    """Decides the order of measuring, and weights and inputs."""

    on: str = "local"
    """Where to measure: local; ray or ray://HOST:PORT, every machine of a Ray cluster with its own devices, all at once."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        for name in ("models", "precision", "device", "allow_code"):
            tidy(self, name, split_list(getattr(self, name)))
        for name in ("batch", "image", "sequence"):
            given = getattr(self, name)
            tidy(self, name, () if given in ((), []) else _in_order(name, given))
        if isinstance(self.run, str):
            tidy(self, "run", Path(self.run))
        if not self.models:
            raise RequestError("cannot time no models: expected at least one reference, such as --models tv:resnet18")
        check_choices("precision", self.precision, PRECISIONS, auto=True)
        if not self.device:
            raise RequestError("cannot use an empty --device: expected one or more of auto, cpu, cuda, cuda:N")
        for device in self.device:
            check_device(device)
        check_place(self.on)
        check_choices("weights", (self.weights,), ("random", "pretrained"))
        check_choices("sampling", (self.sampling,), ("adaptive", "timm"))
        check_at_least("seed", self.seed, 0)
        check_number("seconds", self.seconds, least=0.001, most=3600)
        tidy(self, "width", parse_share("width", self.width, least=0.0001))
        check_number("timeout", self.timeout, least=0.1, most=86400)
        check_number("margin", self.margin, least=0.001, most=1)
        if self.sampling == "timm" and (self.seconds != type(self).seconds or self.width != type(self).width):
            raise RequestError(
                "cannot use --seconds or --width with --sampling timm: expected its forty calls, leave them out"
            )
        self.memory_bytes()

    def sizes(self, axis: Literal["batch", "image", "sequence"]) -> tuple[int, ...]:
        """The sizes asked for along one axis, as numbers; empty where it was not named."""
        return tuple(int(value) for value in getattr(self, axis))

    def memory_bytes(self) -> int | None:
        """The memory asked for, in bytes."""
        return None if self.memory is None else parse_bytes("memory", self.memory)

    def model_settings(self) -> ModelSettings:
        """The same for the rooms that build models."""
        return ModelSettings(models=self.models, weights=self.weights, arch=self.arch, allow_code=self.allow_code)


_SUCH_AS = {"batch": "1,2,4", "image": "64,224", "sequence": "16,128"}


def _in_order(name: str, given: object) -> tuple[int, ...]:
    """The sizes along one axis, smallest first."""
    return tuple(sorted(whole_numbers(name, given, least=1, such_as=_SUCH_AS[name])))
