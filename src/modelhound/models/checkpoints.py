"""Files of weights: which of a model's files to read, and their tensors.

In:  the names of a model's files, or the path of one that holds weights
Out: tensors by name
Nothing here knows a network, and nothing here runs what a file holds: safetensors are plain numbers, and PyTorch's own
format is read with weights_only, which takes tensors and plain values and refuses everything else.
"""

import json
import math
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound.errors import ModelError, first_line
from modelhound.models.source import Weights

if TYPE_CHECKING:
    from modelhound.models.tensor_files import FileTensors

__all__ = [
    "WEIGHT_SUFFIXES",
    "choose_weights",
    "count_tensors",
    "read_tensors",
    "shard_names",
]

_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
WEIGHT_SUFFIXES = (".safetensors", *_PICKLED)

_INDEX = ".index.json"
_USUAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""In the order of preference; whatever is pickled comes last."""

_OTHER_FRAMEWORKS = (
    ".h5",
    ".onnx",
    ".msgpack",
    ".gguf",
    ".tflite",
    ".ckpt.index",
    ".npz",
    ".pkl",
    ".joblib",
    ".mlmodel",
)
_NOT_THE_MODEL = ("adapter_model", "training_args", "optimizer", "scheduler", "rng_state", "scaler")
_WRAPPERS = ("state_dict", "model_state_dict", "state_dict_ema", "model", "model_ema", "module")
"""Under which names training scripts keep the tensors of a network."""


def choose_weights(model: str, names: Collection[str]) -> str:
    """The file, or the index of several, to read the weights of a model from."""
    for name in _USUAL:
        if name in names:
            return name
    for suffix in WEIGHT_SUFFIXES:
        others = [
            name for name in names if name.endswith(suffix) and "/" not in name and not name.startswith(_NOT_THE_MODEL)
        ]
        if len(others) == 1:
            return others[0]
    weights = sorted(name for name in names if name.endswith((*WEIGHT_SUFFIXES, *_OTHER_FRAMEWORKS)))
    found = ", ".join(weights[:5]) + (f" and {len(weights) - 5} more" if len(weights) > 5 else "")
    raise ModelError(
        f"cannot read weights of {model}: expected model.safetensors or pytorch_model.bin, found "
        f"{found or 'no file of weights'}; convert them with save_pretrained of transformers, or choose another model"
    )


def shard_names(model: str, index: Path) -> tuple[str, ...]:
    """The files over which an index says the weights are spread."""
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"cannot read weights of {model}: expected a weight_map in {index.name!r}, but {type(error).__name__}: {error}; "
            "fetch it again"
        ) from error
    suffix = Path(index.name.removesuffix(_INDEX)).suffix
    strange = [name for name in shards if not isinstance(name, str) or "/" in name or not name.endswith(suffix)]
    if strange or not shards:
        raise ModelError(
            f"cannot read weights of {model}: expected {index.name!r} to name {suffix} files beside it, "
            f"found {strange[:3]}; fetch it again"
        )
    return tuple(shards)


def read_tensors(model: str, path: Path) -> Weights:
    """The tensors of one file, or of all files that an index names."""
    if path.name.endswith(_INDEX):
        shards = [path.parent / name for name in shard_names(model, path)]
        if shards[0].suffix == ".safetensors":
            return _read_safetensors(model, shards)
        return {name: tensor for shard in shards for name, tensor in _read_pickled(model, shard).items()}
    if path.suffix == ".safetensors":
        return _read_safetensors(model, [path])
    if path.suffix in _PICKLED:
        return _read_pickled(model, path)
    raise ModelError(
        f"cannot read weights of {model} from {path.name!r}: expected a file that ends with {', '.join(WEIGHT_SUFFIXES)}; "
        "convert it to safetensors"
    )


def count_tensors(model: str, path: Path) -> int:
    """How many numbers the tensors of a file hold; of safetensors, only the header is read."""
    if path.suffix != ".safetensors":
        return sum(int(tensor.numel()) for tensor in read_tensors(model, path).values())
    places = _read_safetensors(model, [path])
    return sum(math.prod(places.place(name).shape) for name in places)


def _read_safetensors(model: str, paths: Sequence[Path]) -> "FileTensors":
    from safetensors import SafetensorError, safe_open

    from modelhound.models.tensor_files import open_tensors

    path = paths[0]
    try:
        for path in paths:
            with safe_open(path, framework="numpy"):  # which checks that the header and the file agree
                pass
        return open_tensors(paths)
    except (OSError, SafetensorError, ValueError) as error:
        raise _damaged(model, path, error) from error


def _read_pickled(model: str, path: Path) -> Weights:
    import pickle

    import torch

    try:
        # files of before 2020 are not archives and cannot be mapped into memory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other kinds of pickles: what cannot be read is said below
            held = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise ModelError(
            f"cannot read weights of {model} from {path.name!r}: expected tensors alone, it also holds "
            f"{named[1] if named else 'other objects'}, and to read those is to run code; ask for safetensors, or load it "
            "where you trust it and save its state_dict() again"
        ) from error
    except Exception as error:  # damage is reported by errors of many kinds
        raise _damaged(model, path, error) from error
    tensors = _unwrap(held)
    if not tensors:
        raise ModelError(
            f"cannot read weights of {model} from {path.name!r}: expected a state_dict, tensors by name, found "
            f"{type(held).__name__}; save model.state_dict()"
        )
    return tensors


def _unwrap(held: Any) -> dict[str, Any]:
    """The tensors by name, wherever a training script put them; none if there are none."""
    import torch

    if not isinstance(held, Mapping):
        return {}
    for name in _WRAPPERS:
        if isinstance(held.get(name), Mapping):
            return _unwrap(held[name])
    tensors = {str(name): value for name, value in held.items() if isinstance(value, torch.Tensor)}
    if tensors and all(name.startswith("module.") for name in tensors):  # what DistributedDataParallel adds
        return {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def _damaged(model: str, path: Path, error: Exception) -> ModelError:
    reason = first_line(error)
    return ModelError(
        f"cannot read weights of {model} from {path.name!r}: {reason}; the file is damaged or cannot be opened, fetch it again"
    )
