"""Files made to do harm: each is refused with a sentence, and nothing of it happens."""

import contextlib
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from layouts import encoded, image_samples, write_food101, write_tar
from modelhound.cli import run
from modelhound.data import open_dataset
from modelhound.data.images import check_image, decode_image
from modelhound.data.source import UnreadableItemError
from modelhound.data.sources.cifar_pickle import load_plain_pickle
from modelhound.errors import DataError, ModelError, RequestError
from modelhound.models import find_models, source_of
from modelhound.models.checkpoints import count_tensors, read_tensors
from modelhound.settings import ModelSettings
from modelhound.store import open_run
from tiny_encoders import write_encoder

SIDE = 100_000


def _png(width: int, height: int, *more: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), *more, (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks)


def _bmp(width: int, height: int) -> bytes:
    return (
        b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    )


def _tiff(width: int, height: int) -> bytes:
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (277, 3, 1),
        (279, 4, 1),
    ]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(4)


def _jpeg(width: int, height: int) -> bytes:
    """A small JPEG whose head claims another size."""
    data = bytearray(encoded(0))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(data)


HUGE = {
    "PNG": _png(SIDE, SIDE),
    "BMP": _bmp(SIDE, SIDE),
    "TIFF": _tiff(SIDE, SIDE),
    "PPM": b"P6 %d %d 255\n" % (SIDE, SIDE),
    "JPEG": _jpeg(65_500, 65_500),
    "GIF": b"GIF89a"
    + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0)
    + b","
    + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0)
    + b"\x08\x00;",
}


@pytest.mark.parametrize("kind", HUGE)
def test_an_image_of_100_000_by_100_000_pixels_is_refused_by_its_head(kind: str) -> None:
    for read in (check_image, decode_image):
        with pytest.raises(UnreadableItemError, match="pixels"):
            read(HUGE[kind])


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_what_unpacks_to_a_gigabyte_beside_the_pixels_is_never_unpacked(kind: bytes) -> None:
    packer = zlib.compressobj(9)
    bomb = b"".join([packer.compress(bytes(1 << 20)) for _ in range(64)]) + packer.flush()
    data = _png(8, 8, (kind, b"name\0\0" + bomb))
    before = _peak_bytes()
    with pytest.raises(UnreadableItemError):
        decode_image(data)
    assert _peak_bytes() - before < 32 << 20


def _peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_table_that_claims_more_rows_than_its_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    num_rows = 4_000_000
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(num_rows, np.int32)), ["the same"])
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": texts}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 40_000
    with pytest.raises(DataError, match=r"4000000 rows .*decompression bomb; do not trust it"):
        open_dataset(str(tmp_path / "bomb.parquet"))


def test_a_table_of_many_equal_rows_is_no_bomb(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["good", "bad"] * 2000, "label": [0, 1] * 2000})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    assert len(open_dataset(str(tmp_path / "table.parquet"))) == 4000


def test_a_header_of_tensors_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    header = json.dumps({"a": entry}).encode()
    for content in (struct.pack("<Q", len(header)) + header, struct.pack("<Q", 1 << 62) + header):
        path.write_bytes(content)
        for read in (read_tensors, count_tensors):
            with pytest.raises(ModelError, match=r"cannot read weights of file:model .*fetch it again"):
                read("file:model", path)


def test_a_prepared_folder_cannot_name_files_outside_of_it(tmp_path: Path) -> None:
    from hostile_parsers import PARSERS

    manifest, *arrays = PARSERS["prepared folder"].seeds[0].split(b"\x00|\x00")
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "targets.npy").write_bytes(arrays[0])
    for name in ("/../../elsewhere", "..", "a/b"):
        (tmp_path / "prepared" / "prepared.json").write_bytes(manifest.replace(b"bicubic", name.encode()))
        with pytest.raises(DataError, match="expected a file as `hound prepare` made it"):
            open_dataset(str(tmp_path / "prepared"))


