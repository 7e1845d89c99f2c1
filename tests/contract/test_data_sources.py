"""What every data source promises. A new source adds itself to SOURCES and is held to all of it."""

import csv
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from transformers import BertTokenizerFast

from layouts import image_samples, write_cifar100_binary, write_cifar100_python, write_food101, write_tar
from modelhound.data import Dataset, Preprocessing, Tokenising, load_batches, open_dataset
from modelhound.data.dataset import glance
from modelhound.data.preparing import prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.data.source import Item, Reader
from modelhound.data.sources.cifar import CifarReader
from modelhound.data.sources.embedded import ArrayReader
from modelhound.data.sources.image_bytes import BytesReader
from modelhound.data.sources.texts import TextReader
from modelhound.records import silent
from modelhound.settings import DataSettings

PREPROCESSING = Preprocessing(
    input_size=(24, 24),
    interpolation="bicubic",
    crop_fraction=0.9,
    crop_mode="center",
    mean=(0.5, 0.4, 0.3),
    std=(0.2, 0.3, 0.4),
)


@dataclass(frozen=True)
class Case:
    """A reference, how many classes are behind it, and a way to change the content of its first item."""

    reference: str
    num_classes: int
    change_first: Callable[[Dataset], Reader]


def embedded(name: str, folder: Path) -> Case:
    def change(dataset: Dataset) -> Reader:
        assert isinstance(dataset.reader, ArrayReader)
        images = dataset.reader.images.copy()
        images[0, 0, 0] ^= 1
        return replace(dataset.reader, images=images)

    return Case(name, 10, change)


