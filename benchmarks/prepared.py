"""Reading prepared items, beside a plain memory-mapped copy of the same bytes and beside decoding the photos they come from.

All ways of a kind take turns, so that whatever else the machine does meets all of them; the best of the turns counts, and the
median of the ratios is given beside it. Files are in the page cache.

    python benchmarks/prepared.py [--json] [--items 2000] [--turns 15] [--folder FOLDER]
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modelhound.data import Preprocessing, load_batches, open_dataset
from modelhound.data.preprocessing import Variant, make_transform
from modelhound.data.sources.prepared import PreparedReader
from modelhound.meter import describe_machine, seconds_now
from modelhound.records import to_plain
from modelhound.verbs.prepare import prepare

BATCH = 64
SIZE = 224
NUM_DECODED = 320  # photos per turn where each is decoded
WANTED = Preprocessing(
    input_size=(SIZE, SIZE),
    interpolation="bicubic",
    crop_fraction=1.0,
    crop_mode="center",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)

Turn = Callable[[], int]
"""Does the work once; returns how many items it was."""


def make_photos(folder: Path, num_items: int) -> None:
    """JPEG files of 500 x 375 pixels: soft shapes with some grain, about 50 kB each, like photographs."""
    generator = np.random.default_rng(0)
    for number in range(num_items):
        path = folder / f"class{number % 10}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize((500, 375), 3)
        grain = generator.normal(0, 8, (375, 500, 1))
        Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)


def copying(reader: PreparedReader, folder: Path, num_items: int) -> dict[str, dict[str, Turn]]:
    """Batches of pixels, in order and at random, from the shards and from one plain file with the same bytes."""
    plain_file = folder / "plain.bin"
    with plain_file.open("wb") as file:
        for start in range(0, num_items, BATCH):
            file.write(reader.read_pixels(range(start, min(start + BATCH, num_items)), WANTED).tobytes())
    plain = np.memmap(plain_file, np.uint8, mode="r").reshape(num_items, SIZE, SIZE, 3)
    starts = range(0, num_items, BATCH)
    shuffled = np.random.default_rng(1).permutation(num_items)
    groups = [shuffled[start : start + BATCH] for start in starts]
    lists: list[Sequence[int]] = [group.tolist() for group in groups]

    def plain_in_order() -> int:
        return sum(len(np.array(plain[start : start + BATCH])) for start in starts)

    def prepared_in_order() -> int:
        return sum(len(reader.read_pixels(range(start, min(start + BATCH, num_items)), WANTED)) for start in starts)

    def plain_at_random() -> int:
        return sum(len(plain[group]) for group in groups)

    def prepared_at_random() -> int:
        return sum(len(reader.read_pixels(group, WANTED)) for group in lists)

    return {
        "pixels, in order": {"plain copy": plain_in_order, "prepared": prepared_in_order},
        "pixels, at random": {"plain copy": plain_at_random, "prepared": prepared_at_random},
    }


def loading(photos: str, ready: str) -> dict[str, dict[str, Turn]]:
    """Batches of float32 tensors as a model takes them, in this process."""
    original, copy = (open_dataset(each, limit=NUM_DECODED) for each in (photos, ready))
    make_transform(WANTED)

    def load(dataset: Any) -> Turn:
        return lambda: sum(len(batch) for batch in load_batches(dataset, WANTED, batch=BATCH, workers=0))

    return {"tensors, one process": {"JPEG": load(original), "prepared": load(copy)}}


def take_turns(ways: dict[str, Turn], num_turns: int) -> dict[str, Any]:
    """Items per second of each way at its best, and how the second compares with the first."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in ways.values():
        turn()  # maps, caches and libraries
    for number in range(num_turns):
        for name in sorted(ways, reverse=number % 2 == 1):
            start = seconds_now()
            num_items = ways[name]()
            rates[name].append(num_items / (seconds_now() - start))
    first, second = ways
    return {
        "best": {name: max(each) for name, each in rates.items()},
        "ratio_of_best": max(rates[second]) / max(rates[first]),
        "median_ratio": statistics.median(b / a for a, b in zip(rates[first], rates[second], strict=True)),
    }


def measure(folder: Path, num_items: int, num_turns: int) -> dict[str, Any]:
    photos, ready = folder / "photos", folder / "ready"
    make_photos(photos, num_items)
    start = seconds_now()
    made = prepare(str(photos), ready, size=SIZE)
    seconds = seconds_now() - start
    reader = open_dataset(str(ready)).reader
    assert isinstance(reader, PreparedReader)
    assert Variant.of(WANTED) == Variant.square(SIZE)
    results = {}
    for name, ways in copying(reader, folder, num_items).items():
        results[name] = take_turns(ways, num_turns)
    for name, ways in loading(str(photos), str(ready)).items():
        results[name] = take_turns(ways, max(3, num_turns // 3))
    jpeg_bytes = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    return {
        "num_items": num_items,
        "prepare_seconds": seconds,
        "prepared_bytes": made.num_bytes,
        "jpeg_bytes": jpeg_bytes,
        "results": results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where the files go; a temporary folder by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        measured = measure(Path(folder), asked.items, asked.turns)
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), **measured}, indent=1))
        return
    megabytes = {name: measured[name] / 1e6 for name in ("prepared_bytes", "jpeg_bytes")}
    print(
        f"{measured['num_items']} photos, {megabytes['jpeg_bytes']:.0f} MB of JPEG, prepared in "
        f"{measured['prepare_seconds']:.1f} s to {megabytes['prepared_bytes']:.0f} MB\n\n"
        "| what | first way, items/s | prepared, items/s | ratio of the best | median ratio |\n|---|---|---|---|---|"
    )
    for name, row in measured["results"].items():
        (first, rate), (_, prepared) = row["best"].items()
        print(
            f"| {name} | {first} {rate:.0f} | {prepared:.0f} | {row['ratio_of_best']:.2f} | {row['median_ratio']:.2f} |"
        )


if __name__ == "__main__":
    main()
