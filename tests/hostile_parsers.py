"""Everything that reads what a stranger wrote, behind one door: bytes in, and nothing but a refusal may come out.

Each Parser takes bytes, puts them where modelhound would meet them and has them read. What may come of it: it is read, or one
of our own errors says in a sentence why not. Anything else is a bug, whoever throws the bytes: hypothesis in
`test_hostile_bytes`, atheris in `hostile/fuzz.py`.
"""

import dataclasses
import io
import json
import pickle
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modelhound.data.images import check_image, decode_image
from modelhound.data.jpeg_heads import read_head
from modelhound.data.source import UnreadableItemError
from modelhound.errors import HoundError, RequestError
from modelhound.records import ModelMeasured

__all__ = ["PARSERS", "Parser", "feed"]

_MARK = b"\x00|\x00"
"""Between several files in one input."""

_TEXTS = ("good film", "bad film", "a very good one", "a very bad one", "fine", "poor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """One door, and what usually comes through it."""

    read: Callable[[bytes, Path], None]
    """Takes the bytes, and an empty folder to put files into."""

    seeds: Sequence[bytes]
    dear: bool = False
    """Whether one input takes a second and not a millisecond."""


def feed(name: str, data: bytes, folder: Path) -> str:
    """Have the bytes read: "" where they were, else the sentence they were refused with."""
    try:
        PARSERS[name].read(data, folder)
    except (HoundError, UnreadableItemError) as refusal:
        sentence = str(refusal)
        assert sentence.strip(), "it was refused without a word"
        assert "Traceback" not in sentence
        return sentence
    return ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _read_reference(data: bytes, folder: Path) -> None:
    from modelhound.models import find_models

    text = _text(data)
    if not text.startswith("hf:"):  # that is a question to the hub, and is answered there
        find_models([text])


def _read_condition(data: bytes, folder: Path) -> None:
    from modelhound.models.source import ModelCard
    from modelhound.models.where import parse_where

    holds = parse_where(_text(data))
    assert holds(ModelCard(model="zoo:a", family="b", num_parameters=7, input_size=(2, 3))) in (True, False)


def _read_settings(data: bytes, folder: Path) -> None:
    """Whatever values JSON can hold, for whatever fields."""
    import modelhound

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        return
    for kind, fields in given.items():
        maker = getattr(modelhound, kind, None) if kind.endswith("Settings") else None
        if dataclasses.is_dataclass(maker):
            known = {
                name: _as_asked(value)
                for name, value in fields.items()
                if name in maker.__dataclass_fields__ and _is_kind(value, maker.__dataclass_fields__[name].default)
            }
            for name in ("data", "out"):
                if getattr(maker.__dataclass_fields__.get(name), "default", None) is dataclasses.MISSING:
                    known.setdefault(name, "digits")
            maker(**known)


def _is_kind(value: Any, default: Any) -> bool:
    """Whether a command line could give this: there, texts, numbers and yes or no are told apart before we see them."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, tuple):
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if default is None or default is dataclasses.MISSING:
        return isinstance(value, str | int)
    return isinstance(value, type(default))


def _as_asked(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _write_run(data: bytes, folder: Path) -> Path:
    """A run folder made of these bytes: three files, parted by a mark."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    for name, content in zip(("asked.json", "records.jsonl", "answer.json"), data.split(_MARK), strict=False):
        (run / name).write_bytes(content)
    return run


def _read_run(data: bytes, folder: Path) -> None:
    from modelhound.store import list_runs, open_run, read_run

    run = _write_run(data, folder)
    (run / "lock").touch()
    assert len(list_runs(folder)) == 1
    read_run(run)
    with open_run(run, verb="search", at="", settings={}, identity={}) as opened:
        opened.read(ModelMeasured)


def _show_run(data: bytes, folder: Path) -> None:
    from modelhound.report.page import render_page
    from modelhound.report.pages import build_page
    from modelhound.store import read_run

    render_page(build_page([read_run(_write_run(data, folder))]), sources="run")


def _read_table(suffix: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        _open(folder / f"table{suffix}", data)

    return read


def _open(path: Path, data: bytes) -> None:
    from modelhound.data import open_dataset

    path.write_bytes(data)
    dataset = open_dataset(str(path))
    for position in range(min(3, len(dataset))):
        dataset.read(position)


def _read_weights(suffix: str) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        from modelhound.models.checkpoints import count_tensors, read_tensors
        from modelhound.models.tensor_hashes import TensorHasher

        path = folder / f"model{suffix}"
        path.write_bytes(data)
        if suffix == ".safetensors":
            TensorHasher().hash_files([path])
        count_tensors("file:model", path)
        read_tensors("file:model", path)

    return read


def _read_weight_index(data: bytes, folder: Path) -> None:
    from modelhound.models.checkpoints import read_tensors

    path = folder / "model.safetensors.index.json"
    path.write_bytes(data)
    (folder / "model-00001.safetensors").write_bytes(_safetensors())
    read_tensors("file:model", path)


def _read_image(data: bytes, folder: Path) -> None:
    read_head(data)
    try:
        check_image(data)
    finally:
        image = decode_image(data)
        assert image.mode == "RGB"


def _read_image_quickly(data: bytes, folder: Path) -> None:
    """The way the engine takes, where another decoder may be faster than Pillow."""
    from modelhound.data.decode.decoders import find_decoders

    for decoder in find_decoders():
        (found,) = decoder.decode([data])
        assert isinstance(found, Image.Image | UnreadableItemError)


def _read_cifar(data: bytes, folder: Path) -> None:
    from modelhound.data.sources.cifar_pickle import load_plain_pickle

    path = folder / "data_batch_1"
    path.write_bytes(data)
    load_plain_pickle(path)


def _read_manifest(data: bytes, folder: Path) -> None:
    from modelhound.data import open_dataset

    parts = data.split(_MARK)
    (folder / "4x4-bicubic-1.0-center").mkdir()
    for name, content in zip(
        ("prepared.json", "targets.npy", "4x4-bicubic-1.0-center/checksums.npy"), parts, strict=False
    ):
        (folder / name).write_bytes(content)
    (folder / "4x4-bicubic-1.0-center" / "shard-00000.bin").write_bytes(bytes(4 * 48))
    open_dataset(str(folder))


def _read_config(data: bytes, folder: Path) -> None:
    """The configuration that comes with a model."""
    from modelhound.models.layout import Layout

    (folder / "config.json").write_bytes(data)
    layout = Layout(model="file:stranger", folder=folder)
    layout.mould()
    layout.describe()


def _read_loader_settings(data: bytes, folder: Path) -> None:
    from modelhound.data.recommended import read_loader

    path = folder / "loader.json"
    path.write_bytes(data)
    read_loader(path)


def _read_command(data: bytes, folder: Path) -> None:
    """What a person, or a script that was given names by a stranger, may type; nothing that would run."""
    from modelhound.cli import app

    words = [word for word in _text(data).split("\n") if word]
    try:
        import cyclopts

        app.parse_args(words, exit_on_error=False, print_error=False)
    except (cyclopts.CycloptsError, UnicodeError) as error:
        raise RequestError(str(error) or "refused") from None


def _picture(kind: str, mode: str = "RGB") -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (24, 20, 3)).astype(np.uint8)
    kept = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(kept, kind)
    return kept.getvalue()


def _shard() -> bytes:
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as archive:
        for number in range(4):
            for suffix, content in (("jpg", _picture("JPEG")), ("cls", str(number % 2).encode())):
                entry = tarfile.TarInfo(f"{number:03}.{suffix}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return kept.getvalue()


def _parquet() -> bytes:
    import pyarrow
    import pyarrow.parquet

    kept = io.BytesIO()
    table = pyarrow.table({"text": list(_TEXTS), "label": [0, 1] * 3})
    pyarrow.parquet.write_table(table, kept)
    return kept.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


def _pickled_tensors() -> bytes:
    import torch

    kept = io.BytesIO()
    torch.save({"state_dict": {"a.weight": torch.ones(2, 2)}}, kept)
    return kept.getvalue()


def _run_files() -> bytes:
    from report_runs import write_search

    with tempfile.TemporaryDirectory() as folder:
        run = write_search(Path(folder) / "run", ["zoo:a", "zoo:b"], num_items=8, views=True)
        return _MARK.join((run / name).read_bytes() for name in ("asked.json", "records.jsonl", "answer.json"))


def _prepared_files() -> bytes:
    manifest = {
        "format": "modelhound prepared items, 1",
        "data": "photos",
        "glance": "a",
        "source_fingerprint": "b",
        "task": "classification",
        "class_names": ["a", "b"],
        "variants": [
            {
                "variant": {
                    "input_size": [4, 4],
                    "interpolation": "bicubic",
                    "crop_fraction": 1.0,
                    "crop_mode": "center",
                    "fill": None,
                },
                "items_per_shard": 4,
            }
        ],
        "skipped": [],
        "item_names": ["1", "2", "3", "4"],
    }
    arrays = []
    for values in (np.array([0, 1, 0, 1]), np.full(4, zlib.crc32(bytes(48)), np.uint32)):
        kept = io.BytesIO()
        np.save(kept, values)
        arrays.append(kept.getvalue())
    return _MARK.join([json.dumps(manifest).encode(), *arrays])


_CSV = "text,label\n" + "".join(f"{text},{number % 2}\n" for number, text in enumerate(_TEXTS))
_JSONL = "".join(json.dumps({"text": text, "label": number % 2}) + "\n" for number, text in enumerate(_TEXTS))
_BERT = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9}

PARSERS: dict[str, Parser] = {
    "model reference": Parser(
        read=_read_reference,
        seeds=[
            b"zoo:resnet-*",
            b"timm:resnet18",
            b"file:a/b.safetensors",
            b"py:os:system",
            b"tv:resnet[1-9]",
            b"zoo:[",
        ],
    ),
    "where condition": Parser(
        read=_read_condition,
        seeds=[b"params < 30e6 and family == 'resnet'", b"not (1 < params <= 9) or name in ('a', 'b')", b"name < 3"],
    ),
    "settings": Parser(
        read=_read_settings,
        seeds=[
            json.dumps({"SearchSettings": {"models": ["zoo:*"], "limit": 9, "memory": "4GB", "risk": 0.1}}).encode(),
            json.dumps({"LatencySettings": {"batch": "1,2", "models": "zoo:*"}}).encode(),
            json.dumps({"TrainSettings": {"epochs": 3, "run": "runs/x", "model": ["zoo:a"]}}).encode(),
            json.dumps({"LoaderSearchSettings": {"batch": [1], "workers": "0,1"}}).encode(),
            json.dumps({"ProfileSettings": {"models": None}, "BreakevenSettings": {"sizes": [1, -1]}}).encode(),
            json.dumps({"PrepareSettings": {"out": "a", "size": -3}}).encode(),
        ],
    ),
    "command line": Parser(
        read=_read_command,
        seeds=[b"search\ndigits\n--models\nzoo:*\n--limit\n10", b"runs\n--json", b"train\n--epochs\n3\n--ranks\n2"],
    ),
    "run folder": Parser(read=_read_run, seeds=[_run_files()]),
    "page of a run": Parser(read=_show_run, seeds=[_run_files()], dear=True),
    "CSV": Parser(read=_read_table(".csv"), seeds=[_CSV.encode(), _CSV.replace(",", ";").encode("utf-16")]),
    "JSONL": Parser(
        read=_read_table(".jsonl"), seeds=[_JSONL.encode(), f"[{_JSONL.strip()}]".replace("\n", ",").encode()]
    ),
    "Parquet": Parser(read=_read_table(".parquet"), seeds=[_parquet()]),
    "tar shard": Parser(read=_read_table(".tar"), seeds=[_shard()]),
    "CIFAR pickle": Parser(
        read=_read_cifar,
        seeds=[
            pickle.dumps({b"data": np.zeros((2, 12), np.uint8), b"labels": [0, 1]}, protocol) for protocol in (2, 4, 5)
        ],
    ),
    "prepared folder": Parser(read=_read_manifest, seeds=[_prepared_files()]),
    "safetensors": Parser(read=_read_weights(".safetensors"), seeds=[_safetensors()]),
    "pickled tensors": Parser(read=_read_weights(".pt"), seeds=[_pickled_tensors()]),
    "weight index": Parser(
        read=_read_weight_index, seeds=[json.dumps({"weight_map": {"a": "model-00001.safetensors"}}).encode()]
    ),
    "model configuration": Parser(
        read=_read_config,
        seeds=[json.dumps(_BERT).encode(), json.dumps({"architecture": "resnet10t", "num_classes": 4}).encode()],
    ),
    "loader settings": Parser(
        read=_read_loader_settings,
        seeds=[
            json.dumps(
                {"format": "modelhound loader settings, 1", "settings": [{"batch": 32, "workers": 2, "kind": "raw"}]}
            ).encode()
        ],
    ),
    "image": Parser(
        read=_read_image,
        seeds=[
            *(_picture(kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "PPM")),
            *(_picture(kind, "P") for kind in ("GIF", "PNG")),
        ],
    ),
    "image, quick decoder": Parser(read=_read_image_quickly, seeds=[_picture("JPEG"), _picture("JPEG", "L")]),
}
"""What is read, by name."""
