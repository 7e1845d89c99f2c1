"""How fast the feature store writes and reads, beside plain .npy files of the same bytes.

Every round has a process of its own and one core; within it store and .npy take turns, key by key, and in writing the first
of them is now the one, now the other. The first read is that of a new start: it digests the stamps, reads each index and checks
every row. Later reads of the same process check nothing and, where rows are asked for in the order they were written, copy
nothing. "Cold" reads come from the disk: the files are flushed and taken out of the page cache before.

    python benchmarks/feature_store.py [--json] [--repeats 6] [--items 10000]
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from children import measure_in_child
from modelhound.meter import describe_machine
from modelhound.records import to_plain

CASES = {"1 key x 2048": (1, 2048), "30 keys x 512": (30, 512)}
BATCH = 128


def measure_once(num_keys: int, width: int, num_items: int, first: int) -> dict[str, float]:
    """Runs in a child: seconds of each piece of work, over all keys."""
    import numpy as np

    from modelhound.feature_store import FeatureStore
    from modelhound.meter import Meter

    rows = np.random.default_rng(0).standard_normal((num_items, width), np.float32)
    items = tuple(
        f"/photos/class{number % 10}/{number:06}.jpg:{40_000 + number}:{1_700_000_000 + number}"
        for number in range(num_items)
    )
    shuffled = tuple(items[number] for number in np.random.default_rng(1).permutation(num_items))
    keys = [f"key {number}" for number in range(num_keys)]
    meter = Meter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        store = FeatureStore(folder / "whole")

        def write_store(key: str) -> None:
            with meter.phase("write"):
                store.write(key, items, rows)

        def write_npy(key: str) -> None:
            with meter.phase("write .npy"):
                np.save(folder / f"{key}.npy", rows)

        for number, key in enumerate(keys, first):
            for write in (write_store, write_npy)[:: 1 if number % 2 else -1]:
                write(key)
        in_batches = FeatureStore(folder / "batches")
        for start in range(0, num_items, BATCH):
            with meter.phase("write one key in batches"):
                in_batches.write(keys[0], items[start : start + BATCH], rows[start : start + BATCH])
        for round_name in ("", " cold"):
            if round_name:
                _leave_page_cache(folder)
            store = FeatureStore(folder / "whole")  # as a new start would: nothing checked, no index read
            for key in keys:
                with meter.phase(f"read{round_name}"):
                    found = store.read(key, items)
                with meter.phase(f"read .npy{round_name}"):
                    loaded = np.load(folder / f"{key}.npy")
                assert np.array_equal(found.rows, loaded)
        for key in keys:
            with meter.phase("read again"):
                store.read(key, items)
            with meter.phase("read again, shuffled"):
                store.read(key, shuffled)
        with meter.phase("write again what is here"):
            for key in keys:
                store.write(key, items, rows)
    return {samples.phase: samples.total for samples in meter.samples}


def _leave_page_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDWR)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=6, help="rounds, of which the fastest counts")
    parser.add_argument("--items", type=int, default=10_000)
    asked = parser.parse_args()
    rounds: list[dict[str, Any]] = [
        {
            "case": name,
            **measure_in_child("feature_store:measure_once", *case, asked.items, number, OMP_NUM_THREADS="1"),
        }
        for number in range(asked.repeats)
        for name, case in CASES.items()
    ]
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "items": asked.items, "rounds": rounds}, indent=1))
        return
    print("| keys x width | work | MB | ms, fastest | ms, each round | GB/s |\n|---|---|---|---|---|---|")
    for name, (num_keys, width) in CASES.items():
        same = [each for each in rounds if each["case"] == name]
        for work in (key for key in same[0] if key != "case"):
            samples = [each[work] for each in same]
            size_bytes = asked.items * width * 4 * (1 if "one key" in work else num_keys)
            print(
                f"| {name} | {work} | {size_bytes / 1e6:.0f} | {min(samples) * 1e3:.1f} "
                f"| {', '.join(f'{sample * 1e3:.0f}' for sample in samples)} | {size_bytes / 1e9 / min(samples):.1f} |"
            )


if __name__ == "__main__":
    main()