def image_folder(name: str, folder: Path) -> Case:
    generator = np.random.default_rng(1)
    suffixes = (".jpg", ".png", ".webp", ".bmp", ".JPEG")
    for number in range(90):
        path = folder / ("cat", "dog", "ox")[min(2, number // 40)] / f"{number}{suffixes[number % 5]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (30 + number % 7, 40, 3), dtype=np.uint8)).save(path)

    def change(dataset: Dataset) -> Reader:
        Image.new("RGB", (3, 3)).save(folder / dataset.item_names[0])
        return dataset.reader

    return Case(str(folder), 3, change)


def embedded_texts(name: str, folder: Path) -> Case:
    return Case(name, 2, change_text)


def change_text(dataset: Dataset) -> Reader:
    assert isinstance(dataset.reader, TextReader)
    (*texts, last), *others = dataset.reader.texts
    return replace(dataset.reader, texts=((*texts, last + "!"), *others))


def table(name: str, folder: Path) -> Case:
    """90 short texts of three kinds, in whatever file the name asks for; in some, pairs of texts."""
    kinds = [("cat", "dog", "ox")[min(2, number // 40)] for number in range(90)]
    words = [f"item {number * 31 % 97} of the {kind}s" for number, kind in enumerate(kinds)]
    columns = {"premise": words, "hypothesis": words[::-1]} if "pairs" in name else {"text": words}
    path = folder / f"items{Path(name).suffix}"
    folder.mkdir()
    write_table({**columns, "label": kinds}, path)
    return Case(str(path), 3, change_text)


def table_of_images(name: str, folder: Path) -> Case:
    """Paths in a CSV file, or the files themselves in a Parquet file."""
    generator = np.random.default_rng(2)
    folder.mkdir()
    images: list[object] = []
    for number in range(90):
        buffer = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (30, 40 + number % 7, 3), dtype=np.uint8)).save(buffer, "PNG")
        (folder / f"{number}.png").write_bytes(buffer.getvalue())
        images.append(f"{number}.png" if name.endswith(".csv") else {"bytes": buffer.getvalue(), "path": None})
    path = folder / f"items{Path(name).suffix}"
    write_table({"image": images, "label": [number % 3 for number in range(90)]}, path)

    def change(dataset: Dataset) -> Reader:
        if isinstance(dataset.reader, BytesReader):
            first, *others = dataset.reader.files
            return replace(dataset.reader, files=(bytes(first) + b"!", *others))
        Image.new("RGB", (3, 3)).save(folder / "0.png")
        return dataset.reader

    return Case(str(path), 3, change)


def write_table(columns: dict[str, list[object]] | dict[str, list[str]], path: Path) -> None:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    elif path.suffix == ".json":
        path.write_bytes(msgspec.json.encode(rows))
    elif path.suffix == ".saved":
        datasets.disable_progress_bars()
        datasets.Dataset.from_dict(columns).save_to_disk(str(path))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(columns), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)


def shards(name: str, folder: Path) -> Case:
    """90 images or texts in three tar files, of which the first holds one only: a changed file changes all stamps in it."""
    samples = image_samples(range(90))
    if name == "texts.tar":
        samples = [
            (f"{key[:4]}.txt", f"text {key}".encode()) if key.endswith("jpg") else (key, c) for key, c in samples
        ]
    for number, (start, end) in enumerate(((0, 1), (1, 50), (50, 90))):
        write_tar(folder / f"shard-{number}.tar", samples[2 * start : 2 * end])

    def change(dataset: Dataset) -> Reader:
        write_tar(folder / "shard-0.tar", [("0000.png", b"another"), ("0000.cls", b"0")])
        return dataset.reader

    return Case(str(folder), 3, change)


def cifar(name: str, folder: Path) -> Case:
    (write_cifar100_binary if name.endswith("binary") else write_cifar100_python)(folder)

    def change(dataset: Dataset) -> Reader:
        assert isinstance(dataset.reader, CifarReader)
        images = dataset.reader.arrays[0].copy()
        images[0, 3071] ^= 1
        return replace(dataset.reader, arrays=(images,))

    return Case(str(folder), 4, change)


def food101(name: str, folder: Path) -> Case:
    write_food101(folder, per_class=45)

    def change(dataset: Dataset) -> Reader:
        Image.new("RGB", (3, 3)).save(folder / "images" / dataset.item_names[0])
        return dataset.reader

    return Case(str(folder), 3, change)


def prepared(name: str, folder: Path) -> Case:
    """Of the two, one is prepared for PREPROCESSING and one is not."""
    image_folder(name, folder)
    variant = Variant.of(PREPROCESSING) if name == "prepared" else Variant.square(30)
    out = folder.with_name("prepared")
    prepare_items(
        open_dataset(str(folder)),
        out,
        [variant],
        glance=glance(DataSettings(str(folder))),
        watch=silent,
        shard_bytes=50_000,
    )

    def change(dataset: Dataset) -> Reader:
        with (out / variant.name / "shard-00000.bin").open("r+b") as file:
            first = file.read(1)[0]
            file.seek(0)
            file.write(bytes([first ^ 1]))
        return dataset.reader

    return Case(str(out), 3, change)


SOURCES: dict[str, Callable[[str, Path], Case]] = {
    "digits": embedded,
    "fashion": embedded,
    "sms": embedded_texts,
    "folder": image_folder,
    "table.csv": table,
    "pairs.tsv": table,
    "table.jsonl": table,
    "pairs.json": table,
    "table.parquet": table,
    "pairs.saved": table,
    "images.csv": table_of_images,
    "images.parquet": table_of_images,
    "images.saved": table_of_images,
    "images.tar": shards,
    "texts.tar": shards,
    "cifar-100-binary": cifar,
    "cifar-100-python": cifar,
    "food-101": food101,
    "prepared": prepared,
    "prepared for others": prepared,
}


@pytest.fixture(params=SOURCES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return SOURCES[request.param](request.param, tmp_path / "items")


@pytest.fixture
def tokenising(tmp_path: Path) -> Tokenising:
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "item", "of", "the", "##s", "cat"])
    )
    folder = str(tmp_path / "tokenizer")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    return Tokenising(folder=folder, max_tokens=12, fingerprint="small")


def content(item: Item) -> object:
    """What two equal items have in common."""
    return item.tobytes() if isinstance(item, Image.Image) else item