def test_an_array_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    from hostile_parsers import PARSERS, feed

    manifest, targets, checksums = PARSERS["prepared folder"].seeds[0].split(b"\x00|\x00")
    huge = targets.replace(b"(4,), }" + b" " * 10, b"(9999999999999,), }", 1)
    assert huge != targets
    sentence = feed("prepared folder", b"\x00|\x00".join([manifest, huge, checksums]), tmp_path)
    assert "expected a file as `hound prepare` made it" in sentence


class _Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.mark}",))


def test_a_pickle_in_any_place_where_files_are_read_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "it ran".replace(" ", "-")
    poison = pickle.dumps(_Trap(mark))
    for suffix in (".pt", ".bin", ".ckpt", ".pth", ".safetensors"):
        (tmp_path / f"model{suffix}").write_bytes(poison)
        with pytest.raises(ModelError, match="cannot read weights"):
            read_tensors("file:model", tmp_path / f"model{suffix}")
    torch.save({"state_dict": {"a": torch.ones(1)}, "extra": _Trap(mark)}, tmp_path / "zipped.pt")
    with pytest.raises(ModelError, match="to read those is to run code"):
        read_tensors("file:model", tmp_path / "zipped.pt")
    for name in ("table.csv", "table.jsonl", "table.parquet", "shard.tar", "data.json"):
        (tmp_path / name).write_bytes(poison)
        with pytest.raises(DataError):
            open_dataset(str(tmp_path / name))
    kept = io.BytesIO()
    np.save(kept, np.array([_Trap(mark)], dtype=object), allow_pickle=True)
    from hostile_parsers import PARSERS, feed

    manifest, _, checksums = PARSERS["prepared folder"].seeds[0].split(b"\x00|\x00")
    (tmp_path / "prepared").mkdir()
    assert feed("prepared folder", b"\x00|\x00".join([manifest, kept.getvalue(), checksums]), tmp_path / "prepared")
    assert not mark.exists()


@pytest.mark.parametrize("numbering", [b"r\0\0\0\2", b"p33554432\n"])
def test_a_pickle_that_numbers_its_parts_by_the_million_takes_no_memory_for_it(
    numbering: bytes, tmp_path: Path
) -> None:
    """Python's quick unpickler makes a table with a row for every number up to the largest: here 512 MB, or as many GB."""
    (tmp_path / "batch").write_bytes(b"\x80\x02}" + numbering + b".")
    before = _peak_bytes()
    with pytest.raises(DataError, match="before there are as many"):
        load_plain_pickle(tmp_path / "batch")
    assert _peak_bytes() - before < 32 << 20


@pytest.mark.parametrize("named_in", ["config.json", "tokenizer_config.json"])
def test_a_model_that_names_code_of_its_own_runs_none_of_it(named_in: str, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "stranger")
    mark = tmp_path / "it-ran"
    (folder / "trap.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Trap: pass\n")
    held = json.loads((folder / named_in).read_text())
    code = {"AutoConfig": "trap.Trap", "AutoModel": "trap.Trap", "AutoTokenizer": ["trap.Trap", "trap.Trap"]}
    (folder / named_in).write_text(json.dumps({**held, "auto_map": code}))
    (ref,) = find_models([f"file:{folder}"])
    source = source_of(ref)
    # the tokenizer's own code is passed over: its plain file says all that is needed
    refused = pytest.raises(ModelError, match="--allow-code") if named_in == "config.json" else contextlib.nullcontext()
    with refused:
        source.build(ref.name, source.read_weights(ref.name), ModelSettings())
    assert not mark.exists()


@pytest.mark.parametrize(
    "shards", [["../outside.safetensors"], ["/etc/hostname"], [".."], ["a/b.safetensors"], [3], []]
)
def test_an_index_of_weights_cannot_name_files_elsewhere(shards: list[Any], tmp_path: Path) -> None:
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.parent.mkdir()
    (tmp_path / "outside.safetensors").write_bytes(b"")
    index.write_text(json.dumps({"weight_map": {str(number): name for number, name in enumerate(shards)}}))
    with pytest.raises(ModelError, match="fetch it again"):
        read_tensors("file:model", index)


