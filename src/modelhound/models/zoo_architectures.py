"""The small architectures of the embedded zoo, built from timm's own classes.

In:  the name of an architecture and a number of classes
Out: a network with timm's interface: forward_features, then forward_head(features, pre_logits=True)
Nothing here knows of weights, files, training or which task a network was trained on. torch and timm are imported only
when a network is built, so the table itself can be read without them.

The published architectures shrink a 224-pixel image 32 times. At 32 to 48 pixels that would leave one position, so
every stem here is gentler and the last stage still sees 2x2 to 8x8 positions.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modelhound.compat import import_timm
from modelhound.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ZOO_ARCHITECTURES", "ZooArchitecture", "build_zoo_network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooArchitecture:
    """One architecture: what it is, what it wants to see and how large it is."""

    family: str
    input_size: int  # pixels a side; images are square
    num_features: int
    num_parameters: int  # of the trunk, which is everything but the classifier
    build: "Callable[[int], nn.Module]"  # from a number of classes, with random weights


def build_zoo_network(architecture: str, num_classes: int) -> "nn.Module":
    """A network of this architecture with random weights, in training mode, on the CPU."""
    if architecture not in ZOO_ARCHITECTURES:
        known = ", ".join(sorted(ZOO_ARCHITECTURES))
        raise ModelError(f"cannot build zoo architecture {architecture!r}: expected one of {known}")
    return ZOO_ARCHITECTURES[architecture].build(num_classes)


def _resnet(num_classes: int, *, layers: tuple[int, ...], channels: tuple[int, ...], stem_width: int) -> "nn.Module":
    """Basic blocks; the stem neither strides nor pools, so 32 pixels become 32, 16, 8, 4."""
    from torch import nn

    resnet = _timm_models("resnet")
    network: nn.Module = resnet.ResNet(
        resnet.BasicBlock,
        layers,
        num_classes=num_classes,
        channels=channels,
        stem_type="deep",  # the plain stem always has 64 channels, as many as a whole stage here
        stem_width=stem_width,
        zero_init_last=False,  # starting blocks as identities pays off in long training only
    )
    first = network.get_submodule("conv1.0")
    assert isinstance(first, nn.Conv2d)
    first.stride = (1, 1)
    network.set_submodule("maxpool", nn.Identity())
    return network


def _mobilenet(
    num_classes: int, *, stages: tuple[str, ...], stem_size: int, num_features: int, activation: str
) -> "nn.Module":
    """Inverted residuals; 48 pixels become 24 after the stem and 6 at the end."""
    efficientnet = _timm_models("efficientnet")
    network: nn.Module = efficientnet.EfficientNet(
        efficientnet.decode_arch_def([[stage] for stage in stages]),
        num_classes=num_classes,
        num_features=num_features,
        stem_size=stem_size,
        act_layer=activation,
    )
    return network


def _vit(
    num_classes: int, *, img_size: int, patch_size: int, embed_dim: int, depth: int, num_heads: int
) -> "nn.Module":
    """A plain vision transformer with 64 patches, read out at its class token."""
    network: nn.Module = _timm_models("vision_transformer").VisionTransformer(
        img_size=img_size,
        patch_size=patch_size,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
    )
    return network


def _convnext(num_classes: int, *, depths: tuple[int, ...], dims: tuple[int, ...]) -> "nn.Module":
    """Patches of 3, so 48 pixels become 16, 8, 4, 2; kernels shrink with the map they run on."""
    network: nn.Module = _timm_models("convnext").ConvNeXt(
        num_classes=num_classes,
        depths=depths,
        dims=dims,
        patch_size=3,
        kernel_sizes=(7, 5, 3, 3),
        ls_init_value=None,  # layer scale starts blocks near zero, which short training does not recover from
    )
    return network


def _mixer(
    num_classes: int, *, img_size: int, patch_size: int, embed_dim: int, num_blocks: int, residual_mlp: bool = False
) -> "nn.Module":
    """MLP-Mixer, or ResMLP: one linear map between positions, affine scaling instead of normalisation."""
    mixer = _timm_models("mlp_mixer")
    blocks = {"block_layer": mixer.MixerBlock, "mlp_ratio": (1.0, 3.0)}
    if residual_mlp:  # its own initial scale of 1e-4 is meant for hundreds of epochs
        blocks = {"block_layer": partial(mixer.ResBlock, init_values=0.1), "mlp_ratio": 4.0, "norm_layer": mixer.Affine}
    network: nn.Module = mixer.MlpMixer(
        num_classes=num_classes,
        img_size=img_size,
        patch_size=patch_size,
        embed_dim=embed_dim,
        num_blocks=num_blocks,
        **blocks,
    )
    return network


def _timm_models(name: str) -> Any:
    """One module of timm.models. Any, because what timm says of its types differs between versions."""
    import_timm()
    return importlib.import_module(f"timm.models.{name}")


_TABLE = {
    "resnet_small": ZooArchitecture(
        family="resnet",
        input_size=32,
        num_features=44,
        num_parameters=51_328,
        build=partial(_resnet, layers=(1, 1, 1, 1), channels=(12, 16, 28, 44), stem_width=8),
    ),
    "resnet_medium": ZooArchitecture(
        family="resnet",
        input_size=32,
        num_features=40,
        num_parameters=103_184,
        build=partial(_resnet, layers=(2, 2, 2, 2), channels=(12, 20, 28, 40), stem_width=8),
    ),
    "resnet_large": ZooArchitecture(
        family="resnet",
        input_size=40,
        num_features=88,
        num_parameters=267_096,
        build=partial(_resnet, layers=(2, 2, 2, 1), channels=(16, 32, 56, 88), stem_width=8),
    ),
    "mobilenet_small": ZooArchitecture(
        family="mobilenet",
        input_size=48,
        num_features=96,
        num_parameters=31_168,
        build=partial(
            _mobilenet,
            stages=("ds_r1_k3_s1_e1_c16", "ir_r2_k3_s2_e3_c24", "ir_r3_k3_s2_e3_c32"),
            stem_size=16,
            num_features=96,
            activation="relu6",
        ),
    ),
    "mobilenet_medium": ZooArchitecture(
        family="mobilenet",
        input_size=48,
        num_features=160,
        num_parameters=83_848,
        build=partial(
            _mobilenet,
            stages=("ds_r1_k3_s1_e1_c16", "ir_r2_k5_s2_e4_c24_se0.25", "ir_r3_k3_s2_e4_c48_se0.25"),
            stem_size=16,
            num_features=160,
            activation="silu",
        ),
    ),
    "vit_small": ZooArchitecture(
        family="vit",
        input_size=32,
        num_features=40,
        num_parameters=63_840,
        build=partial(_vit, img_size=32, patch_size=4, embed_dim=40, depth=3, num_heads=5),
    ),
    "vit_medium": ZooArchitecture(
        family="vit",
        input_size=40,
        num_features=40,
        num_parameters=124_080,
        build=partial(_vit, img_size=40, patch_size=5, embed_dim=40, depth=6, num_heads=5),
    ),
    "convnext_small": ZooArchitecture(
        family="convnext",
        input_size=48,
        num_features=64,
        num_parameters=72_208,
        build=partial(_convnext, depths=(1, 1, 1, 1), dims=(16, 24, 40, 64)),
    ),
    "convnext_medium": ZooArchitecture(
        family="convnext",
        input_size=48,
        num_features=80,
        num_parameters=145_000,
        build=partial(_convnext, depths=(1, 1, 2, 1), dims=(16, 32, 56, 80)),
    ),
    "mixer_small": ZooArchitecture(
        family="mixer",
        input_size=32,
        num_features=44,
        num_parameters=55_368,
        build=partial(_mixer, img_size=32, patch_size=4, embed_dim=44, num_blocks=3),
    ),
    "mixer_medium": ZooArchitecture(
        family="mixer",
        input_size=32,
        num_features=56,
        num_parameters=109_064,
        build=partial(_mixer, img_size=32, patch_size=4, embed_dim=56, num_blocks=4),
    ),
    "resmlp_small": ZooArchitecture(
        family="resmlp",
        input_size=40,
        num_features=48,
        num_parameters=73_104,
        build=partial(_mixer, img_size=40, patch_size=5, embed_dim=48, num_blocks=3, residual_mlp=True),
    ),
}

ZOO_ARCHITECTURES: Mapping[str, ZooArchitecture] = MappingProxyType(_TABLE)
"""Every architecture by name; a test holds the stated sizes true."""