def test_opening_twice_gives_the_same(case: Case) -> None:
    first, second = open_dataset(case.reference), open_dataset(case.reference)
    assert first == second
    assert first.name == case.reference
    assert len(first.fingerprint) == 64


def test_every_item_has_a_valid_label_and_a_name_of_its_own(case: Case) -> None:
    data = open_dataset(case.reference)
    assert len(data) == len(data.targets) == len(data.item_names) == len(set(data.item_names))
    assert len(data.class_names) == len(set(data.class_names)) == case.num_classes
    assert data.targets.dtype == np.int64
    assert np.unique(data.targets).tolist() == list(range(case.num_classes))


def test_every_item_is_an_8_bit_rgb_image_or_one_or_two_texts(case: Case) -> None:
    data = open_dataset(case.reference, limit=30)
    for index in range(len(data)):
        item = data.read(index)
        if isinstance(item, Image.Image):
            assert data.modality == "image"
            assert item.mode == "RGB"
            assert np.asarray(item).dtype == np.uint8
            assert min(item.size) >= 1
        else:
            assert data.modality == "text"
            assert len(item) in (1, 2)
            assert all(type(text) is str and text.strip() for text in item)


def test_a_limit_takes_the_same_number_of_every_class(case: Case) -> None:
    data = open_dataset(case.reference, limit=6 * case.num_classes)
    assert np.bincount(data.targets).tolist() == [6] * case.num_classes
    assert len(data.class_names) == case.num_classes


def test_a_limit_takes_what_the_seed_says_in_the_order_of_the_whole(case: Case) -> None:
    whole = open_dataset(case.reference)
    some = open_dataset(case.reference, limit=30, seed=4)
    places = [whole.item_names.index(name) for name in some.item_names]
    assert places == sorted(places)
    assert whole.targets[places].tolist() == some.targets.tolist()
    assert open_dataset(case.reference, limit=30, seed=4) == some
    assert open_dataset(case.reference, limit=30, seed=5).item_names != some.item_names


def test_a_limited_item_is_the_one_it_is_called(case: Case) -> None:
    whole, some = open_dataset(case.reference), open_dataset(case.reference, limit=30)
    for index in (0, 13, 29):
        original = whole.read(whole.item_names.index(some.item_names[index]))
        assert content(some.read(index)) == content(original)


def test_other_items_have_another_fingerprint(case: Case) -> None:
    whole = open_dataset(case.reference)
    seen = {open_dataset(case.reference, limit=30, seed=seed).fingerprint for seed in (0, 1)}
    assert len(seen | {whole.fingerprint}) == 3


def test_everything_is_the_same_whatever_the_limit_and_seed_that_ask_for_it(case: Case) -> None:
    assert open_dataset(case.reference, limit=10**6, seed=7).fingerprint == open_dataset(case.reference).fingerprint


def test_another_content_has_another_stamp(case: Case) -> None:
    data = open_dataset(case.reference)
    before, other = data.reader.stamp(0), data.reader.stamp(1)
    changed = case.change_first(data)
    assert changed.stamp(0) != before
    assert changed.stamp(1) == other


def test_a_dataset_survives_pickling(case: Case) -> None:
    data = open_dataset(case.reference, limit=30)
    again: Dataset = pickle.loads(pickle.dumps(data))
    assert again == data
    assert content(again.read(7)) == content(data.read(7))


def test_batches_are_the_same_whatever_the_number_of_workers(case: Case, tokenising: Tokenising) -> None:
    data = open_dataset(case.reference, limit=40)
    form = PREPROCESSING if data.modality == "image" else tokenising
    plain = list(load_batches(data, form, batch=16, workers=0))
    shared = list(load_batches(data, form, batch=16, workers=2))
    assert len(plain) == len(shared) == 3
    for one, other in zip(plain, shared, strict=True):
        assert torch.equal(one.targets, other.targets)
        tensors = [each.inputs if isinstance(each.inputs, dict) else {"": each.inputs} for each in (one, other)]
        assert tensors[0].keys() == tensors[1].keys()
        assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    assert np.array_equal(np.concatenate([each.targets.numpy() for each in plain]), data.targets)
