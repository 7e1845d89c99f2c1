"""Fine-tuned networks on disk: kept after every epoch, gone on from after a kill, and read back as models.

In:  a Trainable, the optimiser's memory, how far training has come
Out: one folder per kept epoch, whole or not there at all; the newest of them to go on from

    CHECKPOINTS/epoch-00003/
        model.safetensors   the network; of timm with the new classifier in place of the old, of others as it was built
        head.safetensors    the new head: weight and bias
        trained.json        model, classes, how far it had come
        state.pt            the optimiser's memory, to go on from; read as plain tensors only
        checksums.json      CRC-32 of the four above
        config.json …       where the network is timm's or transformers': the folder is a model then, `--models file:FOLDER`

Nothing here knows how weights change.
"""

import json
import shutil
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from modelhound.data import Preprocessing, Tokenising
from modelhound.data.tokenising import TOKENIZER_FILES
from modelhound.errors import ModelError, first_line
from modelhound.models import Network
from modelhound.records import EpochDone, SavedModel, to_plain
from modelhound.store import told_by_the_system, write_folder
from modelhound.training.learned import ItemSketch
from modelhound.training.trainable import Trainable

__all__ = ["Keeper", "Progressed", "is_whole", "name_checkpoint", "name_folder", "read_identity"]

_MODEL, _HEAD, _TRAINED, _STATE = "model.safetensors", "head.safetensors", "trained.json", "state.pt"
_CHECKSUMS = "checksums.json"
_READ_BYTES = 1 << 22
_MOST_NAME_BYTES = 200
_CONFIG = "config.json"
_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers


class Progressed(msgspec.Struct, frozen=True, kw_only=True):
    """How far training had come, and of what."""

    model: str
    identity: str
    """Of everything that decides the numbers; another recipe or other data cannot go on from here."""
    task: str
    class_names: tuple[str, ...]
    target_mean: float
    target_scale: float
    """Of a regression: the head tells (value - mean) / scale."""
    num_batches: int
    num_steps: int
    num_parts: int
    epochs: tuple[EpochDone, ...]
    losses: tuple[float, ...]
    stamp: str = ""
    """Of the weights it began with, where that is known."""
    learned: tuple[ItemSketch, ...] = ()
    """From which items, those of the checkpoint it began with included; see `learned`."""


def name_folder(model: str, others: Iterable[str] = ()) -> str:
    """What the folder of a model's checkpoints is called; `others` have folders beside it."""
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model).strip("-.")
    is_shared = any(name_folder(other) == kept for other in others if other != model)
    if is_shared or len(kept.encode()) > _MOST_NAME_BYTES:  # file systems end names at 255
        return f"{zlib.crc32(model.encode()):08x}-{kept[-_MOST_NAME_BYTES // 4 :]}"
    return kept


def name_checkpoint(folder: Path, model: str, arch: str | None) -> SavedModel:
    """How other commands read the checkpoint of `model`, which was built as `arch` where it came from a file."""
    if (folder / _CONFIG).is_file():
        return SavedModel(model=f"file:{folder}")
    return SavedModel(model=f"file:{folder / _MODEL}", arch=arch if model.startswith("file:") else model)


