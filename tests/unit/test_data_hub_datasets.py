import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from modelhound.data import open_dataset
from modelhound.data.source import DataRequest
from modelhound.data.sources.hub_datasets import HubDatasetSource
from modelhound.data.sources.image_bytes import BytesReader
from refusals import message

TEXTS = ["good", "bad", "fine", "awful"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "train.csv": b"text,label\ngood,1\nbad,0\nfine,1\nawful,0\n",
    "test.csv": b"text,label\nnew,1\nold,0\nborrowed,1\nblue,0\n",
}


def films(prefix: str = "") -> datasets.Dataset:
    kinds = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": kinds})
    return datasets.Dataset.from_dict({"text": [prefix + text for text in TEXTS], "label": [1, 0, 1, 0]}, features)


def save(data: datasets.Dataset | datasets.DatasetDict, path: Path) -> str:
    datasets.disable_progress_bars()
    data.save_to_disk(str(path))
    return str(path)


def test_a_saved_data_set_keeps_its_order_and_class_names(tmp_path: Path) -> None:
    data = open_dataset(save(films(), tmp_path / "films"))
    assert data.class_names == ("neg", "pos")
    assert data.targets.tolist() == [1, 0, 1, 0]
    assert data.item_names == ("films:1", "films:2", "films:3", "films:4")
    assert data.read(3) == ("awful",)


def test_rows_that_were_filtered_out_before_saving_stay_out(tmp_path: Path) -> None:
    reference = save(films().select([3, 2, 1, 0]), tmp_path / "films")
    assert open_dataset(reference).read(0) == ("awful",)


def test_of_several_parts_train_is_taken_or_the_one_asked_for(tmp_path: Path) -> None:
    reference = save(datasets.DatasetDict(test=films("new "), train=films("old ")), tmp_path / "films")
    assert open_dataset(reference).read(0) == ("old good",)
    assert open_dataset(reference, split="test").read(0) == ("new good",)
    assert open_dataset(reference, split="test").item_names[0] == "test:1"
    text = message(reference, split="dev")
    assert "test, train" in text