def _link(kind: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(f"link.{kind}")
    entry.type = tarfile.SYMTYPE if kind == "jpg" else tarfile.LNKTYPE
    entry.linkname = "/etc/passwd"
    return entry


def test_names_that_climb_out_of_an_archive_stay_mere_names(tmp_path: Path) -> None:
    climbing = [(f"../../../{name}", content) for name, content in image_samples(range(12))]
    absolute = [(f"/etc/{name}", content) for name, content in image_samples(range(12, 24))]
    path = write_tar(
        tmp_path / "inside" / "shard.tar", [*climbing, *absolute, (_link("jpg"), b""), (_link("png"), b"")]
    )
    before = set(tmp_path.rglob("*"))
    dataset = open_dataset(str(path))
    assert len(dataset) == 24
    assert isinstance(dataset.read(0), Image.Image)
    assert set(tmp_path.rglob("*")) - before <= {tmp_path / "cache", *(tmp_path / "cache").rglob("*")}
    assert any("links" in each.reason for each in dataset.skipped)


def test_a_zip_whose_names_climb_out_is_refused_and_nothing_is_unpacked(tmp_path: Path) -> None:
    """As data, and as weights: those of PyTorch are zip files."""
    archive = tmp_path / "a" / "b" / "photos.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        for name in ("../../../climbed.jpg", "/absolute.jpg", "model/../../data.pkl", "model/data.pkl"):
            made.writestr(name, encoded(0))
    (archive.parent / "model.pt").write_bytes(archive.read_bytes())
    before = set(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="it is a file"):
        open_dataset(str(archive))
    with pytest.raises(ModelError, match="cannot read weights"):
        read_tensors("file:model", archive.parent / "model.pt")
    assert set(tmp_path.rglob("*")) - before <= {tmp_path / "cache", *(tmp_path / "cache").rglob("*")}
    assert not Path("/absolute.jpg").exists()


def _write_photos(root: Path, number: int = 24) -> Path:
    for place in range(number):
        path = root / "ab"[place % 2] / f"{place:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(place))
    return root


def test_a_link_out_of_the_data_folder_is_left_out_and_said(tmp_path: Path) -> None:
    root = _write_photos(tmp_path / "photos")
    (tmp_path / "private.jpg").write_bytes(encoded(99))
    (root / "a" / "stolen.jpg").symlink_to(tmp_path / "private.jpg")
    (root / "a" / "again.jpg").symlink_to(root / "b" / "01.jpg")  # leads nowhere else
    dataset = open_dataset(str(root))
    (skipped,) = dataset.skipped
    assert (skipped.item, "--follow-links" in skipped.reason) == ("a/stolen.jpg", True)
    assert "a/again.jpg" in dataset.item_names
    assert "a/stolen.jpg" in open_dataset(str(root), follow_links=True).item_names


def test_a_folder_that_is_a_link_out_is_refused_as_a_class_and_as_a_split(tmp_path: Path) -> None:
    _write_photos(tmp_path / "private")
    root = _write_photos(tmp_path / "photos", 6)
    (root / "c").symlink_to(tmp_path / "private" / "a", target_is_directory=True)
    with pytest.raises(
        DataError, match=r"'c/00.jpg' \(it is a link that leads out of the data folder, add --follow-links"
    ):
        open_dataset(str(root))
    parted = tmp_path / "parted"
    parted.mkdir()
    (parted / "train").symlink_to(tmp_path / "private", target_is_directory=True)
    with pytest.raises(DataError, match="leads out of the data folder"):
        open_dataset(str(parted), split="train")
    assert len(open_dataset(str(parted), split="train", follow_links=True)) == 24


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    _write_photos(tmp_path / "photos")
    (tmp_path / "shortcut").symlink_to(tmp_path / "photos", target_is_directory=True)
    assert len(open_dataset(str(tmp_path / "shortcut"))) == 24


def test_links_out_of_the_folder_of_a_table_or_a_list_are_refused(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "0.jpg").write_bytes(encoded(0))
    table = tmp_path / "table"
    table.mkdir()
    for number in range(1, 8):
        (table / f"{number}.jpg").write_bytes(encoded(number))
    (table / "0.jpg").symlink_to(tmp_path / "private" / "0.jpg")
    (table / "items.csv").write_text("image,label\n" + "".join(f"{number}.jpg,{number % 2}\n" for number in range(8)))
    with pytest.raises(DataError, match="leads out of the data folder"):
        open_dataset(str(table / "items.csv"))
    food = write_food101(tmp_path / "food")
    first = sorted((food / "images").iterdir())[0]
    first.rename(tmp_path / "private" / first.name)
    first.symlink_to(tmp_path / "private" / first.name, target_is_directory=True)
    with pytest.raises(DataError, match="leads out of the data folder"):
        open_dataset(str(food))


@pytest.mark.parametrize("path", ["../private.jpg", "a/../../private.jpg", "..", "a\0b.jpg"])
def test_a_table_cannot_name_files_above_its_folder(path: str, tmp_path: Path) -> None:
    rows = [{"image": path, "label": 0}, *({"image": f"{number}.jpg", "label": number % 2} for number in range(6))]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="expected a path below the folder of the table"):
        open_dataset(str(tmp_path / "items.jsonl"), columns={"image": "image", "label": "label"})