def is_whole(checkpoint: Path) -> bool:
    """Whether its files hold what was written into them. Those of versions that wrote no checksums are believed."""
    try:
        kept = msgspec.json.decode((checkpoint / _CHECKSUMS).read_bytes(), type=dict[str, int])
        return all(_checksum(checkpoint / name) == kept[name] for name in (_MODEL, _HEAD, _TRAINED, _STATE))
    except FileNotFoundError as error:
        return bool(error.filename == str(checkpoint / _CHECKSUMS))
    except (OSError, KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def read_identity(checkpoint: Path) -> str | None:
    """Of whatever decided its numbers; None where that cannot be read."""
    try:
        return msgspec.json.decode((checkpoint / _TRAINED).read_bytes(), type=Progressed).identity
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        return None


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            found = zlib.crc32(block, found)
    return found


class Keeper:
    """Keeps the newest epoch, and the best where that is asked for, below one folder."""

    def __init__(self, folder: Path, network: Network, *, keep_best: bool) -> None:
        self.folder = folder
        self._network = network
        self._keep_best = keep_best
        self.damaged: list[Path] = []
        """What `load` has passed over."""

    def save(self, trainable: Trainable, optimiser: torch.optim.Optimizer, progressed: Progressed) -> Path:
        """Write one epoch; those that are no longer needed go once it is there."""
        from safetensors.torch import save_file

        path = self.folder / f"epoch-{len(progressed.epochs):05}"
        if path.exists():  # a kill came between writing it and forgetting the one before
            shutil.rmtree(path)

        def fill(folder: Path) -> None:
            head = {name: each.detach().cpu().contiguous() for name, each in trainable.head.state_dict().items()}
            with told_by_the_system():
                save_file(self._tensors(trainable.body, head), folder / _MODEL, metadata={"format": "pt"})
                save_file(head, folder / _HEAD, metadata={"format": "pt"})
                with (folder / _STATE).open("wb") as file:
                    torch.save(optimiser.state_dict(), file)
            (folder / _TRAINED).write_bytes(msgspec.json.format(msgspec.json.encode(progressed), indent=1))
            checksums = {name: _checksum(folder / name) for name in (_MODEL, _HEAD, _TRAINED, _STATE)}
            (folder / _CHECKSUMS).write_bytes(msgspec.json.encode(checksums))
            _describe(self._network, trainable.head.out_features, folder)

        write_folder(path, fill)
        self._forget(progressed)
        return path

    def load(
        self, trainable: Trainable, optimiser: torch.optim.Optimizer, *, model: str, identity: str, stamp: str = ""
    ) -> Progressed | None:
        """Go on from the newest epoch that is whole; None where there is none, or one of weights that are others by now."""
        from safetensors.torch import load_file

        there = sorted(self.folder.glob("epoch-*"), reverse=True)
        path = next((each for each in there if is_whole(each)), None)
        self.damaged = [each for each in there if path is None or each.name > path.name]
        if path is None:
            return None
        try:
            progressed = msgspec.json.decode((path / _TRAINED).read_bytes(), type=Progressed)
            if progressed.model != model:
                raise ModelError(f"it is one of {progressed.model}")
            if progressed.stamp and stamp and progressed.stamp != stamp:
                return None
            if progressed.identity != identity:
                raise ModelError("it was trained by another recipe or on other data")
            self._restore(trainable.body, load_file(path / _MODEL))
            trainable.head.load_state_dict(load_file(path / _HEAD))
            optimiser.load_state_dict(torch.load(path / _STATE, map_location="cpu", weights_only=True))
        except Exception as error:  # damage shows in many ways
            reason = first_line(error)
            raise ModelError(
                f"cannot go on from checkpoint {str(path)!r}: expected one of {model} as it is to be trained, but {reason}; "
                "delete it or choose another --run"
            ) from error
        return progressed

    def newest(self) -> Path | None:
        return max(self.folder.glob("epoch-*"), default=None)

    def path_of(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:05}"

    def _tensors(self, body: nn.Module, head: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies, so that tied weights are written twice instead of refused."""
        tensors = {name: each.detach().cpu().contiguous().clone() for name, each in body.state_dict().items()}
        place = self._classifier_name(body) if _is_timm(body) else None
        if place is not None:
            tensors |= {f"{place}.{name}": each.clone() for name, each in head.items()}
        return tensors

    def _restore(self, body: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        place = self._classifier_name(body) if _is_timm(body) else None
        wanted = {name: each for name, each in tensors.items() if place is None or not name.startswith(f"{place}.")}
        missing, left_over = body.load_state_dict(wanted, strict=False)
        missing = [name for name in missing if place is None or not name.startswith(f"{place}.")]
        if missing or left_over:
            raise ModelError(f"its tensors are others, such as {(missing + left_over)[0]}")

    def _classifier_name(self, body: nn.Module) -> str | None:
        return next((name for name, module in body.named_modules() if module is self._network.classify), None)

    def _forget(self, progressed: Progressed) -> None:
        needed = {len(progressed.epochs)}
        if self._keep_best:
            needed.add(max(progressed.epochs, key=lambda each: each.score).epoch)
        for path in self.folder.glob("epoch-*"):
            if path not in {self.path_of(epoch) for epoch in needed}:
                shutil.rmtree(path, ignore_errors=True)


def _describe(network: Network, num_outputs: int, folder: Path) -> None:
    """Whatever makes a model of the folder, where there is such a form."""
    body, form = network.module, network.preprocessing
    if _is_timm(body):
        known: dict[str, Any] = dict(body.pretrained_cfg)  # type: ignore[arg-type]
        num_classes = num_outputs if isinstance(network.classify, nn.Linear) else getattr(body, "num_classes", 0)
        config: dict[str, Any] = {
            "architecture": known["architecture"],
            "num_classes": num_classes,
            "pretrained_cfg": {
                **{key: known[key] for key in ("classifier", "first_conv", "pool_size", "license") if known.get(key)},
                **_as_timm(form),
                "num_classes": num_classes,
            },
        }
        (folder / _CONFIG).write_text(json.dumps(config, indent=1))
    elif hasattr(getattr(body, "config", None), "save_pretrained"):
        body.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
        if isinstance(form, Tokenising):
            for name in TOKENIZER_FILES:
                if (Path(form.folder) / name).is_file():
                    shutil.copyfile(Path(form.folder) / name, folder / name)
        elif isinstance(form, Preprocessing):
            (folder / "preprocessor_config.json").write_text(json.dumps(_as_processor(form), indent=1))


def _is_timm(body: nn.Module) -> bool:
    known = getattr(body, "pretrained_cfg", None)
    return isinstance(known, dict) and bool(known.get("architecture"))


def _as_timm(form: object) -> dict[str, Any]:
    if not isinstance(form, Preprocessing):
        return {}
    plain: dict[str, Any] = to_plain(form)
    return {
        "input_size": [3, *form.input_size],
        "interpolation": form.interpolation,
        "crop_pct": form.crop_fraction,
        **{key: plain[key] for key in ("crop_mode", "mean", "std")},
    }


def _as_processor(form: Preprocessing) -> dict[str, Any]:
    """An image processor of transformers that does the same."""
    height, width = form.input_size
    shared = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(form.mean),
        "image_std": list(form.std),
        "resample": _RESAMPLE[form.interpolation],
        "rescale_factor": 1 / 255,
    }
    if form.crop_mode == "center":
        return {
            **shared,
            "image_processor_type": "CLIPImageProcessor",
            "do_center_crop": True,
            "crop_size": {"height": height, "width": width},
            "size": {"shortest_edge": round(min(height, width) / form.crop_fraction)},
        }
    return {**shared, "image_processor_type": "ViTImageProcessor", "size": {"height": height, "width": width}}