def test_images_are_decoded_by_us_and_not_by_the_library(tmp_path: Path) -> None:
    files = []
    for number in range(4):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (number, 0, 0)).save(buffer, "PNG")
        files.append({"bytes": buffer.getvalue(), "path": None})
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    data = open_dataset(
        save(datasets.Dataset.from_dict({"image": files, "label": [0, 1, 0, 1]}, features), tmp_path / "pictures")
    )
    assert data.modality == "image"
    image = data.read(3)
    assert isinstance(image, Image.Image)
    assert image.getpixel((0, 0)) == (3, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped where")
def test_images_are_not_copied_out_of_the_memory_mapped_file(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    files = []
    for _ in range(9):
        buffer = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(buffer, "PNG")
        files.append(buffer.getvalue())
    values = {"image": [{"bytes": each, "path": "x"} for each in files], "label": ["a", "b", ""] * 3}
    values["image"][3] = {"bytes": None, "path": "x.png"}
    (folder := tmp_path / "pictures").mkdir()
    reference = save(datasets.concatenate_datasets([datasets.Dataset.from_dict(values)] * 10), folder)
    listing = HubDatasetSource().list_items(reference, DataRequest())
    assert isinstance(listing.reader, BytesReader)
    mapped = mapped_ranges(folder)
    views = [each for each in listing.reader.files if len(each)]
    assert len(views) == 50
    assert all(any(start <= view.address < stop for start, stop in mapped) for view in views)
    labelled = [each if place != 3 else b"" for place, each in enumerate(files) if place % 3 != 2]
    assert [bytes(each) for each in listing.reader.files] == labelled * 10


def mapped_ranges(folder: Path) -> list[tuple[int, int]]:
    """Where in this process's memory the files of a folder are mapped."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [line[0].split("-") for line in lines if line[-1].startswith(str(folder))]
    return [(int(start, 16), int(stop, 16)) for start, stop in ranges]


def test_lists_of_class_labels_are_several_labels(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["joy", "anger", "fear"])
    features = datasets.Features({"text": datasets.Value("string"), "labels": datasets.List(names)})
    values = {"text": TEXTS, "labels": [[0, 2], [1], [], [2]]}
    data = open_dataset(save(datasets.Dataset.from_dict(values, features), tmp_path / "moods"))
    assert (data.task, data.class_names) == ("multilabel", ("joy", "anger", "fear"))
    assert data.targets.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_an_arrow_file_is_read_alone(tmp_path: Path) -> None:
    save(films(), tmp_path / "films")
    (file,) = (tmp_path / "films").glob("*.arrow")
    data = open_dataset(str(file))
    assert data.class_names == ("neg", "pos")
    assert data.read(1) == ("bad",)


def test_a_saved_data_set_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    reference = save(films(), tmp_path / "films")
    (file,) = (tmp_path / "films").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:200])
    assert "save_to_disk" in message(reference)
    assert "Arrow file" in message(str(file))
    file.unlink()
    assert "save_to_disk" in message(reference)


def test_without_the_package_the_advice_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'modelhound[datasets]'" in message("hf:org/films")


@pytest.mark.parametrize("reference", ["hf:", "hf:./films", "hf:/films", "hf:a/b/c", "hf:~/films"])
def test_a_path_is_no_name(reference: str) -> None:
    assert "for a path leave hf: out" in message(reference)


def test_a_folder_of_the_same_name_is_not_taken_for_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "films").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "there is a path 'org/films' here" in message("hf:org/films")


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as the real client asks for one data set, org/films."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        kind, _, rest = self.path.partition("/org/films")
        if kind == "/api/datasets" and rest.startswith("/tree/"):
            inside = "/" in rest.removeprefix("/tree/")
            rows = [{"type": "file", "oid": "a" * 40, "size": len(FILES[name]), "path": name} for name in FILES]
            self.answer(json.dumps([] if inside else rows).encode())
        elif kind == "/api/datasets" and self.path.count("films"):
            siblings = [{"rfilename": name} for name in FILES]
            self.answer(json.dumps({"id": "org/films", "sha": COMMIT, "tags": [], "siblings": siblings}).encode())
        else:
            name = rest.rpartition("/")[2]
            self.answer(FILES.get(name) if kind == "/datasets" and rest.startswith("/resolve/") else None, etag=name)

    def answer(self, content: bytes | None, etag: str = "x") -> None:
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound" if "films" in self.path else "RepoNotFound")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


ASK = """
import json, sys
from modelhound.data import open_dataset
from modelhound.errors import DataError
for reference, split in json.loads(sys.argv[1]):
    try:
        data = open_dataset(reference, split=split)
        print(json.dumps([data.item_names[0], data.read(0)[0], data.targets.tolist()]))
    except DataError as error:
        print(json.dumps(str(error)))
"""


def ask(home: Path, endpoint: str, questions: list[tuple[str, str | None]], **variables: str) -> tuple[list[Any], str]:
    """The answers of a fresh process, since the client reads its settings when it is imported; and what it wrote besides."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **variables}
    command = [sys.executable, "-c", ASK, json.dumps(questions)]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_data_set_of_the_hub_is_opened_by_name_and_again_without_the_hub(tmp_path: Path, endpoint: str) -> None:
    questions: list[tuple[str, str | None]] = [
        ("hf:org/films", None),
        ("hf:org/films", "test"),
        ("hf:org/films", "dev"),
        ("hf:org/films:other", None),
        ("hf:org/none", None),
    ]
    (train, test, no_split, no_config, nothing), noise = ask(tmp_path, endpoint, questions, HF_HUB_OFFLINE="0")
    assert train == ["train:1", "good", [1, 0, 1, 0]]
    assert test == ["test:1", "new", [1, 0, 1, 0]]
    assert "expected one of its parts, train, test" in no_split
    assert "'other' not found" in no_config
    assert "doesn't exist on the Hub" in nothing
    assert noise == ""
    again, _ = ask(tmp_path, "http://127.0.0.1:9", questions[:1], HF_HUB_OFFLINE="1")
    assert again == [train]
