"""Text encoders whose published shape is known here, so that they can be built with random weights while no hub is at hand.

In:  the name of such a model on the hub, such as google-bert/bert-base-uncased
Out: its card, or the network that transformers builds from the published configuration, with random weights
Nothing here reaches a network or knows a tokenizer: for speed and memory the shape is all that matters.
"""

from typing import TYPE_CHECKING, Any

from modelhound.compat import import_transformers
from modelhound.errors import UnknownModelError
from modelhound.models.source import ModelCard, ModelRef

if TYPE_CHECKING:
    from torch import nn

__all__ = ["PUBLISHED", "describe_published", "draw_published", "is_published"]

# What the configurations say beyond the defaults that transformers has for each kind.
PUBLISHED: dict[str, dict[str, Any]] = {
    "google-bert/bert-base-uncased": {"model_type": "bert"},
    "albert/albert-base-v2": {
        "model_type": "albert",
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "distilbert/distilbert-base-uncased": {"model_type": "distilbert"},
    "FacebookAI/roberta-base": {
        "model_type": "roberta",
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "allenai/longformer-base-4096": {
        "model_type": "longformer",
        "vocab_size": 50265,
        "max_position_embeddings": 4098,
        "type_vocab_size": 1,
        "attention_window": [512] * 12,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
}
"""Name on the hub -> what its config.json says that decides the shape."""

# Parameters and tokens at a time: facts of these five, so that describing them needs no torch.
_FACTS = {
    "google-bert/bert-base-uncased": (109_482_240, 512),
    "albert/albert-base-v2": (11_683_584, 512),
    "distilbert/distilbert-base-uncased": (66_362_880, 512),
    "FacebookAI/roberta-base": (124_645_632, 512),
    "allenai/longformer-base-4096": (148_659_456, 4096),
}


def is_published(model: ModelRef) -> bool:
    """Whether this model can be built without the hub."""
    return model.source == "hf" and model.name in PUBLISHED


def describe_published(name: str) -> ModelCard:
    """The card of one of them."""
    num_parameters, max_tokens = _FACTS[_known(name)]
    return ModelCard(
        model=f"hf:{name}",
        family=str(PUBLISHED[name]["model_type"]),
        num_parameters=num_parameters,
        max_tokens=max_tokens,
        trained_on="nothing",
    )


def draw_published(name: str) -> "nn.Module":
    """The network with random weights, on whatever device is torch's default, in evaluation mode."""
    import torch

    transformers = import_transformers()
    config = transformers.AutoConfig.for_model(**PUBLISHED[_known(name)])
    module: nn.Module = transformers.AutoModel.from_config(config, dtype=torch.float32)
    return module.eval()


def _known(name: str) -> str:
    if name not in PUBLISHED:
        raise UnknownModelError(
            f"cannot build hf:{name} without the hub: expected one of {', '.join(PUBLISHED)}, or a hub that answers"
        )
    return name