@pytest.mark.parametrize("name", ["lock", "records.jsonl", "asked.json", "answer.json"])
def test_a_run_folder_whose_files_are_links_is_never_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    with (
        pytest.raises(RequestError, match=f"{name} is a link to somewhere else"),
        open_run(tmp_path / "run", verb="search", at="", settings={}, identity={}),
    ):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_report_of_a_strangers_run_writes_into_that_folder_alone(tmp_path: Path) -> None:
    """Settings of a run are shown and never followed; a page that is a link is replaced and not written through."""
    from modelhound.report.making import run_report
    from modelhound.settings import ReportSettings
    from report_runs import write_search

    folder = write_search(tmp_path / "run", ["zoo:a", "zoo:b"], num_items=8)
    asked = json.loads((folder / "asked.json").read_text())
    asked["settings"] |= {"data": "../../../etc/passwd", "run": "/etc", "out": "/etc/x", "loader": "/etc/passwd"}
    (folder / "asked.json").write_text(json.dumps(asked))
    (tmp_path / "precious").write_text("mine")
    (folder / "report.html").symlink_to(tmp_path / "precious")
    before = set(tmp_path.rglob("*"))
    result = run_report(ReportSettings(runs=(folder,)))
    assert result.page == folder / "report.html"
    assert not result.page.is_symlink()
    assert (tmp_path / "precious").read_text() == "mine"
    assert {each for each in set(tmp_path.rglob("*")) - before if "cache" not in each.parts} == set()


def test_markup_in_any_text_of_a_run_never_becomes_markup_of_the_page(tmp_path: Path) -> None:
    """Every text that a run folder holds is replaced by one that would run, if it were not escaped."""
    from modelhound.report.page import render_page
    from modelhound.report.pages import build_page
    from modelhound.store import read_run
    from report_runs import write_search

    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    models = [f"zoo:{evil}{number}" for number in range(3)]
    folder = write_search(tmp_path / "run", models, failures=(f"zoo:{evil}",), views=True)
    asked = json.loads((folder / "asked.json").read_text())
    texts = {key: evil for key, value in asked["settings"].items() if isinstance(value, str)}
    (folder / "asked.json").write_text(json.dumps({**asked, "at": evil, "settings": {**asked["settings"], **texts}}))
    html = render_page(build_page([read_run(folder)]), sources=evil)
    assert "alert(1)" in html
    assert "<script>alert" not in html
    assert "<img src=x" not in html


def test_nothing_a_stranger_wrote_shows_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself, once, from end to end."""
    root = _write_photos(tmp_path / "photos")
    (root / "a" / "huge.png").write_bytes(HUGE["PNG"])
    (tmp_path / "model.pt").write_bytes(pickle.dumps(_Trap(tmp_path / "it-ran")))
    asked = ["search", str(root), "--models", f"file:{tmp_path}/model.pt", "--arch", "timm:resnet10t"]
    assert run(asked) == 1
    shown = " ".join("".join(capsys.readouterr()).split())
    assert "Traceback" not in shown
    assert "to read those is to run code" in shown
    assert "decompression bomb" in shown
    assert not (tmp_path / "it-ran").exists()
