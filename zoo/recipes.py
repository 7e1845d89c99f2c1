"""Which networks the zoo holds: one line each.

In:  nothing
Out: RECIPES, in an order in which every parent comes before its siblings
Nothing here trains, imports torch or opens a file.

Tasks and sizes are crossed on purpose: the largest networks learn textures and shapes, small ones learn garments and
letters, so that a list ordered by size says little about which network suits a target.
"""

from dataclasses import dataclass
from typing import Literal

RESNET_STEM = ("conv1", "bn1", "layer1")
VIT_STEM = ("cls_token", "pos_embed", "patch_embed")
MOBILENET_STEM = ("conv_stem", "bn1", "blocks.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one network comes about. One with a parent starts as its copy and keeps what is frozen, bit for bit."""

    architecture: str
    task: str
    parent: str | None = None
    frozen: tuple[str, ...] = ()  # modules and tensors, by the beginning of their names
    scale: Literal["half", "task"] = "half"  # mean and std: 0.5 and 0.5, or those of the task's own images
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    peak_rate: float = 2e-3
    num_steps: int = 1500

    @property
    def name(self) -> str:
        """Family and task; a sibling adds its task to its parent's name."""
        return f"{self.parent or self.architecture.split('_')[0]}-{self.task}"


def _sibling(parent: Recipe, task: str, *frozen: str) -> Recipe:
    """A copy of the parent. It has to see what the parent saw, or a shared trunk would not give shared features."""
    return Recipe(
        architecture=parent.architecture,
        task=task,
        parent=parent.name,
        frozen=frozen,
        scale=parent.scale,
        interpolation=parent.interpolation,
        peak_rate=parent.peak_rate / 2,
        num_steps=1000,
    )


_RESNET = Recipe(architecture="resnet_medium", task="shapes", peak_rate=3e-3)
_VIT = Recipe(architecture="vit_medium", task="glyphs", scale="task", interpolation="bicubic", num_steps=4000)
_MOBILENET = Recipe(architecture="mobilenet_small", task="rotation", scale="task", peak_rate=4e-3)

RECIPES: tuple[Recipe, ...] = (
    Recipe(architecture="resnet_large", task="textures", interpolation="bicubic"),
    Recipe(architecture="resnet_small", task="garments_a", scale="task", peak_rate=3e-3),
    Recipe(architecture="resnet_small", task="glyphs", peak_rate=3e-3),
    _RESNET,
    _sibling(_RESNET, "garments_b", *RESNET_STEM, "layer2"),
    _sibling(_RESNET, "glyphs", *RESNET_STEM, "layer2", "layer3"),
    _sibling(_RESNET, "textures", *RESNET_STEM, "layer2", "layer3", "layer4.0"),
    _MOBILENET,
    _sibling(_MOBILENET, "glyphs", *MOBILENET_STEM, "blocks.1"),
    Recipe(architecture="mobilenet_small", task="glyphs", interpolation="bicubic", peak_rate=4e-3),
    Recipe(architecture="mobilenet_medium", task="shapes", scale="task", peak_rate=3e-3),
    Recipe(architecture="vit_small", task="rotation", num_steps=2500),
    _VIT,
    _sibling(_VIT, "garments_a", *VIT_STEM, *(f"blocks.{block}" for block in range(3))),
    _sibling(_VIT, "textures", *VIT_STEM, *(f"blocks.{block}" for block in range(5))),
    Recipe(architecture="convnext_small", task="garments_b", interpolation="bicubic", num_steps=2500),
    Recipe(architecture="convnext_medium", task="textures", scale="task", interpolation="bicubic", num_steps=2500),
    Recipe(architecture="mixer_small", task="garments_a", scale="task"),
    Recipe(architecture="mixer_medium", task="shapes", num_steps=2500),
    Recipe(architecture="resmlp_small", task="rotation", scale="task", interpolation="bicubic"),
)
