"""Small data sets in other people's layouts, written the way those people write them."""

import io
import pickle
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

FINE, COARSE = ("apple", "bear", "cup", "dinosaur"), ("fruit", "animals")
COARSE_OF_FINE = (0, 1, 0, 1)


def random_image(number: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    generator = np.random.default_rng(number)
    return Image.fromarray(generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def encoded(number: int, kind: str = "JPEG", size: tuple[int, int] = (40, 30)) -> bytes:
    target = io.BytesIO()
    random_image(number, size).save(target, kind)
    return target.getvalue()


def write_tar(path: Path, files: Iterable[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name) if isinstance(name, str) else name
            if isinstance(name, str):
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def image_samples(numbers: Iterable[int], num_classes: int = 3) -> list[tuple[str, bytes]]:
    """An image and its class for each number, as WebDataset's own writer would put them."""
    return [
        file
        for number in numbers
        for file in ((f"{number:04}.jpg", encoded(number)), (f"{number:04}.cls", str(number % num_classes).encode()))
    ]


def cifar_arrays(
    num_items: int, num_classes: int, seed: int = 0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images = np.random.default_rng(seed).integers(0, 256, (num_items, 3072), dtype=np.uint8)
    return images, (np.arange(num_items) % num_classes).astype(np.uint8)


def write_cifar100_binary(folder: Path, num_items: int = 60) -> Path:
    folder.mkdir(parents=True)
    (folder / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n\n")
    for seed, split in enumerate(("train", "test")):
        images, fine = cifar_arrays(num_items, 4, seed)
        coarse = np.array(COARSE_OF_FINE, np.uint8)[fine]
        np.hstack([coarse[:, None], fine[:, None], images]).tofile(folder / f"{split}.bin")
    return folder


def write_cifar100_python(folder: Path, num_items: int = 60, protocol: int = 2) -> Path:
    folder.mkdir(parents=True)
    _write_pickle(folder / "meta", {"fine_label_names": list(FINE), "coarse_label_names": list(COARSE)}, protocol)
    for seed, split in enumerate(("train", "test")):
        images, fine = cifar_arrays(num_items, 4, seed)
        content = {
            "data": images,
            "fine_labels": fine.tolist(),
            "coarse_labels": [COARSE_OF_FINE[label] for label in fine],
            "filenames": [f"{number}.png" for number in range(num_items)],
            "batch_label": "training batch 1 of 1",
        }
        _write_pickle(folder / split, content, protocol)
    return folder


def write_cifar10(folder: Path, *, binary: bool, num_items: int = 12) -> Path:
    folder.mkdir(parents=True)
    names = ["plane", "car", "bird"]
    if binary:
        (folder / "batches.meta.txt").write_text("\n".join(names))
    else:
        _write_pickle(folder / "batches.meta", {"label_names": names, "num_vis": 3072}, 2)
    for seed, batch in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        images, labels = cifar_arrays(num_items, 3, seed)
        if binary:
            np.hstack([labels[:, None], images]).tofile(folder / f"{batch}.bin")
        else:
            _write_pickle(folder / batch, {"data": images, "labels": labels.tolist()}, 2)
    return folder


def _write_pickle(path: Path, content: Mapping[str, Any], protocol: int) -> None:
    """With the module names of numpy 1, which real files have."""
    written = pickle.dumps(dict(content), protocol=protocol)
    if protocol == 2:  # names end with a line there, so that a shorter one fits
        written = written.replace(b"numpy._core", b"numpy.core")
    path.write_bytes(written)


def write_food101(folder: Path, per_class: int = 15, *, lists: str = "txt") -> Path:
    import json

    entries: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for label, name in enumerate(("waffles", "apple_pie", "tacos")):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(per_class):
            entry = f"{name}/{1000 * label + number}"
            (folder / "images" / f"{entry}.jpg").write_bytes(encoded(1000 * label + number))
            entries["test" if number % 3 == 0 else "train"].setdefault(name, []).append(entry)
    (folder / "meta").mkdir()
    (folder / "meta" / "classes.txt").write_text("apple_pie\ntacos\nwaffles\n")
    for split, of_class in entries.items():
        lines = "\n".join(entry for each in of_class.values() for entry in each)
        (folder / "meta" / f"{split}.{lists}").write_text(lines + "\n" if lists == "txt" else json.dumps(of_class))
    return folder
