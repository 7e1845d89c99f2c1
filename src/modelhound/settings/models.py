"""Which models, and how they are to be used."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import check_at_least, check_choices, split_list, tidy

__all__ = ["DEFAULT_MODELS", "PLAIN", "ModelSettings"]

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
        tidy(self, "models", split_list(self.models))
        tidy(self, "allow_code", split_list(self.allow_code))
        if not self.models:
            raise RequestError("cannot work without models: expected at least one reference, such as --models 'zoo:*'")
        check_choices("weights", (self.weights,), ("pretrained", "random"))
        check_choices("pooling", (self.pooling,), ("auto", "mean", "cls", "max"))
        check_choices("layers", (self.layers,), ("last", "mean", "best"))
        check_at_least("tokens", self.tokens, 4)

    def check_for_texts(self, data: str, modalities: Iterable[str]) -> None:
        """Refuse what is asked for texts where no item is one."""
        given = [name for name in ("pooling", "layers", "tokens") if getattr(self, name) != getattr(PLAIN, name)]
        if given and "text" not in modalities:
            asked = f"--{given[0]} {getattr(self, given[0])}"
            raise RequestError(f"cannot use {asked} with {data!r}: expected texts, but these are images; leave it out")


PLAIN = ModelSettings()
"""Nothing special asked of models."""
