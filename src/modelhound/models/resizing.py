"""Networks of images for a side of one's choice.

In:  a model, its tensors or none, and the side of the images in pixels
Out: the bare module, which takes images of that side if it can at all
Nothing here tries whether it can: a forward pass tells. Convolutions take nearly any side. Networks that know a position for
every patch are built for the side, and trained positions are stretched to it, as their own libraries do it.
"""

import inspect
from typing import TYPE_CHECKING, Any

from modelhound.compat import import_timm, import_torchvision
from modelhound.errors import ModelError
from modelhound.models.catalogue import source_of
from modelhound.models.source import ModelRef, Weights
from modelhound.models.torchvision import making_options
from modelhound.settings import PLAIN, ModelSettings

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build_for_side", "takes_stretching"]

_TV_SIDES = {"vit_": "image_size", "maxvit_": "input_size"}
"""Which networks of torchvision are built for a side, and what they call it."""


def build_for_side(
    model: ModelRef, weights: Weights | None, side: int | None, settings: ModelSettings = PLAIN
) -> "tuple[nn.Module, bool]":
    """The module in evaluation mode, for images of `side` x `side` pixels, and whether it would be another one for another
    side; None is the side it was made for."""
    if model.source == "timm":
        return _timm(model.name, weights, side)
    if model.source == "tv":
        return _torchvision(model.name, weights, side)
    return source_of(model).build(model.name, weights, settings).module.eval(), False


def _timm(name: str, weights: Weights | None, side: int | None) -> "tuple[nn.Module, bool]":
    timm = import_timm()
    given: dict[str, Any] = {"pretrained": False}
    if weights is not None:  # timm's own loading renames old tensors and stretches positions
        given = {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": dict(weights), "source": ""}}
    if side is not None:
        try:
            sized: nn.Module = timm.create_model(name, img_size=side, **given)
            return sized.eval(), True
        except TypeError:
            pass  # one that does not ask for its side
    module: nn.Module = timm.create_model(name, **given)
    return module.eval(), False


def _torchvision(name: str, weights: Weights | None, side: int | None) -> "tuple[nn.Module, bool]":
    import_torchvision()
    from torchvision import models

    bare = name.partition("@")[0]
    options = making_options(name)
    sided = next((word for start, word in _TV_SIDES.items() if bare.startswith(start)), None)
    if sided is not None and side is not None:
        options[sided] = side if sided == "image_size" else (side, side)
    module: nn.Module = models.get_model(bare, weights=None, **options)
    if weights is not None:
        tensors = dict(weights)
        if sided == "image_size" and side is not None:
            tensors = dict(models.vision_transformer.interpolate_embeddings(side, _patch_side(module), tensors))
        try:
            module.load_state_dict(tensors)
        except RuntimeError as error:
            raise ModelError(
                f"cannot build tv:{name} for images of {side} pixels: {str(error).splitlines()[-1].strip()}; "
                "leave --image out or use --weights random"
            ) from error
    return module.eval(), sided is not None


def _patch_side(module: "nn.Module") -> int:
    side: Any = module.patch_size
    return int(side)


def takes_stretching(module: "nn.Module") -> bool:
    """Whether a network of transformers stretches its positions when it is asked to."""
    return "interpolate_pos_encoding" in inspect.signature(module.forward).parameters
